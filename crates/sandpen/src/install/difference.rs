//! What a change does to a text, as lines with a sign.

use anstyle::Style;

use crate::output::{BAD, DIM, GOOD, printable};

/// Lines that stay, before and behind those that change.
const CONTEXT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Both(&'a str),
    Before(&'a str),
    After(&'a str),
}

/// In the form of `diff -u`, with everything in one piece; empty when nothing changes.
pub fn unified(path: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = |(left, right): &(&&str, &&str)| left == right;
    let head = old.iter().zip(&new).take_while(same).count();
    let most = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(most).take_while(same).count();
    let start = head.saturating_sub(CONTEXT);
    let behind = tail.min(CONTEXT);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);

    let mut lines: Vec<Line<'_>> = old[start..head].iter().map(|line| Line::Both(line)).collect();
    lines.extend(changed(&old[head..old_end], &new[head..new_end]));
    lines.extend(old[old_end..old_end + behind].iter().map(|line| Line::Both(line)));

    let range =
        |end: usize| format!("{},{}", if end + behind > start { start + 1 } else { start }, end + behind - start);
    let mut text = format!("{DIM}--- {path}\n+++ {path}\n@@ -{} +{} @@{DIM:#}\n", range(old_end), range(new_end));
    for line in lines {
        let (sign, content, style) = match line {
            Line::Both(content) => (' ', content, Style::new()),
            Line::Before(content) => ('-', content, BAD),
            Line::After(content) => ('+', content, GOOD),
        };
        text += &format!("{style}{sign}{}{style:#}\n", printable(&content.replace('\t', "    ")));
    }
    text
}

/// The longest lines in common stay. Quadratic, which does no harm to the few lines of an entry.
fn changed<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (row, left) in old.iter().enumerate().rev() {
        for (column, right) in new.iter().enumerate().rev() {
            common[row][column] = if left == right {
                common[row + 1][column + 1] + 1
            } else {
                common[row + 1][column].max(common[row][column + 1])
            };
        }
    }
    let (mut row, mut column, mut lines) = (0, 0, Vec::new());
    while row < old.len() || column < new.len() {
        if row < old.len() && column < new.len() && old[row] == new[column] {
            lines.push(Line::Both(old[row]));
            (row, column) = (row + 1, column + 1);
        } else if column == new.len() || row < old.len() && common[row + 1][column] >= common[row][column + 1] {
            lines.push(Line::Before(old[row]));
            row += 1;
        } else {
            lines.push(Line::After(new[column]));
            column += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(before: &str, after: &str) -> String {
        anstream::adapter::strip_str(&unified("f", before, after)).to_string()
    }

    #[test]
    fn what_changes_is_shown_among_what_stays() {
        let wanted = "--- f\n+++ f\n@@ -2,6 +2,6 @@\n b\n c\n d\n-e\n+E\n f\n+g2\n-g\n";
        assert_eq!(plain("a\nb\nc\nd\ne\nf\ng\n", "a\nb\nc\nd\nE\nf\ng2\n"), wanted.replace("+g2\n-g\n", "-g\n+g2\n"));
        assert_eq!(plain("", "x\ny\n"), "--- f\n+++ f\n@@ -0,0 +1,2 @@\n+x\n+y\n");
        assert_eq!(plain("x\n", "x\n"), "");
    }

    #[test]
    fn a_file_cannot_drive_the_terminal() {
        assert!(!plain("", "\u{1b}]0;x").contains('\u{1b}'));
    }
}
