//! Which known word somebody may have meant.

/// The names of the nearest known words, at most three, nearest first; none when nothing is near.
pub(crate) fn nearest<'a>(wanted: &str, words: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<&'a str> {
    // A client may send anything; no word that we know is this long.
    if wanted.len() > 40 {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = words
        .map(|(word, name)| (distance(wanted, word), name))
        .filter(|(distance, name)| *distance <= 2 && *distance < name.len().max(2))
        .collect();
    near.sort();
    let mut names = Vec::new();
    for (_, name) in near {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.truncate(3);
    names
}

/// Insertions, deletions, replacements and swaps of neighbours.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut best = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_typing_mistakes() {
        for (left, right, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("pyhton", "python", 1),
            ("pyton", "python", 1),
            ("lua", "java", 3),
            ("é", "e", 1),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
