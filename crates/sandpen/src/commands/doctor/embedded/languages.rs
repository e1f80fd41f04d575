//! Which languages this machine has the programs for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox::{Runner, Runners};
use serde::Serialize;

use super::Mark;
use crate::output::{ADVICE, DIM};

/// An interpreter says within a fraction of this whether it knows a flag.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
pub struct LanguageFinding {
    language: String,
    title: String,
    /// The program that would run it.
    program: Option<PathBuf>,
    /// How to get it, when there is none.
    install: Option<String>,
}

pub fn look(runners: &Runners) -> Vec<LanguageFinding> {
    let directories: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    runners.iter().map(|runner| finding(runner, &directories)).collect()
}

fn finding(runner: &Runner, directories: &[PathBuf]) -> LanguageFinding {
    let program = runner.probes.iter().filter_map(|probe| probe.first()).find_map(|name| {
        let path = which(name, directories)?;
        runner.check(name).is_none_or(|check| succeeds(&path, check)).then_some(path)
    });
    let manager = |name: &str| which(if name == "apt" { "apt-get" } else { name }, directories).is_some();
    let install = match program {
        Some(_) => None,
        None => runner
            .install
            .iter()
            .find(|(name, _)| manager(name))
            .or(runner.install.first_key_value())
            .map(|(name, package)| install_command(name, package)),
    };
    LanguageFinding { language: runner.name.clone(), title: runner.title.clone(), program, install }
}

fn which(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    let executable = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    directories.iter().map(|directory| directory.join(name)).find(|path| executable(path))
}

/// Run the check as a run would, with the program that was found in place of its name.
fn succeeds(program: &Path, check: &[String]) -> bool {
    let started = Command::new(program)
        .args(check.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else { return false };
    let deadline = Instant::now() + CHECK_PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => {
                let _ = child.kill().and_then(|()| child.wait());
                return false;
            }
        }
    }
}

fn install_command(manager: &str, package: &str) -> String {
    match manager {
        "apk" => format!("apk add {package}"),
        "pacman" => format!("pacman -S {package}"),
        _ => format!("{manager} install {package}"),
    }
}

pub fn render(languages: &[LanguageFinding]) -> String {
    let width = languages.iter().map(|language| language.language.len()).max().unwrap_or(0);
    let mut text = String::new();
    for LanguageFinding { language, program, install, .. } in languages {
        text += &match (program, install) {
            (Some(program), _) => {
                format!("  {} {language:width$}  {DIM}{}{DIM:#}\n", Mark::Yes, program.display())
            }
            (None, Some(install)) => {
                format!("  {} {language:width$}  {ADVICE}remedy:{ADVICE:#} {install}\n", Mark::No)
            }
            (None, None) => format!("  {} {language:width$}\n", Mark::No),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_the_check_of_its_language_does_not_count() {
        let runner = |name: &str, code: u8| {
            format!(
                "[[runner]]\nname = {name:?}\ntitle = {name:?}\nfile = \"a\"\nplace = \"work\"\nrun = [[\"sh\"]]\n\
                 probe = [[\"sh\"]]\ncheck = {{ sh = [\"sh\", \"-c\", \"exit {code}\"] }}\ninstall = {{ apt = \"new-sh\" }}\n"
            )
        };
        let text = runner("fitting", 0) + &runner("outdated", 9);
        let runners = Runners::built_in().overlaid_by(&text).unwrap();
        let found = |name: &str| finding(runners.find(name).unwrap(), &["/bin".into()]);
        assert_eq!(found("fitting").program, Some("/bin/sh".into()));
        assert_eq!(found("fitting").install, None);
        assert_eq!(found("outdated").program, None);
        assert_eq!(found("outdated").install.as_deref(), Some("apt install new-sh"));
    }
}
