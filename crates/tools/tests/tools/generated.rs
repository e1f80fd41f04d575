use serde_json::{Map, Number, Value};
use tools::Tool;

use crate::support::{World, text};

const PER_TOOL: usize = 2000;

/// Whatever a client sends, a tool answers; and what does not fit the schema is refused.
#[tokio::test]
async fn any_arguments_at_all_are_answered() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let mut dice = Dice(0x5eed);
    for tool in world.catalog.tools() {
        let mut refused = 0;
        for _ in 0..PER_TOOL {
            let arguments = dice.arguments(tool, &id);
            let output = tool.call(world.caller(), arguments.clone()).await.unwrap();
            let fits = arguments.keys().all(|name| tool.arguments().iter().any(|known| known.name == name));
            assert!(output.is_error || fits, "{} took {arguments:?}", tool.name);
            assert!(!text(&output).contains("(internal)"), "{} with {arguments:?}: {}", tool.name, text(&output));
            refused += usize::from(output.is_error);
        }
        assert!(refused > PER_TOOL / 10, "{}: only {refused} were refused, so little was tried", tool.name);
    }
}

/// The same numbers in every run, so that a failure can be seen again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.roll(words.len() as u64) as usize]
    }

    /// Mostly as the schema wants it, with something wrong every few times.
    fn arguments(&mut self, tool: &Tool, id: &str) -> Map<String, Value> {
        let mut arguments = Map::new();
        for argument in tool.arguments() {
            if argument.required && self.roll(8) > 0 || self.roll(4) == 0 {
                let value = match argument.name {
                    "sandbox_id" if self.roll(3) > 0 => Value::from(id),
                    // A wait of minutes is what it asks for, and gets.
                    "wait_s" => Value::from(0),
                    "timeout_s" => Value::from(0.05),
                    _ => self.value(&argument.kind, 0),
                };
                arguments.insert(argument.name.to_owned(), value);
            }
        }
        if self.roll(6) == 0 {
            let name = self.text();
            let value = self.value("", 0);
            arguments.insert(name, value);
        }
        arguments
    }

    fn value(&mut self, kind: &str, depth: u32) -> Value {
        let kind = if self.roll(5) == 0 { self.one_of(&["string", "number", "array", "object", "null"]) } else { kind };
        match kind {
            "string" => Value::from(self.text()),
            "boolean" => Value::from(self.roll(2) == 0),
            "integer" | "number" => match self.roll(5) {
                0 => Value::from(u64::MAX),
                1 => Value::from(i64::MIN),
                2 => Number::from_f64(1e300).map_or(Value::Null, Value::Number),
                3 => Value::from(0),
                _ => Value::from(self.roll(2000)),
            },
            "array" if depth < 3 => (0..self.roll(4)).map(|_| self.value("object", depth + 1)).collect(),
            "object" if depth < 3 => {
                let names = ["path", "content", "encoding", "A", "1=", ""];
                let pairs =
                    (0..self.roll(4)).map(|_| (self.one_of(&names).to_owned(), self.value("string", depth + 1)));
                Value::Object(pairs.collect())
            }
            _ => Value::Null,
        }
    }

    fn text(&mut self) -> String {
        let words = [
            "",
            "a",
            "/",
            "..",
            "../../etc/passwd",
            "/workspace/x",
            "a\0b",
            "\u{202e}",
            "\r\n",
            "echo hi",
            "true",
            "bash",
            "python",
            "sb-7k2m9x4bqhtw3ecd",
            "job_7k2m9x4bqhtw3ecd",
            "%2e%2e",
            "in",
            "out",
            "base64",
            "\u{1b}[2J",
            "-rf",
            "~",
        ];
        let word = self.one_of(&words);
        if self.roll(20) == 0 { word.repeat(5000) } else { word.to_owned() }
    }
}
