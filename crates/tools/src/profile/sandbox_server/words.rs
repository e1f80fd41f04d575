//! A command line as words, as Python's `shlex.split` takes it apart: quotes and backslashes, and nothing else of a shell.

use sandbox::{Error, Result};

/// Within double quotes a backslash is one unless it stands before one of these.
const ESCAPED: [char; 2] = ['"', '\\'];

pub fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    // A word may be empty, when it is in quotes.
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\\' => {
                let escaped = rest.next().ok_or_else(unescaped)?;
                word.get_or_insert_default().push(escaped);
            }
            quote @ ('\'' | '"') => quoted(quote, &mut rest, word.get_or_insert_default())?,
            character => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(quote: char, rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<()> {
    loop {
        match rest.next().ok_or_else(unclosed)? {
            character if character == quote => return Ok(()),
            '\\' if quote == '"' => {
                let next = rest.next().ok_or_else(unescaped)?;
                if !ESCAPED.contains(&next) {
                    word.push('\\');
                }
                word.push(next);
            }
            character => word.push(character),
        }
    }
}

fn unclosed() -> Error {
    Error::invalid_input("No closing quotation")
}

fn unescaped() -> Error {
    Error::invalid_input("No escaped character")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_that_python_finds() {
        for (line, words) in [
            ("ls -l  /tmp\n", &["ls", "-l", "/tmp"][..]),
            ("", &[]),
            (" \t", &[]),
            ("echo '' \"\"", &["echo", "", ""]),
            ("echo 'a b'\"c d\"e", &["echo", "a bc de"]),
            (r#"echo "a\"b\\c\n" 'a\'"#, &["echo", "a\"b\\c\\n", "a\\"]),
            (r"a\ b \'c\' \\", &["a b", "'c'", "\\"]),
            (
                "echo a # b && c | d > e; f $HOME *",
                &["echo", "a", "#", "b", "&&", "c", "|", "d", ">", "e;", "f", "$HOME", "*"],
            ),
            ("python3 -c 'print(\"é\")'", &["python3", "-c", "print(\"é\")"]),
        ] {
            assert_eq!(split(line).unwrap(), words, "{line:?}");
        }
        assert_eq!(split("echo 'a").unwrap_err().message(), "No closing quotation");
        assert_eq!(split("echo \"a\\").unwrap_err().message(), "No escaped character");
        assert_eq!(split("echo a\\").unwrap_err().message(), "No escaped character");
    }
}
