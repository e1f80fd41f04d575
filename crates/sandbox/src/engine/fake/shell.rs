//! The grammar of the fake's shell: commands joined by `;`, newline, `&&`, `||` and `&`, quotes, `$NAME`, redirections.
//!
//! No pipes, loops or functions: what tests need of them is a matter for a real shell on a real engine.

/// One command and what joins it to the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub join: Join,
    pub words: Vec<Word>,
    pub redirections: Vec<Redirection>,
    pub background: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    Always,
    IfSuccess,
    IfFailure,
}

/// Pieces that are taken as they are, and variables.
pub(super) type Word = Vec<Piece>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Variable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// `>` truncates, `>>` does not.
    ToFile {
        descriptor: usize,
        append: bool,
        path: Word,
    },
    FromFile {
        path: Word,
    },
    /// `>&2`, `2>&1`.
    Copy {
        descriptor: usize,
        from: usize,
    },
}

pub(super) fn parse(script: &str) -> Result<Vec<Step>, String> {
    let mut parser = Parser { rest: script, steps: Vec::new() };
    parser.script()?;
    Ok(parser.steps)
}

struct Parser<'a> {
    rest: &'a str,
    steps: Vec<Step>,
}

impl Parser<'_> {
    fn script(&mut self) -> Result<(), String> {
        let mut join = Join::Always;
        loop {
            let mut step = self.command(join)?;
            let separator = ["&&", "||", "&", ";", "\n"].into_iter().find(|separator| self.rest.starts_with(separator));
            let Some(separator) = separator else {
                if !self.rest.is_empty() {
                    return Err(format!("syntax error near {:?}", self.rest.chars().take(10).collect::<String>()));
                }
                self.finish(step);
                return Ok(());
            };
            self.rest = &self.rest[separator.len()..];
            step.background = separator == "&";
            join = match separator {
                "&&" => Join::IfSuccess,
                "||" => Join::IfFailure,
                _ => Join::Always,
            };
            self.finish(step);
        }
    }

    fn finish(&mut self, step: Step) {
        if !step.words.is_empty() || !step.redirections.is_empty() {
            self.steps.push(step);
        }
    }

    fn command(&mut self, join: Join) -> Result<Step, String> {
        let mut step = Step { join, words: Vec::new(), redirections: Vec::new(), background: false };
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t']);
            if self.rest.starts_with('#') {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            }
            if let Some(redirection) = self.redirection()? {
                step.redirections.push(redirection);
                continue;
            }
            match self.rest.chars().next() {
                None | Some(';' | '\n' | '&' | '|') => return Ok(step),
                Some('(' | ')' | '`') => return Err("the fake shell does not know this syntax".to_owned()),
                Some(_) => step.words.push(self.word()?),
            }
        }
    }

    fn redirection(&mut self) -> Result<Option<Redirection>, String> {
        let forms = [
            ("2>&1", Some(Redirection::Copy { descriptor: 2, from: 1 })),
            ("1>&2", Some(Redirection::Copy { descriptor: 1, from: 2 })),
            (">&2", Some(Redirection::Copy { descriptor: 1, from: 2 })),
            ("2>>", None),
            ("2>", None),
            (">>", None),
            (">", None),
            ("<", None),
        ];
        let Some((form, copy)) = forms.into_iter().find(|(form, _)| self.rest.starts_with(form)) else {
            return Ok(None);
        };
        self.rest = &self.rest[form.len()..];
        if copy.is_some() {
            return Ok(copy);
        }
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        let path = self.word()?;
        if form == "<" {
            return Ok(Some(Redirection::FromFile { path }));
        }
        let descriptor = if form.starts_with('2') { 2 } else { 1 };
        Ok(Some(Redirection::ToFile { descriptor, append: form.ends_with(">>"), path }))
    }

    fn word(&mut self) -> Result<Word, String> {
        let mut word = vec![Piece::Text(String::new())];
        let mut quoted = false;
        while let Some(character) = self.rest.chars().next() {
            if !quoted && " \t\n;&|<>()`".contains(character) {
                break;
            }
            self.rest = &self.rest[character.len_utf8()..];
            match character {
                '\'' if !quoted => {
                    let end = self.rest.find('\'').ok_or("a quote is not closed")?;
                    push_text(&mut word, &self.rest[..end]);
                    self.rest = &self.rest[end + 1..];
                }
                '"' => quoted = !quoted,
                '\\' => {
                    let escaped = self.rest.chars().next().ok_or("a backslash is last")?;
                    self.rest = &self.rest[escaped.len_utf8()..];
                    if quoted && !"$`\"\\".contains(escaped) {
                        push_text(&mut word, "\\");
                    }
                    push_text(&mut word, escaped.encode_utf8(&mut [0; 4]));
                }
                '$' => self.variable(&mut word),
                _ => push_text(&mut word, character.encode_utf8(&mut [0; 4])),
            }
        }
        if quoted {
            return Err("a quote is not closed".to_owned());
        }
        Ok(word)
    }

    fn variable(&mut self, word: &mut Word) {
        let braced = self.rest.starts_with('{');
        let name_text = if braced { &self.rest[1..] } else { self.rest };
        let named = name_text.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let mut length = named.unwrap_or(name_text.len());
        if length == 0 && name_text.starts_with(['$', '?', '@', '#']) {
            length = 1;
        }
        if length == 0 {
            push_text(word, "$");
            return;
        }
        word.push(Piece::Variable(name_text[..length].to_owned()));
        self.rest = &name_text[length..];
        if braced {
            self.rest = self.rest.strip_prefix('}').unwrap_or(self.rest);
        }
    }
}

fn push_text(word: &mut Word, text: &str) {
    match word.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        Some(Piece::Variable(_)) | None => word.push(Piece::Text(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: &str) -> String {
        let word = |word: &Word| -> String {
            word.iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.clone(),
                    Piece::Variable(name) => format!("<{name}>"),
                })
                .collect()
        };
        let steps = parse(script).unwrap();
        let steps: Vec<_> = steps
            .iter()
            .map(|step| {
                let words: Vec<_> = step.words.iter().map(word).collect();
                format!("{:?} {}{}", step.join, words.join("|"), if step.background { " &" } else { "" })
            })
            .collect();
        steps.join("\n")
    }

    #[test]
    fn words_quotes_and_variables() {
        assert_eq!(shown("echo 'a b' \"c $X\" d\\ e ${Y}z"), "Always echo|a b|c <X>|d e|<Y>z");
        assert_eq!(shown("a && b || c; d & e"), "Always a\nIfSuccess b\nIfFailure c\nAlways d &\nAlways e");
        assert_eq!(shown("# note\necho $$ $?"), "Always echo|<$>|<?>");
    }

    #[test]
    fn redirections_are_kept_apart() {
        let steps = parse("echo x >&2 2> f < g").unwrap();
        assert_eq!(steps[0].words.len(), 2);
        assert_eq!(steps[0].redirections.len(), 3);
    }

    #[test]
    fn what_it_does_not_know_is_an_error() {
        for script in ["echo 'x", "(true)", "echo `date`", "echo \"x"] {
            assert!(parse(script).is_err(), "{script}");
        }
    }
}
