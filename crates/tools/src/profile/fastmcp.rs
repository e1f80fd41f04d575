//! What servers that were made with FastMCP have in common: how arguments are checked, and what is said about wrong ones.

use serde_json::{Map, Value, json};

use self::python::Python;
use crate::content::{Content, Output};

mod python;

/// Where each kind of mistake is explained.
const EXPLAINED: &str = "https://errors.pydantic.dev/2.11/v";

/// A tool's arguments.
#[derive(Clone, Debug)]
pub struct Signature {
    pub tool: &'static str,
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub description: Option<String>,
}

/// What an argument must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Truth,
    /// This, when it is left out.
    TruthOr(bool),
}

/// The arguments of one call, after the check.
#[derive(Debug)]
pub struct Given<'a> {
    arguments: &'a Map<String, Value>,
    truths: Vec<(&'static str, bool)>,
}

impl Given<'_> {
    pub fn text(&self, name: &str) -> &str {
        self.arguments.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn truth(&self, name: &str) -> bool {
        self.truths.iter().any(|(known, value)| *known == name && *value)
    }
}

impl Field {
    pub fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, description: None }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({ "type": "string" }),
            Kind::Truth => json!({ "type": "boolean" }),
            Kind::TruthOr(default) => json!({ "default": default, "type": "boolean" }),
        };
        schema["title"] = json!(title(self.name));
        if let Some(description) = &self.description {
            schema["description"] = json!(description);
        }
        schema
    }
}

impl Signature {
    pub fn schema(&self) -> Value {
        let properties: Map<_, _> = self.fields.iter().map(|field| (field.name.to_owned(), field.schema())).collect();
        let is_required = |field: &&Field| match field.kind {
            Kind::Text | Kind::Truth => true,
            Kind::TruthOr(_) => false,
        };
        let required: Vec<_> = self.fields.iter().filter(is_required).map(|field| field.name).collect();
        json!({
            "type": "object",
            "title": format!("{}Arguments", self.tool),
            "properties": properties,
            "required": required,
        })
    }

    /// All mistakes at once. What is not asked for is ignored.
    pub fn check<'a>(&self, arguments: &'a Map<String, Value>) -> Result<Given<'a>, Output> {
        let mut truths = Vec::new();
        let mut mistakes = Vec::new();
        for field in &self.fields {
            let value = arguments.get(field.name);
            match (field.kind, value) {
                (Kind::Text, Some(Value::String(_))) => {}
                (Kind::Text, Some(value)) => mistakes.push((field.name, Mistake::NoText, Python::of(value))),
                (Kind::TruthOr(default), None) => truths.push((field.name, default)),
                (Kind::Truth | Kind::TruthOr(_), Some(value)) => match truth(value) {
                    Ok(value) => truths.push((field.name, value)),
                    Err((mistake, seen)) => mistakes.push((field.name, mistake, seen)),
                },
                (Kind::Text | Kind::Truth, None) => {
                    mistakes.push((field.name, Mistake::Missing, Python::of(&Value::Object(arguments.clone()))));
                }
            }
        }
        if mistakes.is_empty() {
            return Ok(Given { arguments, truths });
        }
        Err(self.refusal(&mistakes))
    }

    fn refusal(&self, mistakes: &[(&str, Mistake, Python)]) -> Output {
        let tool = self.tool;
        let errors = if mistakes.len() == 1 { "error" } else { "errors" };
        let mut text =
            format!("Error executing tool {tool}: {} validation {errors} for {tool}Arguments", mistakes.len());
        for (name, mistake, Python { shown, kind }) in mistakes {
            let (message, word) = (mistake.message(), mistake.word());
            text.push_str(&format!(
                "\n{name}\n  {message} [type={word}, input_value={shown}, input_type={kind}]\n    \
                 For further information visit {EXPLAINED}/{word}"
            ));
        }
        Output::refusal(text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    Missing,
    NoText,
    /// Of a type that has no truth in it.
    NoTruth,
    /// Of a type that may have, and has not.
    Unclear,
}

impl Mistake {
    fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NoText => "string_type",
            Self::NoTruth => "bool_type",
            Self::Unclear => "bool_parsing",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Missing => "Field required",
            Self::NoText => "Input should be a valid string",
            Self::NoTruth => "Input should be a valid boolean",
            Self::Unclear => "Input should be a valid boolean, unable to interpret input",
        }
    }
}

/// Words and the numbers 0 and 1 are as good as truths.
fn truth(value: &Value) -> Result<bool, (Mistake, Python)> {
    let unclear = |value: &Value| Err((Mistake::Unclear, Python::of(value)));
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => Ok(false),
            Some(1.0) => Ok(true),
            Some(_) | None if number.is_f64() => Err((Mistake::NoTruth, Python::of(value))),
            Some(_) | None => unclear(value),
        },
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Ok(false),
            // What is no text is taken for what is written in it.
            _ => match serde_json::from_str::<Value>(text) {
                Ok(inner @ (Value::Null | Value::Array(_) | Value::Object(_))) => truth(&inner),
                Ok(Value::Bool(_) | Value::Number(_) | Value::String(_)) | Err(_) => unclear(value),
            },
        },
        Value::Null | Value::Array(_) | Value::Object(_) => Err((Mistake::NoTruth, Python::of(value))),
    }
}

/// `container_id` as a person would write it: `Container Id`.
fn title(name: &str) -> String {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1.min(word.len()));
        first.to_ascii_uppercase() + rest
    };
    name.split('_').map(capital).collect::<Vec<_>>().join(" ")
}

/// The answer of a tool that returns a text.
pub fn text_result(text: String) -> Output {
    let mut structured = Map::new();
    structured.insert("result".to_owned(), json!(text));
    Output { structured: Some(structured), ..Output::text(text) }
}

pub fn text_result_schema(tool: &str) -> Value {
    json!({
        "type": "object",
        "title": format!("{tool}Output"),
        "properties": { "result": { "title": "Result", "type": "string" } },
        "required": ["result"],
    })
}

/// The answer of a tool that returns a block of text; whatever comes behind it is for people.
pub fn block_result(text: String, more: Vec<Content>) -> Output {
    let structured = json!({ "type": "text", "text": text, "annotations": null, "_meta": null });
    let mut output = Output { structured: structured.as_object().cloned(), ..Output::text(text) };
    output.content.extend(more);
    output
}

pub fn block_result_schema() -> Value {
    let audience = json!({ "items": { "enum": ["user", "assistant"], "type": "string" }, "type": "array" });
    let priority = json!({ "maximum": 1.0, "minimum": 0.0, "type": "number" });
    let or_null = |schema: Value| json!([schema, { "type": "null" }]);
    json!({
        "$defs": { "Annotations": {
            "additionalProperties": true,
            "properties": {
                "audience": { "anyOf": or_null(audience), "default": null, "title": "Audience" },
                "priority": { "anyOf": or_null(priority), "default": null, "title": "Priority" },
            },
            "title": "Annotations",
            "type": "object",
        } },
        "additionalProperties": true,
        "description": "Text content for a message.",
        "properties": {
            "type": { "const": "text", "title": "Type", "type": "string" },
            "text": { "title": "Text", "type": "string" },
            "annotations": { "anyOf": or_null(json!({ "$ref": "#/$defs/Annotations" })), "default": null },
            "_meta": {
                "anyOf": or_null(json!({ "additionalProperties": true, "type": "object" })),
                "default": null,
                "title": "Meta",
            },
        },
        "required": ["type", "text"],
        "title": "TextContent",
        "type": "object",
    })
}

pub fn unknown_tool(name: &str) -> Output {
    Output::refusal(format!("Unknown tool: {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature() -> Signature {
        let fields = [("image", Kind::Text), ("persist", Kind::Truth), ("force", Kind::TruthOr(false))];
        Signature { tool: "make", fields: fields.map(|(name, kind)| Field::new(name, kind)).into() }
    }

    fn refused(arguments: Value) -> String {
        let output = signature().check(arguments.as_object().unwrap()).unwrap_err();
        assert!(output.is_error && output.structured.is_none());
        match output.content.as_slice() {
            [Content::Text(text)] => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// These are the library's own words, as version 1.12 of the SDK has them with pydantic 2.11.
    #[test]
    fn mistakes_are_told_as_the_library_tells_them() {
        assert_eq!(
            refused(json!({})),
            "Error executing tool make: 2 validation errors for makeArguments\nimage\n  Field required [type=missing, \
             input_value={}, input_type=dict]\n    For further information visit \
             https://errors.pydantic.dev/2.11/v/missing\npersist\n  Field required [type=missing, input_value={}, \
             input_type=dict]\n    For further information visit https://errors.pydantic.dev/2.11/v/missing"
        );
        for (arguments, told) in [
            (
                json!({ "image": "debian:12" }),
                "persist\n  Field required [type=missing, input_value={'image': 'debian:12'}, input_type=dict]",
            ),
            (
                json!({ "image": 5, "persist": true }),
                "image\n  Input should be a valid string [type=string_type, input_value=5, input_type=int]",
            ),
            (
                json!({ "image": null, "persist": true }),
                "image\n  Input should be a valid string [type=string_type, input_value=None, input_type=NoneType]",
            ),
            (
                json!({ "image": "a", "persist": "maybe" }),
                "persist\n  Input should be a valid boolean, unable to interpret input [type=bool_parsing, \
                 input_value='maybe', input_type=str]",
            ),
            (
                json!({ "image": "a", "persist": 2 }),
                "persist\n  Input should be a valid boolean, unable to interpret input [type=bool_parsing, input_value=2, \
                 input_type=int]",
            ),
            (
                json!({ "image": "a", "persist": 1.5 }),
                "persist\n  Input should be a valid boolean [type=bool_type, input_value=1.5, input_type=float]",
            ),
            (
                json!({ "image": "a", "persist": "[1]" }),
                "persist\n  Input should be a valid boolean [type=bool_type, input_value=[1], input_type=list]",
            ),
            (
                json!({ "image": "a", "persist": true, "force": null }),
                "force\n  Input should be a valid boolean [type=bool_type, input_value=None, input_type=NoneType]",
            ),
        ] {
            let refusal = refused(arguments.clone());
            let expected = format!("Error executing tool make: 1 validation error for makeArguments\n{told}\n");
            assert!(refusal.starts_with(&expected), "{arguments}: {refusal}");
        }
    }

    #[test]
    fn what_looks_like_json_is_still_text() {
        for text in ["{\"name\": \"x\"}", "[1]", "null", "5", "true"] {
            let arguments = json!({ "image": text, "persist": "YES", "more": 1 });
            let signature = signature();
            let given = signature.check(arguments.as_object().unwrap()).unwrap();
            assert_eq!((given.text("image"), given.truth("persist"), given.truth("force")), (text, true, false));
        }
        for (value, truth) in [(json!(1), true), (json!(0.0), false), (json!("off"), false), (json!("T"), true)] {
            let arguments = json!({ "image": "", "persist": value });
            assert_eq!(signature().check(arguments.as_object().unwrap()).unwrap().truth("persist"), truth, "{value}");
        }
    }

    #[test]
    fn schemas_have_titles() {
        let field = Field { description: Some("Which".to_owned()), ..Field::new("container_id", Kind::Text) };
        let schema = Signature { tool: "end", fields: vec![field, Field::new("force", Kind::TruthOr(false))] }.schema();
        assert_eq!(
            schema,
            json!({
                "properties": {
                    "container_id": { "description": "Which", "title": "Container Id", "type": "string" },
                    "force": { "default": false, "title": "Force", "type": "boolean" },
                },
                "required": ["container_id"],
                "title": "endArguments",
                "type": "object",
            })
        );
    }
}
