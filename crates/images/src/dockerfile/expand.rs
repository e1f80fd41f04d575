//! `$NAME` and its relatives, and the end of quotes.

use std::iter::Peekable;
use std::str::Chars;

/// Fills in what `look_up` knows; what it does not know is empty. The error is a sentence without the line.
pub fn expand(word: &str, escape: char, look_up: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut expanding = Expanding { characters: word.chars().peekable(), escape, look_up, depth: 0 };
    expanding.until(None)
}

struct Expanding<'a> {
    characters: Peekable<Chars<'a>>,
    escape: char,
    look_up: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
}

/// A value in a value in a value; nobody writes more.
const DEEPEST: usize = 16;

impl Expanding<'_> {
    /// Up to this character, which is taken too, or to the end.
    fn until(&mut self, end: Option<char>) -> Result<String, String> {
        let mut text = String::new();
        while let Some(character) = self.characters.next() {
            match character {
                character if Some(character) == end => return Ok(text),
                '\'' => self.single_quoted(&mut text)?,
                '"' => self.double_quoted(&mut text)?,
                '$' => text += &self.variable()?,
                character if character == self.escape => text.extend(self.characters.next()),
                character => text.push(character),
            }
        }
        match end {
            None => Ok(text),
            Some(_) => Err("a ${ has no end".to_owned()),
        }
    }

    fn single_quoted(&mut self, text: &mut String) -> Result<(), String> {
        for character in self.characters.by_ref() {
            if character == '\'' {
                return Ok(());
            }
            text.push(character);
        }
        Err("a quote has no end".to_owned())
    }

    fn double_quoted(&mut self, text: &mut String) -> Result<(), String> {
        while let Some(character) = self.characters.next() {
            match character {
                '"' => return Ok(()),
                '$' => *text += &self.variable()?,
                character if character == self.escape => match self.characters.next() {
                    Some(next) if matches!(next, '"' | '$') || next == self.escape => text.push(next),
                    // Before anything else it stands for itself.
                    next => {
                        text.push(character);
                        text.extend(next);
                    }
                },
                character => text.push(character),
            }
        }
        Err("a quote has no end".to_owned())
    }

    fn variable(&mut self) -> Result<String, String> {
        if self.characters.next_if_eq(&'{').is_none() {
            let name = self.name();
            return Ok(if name.is_empty() { "$".to_owned() } else { (self.look_up)(&name).unwrap_or_default() });
        }
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("too many ${ are in each other".to_owned());
        }
        let value = self.braced();
        self.depth -= 1;
        value
    }

    fn braced(&mut self) -> Result<String, String> {
        let name = self.name();
        if name.is_empty() {
            return Err("a ${ has no name".to_owned());
        }
        let value = (self.look_up)(&name);
        let counts_empty = self.characters.next_if_eq(&':').is_some();
        let is_set = value.as_ref().is_some_and(|value| !counts_empty || !value.is_empty());
        match self.characters.next() {
            Some('}') if !counts_empty => Ok(value.unwrap_or_default()),
            Some('-') => {
                let default = self.until(Some('}'))?;
                Ok(value.filter(|_| is_set).unwrap_or(default))
            }
            Some('+') => {
                let other = self.until(Some('}'))?;
                Ok(if is_set { other } else { String::new() })
            }
            Some('?') => {
                let message = self.until(Some('}'))?;
                value.filter(|_| is_set).ok_or_else(|| format!("{name} is not set: {message}"))
            }
            Some(other) => Err(format!("${{{name}{other}… is not known")),
            None => Err("a ${ has no end".to_owned()),
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(character) = self
            .characters
            .next_if(|one| one.is_ascii_alphabetic() || *one == '_' || one.is_ascii_digit() && !name.is_empty())
        {
            name.push(character);
        }
        name
    }
}
