//! Interpreters that live outside of the system tree: pyenv, nvm, conda, rustup, `/opt`.
//!
//! Found on the host's `PATH` by name, asked for their prefix because a shim tells nothing about it, and shown at their
//! own path, since prefixes are compiled into programs.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use images::stamp::Stamps;
use serde::{Deserialize, Serialize};

use super::ask::{NotInTime, VARIABLES, ask};
use super::prefix::{Private, admit};

/// What was found, in the order of [`PROGRAMS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreters {
    /// Directories and single programs to show read-only, each as its source and the path it is shown at.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Directories that go to the front of the search path.
    pub program_directories: Vec<PathBuf>,
}

/// How a program is made to tell where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Prefix(&'static [&'static str]),
    /// Names the program proper; its prefix is above the directory that it lies in.
    Executable(&'static [&'static str]),
    /// Has no way of telling; judged by where the file is.
    None,
}

/// Not with `-S`: before 3.14 a virtual environment takes effect in `site`.
const PYTHON: Question = Question::Prefix(&["-I", "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"]);
const NODE: Question = Question::Executable(&["-e", "console.log(process.execPath)"]);
const RUST: Question = Question::Prefix(&["--print", "sysroot"]);
const JAVA: Question = Question::Prefix(&["-XshowSettings:properties", "-version"]);

/// The programs that runners start, and those that are of the same family and may lie elsewhere.
const PROGRAMS: [(&str, Question); 24] = [
    ("python3", PYTHON),
    ("python", PYTHON),
    ("node", NODE),
    ("tsx", Question::None),
    ("ts-node", Question::None),
    ("bun", Question::Executable(&["-e", "console.log(process.execPath)"])),
    ("deno", Question::Executable(&["eval", "console.log(Deno.execPath())"])),
    ("ruby", Question::Prefix(&["--disable-gems", "-rrbconfig", "-e", "puts RbConfig::CONFIG['prefix']"])),
    ("perl", Question::Prefix(&["-MConfig", "-e", "print qq($Config{prefix}\\n)"])),
    ("php", Question::Executable(&["-n", "-r", "echo PHP_BINARY, PHP_EOL;"])),
    ("lua", Question::None),
    ("luajit", Question::None),
    ("Rscript", Question::Prefix(&["--vanilla", "-e", "cat(sub('/lib(64)?/R$', '', R.home()), fill = TRUE)"])),
    ("go", Question::Prefix(&["env", "GOROOT"])),
    ("rustc", RUST),
    ("gcc", Question::None),
    ("g++", Question::None),
    ("cc", Question::None),
    ("c++", Question::None),
    ("clang", Question::None),
    ("java", JAVA),
    ("javac", Question::None),
    ("bash", Question::None),
    ("git", Question::None),
];

/// Looks for all interpreters; takes as long as the slowest of them, at most some seconds.
///
/// `stamps` receives everything that the answer depends on.
pub fn find(private: &Private, stamps: &mut Stamps) -> Interpreters {
    for name in VARIABLES {
        stamps.variable(name);
    }
    for file in version_files() {
        stamps.path(file);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A directory changes when a name in it appears, vanishes or is replaced, so these few stand for every look-up.
    for directory in std::env::split_paths(&path) {
        stamps.path(directory);
    }
    let found: Vec<(&str, Question, PathBuf)> = PROGRAMS
        .into_iter()
        .filter_map(|(name, question)| Some((name, question, look_up(name, &path)?)))
        .inspect(|(_, _, program)| stamps.path(program))
        .filter(|(_, _, program)| may_live_elsewhere(program))
        .collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            found.iter().map(|(_, question, program)| scope.spawn(move || prefixes(program, *question))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap_or(Err(NotInTime))).collect()
    });
    let mut interpreters = Interpreters::default();
    for ((name, _, program), answer) in found.iter().zip(answers) {
        let Ok(prefixes) = answer else {
            tracing::warn!(program = %program.display(), "it does not say where it lives, so it is left out for now");
            stamps.doubt();
            continue;
        };
        if let Err(reason) = interpreters.add(name, program, &prefixes, private) {
            tracing::info!(program = %program.display(), %reason, "an interpreter of the host is left out");
        }
    }
    interpreters.drop_shadowed();
    interpreters.drop_nested();
    for (source, _) in &interpreters.shown {
        stamps.path(source);
    }
    interpreters
}

impl Interpreters {
    fn add(&mut self, name: &str, program: &Path, prefixes: &[PathBuf], private: &Private) -> Result<(), String> {
        let mut admitted = Vec::new();
        for prefix in prefixes {
            let real = prefix.canonicalize().map_err(|error| format!("{}: {error}", prefix.display()))?;
            if in_system_tree(&real) {
                continue;
            }
            let shown = admit(&real, private)?;
            if real == shown && real != *prefix {
                admitted.push((shown.clone(), prefix.clone()));
            }
            admitted.push((shown.clone(), shown));
        }
        let real = program.canonicalize().map_err(|error| error.to_string())?;
        let of_prefix = prefixes.iter().map(|prefix| prefix.join("bin")).find(|bin| bin.join(name).is_file());
        let programs = match of_prefix {
            Some(bin) => bin,
            None if prefixes.is_empty() && !in_system_tree(&real) && is_native_code(&real) => {
                // Nothing is known of its prefix, so the file alone is shown; for a static program that is enough.
                admitted.push((real, program.to_owned()));
                program.parent().unwrap_or(Path::new("/")).to_owned()
            }
            None => return Err("it does not say where it lives".to_owned()),
        };
        if !in_system_tree(&programs) && !self.program_directories.contains(&programs) {
            self.program_directories.push(programs);
        }
        for pair in admitted {
            if !self.shown.contains(&pair) {
                self.shown.push(pair);
            }
        }
        Ok(())
    }

    /// What lies where every sandbox has a directory of its own cannot be shown.
    fn drop_shadowed(&mut self) {
        let visible =
            |path: &Path| !["/tmp", "/dev", "/proc", "/sys", "/workspace"].iter().any(|own| path.starts_with(own));
        self.shown.retain(|(_, target)| visible(target));
        self.program_directories.retain(|directory| visible(directory));
    }

    /// What lies in a directory that is shown anyway needs no place of its own.
    fn drop_nested(&mut self) {
        let all = self.shown.clone();
        self.shown.retain(|(_, target)| !all.iter().any(|(_, other)| target != other && target.starts_with(other)));
    }
}

/// The first executable file of that name, as a shell would find it.
fn look_up(name: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).filter(|directory| directory.is_absolute()).map(|directory| directory.join(name)).find(
        |candidate| candidate.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0),
    )
}

/// A program elsewhere, or a script: a wrapper in the system tree may start something that is not there.
fn may_live_elsewhere(program: &Path) -> bool {
    match program.canonicalize() {
        Ok(real) => !in_system_tree(&real) || starts_with(&real, b"#!"),
        Err(_) => false,
    }
}

fn prefixes(program: &Path, question: Question) -> Result<Vec<PathBuf>, NotInTime> {
    let of_executable = |executable: PathBuf| executable.parent()?.parent().map(Path::to_owned);
    match question {
        Question::Prefix(arguments) => ask(program, arguments),
        Question::Executable(arguments) => Ok(ask(program, arguments)?.into_iter().filter_map(of_executable).collect()),
        Question::None => Ok(guess(program)),
    }
}

/// The directory above `bin`, if there are libraries as well: a bare `bin` is a place where people drop programs.
fn guess(program: &Path) -> Vec<PathBuf> {
    let Some(bin) = program.parent().filter(|directory| directory.ends_with("bin")) else { return Vec::new() };
    bin.parent().filter(|prefix| prefix.join("lib").is_dir()).map(Path::to_owned).into_iter().collect()
}

fn in_system_tree(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"].iter().any(|tree| path.starts_with(tree))
}

fn is_native_code(path: &Path) -> bool {
    starts_with(path, b"\x7fELF")
}

fn starts_with(path: &Path, magic: &[u8]) -> bool {
    let mut start = vec![0; magic.len()];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == magic
}

/// Files that switch the version behind a shim without touching anything on the search path.
fn version_files() -> Vec<PathBuf> {
    let root = |variable: &str, at_home: &str| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(at_home)))
    };
    let files = [
        ("PYENV_ROOT", ".pyenv", "version"),
        ("RBENV_ROOT", ".rbenv", "version"),
        ("RUSTUP_HOME", ".rustup", "settings.toml"),
        ("ASDF_CONFIG_DIR", "", ".tool-versions"),
    ];
    files.into_iter().filter_map(|(variable, at_home, file)| Some(root(variable, at_home)?.join(file))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// Written by another process: what a thread has open for writing while another forks cannot be started.
    fn program(path: &Path, contents: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let written = Command::new("sh").args(["-c", "printf %s \"$1\" >\"$0\""]).arg(path).arg(contents).status();
        assert!(written.unwrap().success());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_shim_is_asked_and_its_prefix_shown_at_its_own_path() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let prefix = place.join("versions/3");
        program(&prefix.join("bin/python3"), "#!/bin/sh\n");
        let shim = place.join("shims/python3");
        program(&shim, &format!("#!/bin/sh\necho {0}; echo {0}\n", prefix.display()));
        assert!(may_live_elsewhere(&shim));
        let mut interpreters = Interpreters::default();
        interpreters.add("python3", &shim, &prefixes(&shim, PYTHON).unwrap(), &Private::default()).unwrap();
        assert_eq!(interpreters.shown, [(prefix.clone(), prefix.clone())]);
        assert_eq!(interpreters.program_directories, [prefix.join("bin")]);
    }

    #[test]
    fn a_prefix_behind_a_link_is_shown_under_both_names() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let prefix = place.join("node/22.1");
        program(&prefix.join("bin/node"), "");
        let current = place.join("current");
        symlink(&prefix, &current).unwrap();
        let mut interpreters = Interpreters::default();
        interpreters
            .add("node", &current.join("bin/node"), std::slice::from_ref(&current), &Private::default())
            .unwrap();
        assert_eq!(interpreters.shown, [(prefix.clone(), current.clone()), (prefix.clone(), prefix)]);
        assert_eq!(interpreters.program_directories, [current.join("bin")]);
    }

    #[test]
    fn a_prefix_with_private_data_is_left_out() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().canonicalize().unwrap().join("ada");
        program(&home.join("bin/python3"), "#!/bin/sh\n");
        let private = Private { homes: vec![home.clone()], state: PathBuf::new() };
        let mut interpreters = Interpreters::default();
        let prefix = home.clone();
        assert!(interpreters.add("python3", &home.join("bin/python3"), &[prefix], &private).is_err());
        assert_eq!(interpreters, Interpreters::default());
    }

    #[test]
    fn a_program_without_a_prefix_is_shown_alone() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let lua = place.join(".local/bin/lua");
        program(&lua, "\x7fELF…");
        assert_eq!(guess(&lua), Vec::<PathBuf>::new());
        let mut interpreters = Interpreters::default();
        interpreters.add("lua", &lua, &[], &Private::default()).unwrap();
        assert_eq!(interpreters.shown, [(lua.clone(), lua.clone())]);
        let script = place.join(".local/bin/tsx");
        program(&script, "#!/usr/bin/env node\n");
        assert!(interpreters.add("tsx", &script, &[], &Private::default()).is_err());
    }

    #[test]
    fn nested_directories_are_shown_once() {
        let pair = |path: &str| (PathBuf::from(path), PathBuf::from(path));
        let mut interpreters =
            Interpreters { shown: ["/opt/a/b", "/opt/a", "/opt/ab"].map(pair).to_vec(), ..Interpreters::default() };
        interpreters.drop_nested();
        assert_eq!(interpreters.shown, ["/opt/a", "/opt/ab"].map(pair));
    }

    #[test]
    fn the_first_on_the_path_that_can_be_started_is_found() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/tool")).unwrap();
        fs::create_dir_all(place.path().join("b")).unwrap();
        fs::write(place.path().join("b/tool"), "").unwrap();
        program(&place.path().join("c/tool"), "");
        let path = std::env::join_paths(["a", "b", "c"].map(|name| place.path().join(name))).unwrap();
        assert_eq!(look_up("tool", &path), Some(place.path().join("c/tool")));
        assert_eq!(look_up("other", &path), None);
    }
}
