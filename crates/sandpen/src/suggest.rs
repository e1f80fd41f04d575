//! "Did you mean": the known word nearest to one that is not known.

/// `None` when nothing is near enough to be a likely slip of the fingers.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let known = ["python", "javascript", "bash", "ruby"];
        assert_eq!(nearest("pyhton", known), Some("python"));
        assert_eq!(nearest("Javscript", known), Some("javascript"));
        assert_eq!(nearest("cobol", known), None);
    }
}
