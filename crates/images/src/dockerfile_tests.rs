use std::collections::BTreeMap;

use super::*;

fn parse(text: &str) -> Dockerfile {
    Dockerfile::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn steps(text: &str) -> Vec<Instruction> {
    let parsed = parse(&format!("FROM scratch\n{text}"));
    parsed.stages[0].steps.iter().map(|step| step.instruction.clone()).collect()
}

fn step(text: &str) -> Instruction {
    let mut all = steps(text);
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// All steps of the last stage with variables filled in.
fn resolved(text: &str, given: &[(&str, &str)]) -> Vec<Instruction> {
    let parsed = parse(text);
    let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let scope = Scope::new(&parsed, given).unwrap();
    let mut inside = scope.enter(&["PATH=/bin".to_owned()]);
    parsed.stages.last().unwrap().steps.iter().map(|step| inside.resolve(step).unwrap()).collect()
}

#[test]
fn stages_are_found_by_name_and_number() {
    let parsed = parse(
        "ARG V=12\nFROM debian:$V AS Build\nRUN one\n\nFROM --platform=linux/amd64 build as test\nFROM scratch\nCOPY --from=build /a /b\n",
    );
    assert_eq!(parsed.stages.len(), 3);
    let names: Vec<_> = parsed.stages.iter().map(|stage| stage.name.as_deref()).collect();
    assert_eq!(names, [Some("build"), Some("test"), None]);
    assert_eq!(parsed.stages[1].platform.as_deref(), Some("linux/amd64"));
    assert_eq!(parsed.stages[1].line, 5);
    assert_eq!(
        (parsed.stage(None).unwrap(), parsed.stage(Some("BUILD")).unwrap(), parsed.stage(Some("1")).unwrap()),
        (2, 0, 1)
    );
    assert!(matches!(parsed.stage(Some("none")), Err(Error::NotFound(_))));
    assert_eq!(parsed.earlier_stage("test", 1), None, "a stage cannot use a later one");
    let scope = Scope::new(&parsed, BTreeMap::new()).unwrap();
    assert_eq!(scope.from(&parsed.stages[0]).unwrap(), "debian:12");
    let scope = Scope::new(&parsed, BTreeMap::from([("V".to_owned(), "13".to_owned())])).unwrap();
    assert_eq!(scope.from(&parsed.stages[0]).unwrap(), "debian:13");
}

#[test]
fn lines_go_on_and_comments_do_not_count() {
    let text = "# syntax=docker/dockerfile:1\n# escape=`\nFROM scratch\nRUN one && `\n# a comment\n\n   two `  \n   three\nENV A=b` c\n";
    let parsed = parse(text);
    let lines: Vec<_> = parsed.stages[0].steps.iter().map(|step| (step.line, step.text.as_str())).collect();
    assert_eq!(lines[0], (4, "RUN one &&    two    three"));
    assert_eq!(lines[1].0, 9);
    assert_eq!(parse("FROM a\n# escape=`\nRUN a\\\n b\n").stages[0].steps.len(), 1, "only at the top");
}

#[test]
fn commands_have_two_forms() {
    assert_eq!(step("RUN echo [1]"), Instruction::Run(Command::Shell("echo [1]".to_owned())));
    assert_eq!(step("run [\"a\", \"b c\"]"), Instruction::Run(Command::Exec(words(&["a", "b c"]))));
    assert_eq!(step("CMD ['a']"), Instruction::Cmd(Command::Shell("['a']".to_owned())), "not JSON, so for the shell");
    assert_eq!(step("ENTRYPOINT []"), Instruction::Entrypoint(Command::Exec(Vec::new())));
    assert_eq!(step("SHELL [\"/bin/bash\", \"-c\"]"), Instruction::Shell(words(&["/bin/bash", "-c"])));
    assert_eq!(step("RUN a <<< b; cat << 1"), Instruction::Run(Command::Shell("a <<< b; cat << 1".to_owned())));
}

#[test]
fn copies_have_flags_and_two_forms() {
    let plain = Transfer { sources: words(&["a", "b"]), destination: "/c/".to_owned(), ..Transfer::default() };
    assert_eq!(step("COPY a b /c/"), Instruction::Copy(plain.clone()));
    assert_eq!(step("COPY [\"a\", \"b\", \"/c/\"]"), Instruction::Copy(plain.clone()));
    assert_eq!(step("ADD a b /c/"), Instruction::Add(plain.clone()));
    let flagged = Transfer {
        from: Some("build".to_owned()),
        chown: Some("1:2".to_owned()),
        chmod: Some("755".to_owned()),
        ..plain
    };
    assert_eq!(step("COPY --from=build --link --chown=1:2 --chmod=755 a b /c/"), Instruction::Copy(flagged));
}

#[test]
fn variables_are_filled_in_where_docker_does_it() {
    let text = "FROM scratch\nARG A=1 B\nENV C=$A D=${B:-none} A=2\nENV E=$C$A F='$A' G=\"a $A \\$A\" H=a\\ b\nWORKDIR /$E/${F}\n\
                LABEL l=$G\nUSER ${MISSING:+x}1000\nEXPOSE $PORTS 80\nCOPY $A /$D\nRUN echo $A\n";
    let all = resolved(text, &[("B", "given")]);
    let env = |pairs: &[(&str, &str)]| {
        Instruction::Env(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    };
    assert_eq!(all[1], env(&[("C", "1"), ("D", "given"), ("A", "2")]));
    assert_eq!(all[2], env(&[("E", "12"), ("F", "$A"), ("G", "a 2 $A"), ("H", "a b")]));
    assert_eq!(all[3], Instruction::Workdir("/12/$A".to_owned()));
    assert_eq!(all[4], Instruction::Label(vec![("l".to_owned(), "a 2 $A".to_owned())]));
    assert_eq!(all[5], Instruction::User("1000".to_owned()));
    assert_eq!(all[6], Instruction::Expose(words(&["80"])));
    assert!(
        matches!(&all[7], Instruction::Copy(transfer) if transfer.sources == ["2"] && transfer.destination == "/given")
    );
    assert_eq!(all[8], Instruction::Run(Command::Shell("echo $A".to_owned())));
    assert_eq!(resolved("FROM a\nENV A one two\n", &[])[0], env(&[("A", "one two")]));
}

#[test]
fn arguments_from_before_the_stages_are_seen_only_when_asked_for() {
    let text = "ARG V=1\nARG W=${V}2\nFROM scratch\nENV A=$V\nARG V\nARG W=own\nENV B=$V-$W\n";
    let all = resolved(text, &[]);
    assert_eq!(all[0], Instruction::Env(vec![("A".to_owned(), String::new())]));
    assert_eq!(all[3], Instruction::Env(vec![("B".to_owned(), "1-own".to_owned())]));
    let parsed = parse(text);
    let given = BTreeMap::from([("V".to_owned(), "x".to_owned()), ("TYPO".to_owned(), "x".to_owned())]);
    let scope = Scope::new(&parsed, given).unwrap();
    assert_eq!(scope.unknown(&parsed).collect::<Vec<_>>(), ["TYPO"]);
}

#[test]
fn a_run_sees_arguments_and_environment() {
    let parsed = parse("FROM scratch\nARG A=arg\nARG B=arg\nENV B=env\n");
    let mut scope = Scope::new(&parsed, BTreeMap::new()).unwrap().enter(&["PATH=/bin".to_owned()]);
    for step in &parsed.stages[0].steps {
        scope.resolve(step).unwrap();
    }
    let expected =
        [("A", "arg"), ("B", "env"), ("PATH", "/bin")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(scope.environment(), BTreeMap::from(expected));
}

#[test]
fn what_is_not_known_is_named_with_its_line() {
    for (text, part) in [
        ("FROM a\nONBUILD RUN x", "line 2 of the Dockerfile: \"ONBUILD\""),
        ("FROM a\n\nCPOY a b", "line 3 of the Dockerfile: \"CPOY\""),
        ("FROM a\nRUN --mount=type=cache,target=/x make", "RUN --mount"),
        ("FROM a\nCOPY --parents a b", "COPY --parents"),
        ("FROM a\nADD --checksum=sha256:1 a b", "ADD --checksum"),
        ("FROM a\nADD https://example.com/x /x", "only local files"),
        ("FROM a\nRUN <<EOF\necho\nEOF\n", "here-documents"),
        ("FROM a\nCOPY <<-\"EOF\" /x\n", "here-documents"),
    ] {
        let error = Dockerfile::parse(text).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains(part), "{text}: {error}");
    }
    for (text, part) in [
        ("", "no FROM"),
        ("# only a comment", "no FROM"),
        ("RUN x\nFROM a", "line 1"),
        ("FROM a b", "AS and a name"),
        ("FROM a AS -x", "name"),
        ("FROM a AS x\nFROM b AS X", "same name"),
        ("FROM a\nCOPY a", "what to copy"),
        ("FROM a\nENV", "says nothing"),
        ("FROM a\nHEALTHCHECK x", "line 2 of the Dockerfile: HEALTHCHECK is NONE, or CMD and a command"),
        ("FROM a\nHEALTHCHECK --interval=x CMD y", "line 2 of the Dockerfile: HEALTHCHECK has --interval=x"),
        ("FROM a\nENV A", "NAME=value"),
        ("FROM a\nENV 1=2", "NAME=value"),
        ("FROM a\nENV A=1 B", "NAME=value"),
        ("FROM a\nARG 1", "NAME"),
        ("FROM a\nSHELL bash -c", "JSON"),
        ("FROM a\nCOPY --from= a b", "without a value"),
        ("# escape=x\nFROM a", "escape"),
    ] {
        let error = Dockerfile::parse(text).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(part), "{text}: {error}");
    }
    for text in
        ["WORKDIR $A", "ENV A=\"x", "ENV A='x", "WORKDIR ${A", "WORKDIR ${A%x}", "WORKDIR ${}", "WORKDIR ${A:?no}"]
    {
        let parsed = parse(&format!("FROM a\n{text}\n"));
        let mut scope = Scope::new(&parsed, BTreeMap::new()).unwrap().enter(&[]);
        let error = scope.resolve(&parsed.stages[0].steps[0]).unwrap_err();
        assert!(error.to_string().starts_with("line 2 of the Dockerfile: "), "{text}: {error}");
    }
}

#[test]
fn no_text_takes_long_or_panics() {
    let deep = "${A:-".repeat(2_000);
    let parsed = parse(&format!("FROM a\nWORKDIR {deep}\n"));
    assert!(Scope::new(&parsed, BTreeMap::new()).unwrap().enter(&[]).resolve(&parsed.stages[0].steps[0]).is_err());
    assert!(matches!(Dockerfile::parse(&"#\n".repeat(1 << 20)), Err(Error::LimitExceeded(_))));
    let stars = Pattern::parse(&"*a".repeat(500)).unwrap();
    assert!(!stars.matches(&"a".repeat(499)));
    assert!(!Pattern::parse(&"**/a/".repeat(200)).unwrap().matches(&"b/".repeat(200)));
}

#[test]
fn patterns_stay_within_directories() {
    for (pattern, path, expected) in [
        ("*", "a", true),
        ("*", "a/b", false),
        ("a/*", "a/b", true),
        ("a?c", "abc", true),
        ("a[b-d]", "ac", true),
        ("a[^b-d]", "ac", false),
        ("a\\*", "a*", true),
        ("a\\*", "ab", false),
        ("**/x", "x", true),
        ("**/x", "a/b/x", true),
        ("a/**", "a/b/c", true),
        ("a/**/c", "a/c", true),
        ("**", "a/b", true),
        ("/a/", "a", true),
        ("a/../b", "b", true),
        (".git", ".gitignore", false),
    ] {
        assert_eq!(Pattern::parse(pattern).unwrap().matches(path), expected, "{pattern} {path}");
    }
    for wrong in ["[", "[]", "a\\", "[a-"] {
        assert!(Pattern::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_ignored_is_left_out_unless_a_later_line_keeps_it() {
    let ignore =
        Ignore::parse("# comment\n\n*.log\n/build\n**/secret\n!keep.log\n!build/kept\nbuild/kept/not\n").unwrap();
    for (path, expected) in [
        ("a.log", true),
        ("keep.log", false),
        ("sub/a.log", false),
        ("build", true),
        ("build/x/y", true),
        ("build/kept", false),
        ("build/kept/x", false),
        ("build/kept/not", true),
        ("a/b/secret/c", true),
        ("src/build", false),
        ("Dockerfile", false),
    ] {
        assert_eq!(ignore.leaves_out(path), expected, "{path}");
    }
    assert!(ignore.has_exceptions() && !Ignore::parse("a\n").unwrap().has_exceptions());
    let long = "x\n".repeat(MAX_BYTES / 2);
    assert!(
        Ignore::parse(&long).is_ok() && Ignore::parse(&format!("{long}y")).is_err(),
        "what is cut off would be copied"
    );
    assert!(!Ignore::default().leaves_out("anything"));
}
