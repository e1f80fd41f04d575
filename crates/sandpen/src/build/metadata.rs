//! Instructions that change no file: what they do to an image's configuration.

use images::RunConfig;
use images::dockerfile::{Command, Instruction};
use sandbox::{Error, Result};
use serde_json::{Map, Value};

/// Of images that have none.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// A configuration that is being changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub config: RunConfig,
    /// Whether this stage has said what to run: a command of its base means nothing to another entry point.
    has_command: bool,
    pub author: Option<String>,
}

impl Settings {
    pub fn of_base(mut config: RunConfig) -> Self {
        // As BuildKit has it, so that `ENV PATH=/more:$PATH` loses nothing.
        if !config.env.iter().any(|pair| pair.starts_with("PATH=")) {
            config.env.push(format!("PATH={SEARCH_PATH}"));
        }
        Self { config, has_command: false, author: None }
    }

    pub fn of_nothing() -> Self {
        Self::of_base(RunConfig { working_dir: "/".to_owned(), ..RunConfig::default() })
    }

    /// For a stage that starts from this one, which is a base to it like any other.
    #[must_use]
    pub fn continued(&self) -> Self {
        Self { has_command: false, ..self.clone() }
    }

    /// What an instruction says, with variables filled in.
    pub fn apply(&mut self, instruction: &Instruction) -> Result<()> {
        let config = &mut self.config;
        match instruction {
            Instruction::Env(pairs) => pairs.iter().for_each(|(name, value)| set(&mut config.env, name, value)),
            Instruction::Label(pairs) => config.labels.extend(pairs.iter().cloned()),
            Instruction::User(user) => config.user.clone_from(user),
            Instruction::Workdir(path) => config.working_dir = joined(&config.working_dir, path),
            Instruction::Entrypoint(command) => {
                self.config.entrypoint = self.argv(command);
                if !self.has_command {
                    self.config.cmd.clear();
                }
            }
            Instruction::Cmd(command) => {
                self.config.cmd = self.argv(command);
                self.has_command = true;
            }
            Instruction::Expose(words) => {
                for word in words {
                    config.exposed_ports.extend(ports(word)?.map(|port| (port, Value::Object(Map::new()))));
                }
            }
            Instruction::Volume(paths) => {
                let volumes = paths.iter().filter(|path| !path.trim().is_empty());
                config.volumes.extend(volumes.map(|path| (path.clone(), Value::Object(Map::new()))));
            }
            Instruction::Shell(words) => config.shell.clone_from(words),
            Instruction::StopSignal(signal) => {
                config.other.insert("StopSignal".to_owned(), Value::String(signal.clone()));
            }
            Instruction::Healthcheck(check) => {
                config.other.insert("Healthcheck".to_owned(), check.clone());
            }
            Instruction::Maintainer(name) => self.author = Some(name.clone()),
            Instruction::Arg(_) | Instruction::Copy(_) | Instruction::Add(_) | Instruction::Run(_) => {}
        }
        Ok(())
    }

    /// A program with its arguments, by the shell that is set if need be.
    pub fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(line) => {
                let shell: Vec<String> = match self.config.shell.is_empty() {
                    true => SHELL.map(str::to_owned).to_vec(),
                    false => self.config.shell.clone(),
                };
                shell.into_iter().chain([line.clone()]).collect()
            }
        }
    }

    pub fn work_directory(&self) -> &str {
        if self.config.working_dir.is_empty() { "/" } else { &self.config.working_dir }
    }
}

/// A path as it is written in a Dockerfile, from the root on, without what means nothing.
pub fn joined(directory: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{directory}/{path}") };
    let mut names: Vec<&str> = Vec::new();
    for name in whole.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

fn set(environment: &mut Vec<String>, name: &str, value: &str) {
    let pair = format!("{name}={value}");
    match environment.iter_mut().find(|own| own.split_once('=').is_some_and(|(own, _)| own == name)) {
        Some(own) => *own = pair,
        None => environment.push(pair),
    }
}

/// `80`, `80/udp`, `8000-8002`: one name for each port.
fn ports(word: &str) -> Result<impl Iterator<Item = String>> {
    let wrong = || {
        let shown: String = word.chars().take(40).collect();
        Error::invalid_input(format!("{shown:?} is not a port")).with_hint("write for example 80, 53/udp or 8000-8010")
    };
    let (numbers, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !matches!(protocol.as_str(), "tcp" | "udp" | "sctp") {
        return Err(wrong());
    }
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (first, last) = number(first).zip(number(last)).filter(|(first, last)| first <= last).ok_or_else(wrong)?;
    Ok((first..=last).map(move |port| format!("{port}/{protocol}")))
}

#[cfg(test)]
mod tests {
    use images::dockerfile::{Dockerfile, Scope};

    use super::*;

    fn settings(base: RunConfig, lines: &str) -> RunConfig {
        let dockerfile = Dockerfile::parse(&format!("FROM x\n{lines}")).unwrap();
        let mut scope = Scope::new(&dockerfile, std::collections::BTreeMap::new()).unwrap().enter(&base.env);
        let mut settings = Settings::of_base(base);
        for step in &dockerfile.stages[0].steps {
            settings.apply(&scope.resolve(step).unwrap()).unwrap();
        }
        settings.config
    }

    #[test]
    fn a_command_of_the_base_goes_with_its_entry_point() {
        let base = || RunConfig { cmd: vec!["serve".to_owned()], ..RunConfig::default() };
        assert_eq!(settings(base(), "ENTRYPOINT [\"/run\"]").cmd, Vec::<String>::new());
        let both = settings(base(), "CMD echo $A\nENTRYPOINT [\"/run\"]");
        assert_eq!(
            (both.entrypoint, both.cmd),
            (vec!["/run".to_owned()], ["/bin/sh", "-c", "echo $A"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn later_words_take_the_place_of_earlier_ones() {
        let base = RunConfig { env: vec!["PATH=/bin".to_owned(), "A=1".to_owned()], ..RunConfig::default() };
        let made = settings(
            base,
            "ENV A=2 B=$A\nWORKDIR /srv\nWORKDIR ../x/./y\nSHELL [\"/bin/bash\", \"-ec\"]\nCMD true\nLABEL a=1\nLABEL a=2",
        );
        assert_eq!(made.env, ["PATH=/bin", "A=2", "B=1"]);
        assert_eq!(made.working_dir, "/x/y");
        assert_eq!(made.cmd, ["/bin/bash", "-ec", "true"]);
        assert_eq!(made.labels.get("a").map(String::as_str), Some("2"));
    }

    #[test]
    fn ports_are_named_one_by_one() {
        let made = settings(RunConfig::default(), "EXPOSE 80 53/UDP 8000-8002");
        let ports: Vec<&str> = made.exposed_ports.keys().map(String::as_str).collect();
        assert_eq!(ports, ["53/udp", "80/tcp", "8000/tcp", "8001/tcp", "8002/tcp"]);
        for word in ["", "x", "80/x", "9-8", "70000", "+1"] {
            assert!(ports_of(word).is_err(), "{word:?}");
        }
    }

    fn ports_of(word: &str) -> Result<Vec<String>> {
        ports(word).map(Iterator::collect)
    }
}
