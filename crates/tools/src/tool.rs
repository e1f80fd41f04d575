//! A tool as one value: what is listed, what is checked and what is done cannot drift apart.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use sandbox::{Error, ErrorKind, Result};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::call::Call;
use crate::content::{Content, Output};
use crate::error::tell;
use crate::schema;
use crate::select::Toolset;

pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    pub description: String,
    pub toolset: Toolset,
    pub hints: Hints,
    pub input_schema: Map<String, Value>,
    pub output_schema: Map<String, Value>,
    handler: Handler,
}

/// All four are always said: what a client assumes otherwise is the worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    /// Whether it reaches beyond the sandboxes.
    pub open_world: bool,
}

/// One argument of a tool, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    pub name: &'a str,
    pub kind: String,
    pub description: String,
    pub required: bool,
}

/// The words of a tool; the rest follows from its types.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    pub title: &'static str,
    pub description: String,
    pub toolset: Toolset,
    pub hints: Hints,
}

/// What a handler returns: the value of the output schema, and blocks for reading.
#[derive(Debug)]
pub struct Answer<T> {
    pub content: Vec<Content>,
    pub value: T,
}

type Handler =
    Box<dyn Fn(Call, Map<String, Value>) -> Pin<Box<dyn Future<Output = Result<Output>> + Send>> + Send + Sync>;

impl Tool {
    pub(crate) fn new<Input, Answered, Working>(
        definition: Definition,
        handle: impl Fn(Call, Input) -> Working + Send + Sync + Copy + 'static,
    ) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Answered: Serialize + JsonSchema,
        Working: Future<Output = Result<Answer<Answered>>> + Send + 'static,
    {
        let Definition { name, title, description, toolset, hints } = definition;
        let handler: Handler = Box::new(move |call, arguments| {
            Box::pin(async move {
                let answer = handle(call, parse(name, arguments)?).await?;
                Ok(Output { content: answer.content, structured: Some(object(&answer.value)?), is_error: false })
            })
        });
        Self {
            name,
            title,
            description,
            toolset,
            hints,
            input_schema: schema::of::<Input>(schema::Direction::Input),
            output_schema: schema::of::<Answered>(schema::Direction::Output),
            handler,
        }
    }

    /// Say of an argument what is known only now, from the operator's settings.
    pub(crate) fn refine(&mut self, argument: &str, key: &str, value: impl Into<Value>) {
        let properties = self.input_schema.get_mut("properties").and_then(Value::as_object_mut);
        if let Some(Value::Object(schema)) = properties.and_then(|properties| properties.get_mut(argument)) {
            schema.insert(key.to_owned(), value.into());
        }
    }

    /// The arguments as the input schema has them, those that are needed first.
    pub fn arguments(&self) -> Vec<Argument<'_>> {
        let required: Vec<&str> = self
            .input_schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = self.input_schema.get("properties").and_then(Value::as_object);
        let text =
            |schema: &'_ Value, key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut arguments: Vec<_> = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| Argument {
                name,
                kind: text(schema, "type"),
                description: text(schema, "description").replace('\n', " "),
                required: required.contains(&name.as_str()),
            })
            .collect();
        arguments.sort_by_key(|argument| !argument.required);
        arguments
    }

    /// Always answers: what cannot be done is an answer that says so, and what to do instead.
    pub async fn call(&self, call: Call, arguments: Map<String, Value>) -> Output {
        match (self.handler)(call, arguments).await {
            Ok(output) => output,
            Err(error) => {
                match error.kind() {
                    ErrorKind::Internal | ErrorKind::Unavailable => {
                        tracing::warn!(tool = self.name, ?error, "a call failed");
                    }
                    ErrorKind::InvalidInput
                    | ErrorKind::NotFound
                    | ErrorKind::AlreadyExists
                    | ErrorKind::WrongState
                    | ErrorKind::LimitExceeded
                    | ErrorKind::Denied
                    | ErrorKind::Unsupported
                    | ErrorKind::TimedOut => tracing::debug!(tool = self.name, ?error, "a call was refused"),
                }
                Output::refusal(tell(&error))
            }
        }
    }
}

fn parse<Input: DeserializeOwned>(tool: &str, arguments: Map<String, Value>) -> Result<Input> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        let message = match path.as_str() {
            "." => format!("the arguments of {tool} are not as they must be: {problem}"),
            path => format!("the argument {path} of {tool} is not as it must be: {problem}"),
        };
        Error::invalid_input(message).with_hint("call the tool again with arguments that match its input schema")
    })
}

fn object(value: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::internal("the result has the wrong shape")),
        Err(cause) => Err(Error::internal("the result could not be written down").with_cause(cause)),
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}
