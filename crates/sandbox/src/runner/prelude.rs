//! What interpreters read before the code of a single run. See [`Prelude`].

use serde::Deserialize;

use crate::exec::Prelude;
use crate::path::GuestPath;

/// Interpreters for which there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Interpreter {
    Python,
}

impl Interpreter {
    /// `None` when there is nothing to be done before the code. `directory` is for this run alone, and for what it displays.
    pub fn prelude(self, directory: &GuestPath, modules: &[String], displays: bool) -> Option<Prelude> {
        if modules.is_empty() && !displays {
            return None;
        }
        let Self::Python = self;
        let text = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let display = if displays { include_str!("../context/drivers/display.py") } else { "" };
        let ahead = if modules.is_empty() { "" } else { include_str!("prelude/ahead.py") };
        let contents = include_str!("prelude/python.py")
            .replace("{modules}", &modules.join(" "))
            .replace("{ahead}", &text(ahead))
            .replace("{display}", &text(display));
        Some(Prelude {
            directory: directory.clone(),
            file: "sitecustomize.py",
            contents,
            variable: "PYTHONPATH",
            is_heavy: !modules.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prelude(modules: &[&str], displays: bool) -> Option<Prelude> {
        let modules: Vec<_> = modules.iter().map(|&name| name.to_owned()).collect();
        Interpreter::Python.prelude(&"/tmp/.run-only".parse().unwrap(), &modules, displays)
    }

    #[test]
    fn what_is_not_needed_is_not_there() {
        assert_eq!(prelude(&[], false), None);
        let (plain, shown, both) = (prelude(&["numpy"], false), prelude(&[], true), prelude(&["numpy"], true));
        let has = |prelude: &Option<Prelude>, text: &str| prelude.as_ref().unwrap().contents.contains(text);
        assert!(has(&plain, "MODULES = \"numpy\"") && has(&plain, "def all_imported") && !has(&plain, "class Sink"));
        assert!(!has(&shown, "def all_imported") && has(&shown, "class Sink"));
        assert!(has(&both, "def all_imported") && has(&both, "class Sink") && !has(&both, "{display}"));
    }

    #[test]
    fn what_is_watched_is_what_is_patched() {
        let watched = include_str!("prelude/python.py").lines().find(|line| line.starts_with("WATCHED")).unwrap();
        let (_, patches) = include_str!("../context/drivers/display.py").split_once("\nPATCHES = {").unwrap();
        let (patches, _) = patches.split_once('}').unwrap();
        let patched: Vec<_> = patches.split('"').skip(1).step_by(2).collect();
        let names: Vec<_> = watched.split('"').skip(1).step_by(2).collect();
        assert_eq!(names, patched);
    }

    /// What code prints, and how it ends, in an interpreter that waited for it; `None` is one that did not.
    #[cfg(target_os = "linux")]
    fn printed(library: &str, code: &str, ahead: Option<&[&str]>) -> (String, String, Option<i32>) {
        use std::process::{Command, Stdio};
        use std::time::{Duration, Instant};

        let home = tempfile::tempdir().unwrap();
        let shown = |ended: std::process::Output| {
            let text = |bytes| String::from_utf8(bytes).unwrap().replace(home.path().to_str().unwrap(), "HOME");
            (text(ended.stdout), text(ended.stderr), ended.status.code())
        };
        let (here, script) = (home.path().join("here"), home.path().join("script.py"));
        std::fs::create_dir(&here).unwrap();
        let mut python = Command::new("python3");
        python
            .arg("script.py")
            .current_dir(home.path())
            .env_remove("PYTHONPATH")
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Some(modules) = ahead else {
            std::fs::remove_dir(&here).unwrap();
            std::fs::write(&script, code).unwrap();
            return shown(python.env("PYTHONPATH", library).output().unwrap());
        };
        let prelude = prelude(modules, false).unwrap();
        std::fs::write(here.join(prelude.file), prelude.contents).unwrap();
        assert!(Command::new("mkfifo").arg(&script).status().unwrap().success());
        let pipe = std::fs::OpenOptions::new().read(true).write(true).open(&script).unwrap();
        let waiting = python.env("PYTHONPATH", format!("{}:{library}", here.display())).spawn().unwrap();
        let begun = Instant::now();
        while here.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it has not come to its script");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(home.path().join("beside"), code).unwrap();
        std::fs::rename(home.path().join("beside"), &script).unwrap();
        std::io::Write::write_all(&mut &pipe, code.as_bytes()).unwrap();
        drop(pipe);
        shown(waiting.wait_with_output().unwrap())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_an_import_says_is_said_when_the_code_imports() {
        if std::process::Command::new("python3").arg("--version").output().is_err() {
            let _ = std::io::Write::write_all(&mut std::io::stdout(), b"SKIPPED: there is no python3\n");
            return;
        }
        let library = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("quiet", "value = 1"),
            ("noisy", "print('noise')"),
            ("failing", "1 / 0"),
            ("warning", "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)"),
            ("leaving", "raise SystemExit(4)"),
            ("dying", "import os\nos.write(2, b'x')"),
        ] {
            std::fs::write(library.path().join(format!("{name}.py")), text).unwrap();
        }
        let library = library.path().to_str().unwrap();
        for names in ["quiet", "noisy", "failing", "warning", "leaving", "dying", "missing", "quiet noisy"] {
            let modules: Vec<_> = names.split(' ').collect();
            let code = format!(
                "import {}\nimport os, sys\nprint(sorted(sys.modules), os.environ.get('PYTHONPATH') == {library:?}, sys.argv)\n\
                 print(len(sys.path), len(sys.meta_path), sorted(os.listdir('/proc/self/fd')), sys._getframe().f_back, sys.orig_argv)",
                modules.join(", ")
            );
            let (ahead, asked) = (printed(library, &code, Some(&modules)), printed(library, &code, None));
            assert_eq!(ahead, asked, "{names}");
        }
        // And that it was imported before: only then the code finds what it was in the place of the script.
        let text = "import os, stat\nvalue = stat.S_ISFIFO(os.stat('script.py').st_mode)";
        std::fs::write(std::path::Path::new(library).join("quiet.py"), text).unwrap();
        for (ahead, printed_by) in [(Some(&["quiet"][..]), "True\n"), (None, "False\n")] {
            let (stdout, ..) = printed(library, "import quiet\nprint(quiet.value)", ahead);
            assert_eq!(stdout, printed_by);
        }
    }
}
