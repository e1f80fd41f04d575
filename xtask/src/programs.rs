//! The test programs of the workspace, built in one go, and once more those that take walls away.
//!
//! Cargo chooses the features of dependencies for the packages that it is asked for. Asked for one package after the other, it
//! builds most of them again and again; so it is always asked for all of them, and stages pick what they run.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::root;
use crate::stage::{Counting, Tally, run};
use crate::test::{MINUTE, cargo};

/// The package that looks at the product from outside.
pub const TESTS: &str = "sandpen-tests";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The tests beside the code of a library or a program.
    Unit,
    /// A test program of its own.
    Integration,
    Example,
}

/// Which build a program is of. They are never one build, because Cargo would then give the product the same features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walls {
    /// With everything as it is in the product.
    Whole,
    /// Those that may take a wall away to see their check fail.
    Removable,
}

/// Programs of the second kind. No test of the product is called so: Cargo would build it too.
const REMOVABLE: &[&str] = &["escape", "reach", "cycles", "crash"];

/// What to ask Cargo for to have them, and nothing of the product.
pub fn as_removable(command: &mut Command) -> &mut Command {
    command.args(["--features", "sandpen-tests/weaken"]).args(REMOVABLE.iter().flat_map(|name| ["--test", name]))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub package: String,
    pub kind: Kind,
    pub name: String,
    pub path: PathBuf,
    /// Where its package lies, which is where Cargo would run it.
    directory: PathBuf,
}

impl Program {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.directory);
        command
    }
}

/// Those that a stage wants, or nothing when they cannot be built, which Cargo has then said.
pub fn built(walls: Walls, is_wanted: impl Fn(&Program) -> bool) -> Option<Vec<&'static Program>> {
    static WHOLE: OnceLock<Option<Vec<Program>>> = OnceLock::new();
    static WEAKENED: OnceLock<Option<Vec<Program>>> = OnceLock::new();
    let all = match walls {
        Walls::Whole => &WHOLE,
        Walls::Removable => &WEAKENED,
    };
    let all = all.get_or_init(|| build(walls)).as_ref()?;
    let wanted: Vec<_> = all.iter().filter(|program| is_wanted(program)).collect();
    if wanted.is_empty() {
        println!("there is no such test program");
        return None;
    }
    Some(wanted)
}

/// The one of this name that may take walls away.
pub fn removable(name: &str) -> Option<&'static Program> {
    built(Walls::Removable, |program| program.name == name)?.into_iter().next()
}

/// Run those that are wanted, one after the other, each as `prepare` leaves its command. One that fails does not keep the
/// others from running.
pub fn run_each(is_wanted: impl Fn(&Program) -> bool, prepare: impl Fn(&mut Command), minutes: u32) -> Tally {
    let Some(programs) = built(Walls::Whole, is_wanted) else { return Tally::FAILED };
    let mut sum = Tally::default();
    for program in programs {
        println!("--> {} {}", program.package, program.name);
        let mut command = program.command();
        prepare(&mut command);
        sum.add(run(&mut command, Counting::OneOfSeveral, minutes * MINUTE));
    }
    if sum.is_empty() {
        println!("there was nothing to test in them");
        return Tally::FAILED;
    }
    sum
}

/// Run one that may take walls away.
pub fn run_removable(name: &str, prepare: impl Fn(&mut Command), minutes: u32) -> Tally {
    let Some(program) = removable(name) else { return Tally::FAILED };
    let mut command = program.command();
    prepare(&mut command);
    run(&mut command, Counting::ResultLines, minutes * MINUTE)
}

fn build(walls: Walls) -> Option<Vec<Program>> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    match walls {
        Walls::Whole => {}
        Walls::Removable => _ = as_removable(&mut command),
    }
    match command.stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(read).collect())
        }
        Ok(_) => None,
        Err(error) => {
            println!("cargo does not start: {error}");
            None
        }
    }
}

/// One line of what Cargo tells programs; nothing if it is not about a program to run.
fn read(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let kind = match (target["kind"][0].as_str()?, message["profile"]["test"].as_bool()?) {
        ("lib" | "bin", true) => Kind::Unit,
        ("test", true) => Kind::Integration,
        ("example", false) => Kind::Example,
        _ => return None,
    };
    let directory = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Program {
        package: package(message["package_id"].as_str()?)?.to_owned(),
        kind,
        name: target["name"].as_str()?.to_owned(),
        path: root().join(message["executable"].as_str()?),
        directory,
    })
}

/// Of `path+file:///…/crates/agent#sandpen-agent@0.1.0`, or, where the directory is called as the package,
/// `path+file:///…/xtask#0.1.0`.
fn package(id: &str) -> Option<&str> {
    let (place, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_either_form_of_their_ids() {
        assert_eq!(package("path+file:///p/crates/agent#sandpen-agent@0.1.0"), Some("sandpen-agent"));
        assert_eq!(package("path+file:///p/xtask#0.1.0"), Some("xtask"));
    }

    #[test]
    fn only_what_can_be_run_is_a_program() {
        let line = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///p/tests#sandpen-tests@0.1.0",
                "manifest_path":"/p/tests/Cargo.toml","target":{{"kind":["{kind}"],"name":"tidy"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = read(&line("test", true, r#""/p/target/tidy-1""#)).expect("a test program");
        assert_eq!((program.package.as_str(), program.kind), (TESTS, Kind::Integration));
        assert_eq!(program.directory, PathBuf::from("/p/tests"));
        assert_eq!(read(&line("lib", true, r#""/p/target/lib-1""#)).map(|program| program.kind), Some(Kind::Unit));
        assert_eq!(read(&line("lib", false, "null")), None);
        assert_eq!(read(&line("bin", false, r#""/p/target/sandpen""#)), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(read("no JSON"), None);
    }
}
