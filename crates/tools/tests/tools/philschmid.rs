use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{Image, ImageName, Result};
use serde_json::{Value, json};
use tools::profile::{CodeImage, Philschmid};
use tools::{Body, Content, ImageSource, Output, Policy, Profile, ProfileOption, ProfileOptions, Progress};

use crate::support::{World, text};

/// On a host whose only language is that of its shell.
fn profile(options: &[ProfileOption]) -> Arc<Philschmid> {
    let mut chosen = ProfileOptions::default();
    options.iter().for_each(|option| chosen.add(*option));
    let language = || Some("bash".to_owned());
    let python = CodeImage::python(Some(Image::Host), language()).unwrap();
    let javascript = CodeImage::javascript(Some(Image::Host), language()).unwrap();
    Arc::new(Philschmid::new(chosen, python, javascript))
}

async fn world(options: &[ProfileOption]) -> World {
    World::speaking_as(profile(options), Policy { timeout: Duration::from_millis(1500), ..Policy::default() }).await
}

/// The text of an answer, which is also its value.
fn said(output: &Output) -> String {
    let block = json!({ "type": "text", "text": text(output), "annotations": null, "_meta": null });
    assert_eq!(Value::Object(output.structured.clone().unwrap()), block);
    text(output)
}

fn failure(why: &str) -> String {
    format!("{{\n  \"exit_code\": 1,\n  \"stderr\": {},\n  \"stdout\": \"\"\n}}", json!(why))
}

#[tokio::test]
async fn success_is_plain_text_and_failure_is_an_object() {
    let world = world(&[]).await;
    for (tool, code, told) in [
        ("run_python_code", "echo ' hello '; echo no >&2", "hello".to_owned()),
        ("run_javascript_code", "pwd", "/sandbox".to_owned()),
        ("run_js_code", "pwd", "/sandbox".to_owned()),
        ("run_python_code", "true", failure("No output, forgot print()?")),
        ("run_javascript_code", "true", failure("No output, forgot console.logs?")),
        ("run_js_code", "true", failure("No output, forgot console.logs?")),
        ("run_python_code", "echo lost; echo why >&2; exit 3", failure("why")),
        ("run_python_code", "echo lost; sleep 100", failure("Operation timed out after 1.5 seconds")),
    ] {
        let output = world.call(tool, json!({ "code": code })).await;
        assert!(!output.is_error && output.content.len() == 1, "{output:?}");
        assert_eq!(said(&output), told, "{tool} {code}");
    }
}

#[tokio::test]
async fn each_call_has_a_sandbox_of_its_own_that_ends_with_it() {
    let world = world(&[]).await;
    said(&world.call("run_python_code", json!({ "code": "echo x > left; cat left" })).await);
    let output = world.call("run_python_code", json!({ "code": "cat left" })).await;
    assert!(said(&output).contains("\"exit_code\": 1"), "{output:?}");
    assert_eq!(world.service.list(&world.caller().owner).await.unwrap(), []);
}

#[tokio::test]
async fn pictures_come_back_as_images() {
    let world = world(&[]).await;
    let draw = "printf '<svg xmlns=\"http://www.w3.org/2000/svg\"/>' > plot.svg";
    for (code, told) in [
        (draw.to_owned(), failure("No output, forgot print()?")),
        (format!("{draw}; echo done"), "done".to_owned()),
        (format!("{draw}; echo why >&2; exit 1"), failure("why")),
    ] {
        let output = world.call("run_python_code", json!({ "code": code })).await;
        assert_eq!(said(&output), told);
        let picture =
            matches!(output.content.as_slice(), [Content::Text(_), Content::Image { mime_type: "image/svg+xml", .. }]);
        assert!(picture, "{output:?}");
    }
}

#[tokio::test]
async fn an_option_flags_what_fails() {
    let world = world(&[ProfileOption::FlagFailures]).await;
    assert!(world.call("run_python_code", json!({ "code": "exit 1" })).await.is_error);
    assert!(!world.call("run_python_code", json!({ "code": "echo fine" })).await.is_error);
}

#[tokio::test]
async fn mistakes_are_flagged() {
    let world = world(&[]).await;
    for (tool, arguments, told) in [
        ("run_js_code", json!({}), "code\n  Field required [type=missing, input_value={}, input_type=dict]"),
        ("run_python_code", json!({ "code": 5 }), "code\n  Input should be a valid string [type=string_type"),
    ] {
        let output = world.call(tool, arguments).await;
        assert!(output.is_error && output.structured.is_none() && text(&output).contains(told), "{output:?}");
    }
    assert_eq!(
        text(&world.catalog.profile().unwrap().unknown_tool("run_go_code").unwrap()),
        "Unknown tool: run_go_code"
    );
}

#[tokio::test]
async fn the_environments_are_those_that_are_used() {
    let world = world(&[]).await;
    let read = async |profile: Arc<Philschmid>| {
        let contents = profile.read(&world.caller(), "sandbox://environments").await.unwrap();
        assert_eq!(contents.mime_type, "text/plain");
        match contents.body {
            Body::Text(text) => serde_json::from_str::<Value>(&text).unwrap(),
            Body::Bytes(_) => panic!("it is text"),
        }
    };
    let chosen = json!({ "image": "host", "installed_libraries": "", "language": "bash" });
    assert_eq!(read(profile(&[])).await, json!({ "python": chosen, "javascript": chosen }));
    let own = |code: Result<CodeImage>| code.unwrap();
    let (python, javascript) = (own(CodeImage::python(None, None)), own(CodeImage::javascript(None, None)));
    let older = read(Arc::new(Philschmid::new(ProfileOptions::default(), python, javascript))).await;
    assert_eq!(older["python"]["image"], "philschmi/code-sandbox-python:latest");
    assert_eq!(
        older["javascript"],
        json!({ "image": "philschmi/code-sandbox-js:latest", "installed_libraries": "@google/genai" })
    );
    let missing = profile(&[]).read(&world.caller(), "sandbox://other").await.unwrap_err();
    assert_eq!(missing.message, "Unknown resource: sandbox://other");
}

/// Takes longer than anybody waits.
struct Slow;

#[async_trait]
impl ImageSource for Slow {
    async fn provide(&self, _: &ImageName, _: &Arc<dyn Progress>) -> Result<()> {
        std::future::pending().await
    }
}

/// Its own images need nobody's leave, and take a while to come.
#[tokio::test]
async fn a_first_call_says_that_the_image_is_on_its_way() {
    let (python, javascript) = (CodeImage::python(None, None).unwrap(), CodeImage::javascript(None, None).unwrap());
    let profile = Arc::new(Philschmid::new(ProfileOptions::default(), python, javascript));
    let world = World::speaking_as(profile, Policy { wait: Duration::from_millis(50), ..Policy::default() }).await;
    let mut call = world.caller();
    call.images = Some(Arc::new(Slow));
    let output = world.call_as(call, "run_python_code", json!({ "code": "print(1)" })).await;
    let value: Value = serde_json::from_str(&said(&output)).unwrap();
    let told = value["stderr"].as_str().unwrap();
    assert!(told.contains("is being fetched") && told.contains("make the same call again"), "{told}");
}
