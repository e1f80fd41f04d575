//! What Python code imports first: its head, before any other statement.

/// Modules that are imported at the head of code, among those that are `known`, in order. What the code imports besides must be
/// `harmless`, or it is the end of the head: it could change what comes after it.
///
/// In doubt the head ends. Whatever is found here the code will import itself, before it does anything else.
pub(super) fn modules(code: &[u8], known: &[String], harmless: &[String], most: usize) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let Ok(text) = str::from_utf8(code) else { return found };
    for statement in Statements::new(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        let Some(names) = imported(&statement) else { return found };
        for name in names {
            match known_part(&name, known) {
                Some(module) if found.iter().any(|other| other == module) => {}
                Some(_) if found.len() == most => return found,
                Some(module) => found.push(module.to_owned()),
                None if harmless.iter().any(|other| name.split('.').next() == Some(other)) => {}
                None => return found,
            }
        }
    }
    found
}

/// The most that is known of a dotted name.
fn known_part<'a>(mut name: &'a str, known: &[String]) -> Option<&'a str> {
    loop {
        if known.iter().any(|module| module == name) {
            return Some(name);
        }
        name = name.rsplit_once('.')?.0;
    }
}

/// Statements at the head of code, without comments and a docstring. Ends where that would have to be understood.
struct Statements<'a> {
    rest: &'a str,
    begun: bool,
    /// What comes after a statement on its line.
    same_line: &'a str,
}

impl<'a> Statements<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text, begun: false, same_line: "" }
    }

    fn line(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        Some(line.trim_end_matches('\r'))
    }

    /// A list of names over several lines.
    fn in_brackets(&mut self, head: &str, names: &str) -> Option<String> {
        let mut statement = format!("{head} {names}");
        while !statement.contains(')') {
            statement.push(' ');
            statement.push_str(without_comment(self.line()?));
        }
        let (statement, after) = statement.split_once(')')?;
        after.trim().is_empty().then(|| statement.trim_end().trim_end_matches(',').to_owned())
    }

    /// Skip a string that is the first statement; `None` when it is not simply that.
    fn skip_docstring(&mut self, line: &'a str) -> Option<()> {
        let text = line.trim_start_matches(['r', 'R', 'u', 'U']);
        let mark = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|mark| text.starts_with(mark))?;
        let mut body = &text[mark.len()..];
        loop {
            // What is written with a backslash may not be what it looks like.
            if body.contains('\\') {
                return None;
            }
            if let Some((_, after)) = body.split_once(mark) {
                return without_comment(after).trim().is_empty().then_some(());
            }
            if mark.len() == 1 {
                return None;
            }
            body = self.line()?;
        }
    }
}

impl Iterator for Statements<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            let mut text = std::mem::take(&mut self.same_line);
            if text.trim().is_empty() {
                let line = self.line()?;
                text = without_comment(line);
                if text.trim().is_empty() {
                    continue;
                }
                let is_first = !std::mem::replace(&mut self.begun, true);
                if is_first && self.skip_docstring(line).is_some() {
                    continue;
                }
                if text.starts_with(char::is_whitespace) {
                    return None;
                }
            }
            let (statement, rest) = text.split_once(';').unwrap_or((text, ""));
            self.same_line = rest;
            let statement = statement.trim();
            if statement.ends_with('\\') {
                return None;
            }
            return match statement.split_once('(') {
                Some((head, names)) if head.starts_with("from") && rest.is_empty() => self.in_brackets(head, names),
                Some(_) | None => Some(statement.to_owned()),
            };
        }
    }
}

/// Strings have no place in a head, so that every number sign begins a comment.
fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

/// The dotted names that a statement imports; `None` when it does something else.
fn imported(statement: &str) -> Option<Vec<String>> {
    let (word, rest) = statement.split_once([' ', '\t'])?;
    match word {
        "import" => rest.split(',').map(|item| renamed(item).map(str::to_owned)).collect(),
        "from" => {
            let words: Vec<&str> = rest.split_whitespace().collect();
            let [from, "import", ..] = words.as_slice() else { return None };
            let from = dotted(from)?;
            let names = words[2..].join(" ");
            if names == "*" {
                return Some(vec![from.to_owned()]);
            }
            names.split(',').map(|item| renamed(item).map(|name| format!("{from}.{name}"))).collect()
        }
        _ => None,
    }
}

/// `name` or `name as other`.
fn renamed(item: &str) -> Option<&str> {
    match item.split_whitespace().collect::<Vec<_>>().as_slice() {
        [name] => dotted(name),
        [name, "as", other] if !other.contains('.') => dotted(other).and(dotted(name)),
        _ => None,
    }
}

fn dotted(name: &str) -> Option<&str> {
    let is_word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && word.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
    };
    name.split('.').all(is_word).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let known = words("numpy numpy.random pandas matplotlib matplotlib.pyplot PIL PIL.Image scipy scipy.stats");
        modules(code.as_bytes(), &known, &words("os sys __future__"), 4)
    }

    #[test]
    fn what_is_imported_first_is_found_in_order() {
        for (code, expected) in [
            ("import numpy, pandas; print(1)", "numpy pandas"),
            ("import pandas as pd\nimport numpy as np\n", "pandas numpy"),
            ("\u{feff}import numpy\r\nimport pandas\r\nprint(1)", "numpy pandas"),
            (
                "\"\"\"What it\ndoes.\n\"\"\"  # yes\n\n# more\nfrom __future__ import annotations\nimport numpy",
                "numpy",
            ),
            ("'does it'\nimport numpy", "numpy"),
            ("import os, sys  # usual\nimport numpy", "numpy"),
            ("import matplotlib.pyplot as plt", "matplotlib.pyplot"),
            ("from PIL import Image, ImageDraw", "PIL.Image PIL"),
            ("from scipy.stats import norm", "scipy.stats"),
            ("from scipy import (\n    stats,  # one\n    linalg as l,\n)\nimport numpy", "scipy.stats scipy numpy"),
            ("from numpy import *\nimport numpy", "numpy"),
            ("import pandas.secret_of_mine", "pandas"),
            ("import numpy, pandas, scipy, PIL, matplotlib", "numpy pandas scipy PIL"),
        ] {
            assert_eq!(found(code).join(" "), expected, "{code:?}");
        }
    }

    #[test]
    fn in_doubt_the_head_ends() {
        for code in [
            "",
            "print(1)\nimport numpy",
            "import os; os.environ['A'] = 'b'\nimport numpy",
            "import mine\nimport numpy",
            "from . import numpy",
            "if True:\n    import numpy",
            "    import numpy",
            "try: import numpy\nexcept: pass",
            "import \\\n numpy",
            "x = 1; import numpy",
            "'a' 'b'\nimport numpy",
            "'''a\\''' '''\nimport numpy",
            "\"\"\"never ended\nimport numpy",
            "1\n'late'\nimport numpy",
            "import(numpy)",
            "from scipy import (stats) + 1",
            "import numpy as",
            "import numpy pandas",
            "importnumpy",
            "import ñumpy, numpy",
            "async def f(): pass\nimport numpy",
        ] {
            assert_eq!(found(code), [""; 0], "{code:?}");
        }
        assert_eq!(modules(b"import numpy\xff", &["numpy".to_owned()], &[], 4), [""; 0]);
    }
}
