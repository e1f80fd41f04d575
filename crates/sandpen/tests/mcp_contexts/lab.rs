//! A client with a sandbox in which contexts are tried.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::{World, missing_layers};

pub struct Lab {
    pub client: Client,
    pub sandbox: String,
    // Removed after its client has gone.
    _world: World,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(&[], json!({}))
    }

    pub fn with(arguments: &[&str], sandbox: Value) -> Self {
        let world = World::new();
        let mut client = Client::hello(&world, arguments, "2025-11-25");
        let made = client.call("create_sandbox", sandbox);
        let sandbox = made["structuredContent"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        Self { client, sandbox, _world: world }
    }

    pub fn arguments(&self, context: &str, code: &str) -> Value {
        json!({ "language": "python", "sandbox_id": self.sandbox, "context": context, "code": code })
    }

    /// The whole answer to some Python in a context.
    pub fn ask(&mut self, context: &str, code: &str) -> Value {
        self.ask_with(context, code, json!({}))
    }

    pub fn ask_with(&mut self, context: &str, code: &str, more: Value) -> Value {
        let mut arguments = self.arguments(context, code);
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.client.call("run_code", arguments)
    }

    /// What programs read of that answer.
    #[track_caller]
    pub fn run(&mut self, context: &str, code: &str) -> Value {
        self.run_with(context, code, json!({}))
    }

    #[track_caller]
    pub fn run_with(&mut self, context: &str, code: &str, more: Value) -> Value {
        let answer = self.ask_with(context, code, more);
        assert_ne!(answer["isError"], true, "{answer}");
        answer["structuredContent"].clone()
    }

    /// The words of a refusal.
    #[track_caller]
    pub fn refused(&mut self, context: &str, code: &str, more: Value) -> String {
        let answer = self.ask_with(context, code, more);
        assert_eq!(answer["isError"], true, "{answer}");
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    }

    pub fn manage(&mut self, action: &str, context: Option<&str>) -> Value {
        let mut arguments = json!({ "sandbox_id": self.sandbox, "action": action });
        if let Some(context) = context {
            arguments["context"] = json!(context);
        }
        self.client.call("manage_contexts", arguments)
    }
}

/// All text of an answer.
pub fn text(answer: &Value) -> String {
    let blocks = answer["content"].as_array().unwrap();
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// The blocks of a run's answer, without the remark on missing walls: where walls are missing, one text must end with it, and
/// it must name exactly those.
#[track_caller]
pub fn blocks(answer: &Value) -> Vec<Value> {
    let mut blocks = answer["content"].as_array().unwrap().clone();
    let missing = missing_layers();
    if missing.is_empty() {
        return blocks;
    }
    let remark = format!("[this sandbox stands without {}]", missing.join(", "));
    let mut remarks = 0;
    for block in &mut blocks {
        let before = block["text"].as_str().and_then(|text| text.strip_suffix(remark.as_str())).map(str::to_owned);
        if let Some(before) = before {
            remarks += 1;
            block["text"] = json!(before);
        }
    }
    assert_eq!(remarks, 1, "{remark:?} is not told once: {answer}");
    blocks.retain(|block| block["text"] != "");
    blocks
}

/// All text of a run's answer, without that remark.
#[track_caller]
pub fn told(answer: &Value) -> String {
    text(&json!({ "content": blocks(answer) }))
}
