//! The other languages whose interpreters can stay.

use serde_json::{Value, json};

use super::lab::{Lab, text};
use super::needs_sandboxes;

/// Whether the image has the language; says so when not.
fn has(lab: &mut Lab, language: &str, code: &str) -> bool {
    let answer = lab.ask_with("probe", code, json!({ "language": language }));
    if answer["isError"] == true {
        crate::support::skip(&text(&answer));
    }
    answer["isError"] != true
}

#[test]
fn javascript_keeps_its_variables_and_waits_at_the_top_level() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if !has(&mut lab, "javascript", "1") {
        return;
    }
    let javascript = json!({ "language": "javascript" });
    let mut run = |code: &str| lab.run_with("main", code, javascript.clone());
    let first = run("const x = 41; let list = [1];\nfunction broken(a) {\n  return a.b.c;\n}\nconsole.log('hello')");
    assert_eq!((&first["stdout"], &first["result"]), (&json!("hello\n"), &Value::Null), "{first}");
    assert_eq!(run("const x = 42; list.push(x); ({ x, list })")["result"], "{ x: 42, list: [ 1, 42 ] }");
    assert_eq!(run("await new Promise(done => setTimeout(() => done(x + 1), 10))")["result"], "43");
    assert_eq!(run("import { sep } from 'node:path'\n(await import('node:os')).EOL + sep")["result"], "'\\n/'");
    let failed = run("broken({})");
    let told = failed["stderr"].as_str().unwrap();
    assert_eq!(failed["exit_code"], 1, "{failed}");
    assert!(told.contains("at broken (run-1:3:14)") && !told.contains("driver") && !told.contains(".run-"), "{told}");
    let child = run("require('child_process').execSync('echo child; cat', { stdio: 'inherit' }); 'read nothing'");
    assert_eq!((&child["stdout"], &child["result"]), (&json!("child\n"), &json!("'read nothing'")), "{child}");
    for endless in ["while (true) {}", "await new Promise(() => {})"] {
        let late = lab.run_with("main", endless, json!({ "language": "javascript", "timeout_s": 1 }));
        assert_eq!((&late["status"], &late["context"]["ended"]), (&json!("timed_out"), &Value::Null), "{late}");
    }
    assert_eq!(lab.run_with("main", "x", javascript)["result"], "42");
    let ended = lab.run_with("main", "process.exit(3)", json!({ "language": "javascript" }));
    assert!(ended["context"]["ended"].as_str().unwrap().contains("code 3"), "{ended}");
    let refused = lab.refused("main", "1", json!({}));
    assert!(refused.contains("the context main is of javascript"), "{refused}");
}

#[test]
fn typescript_is_stripped_where_node_can() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if !has(&mut lab, "typescript", "1") {
        return;
    }
    let typescript = json!({ "language": "typescript" });
    lab.run_with("main", "interface Point { x: number }\nconst point: Point = { x: 1 }", typescript.clone());
    assert_eq!(lab.run_with("main", "(point as Point).x + 1", typescript)["result"], "2");
}

#[test]
fn bash_keeps_its_directory_variables_and_functions() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    if !has(&mut lab, "bash", "true") {
        return;
    }
    let bash = json!({ "language": "bash" });
    let mut run = |code: &str| lab.run_with("main", code, bash.clone());
    run(
        "colour=blue; declare -A map=([one]=1)\nshow() { echo \"$1 $colour ${map[one]}\"; }\nmkdir -p /tmp/deep; cd /tmp/deep",
    );
    let second = run("show me; pwd; cat; false");
    assert_eq!((&second["stdout"], &second["exit_code"]), (&json!("me blue 1\n/tmp/deep\n"), &json!(1)), "{second}");
    assert_eq!(run("echo 'ünïcödé'; return 5; echo no")["stdout"], "ünïcödé\n");
    for endless in
        ["sleep 600; echo no", "while :; do :; done; echo no", "show() { sleep 600; echo no; }; show; echo no"]
    {
        let late = lab.run_with("main", endless, json!({ "language": "bash", "timeout_s": 1 }));
        assert_eq!((&late["status"], &late["context"]["ended"]), (&json!("timed_out"), &Value::Null), "{late}");
        assert_eq!(late["stdout"], "", "{late}");
    }
    assert_eq!(lab.run_with("main", "echo $colour", bash)["stdout"], "blue\n");
}
