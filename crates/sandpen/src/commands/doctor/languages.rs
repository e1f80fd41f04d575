//! Which languages this machine has the programs for.

use std::path::{Path, PathBuf};

use sandbox::{Runner, Runners};
use serde::Serialize;

use super::Mark;
use crate::output::{ADVICE, DIM};

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
    let program = runner.probes.iter().filter_map(|probe| probe.first()).find_map(|name| which(name, directories));
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
