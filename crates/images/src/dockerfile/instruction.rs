//! One line to one instruction.

use serde_json::Value;

use super::lines::Line;
use super::words::split;
use super::{Assignment, Command, Instruction, Transfer, health, wrong};
use crate::error::{Error, Result};

pub enum Parsed {
    From { from: String, platform: Option<String>, name: Option<String> },
    Step(Instruction),
}

pub fn parse(line: &Line, escape: char) -> Result<Parsed> {
    let (keyword, rest) = line.text.split_once(char::is_whitespace).unwrap_or((&line.text, ""));
    let reading = Reading { number: line.number, keyword: keyword.to_ascii_uppercase(), rest: rest.trim(), escape };
    if reading.rest.is_empty() {
        return Err(match KNOWN.contains(&reading.keyword.as_str()) {
            true => reading.wrong("says nothing more"),
            false => reading.unknown(),
        });
    }
    reading.refuse_heredoc()?;
    Ok(Parsed::Step(match reading.keyword.as_str() {
        "FROM" => return reading.from(),
        "ARG" => Instruction::Arg(reading.arguments()?),
        "ENV" => Instruction::Env(reading.pairs(true)?),
        "LABEL" => Instruction::Label(reading.pairs(false)?),
        "WORKDIR" => Instruction::Workdir(reading.rest.to_owned()),
        "USER" => Instruction::User(reading.rest.to_owned()),
        "STOPSIGNAL" => Instruction::StopSignal(reading.rest.to_owned()),
        "HEALTHCHECK" => Instruction::Healthcheck(reading.health()?),
        "MAINTAINER" => Instruction::Maintainer(reading.rest.to_owned()),
        "COPY" => Instruction::Copy(reading.transfer(&["from", "chown", "chmod", "link"])?),
        "ADD" => Instruction::Add(reading.local_transfer()?),
        "RUN" => Instruction::Run(reading.run()?),
        "CMD" => Instruction::Cmd(reading.command()),
        "ENTRYPOINT" => Instruction::Entrypoint(reading.command()),
        "EXPOSE" => Instruction::Expose(split(reading.rest, escape)),
        "VOLUME" => Instruction::Volume(list(reading.rest).unwrap_or_else(|| split(reading.rest, escape))),
        "SHELL" => Instruction::Shell(
            list(reading.rest)
                .filter(|words| !words.is_empty())
                .ok_or_else(|| reading.wrong("wants a JSON list such as [\"/bin/sh\", \"-c\"]"))?,
        ),
        _ => return Err(reading.unknown()),
    }))
}

const KNOWN: [&str; 17] = [
    "FROM",
    "ARG",
    "ENV",
    "LABEL",
    "WORKDIR",
    "USER",
    "STOPSIGNAL",
    "COPY",
    "ADD",
    "RUN",
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "VOLUME",
    "SHELL",
    "HEALTHCHECK",
    "MAINTAINER",
];

struct Reading<'a> {
    number: usize,
    keyword: String,
    rest: &'a str,
    escape: char,
}

impl Reading<'_> {
    fn wrong(&self, why: &str) -> Error {
        wrong(self.number, format!("{} {why}", self.keyword))
    }

    fn unknown(&self) -> Error {
        let keyword: String = self.keyword.chars().take(40).collect();
        Error::Unsupported(format!(
            "line {} of the Dockerfile: {keyword:?} is not an instruction that is known",
            self.number
        ))
    }

    /// Docker's newer form of a file in the middle of a Dockerfile. Taken for a plain line it would do something else.
    fn refuse_heredoc(&self) -> Result<()> {
        let takes_it = matches!(self.keyword.as_str(), "RUN" | "COPY" | "ADD");
        let begins = |word: &String| {
            let name = word.strip_prefix("<<").map(|rest| rest.trim_start_matches(['-', '"', '\'']));
            name.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_'))
        };
        if takes_it && split(self.rest, self.escape).iter().any(begins) {
            let line = self.number;
            return Err(Error::Unsupported(format!(
                "line {line} of the Dockerfile: here-documents (<<) are not known; put the text into a file and COPY it"
            )));
        }
        Ok(())
    }

    fn from(&self) -> Result<Parsed> {
        let (flags, rest) = self.flags(&["platform"])?;
        let words = split(rest, self.escape);
        let platform = flags.into_iter().next().map(|(_, value)| value);
        match &words[..] {
            [from] => Ok(Parsed::From { from: from.clone(), platform, name: None }),
            [from, word, name] if word.eq_ignore_ascii_case("as") => {
                let name = name.to_ascii_lowercase();
                let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
                    && name.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.'));
                if !is_valid {
                    return Err(self.wrong("gives a stage a name that is none"));
                }
                Ok(Parsed::From { from: from.clone(), platform, name: Some(name) })
            }
            _ => Err(self.wrong("is an image, perhaps with AS and a name behind it")),
        }
    }

    fn arguments(&self) -> Result<Vec<Assignment>> {
        split(self.rest, self.escape)
            .into_iter()
            .map(|word| {
                let (name, value) =
                    word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
                if !is_variable(name) {
                    return Err(self.wrong("wants NAME or NAME=value"));
                }
                Ok(Assignment { name: name.to_owned(), value: value.map(str::to_owned) })
            })
            .collect()
    }

    /// `NAME=value` as often as one likes, or the old form of one name and the rest of the line.
    fn pairs(&self, variables: bool) -> Result<Vec<(String, String)>> {
        let words = split(self.rest, self.escape);
        if !words[0].contains('=') {
            let (name, value) = self.rest.split_once(char::is_whitespace).unwrap_or((self.rest, ""));
            if value.trim().is_empty() || variables && !is_variable(name) {
                return Err(self.wrong("wants NAME=value"));
            }
            return Ok(vec![(name.to_owned(), value.trim().to_owned())]);
        }
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() && (!variables || is_variable(name)) => {
                Ok((name.to_owned(), value.to_owned()))
            }
            Some(_) | None => Err(self.wrong("wants NAME=value, and quotes around values with blanks")),
        };
        words.into_iter().map(pair).collect()
    }

    fn run(&self) -> Result<Command> {
        if let Some(flag) = self.rest.strip_prefix("--") {
            let flag = flag.split(['=', ' ']).next().unwrap_or_default();
            return Err(self.unknown_flag(flag));
        }
        Ok(self.command())
    }

    fn command(&self) -> Command {
        list(self.rest).map_or_else(|| Command::Shell(self.rest.to_owned()), Command::Exec)
    }

    fn health(&self) -> Result<Value> {
        let (flags, rest) = self.flags(&health::FLAGS)?;
        let (word, line) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let line = line.trim();
        let command = match (word.to_ascii_uppercase().as_str(), line) {
            ("NONE", "") if flags.is_empty() => None,
            ("CMD", line) if !line.is_empty() => {
                Some(list(line).map_or_else(|| Command::Shell(line.to_owned()), Command::Exec))
            }
            _ => return Err(self.wrong("is NONE, or CMD and a command")),
        };
        health::check(&flags, command.as_ref()).map_err(|why| self.wrong(&why))
    }

    fn transfer(&self, known: &[&str]) -> Result<Transfer> {
        let (flags, rest) = self.flags(known)?;
        let mut words = list(rest).unwrap_or_else(|| split(rest, self.escape));
        let Some(destination) = words.pop().filter(|_| !words.is_empty()) else {
            return Err(self.wrong("wants what to copy and where to"));
        };
        let mut transfer = Transfer { sources: words, destination, ..Transfer::default() };
        for (name, value) in flags {
            match name.as_str() {
                "from" => transfer.from = Some(value),
                "chown" => transfer.chown = Some(value),
                "chmod" => transfer.chmod = Some(value),
                // How layers are put together, which changes nothing in what they hold.
                _ => {}
            }
        }
        Ok(transfer)
    }

    fn local_transfer(&self) -> Result<Transfer> {
        let transfer = self.transfer(&["chown", "chmod", "link"])?;
        let is_remote = |source: &&String| {
            ["http://", "https://", "git@", "git://", "ssh://"].iter().any(|start| source.starts_with(start))
        };
        match transfer.sources.iter().find(is_remote) {
            Some(source) => {
                let (line, source): (_, String) = (self.number, source.chars().take(100).collect());
                Err(Error::Unsupported(format!(
                    "line {line} of the Dockerfile: ADD of {source:?}: only local files are added"
                )))
            }
            None => Ok(transfer),
        }
    }

    /// The flags before everything else.
    fn flags<'b>(&'b self, known: &[&str]) -> Result<(Vec<(String, String)>, &'b str)> {
        let mut flags = Vec::new();
        let mut rest = self.rest;
        while let Some(flag) = rest.strip_prefix("--") {
            let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            if !known.contains(&name) {
                return Err(self.unknown_flag(name));
            }
            if value.is_empty() && name != "link" {
                return Err(self.wrong(&format!("has --{name} without a value")));
            }
            flags.push((name.to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        Ok((flags, rest))
    }

    fn unknown_flag(&self, name: &str) -> Error {
        let (line, keyword, name) = (self.number, &self.keyword, name.chars().take(40).collect::<String>());
        Error::Unsupported(format!("line {line} of the Dockerfile: {keyword} --{name} is not known"))
    }
}

/// A JSON list of strings. What only looks like one is a line for the shell, as Docker has it.
fn list(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

fn is_variable(name: &str) -> bool {
    let is_first = |first: char| first.is_ascii_alphabetic() || first == '_';
    name.starts_with(is_first) && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
}
