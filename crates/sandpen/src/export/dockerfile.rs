//! Steps as the text of a Dockerfile: only instructions and spellings that every builder takes in the same way.
//!
//! Names and commands were chosen by whoever worked in the sandbox. None of them can end a line or begin an instruction.

use std::fmt::Write;

use sandbox::{GuestPath, KnownEnvironment};
use tools::export::Outcome;

use super::packages::Added;

/// The file as it grows.
#[derive(Clone, Debug)]
pub struct Dockerfile {
    text: String,
    work_directory: Option<GuestPath>,
}

impl Dockerfile {
    pub fn from(base: &str) -> Self {
        Self { text: format!("FROM {base}\n"), work_directory: None }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    /// One line, whatever is in it.
    pub fn comment(&mut self, words: &str) {
        let _ = writeln!(self.text, "# {}", one_line(words));
    }

    pub fn user(&mut self, user: u64, group: u64) {
        let _ = writeln!(self.text, "USER {user}:{group}");
    }

    /// Whether it could be written.
    pub fn environment(&mut self, name: &str, value: &str) -> bool {
        if value.chars().any(char::is_control) {
            return false;
        }
        let mut quoted = String::new();
        for character in value.chars() {
            if matches!(character, '"' | '\\' | '$') {
                quoted.push('\\');
            }
            quoted.push(character);
        }
        let _ = writeln!(self.text, "ENV {name}=\"{quoted}\"");
        true
    }

    /// What the base has stays between what is added.
    pub fn search_path(&mut self, added: &Added) {
        let base = ["$PATH".to_owned()];
        let parts: Vec<&str> = added.before.iter().chain(&base).chain(&added.after).map(String::as_str).collect();
        let _ = writeln!(self.text, "ENV PATH=\"{}\"", parts.join(":"));
    }

    /// Whether it could be written. Nothing is when it is the directory already.
    pub fn work_directory(&mut self, path: &GuestPath) -> bool {
        if self.work_directory.as_ref() == Some(path) {
            return true;
        }
        let Some(quoted) = bare(path) else { return false };
        let _ = writeln!(self.text, "WORKDIR {quoted}");
        self.work_directory = Some(path.clone());
        true
    }

    /// What is below a directory of the context, to a directory of the image, as somebody's.
    pub fn copy(&mut self, from: &str, to: &str, user: u64, group: u64) {
        let _ = writeln!(self.text, "COPY --chown={user}:{group} {from} {to}");
    }

    /// An archive of the context, unpacked at the root with the owners that it says.
    pub fn add(&mut self, archive: &str) {
        let _ = writeln!(self.text, "ADD {archive} /");
    }

    /// The same of an archive that is all somebody's: Podman does not ask archives for owners.
    pub fn add_as(&mut self, archive: &str, user: u64, group: u64) {
        let _ = writeln!(self.text, "ADD --chown={user}:{group} {archive} /");
    }

    /// An archive of the context, unpacked in a directory.
    pub fn add_to(&mut self, archive: &str, directory: &str) {
        let _ = writeln!(self.text, "ADD {archive} {directory}/");
    }

    /// A line for the shell where every builder reads it alike, a list otherwise.
    pub fn run(&mut self, argv: &[String], environment: &KnownEnvironment, may_fail: bool) {
        let has_environment = environment.values.iter().next().is_some();
        if let [shell, flag, line] = argv
            && matches!(shell.as_str(), "sh" | "/bin/sh" | "/usr/bin/sh")
            && flag == "-c"
            && !has_environment
            && !may_fail
            && is_plain(line)
        {
            let _ = writeln!(self.text, "RUN {line}");
            return;
        }
        let mut words: Vec<String> = Vec::new();
        if may_fail {
            words.extend(["/bin/sh", "-c", "\"$@\" || true", "sh"].map(str::to_owned));
        }
        if has_environment {
            words.push("env".to_owned());
            words.extend(environment.values.iter().map(|(name, value)| format!("{name}={value}")));
        }
        words.extend(argv.iter().cloned());
        let _ = writeln!(self.text, "RUN {}", list(&words));
    }

    /// What a reader should know who wants to rely on it.
    pub fn close(&mut self, outcome: &Outcome, notes: &[String]) {
        self.blank();
        match outcome {
            Outcome::Compared { same, differences, .. } if differences.is_empty() => {
                self.comment(&format!("Built once and compared with the sandbox: all {same} paths came out the same."));
            }
            Outcome::Compared { same, differences, more } => {
                let count = differences.len() as u64 + more;
                self.comment(&format!(
                    "Built once and compared with the sandbox: {same} paths came out the same, {count} did not:"
                ));
                for one in differences {
                    self.comment(&format!("  {} {}", one.path, one.what.words()));
                }
                if *more > 0 {
                    self.comment(&format!("  and {more} more"));
                }
            }
            Outcome::NotBuilt(why) => self.comment(&format!("It could not be built: {why}")),
            Outcome::NotChecked(why) => self.comment(&format!("Not compared with the sandbox: {why}")),
        }
        for note in notes {
            self.comment(note);
        }
    }

    /// Those that could not be written.
    pub fn remove<'a>(&mut self, paths: impl IntoIterator<Item = &'a GuestPath>) -> Vec<&'a GuestPath> {
        let (written, unwritten): (Vec<_>, Vec<_>) =
            paths.into_iter().partition(|path| std::str::from_utf8(path.as_bytes()).is_ok());
        if !written.is_empty() {
            let paths = written.iter().map(|path| path.to_string_lossy().into_owned());
            let words: Vec<String> = ["rm", "-rf", "--"].map(str::to_owned).into_iter().chain(paths).collect();
            let _ = writeln!(self.text, "RUN {}", list(&words));
        }
        unwritten
    }
}

/// A list of strings. Characters that JSON lets stand as they are, and that an editor or a reader could take for the end of
/// a line, are escaped too.
fn list(words: &[String]) -> String {
    let text = serde_json::to_string(words).expect("strings are all that is in it");
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                let _ = write!(safe, "\\u{:04x}", u32::from(character));
            }
            character => safe.push(character),
        }
    }
    safe
}

/// A line that reaches the shell as it is: nothing that continues it, begins a here-document, a flag or a list.
fn is_plain(line: &str) -> bool {
    !line.is_empty()
        && line.len() <= 2000
        && line.trim() == line
        && !line.chars().any(|character| character.is_control() || matches!(character, '\u{2028}' | '\u{2029}'))
        && !line.starts_with(['[', '-', '#'])
        && !line.ends_with('\\')
        && !line.contains("<<")
}

/// A path as a word of its own, with what means something to a builder escaped.
fn bare(path: &GuestPath) -> Option<String> {
    let text = std::str::from_utf8(path.as_bytes()).ok()?;
    if text.chars().any(char::is_control) || text.trim() != text {
        return None;
    }
    let mut bare = String::new();
    for character in text.chars() {
        if matches!(character, '\\' | '"' | '\'' | '$') {
            bare.push('\\');
        }
        bare.push(character);
    }
    (!bare.ends_with('\\')).then_some(bare)
}

/// Text that stays on its line.
fn one_line(words: &str) -> String {
    let mut shown = String::new();
    for character in words.chars() {
        if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    // At the end of a line it would be taken for its continuation by some.
    shown.trim_end_matches('\\').trim_end().to_owned()
}

#[cfg(test)]
#[path = "dockerfile_tests.rs"]
mod tests;
