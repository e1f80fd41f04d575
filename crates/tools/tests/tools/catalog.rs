use std::path::Path;

use sandbox::{ByteSize, ErrorKind};
use serde_json::{Value, json};
use tools::{Catalog, Ceiling, Policy, Selection, Toolset};

/// What does not depend on the machine that the test runs on.
fn policy() -> Policy {
    let ceiling = Ceiling { cpu_millis: 2000, ..Ceiling::default() };
    Policy { ceiling, roots: vec!["/data".to_owned()], ..Policy::default() }
}

fn names(selection: &Selection) -> Vec<&'static str> {
    Catalog::new(&policy(), selection).unwrap().tools().iter().map(|tool| tool.name).collect()
}

/// Every change of what clients see is a change of this file, for a reviewer to look at.
#[test]
fn what_clients_see_is_as_it_was() {
    let catalog = Catalog::new(&policy(), &Selection::default()).unwrap();
    let tools: Vec<Value> = catalog
        .tools()
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "title": tool.title,
                "description": tool.description,
                "toolset": tool.toolset.as_str(),
                "hints": [tool.hints.read_only, tool.hints.destructive, tool.hints.idempotent, tool.hints.open_world],
                "input": tool.input_schema,
                "output": tool.output_schema,
            })
        })
        .collect();
    let seen = serde_json::to_string_pretty(&tools).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/tools.json");
    if std::env::var_os("SANDPEN_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &seen).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        seen == known,
        "the tools have changed: look at the difference after SANDPEN_BLESS=1 cargo test -p sandpen-tools"
    );
}

#[test]
fn schemas_are_understood_everywhere() {
    fn look(schema: &Value, path: &str) {
        match schema {
            Value::Object(object) => {
                assert!(!object.contains_key("$ref"), "{path} refers elsewhere");
                assert!(!object.get("type").is_some_and(Value::is_array), "{path} has several types");
                let format = object.get("format").and_then(Value::as_str).unwrap_or_default();
                assert!(!format.contains("int"), "{path} has the format {format}");
                object.iter().for_each(|(key, value)| look(value, &format!("{path}/{key}")));
            }
            Value::Array(items) => items.iter().for_each(|item| look(item, path)),
            Value::Null => panic!("{path} is null"),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    for tool in Catalog::new(&policy(), &Selection::default()).unwrap().tools() {
        look(&Value::Object(tool.input_schema.clone()), tool.name);
        look(&Value::Object(tool.output_schema.clone().unwrap()), tool.name);
        assert_eq!(tool.input_schema["additionalProperties"], json!(false), "{}", tool.name);
        assert!(tool.name.len() <= 30 && tool.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        for argument in tool.arguments() {
            assert!(!argument.description.is_empty(), "{} {}", tool.name, argument.name);
        }
        assert!(!(tool.hints.read_only && tool.hints.destructive), "{}", tool.name);
    }
}

#[test]
fn toolsets_add_up_exclusion_takes_away_and_read_only_wins() {
    let all = names(&Selection::default());
    assert_eq!(all[0], "run_code");
    let files = Selection { toolsets: vec![Toolset::Files], ..Selection::default() };
    assert_eq!(names(&files), ["read_file", "write_file", "list_files", "delete_file", "copy_files"]);
    let more = Selection { tools: vec!["run_code".to_owned()], ..files };
    assert_eq!(names(&more)[0], "run_code");
    assert_eq!(names(&more).len(), 6);
    let fewer = Selection { exclude: vec!["write_file".to_owned(), "run_code".to_owned()], ..more };
    assert_eq!(names(&fewer), ["read_file", "list_files", "delete_file", "copy_files"]);
    let read_only = Selection { read_only: true, tools: vec!["run_code".to_owned()], ..fewer };
    assert_eq!(names(&read_only), ["read_file", "list_files"]);
}

#[test]
fn a_tool_that_is_not_there_is_named() {
    let wrong = Selection { exclude: vec!["run_cod".to_owned()], ..Selection::default() };
    let error = Catalog::new(&policy(), &wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("run_cod") && error.hint().unwrap().contains("run_code"));
    let closed = Policy { roots: Vec::new(), ..policy() };
    let careful = Selection { exclude: vec!["copy_files".to_owned()], ..Selection::default() };
    assert!(Catalog::new(&closed, &careful).is_ok(), "one that is not there anyhow may be left out");
    let nothing = Selection { toolsets: vec![Toolset::Run], read_only: true, ..Selection::default() };
    assert!(Catalog::new(&policy(), &nothing).unwrap_err().message().contains("no tool is left"));
}

#[test]
fn copying_is_there_only_when_a_place_is_open() {
    let closed = Policy { roots: Vec::new(), ..policy() };
    assert!(Catalog::new(&closed, &Selection::default()).unwrap().find("copy_files").is_none());
}

#[test]
fn what_the_operator_set_is_what_a_model_reads() {
    let mut policy = policy();
    policy.limits.memory = ByteSize::mebibytes(777);
    policy.languages = vec!["brainfuck".to_owned()];
    let catalog = Catalog::new(&policy, &Selection::default()).unwrap();
    let memory = &catalog.find("create_sandbox").unwrap().input_schema["properties"]["memory_mb"];
    assert!(memory["description"].as_str().unwrap().contains("Default 777"));
    let language = &catalog.find("run_code").unwrap().input_schema["properties"]["language"];
    assert_eq!(language["enum"], json!(["brainfuck"]));
}
