//! Text for a model's context: bounded by what it takes once it is written down as JSON, not by what it was before.

/// How much of a file is shown at once.
pub const PART: u64 = 32 * 1024;

/// The bytes that a character takes inside a JSON string.
fn encoded_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        character if (character as u32) < 0x20 => 6,
        character => character.len_utf8(),
    }
}

/// How many bytes of the beginning fit into so many encoded ones, cut between characters.
pub fn encoded_prefix(text: &str, most: usize) -> usize {
    let mut room = most;
    for (index, character) in text.char_indices() {
        match room.checked_sub(encoded_length(character)) {
            Some(left) => room = left,
            None => return index,
        }
    }
    text.len()
}

/// Where the end begins that fits into so many encoded bytes.
pub fn encoded_suffix(text: &str, most: usize) -> usize {
    let mut room = most;
    for (index, character) in text.char_indices().rev() {
        match room.checked_sub(encoded_length(character)) {
            Some(left) => room = left,
            None => return index + character.len_utf8(),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_is_written() {
        let text: String = (0..0x250).filter_map(char::from_u32).chain(['€', '𝄞']).collect();
        let written = serde_json::to_string(&text).unwrap();
        assert_eq!(text.chars().map(encoded_length).sum::<usize>(), written.len() - 2);
    }

    #[test]
    fn cuts_fall_between_characters_from_both_ends() {
        let text = "ä\u{1}€\"x";
        for most in 0..20 {
            let head = &text[..encoded_prefix(text, most)];
            let tail = &text[encoded_suffix(text, most)..];
            for part in [head, tail] {
                assert!(serde_json::to_string(part).unwrap().len() - 2 <= most);
            }
        }
        assert_eq!(encoded_prefix(text, 20), text.len());
        assert_eq!(encoded_suffix(text, 20), 0);
    }
}
