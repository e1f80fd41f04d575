//! Words of an instruction, with their quotes: those are taken away when variables are filled in.

/// Parts between blanks that are neither quoted nor escaped.
pub fn split(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            (character, _) if character == escape && quote != Some('\'') => {
                word.push(character);
                word.extend(characters.next());
            }
            ('"' | '\'', None) => {
                quote = Some(character);
                word.push(character);
            }
            (character, Some(open)) if character == open => {
                quote = None;
                word.push(character);
            }
            (character, None) if character.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (character, _) => word.push(character),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
