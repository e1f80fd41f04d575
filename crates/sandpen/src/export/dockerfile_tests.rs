use std::collections::BTreeMap;

use images::dockerfile::{Command, Dockerfile as Parsed, Instruction, Scope};
use sandbox::Environment;

use super::*;

fn parsed(file: &Dockerfile) -> Vec<Instruction> {
    let mut parsed = Parsed::parse(file.text()).unwrap();
    assert_eq!(parsed.stages.len(), 1, "{}", file.text());
    parsed.stages.remove(0).steps.into_iter().map(|step| step.instruction).collect()
}

/// The only instruction, as a builder understands it.
fn resolved(file: &Dockerfile) -> Instruction {
    let parsed = Parsed::parse(file.text()).unwrap();
    let mut scope = Scope::new(&parsed, BTreeMap::new()).unwrap().enter(&[]);
    scope.resolve(&parsed.stages[0].steps[0]).unwrap()
}

fn shell(line: &str) -> Vec<String> {
    ["/bin/sh", "-c", line].map(str::to_owned).to_vec()
}

#[test]
fn a_plain_line_stays_a_line_and_all_others_become_lists() {
    for (line, is_plain) in [
        ("apt-get update && apt-get install -y jq", true),
        ("echo \"$HOME\" 'x' > y", true),
        ("echo a\necho b", false),
        ("cat <<EOF", false),
        ("[ -f x ]", false),
        ("--mount=type=secret true", false),
        ("# nothing", false),
        ("echo \\", false),
        (" padded", false),
        ("echo \u{2028}FROM evil", false),
        ("echo \rFROM evil", false),
    ] {
        let mut file = Dockerfile::from("base");
        file.run(&shell(line), &KnownEnvironment::default(), false);
        let expected = match is_plain {
            true => Command::Shell(line.to_owned()),
            false => Command::Exec(shell(line)),
        };
        assert_eq!(parsed(&file), [Instruction::Run(expected)], "{line:?}: {}", file.text());
        assert_eq!(file.text().lines().count(), 2, "{line:?}");
    }
}

#[test]
fn a_command_keeps_its_variables_and_may_fail() {
    let mut environment = Environment::default();
    environment.insert("A", "b c\n").unwrap();
    let known = KnownEnvironment { values: environment, ..KnownEnvironment::default() };
    let mut file = Dockerfile::from("base");
    file.run(&["make".to_owned()], &known, true);
    let words = ["/bin/sh", "-c", "\"$@\" || true", "sh", "env", "A=b c\n", "make"].map(str::to_owned).to_vec();
    assert_eq!(parsed(&file), [Instruction::Run(Command::Exec(words))]);
}

#[test]
fn nothing_that_was_chosen_inside_becomes_an_instruction() {
    let hostile = "x\nRUN evil\\";
    let mut file = Dockerfile::from("base");
    file.comment(hostile);
    file.comment("ends in a backslash \\");
    assert!(!file.environment("A", hostile));
    let path = GuestPath::workspace().join(b"a\nRUN evil").unwrap();
    assert!(!file.work_directory(&path));
    assert_eq!(file.remove([&path]).len(), 0);
    assert_eq!(file.remove([&GuestPath::workspace().join(b"\xff").unwrap()]).len(), 1);
    let removed = ["rm", "-rf", "--", "/workspace/a\nRUN evil"].map(str::to_owned).to_vec();
    assert_eq!(parsed(&file), [Instruction::Run(Command::Exec(removed))]);
}

#[test]
fn values_and_directories_read_back_as_they_were() {
    for value in ["plain", "two words", "a \"quoted\" $VALUE\\", "", "'"] {
        let mut file = Dockerfile::from("base");
        assert!(file.environment("NAME", value));
        assert_eq!(resolved(&file), Instruction::Env(vec![("NAME".to_owned(), value.to_owned())]), "{}", file.text());
    }
    for name in ["plain", "two words", "$HOME", "a'b\"c", "back\\slash"] {
        let mut file = Dockerfile::from("base");
        assert!(file.work_directory(&GuestPath::workspace().join(name.as_bytes()).unwrap()));
        assert_eq!(resolved(&file), Instruction::Workdir(format!("/workspace/{name}")), "{}", file.text());
    }
    let mut file = Dockerfile::from("base");
    assert!(file.work_directory(&GuestPath::workspace()));
    assert!(file.work_directory(&GuestPath::workspace()));
    assert_eq!(parsed(&file), [Instruction::Workdir("/workspace".to_owned())], "once is enough");
}
