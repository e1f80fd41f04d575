//! Whether the transcripts of a profile say something of all that its pinned schemas offer, and of each way in which the older
//! server told of a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sandpen_tests::Result;
use serde_json::Value;

/// How the documents of the older servers say that something went wrong, as far as words are fixed there.
const FAILURES: &[(&str, &[&str])] = &[
    (
        "automata",
        &[
            " is required",
            "Each command must be a string",
            "commands must be a string or an array of strings",
            "at least one command is required",
            "Command exited with code ",
            "Error executing command: ",
            "Error: failed to pull Docker image ",
            "Error: failed to create container: ",
            "Error creating directory: ",
            "Error writing file: ",
            "Error accessing source file: ",
            "local_src_file must be a file, not a directory",
            "Error creating destination directory: ",
            "Error copying file to container: ",
            "Error accessing source directory: ",
            "local_src_dir must be a directory",
            "Error copying to container: ",
            "Error copying file from container: ",
            "Error: container_id is required",
            "Error: failed to stop container: ",
            "Tool not found: ",
        ],
    ),
    (
        "cloudflare",
        &[
            "Process exited with code: ",
            "Request to container failed: 404 Not Found",
            "Request to container failed: Error: Error: ENOENT: no such file or directory, open ",
            "File deleted: false.",
            "Failed to start container: ",
            "(limit_exceeded)",
            "Input validation error: Invalid arguments for tool ",
            " not found",
        ],
    ),
    (
        "code-runner",
        &[
            " is required",
            "Invalid arguments",
            "Tool not found: ",
            "Method not found: ",
            "Unsupported language: ",
            "Execution timed out after ",
            "is not valid base64",
            "\\\"success\\\": false",
        ],
    ),
    (
        "philschmid",
        &[
            "No output, forgot print()?",
            "No output, forgot console.logs?",
            "Operation timed out after ",
            "\\\"exit_code\\\": 1",
            "Error executing tool run_python_code: ",
            "Error executing tool run_javascript_code: ",
            "Unknown tool: ",
        ],
    ),
    (
        "sandbox-server",
        &[
            "Error: Image ",
            "Error creating container: ",
            "Error creating file: ",
            "Error executing command: ",
            "Error saving container: ",
            "Error generating Dockerfile: ",
            "Container x not found",
            " not found",
            "Error executing tool ",
            "Unknown tool: ",
        ],
    ),
];

/// How they told of failures that no transcript has, and why none can. What a unit test makes an engine do no client can.
const NEVER: &[(&str, &str, &str)] = &[
    (
        "automata",
        "Error: failed to start container: ",
        "one is made and started in one step, which is told as its creation",
    ),
    (
        "automata",
        "Error: failed to remove container: ",
        "one is stopped and removed in one step, which is told as its stop",
    ),
    (
        "automata",
        "Error creating tar archive: ",
        "no archive is written: what cannot be read is told as an error in copying",
    ),
    (
        "automata",
        "Error extracting archive in container: ",
        "no archive is left to unpack: what cannot be written is told so too",
    ),
    (
        "cloudflare",
        "Blocked from initializing container.",
        "there is no list of users to block: who has no token is not let in",
    ),
    (
        "sandbox-server",
        "Failed to stop container gracefully: ",
        "only an engine that fails, as in a unit test of the profile",
    ),
    ("sandbox-server", "Error cleaning up container: ", "only an engine that fails, as in a unit test of the profile"),
];

/// Tools that cannot succeed on one kind of engine in a transcript, and why.
const UNABLE: &[(&str, &str, &str, &str)] = &[(
    "sandbox-server",
    "export_dockerfile",
    "embedded",
    "it needs a base that a registry has, and transcripts have only the machine's own programs; tests/clients has one",
)];

const KINDS: [&str; 2] = ["embedded", "daemon"];

/// One tool as a client sees it: what it takes, by paths with dots.
#[derive(Debug, Default, PartialEq)]
struct Offered {
    arguments: BTreeMap<String, BTreeSet<String>>,
    required: BTreeSet<String>,
}

/// What no transcript says; nothing, when all is well.
pub(crate) fn gaps(profile: &str, transcripts: &Path, schemas: &Path) -> Result<Vec<String>> {
    let pinned = read(&schemas.join(profile).join("tools.json"))?;
    let mut steps = Vec::new();
    for path in crate::sorted(&transcripts.join(profile))? {
        let mut transcript = read(&path)?;
        if let Value::Array(taken) = transcript["steps"].take() {
            steps.extend(taken);
        }
    }
    let known = FAILURES.iter().find(|(name, _)| *name == profile).map(|(_, failures)| *failures);
    let failures = known.ok_or_else(|| format!("nobody has said how {profile} fails"))?;
    let unable = UNABLE.iter().filter(|(name, ..)| *name == profile).map(|(_, tool, kind, _)| (*tool, *kind)).collect();
    let mut gaps = untold(&pinned, &steps, failures, &unable);
    let answers: String = steps.iter().map(|step| format!("{}{}\n", step["answer"], step["error"])).collect();
    let never = NEVER.iter().filter(|(name, text, _)| *name == profile && answers.contains(text));
    gaps.extend(never.map(|(_, text, why)| format!("something ends with {text:?}, which cannot be: {why}")));
    let missing = failures.iter().filter(|failure| !answers.contains(**failure));
    gaps.extend(missing.map(|failure| format!("nothing ends with {failure:?}")));
    Ok(gaps)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn untold(pinned: &Value, steps: &[Value], failures: &[&str], unable: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let mut gaps = Vec::new();
    let tools = pinned["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = tools.iter().map(|tool| name_of(&tool["name"])).collect();
    for tool in tools {
        let (name, mut offered) = (name_of(&tool["name"]), Offered::default());
        offered.read(&tool["input"], "");
        let calls: Vec<&Value> = steps.iter().filter(|step| step["call"] == tool["name"]).collect();
        for kind in KINDS {
            let is_of = |step: &Value| step["only"].as_str().is_none_or(|only| only == kind);
            let does = calls.iter().any(|call| is_of(call) && succeeds(call, failures));
            match (does, unable.contains(&(name.as_str(), kind))) {
                (false, false) => gaps.push(format!("{name} never succeeds ({kind})")),
                (true, true) => gaps.push(format!("{name} succeeds ({kind}), which cannot be")),
                (true, false) | (false, true) => {}
            }
        }
        let missing = offered.arguments.keys().filter(|path| !calls.iter().any(|call| at(call, path).is_some()));
        gaps.extend(missing.map(|path| format!("{name} is never given {path}")));
        let never_out = offered.required.iter().filter(|path| !calls.iter().any(|call| lacks(call, path)));
        gaps.extend(never_out.map(|path| format!("{name} is never called without {path}")));
        let is_wrong = |call: &Value| {
            let mut given = offered.arguments.iter().filter_map(|(path, kinds)| Some((at(call, path)?, kinds)));
            given.any(|(value, kinds)| !kinds.is_empty() && !kinds.contains(kind(value)))
        };
        if !offered.arguments.is_empty() && !calls.iter().any(|call| is_wrong(call)) {
            gaps.push(format!("{name} is never given something of the wrong kind"));
        }
    }
    let is_unknown = |step: &Value| step.get("call").is_some_and(|call| !names.contains(&name_of(call)));
    if !steps.iter().any(is_unknown) {
        gaps.push("no tool is called that is not there".to_owned());
    }
    gaps
}

/// Whether the answer to a step is none that tells of a failure: most older servers flagged none of them.
fn succeeds(step: &Value, failures: &[&str]) -> bool {
    let Some(answer) = step.get("answer").filter(|answer| answer["isError"] != true) else { return false };
    let Some(text) = answer["content"][0]["text"].as_str() else { return true };
    // A result that is JSON says it with its first member.
    let first = text.trim_start_matches(['{', '\n', ' ']);
    let tells = |failure: &&str| {
        let failure = failure.replace("\\\"", "\"");
        first.starts_with(&failure) || text.ends_with(&failure)
    };
    !failures.iter().any(tells)
}

impl Offered {
    fn read(&mut self, schema: &Value, above: &str) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.required.insert(format!("{above}{name}"));
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{above}{name}");
            let mut kinds = BTreeSet::new();
            for one in std::iter::once(inner).chain(inner["anyOf"].as_array().into_iter().flatten()) {
                match &one["type"] {
                    Value::String(kind) => _ = kinds.insert(kind.replace("integer", "number")),
                    Value::Array(several) => {
                        kinds.extend(
                            several.iter().filter_map(Value::as_str).map(|kind| kind.replace("integer", "number")),
                        );
                    }
                    _ => {}
                }
            }
            self.read(inner, &format!("{path}."));
            self.arguments.insert(path, kinds);
        }
    }
}

fn at<'a>(call: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(&call["arguments"], |value, name| value.as_object()?.get(name))
}

/// Whether a call has all that is around an argument and not that.
fn lacks(call: &Value, path: &str) -> bool {
    let around = path.rsplit_once('.').map_or(Some(&call["arguments"]), |(above, _)| at(call, above));
    around.is_some_and(|around| around.is_object() || around.is_null()) && at(call, path).is_none()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What it is for: an argument that nobody ever gives is found.
pub(crate) fn sees_what_is_missing() -> Result<()> {
    let pinned = serde_json::json!({ "tools": [{ "name": "one", "input": { "required": ["a"], "properties": {
        "a": { "type": "object", "required": ["b"], "properties": { "b": { "type": "string" }, "c": { "type": "integer" } } } } } }] });
    let step = |arguments: Value| serde_json::json!({ "call": "one", "arguments": arguments, "answer": {} });
    let unable = BTreeSet::new();
    let untold = |steps: &[Value]| untold(&pinned, steps, &["bad: ", "\\\"ok\\\": false"], &unable);
    let mut some = [step(serde_json::json!({ "a": { "b": "x" } }))];
    let expected = [
        "one is never given a.c",
        "one is never called without a",
        "one is never called without a.b",
        "one is never given something of the wrong kind",
        "no tool is called that is not there",
    ];
    let found = untold(&some);
    if found != expected {
        return Err(format!("it finds {found:?}").into());
    }
    for (text, only, missing) in [
        ("bad: it failed", "", &["embedded", "daemon"][..]),
        ("{\n  \"ok\": false\n}", "", &["embedded", "daemon"]),
        ("good", "daemon", &["embedded"]),
        ("not bad: it worked", "", &[]),
    ] {
        some[0]["answer"] = serde_json::json!({ "content": [{ "type": "text", "text": text }] });
        some[0]["only"] = if only.is_empty() { Value::Null } else { only.into() };
        let found = untold(&some);
        let of_success: Vec<_> = found.iter().filter(|gap| gap.contains("succeeds")).collect();
        let expected: Vec<_> = missing.iter().map(|kind| format!("one never succeeds ({kind})")).collect();
        if !of_success.iter().copied().eq(&expected) {
            return Err(format!("of the answer {text:?} it finds {of_success:?}").into());
        }
    }
    let all = [
        step(serde_json::json!({})),
        step(serde_json::json!({ "a": { "c": 1 } })),
        step(serde_json::json!({ "a": { "b": 1 } })),
        serde_json::json!({ "call": "two", "error": {} }),
    ];
    let found = untold(&all);
    if found.is_empty() { Ok(()) } else { Err(format!("it finds {found:?} where all is told").into()) }
}
