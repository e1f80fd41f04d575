//! Files of `key = value` lines below `[section]` lines, as pip and npm write them.

/// Section, key, value: in their order, a value over several lines as one with line breaks.
pub fn entries(text: &str) -> Vec<(String, String, String)> {
    let mut section = String::new();
    let mut entries: Vec<(String, String, String)> = Vec::new();
    for line in text.lines() {
        let is_continued = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let (true, Some((_, _, value))) = (is_continued, entries.last_mut()) {
            value.push('\n');
            value.push_str(line);
        } else if let Some((key, value)) = line.split_once('=') {
            entries.push((section.clone(), key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_their_clients_read_them() {
        let text = "top = 1\n# no\n[global]\nindex-url = https://a/simple?x=y\nextra-index-url =\n    https://b\n\thttps://c\n; no\n[install]\nx=\n";
        let read: Vec<String> =
            entries(text).into_iter().map(|(section, key, value)| format!("{section}|{key}|{value}")).collect();
        assert_eq!(
            read,
            [
                "|top|1",
                "global|index-url|https://a/simple?x=y",
                "global|extra-index-url|\nhttps://b\nhttps://c",
                "install|x|"
            ]
        );
    }
}
