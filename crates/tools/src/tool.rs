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
    /// Ours all have one; some tools of older servers do.
    pub output_schema: Option<Map<String, Value>>,
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

/// A call that is refused as a request, as if no tool had been asked. Only older servers do that: a model is helped more
/// by an answer of the tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    pub reason: Reason,
    pub message: String,
    pub detail: Option<Value>,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its parameters, which a name can be among.
    Parameters,
    /// Its method, or what stands for one.
    Method,
    /// Nothing: serving it failed.
    Internal,
}

impl Rejection {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), detail: None }
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Output, Rejection>> + Send>>;
type Handler = Box<dyn Fn(Call, Map<String, Value>) -> Answering + Send + Sync>;

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
        let answer = async move |call, arguments| {
            let answer = handle(call, parse(name, arguments)?).await?;
            Ok(Output { content: answer.content, structured: Some(object(&answer.value)?), is_error: false })
        };
        let handler: Handler = Box::new(move |call, arguments| {
            // Always an answer: what cannot be done is told, and what to do instead.
            Box::pin(async move {
                Ok(answer(call, arguments).await.unwrap_or_else(|error| {
                    log(name, &error);
                    Output::refusal(tell(&error))
                }))
            })
        });
        Self {
            name,
            title,
            description,
            toolset,
            hints,
            input_schema: schema::of::<Input>(schema::Direction::Input),
            output_schema: Some(schema::of::<Answered>(schema::Direction::Output)),
            handler,
        }
    }

    /// A tool of an older server, whose schema and whose words for every mistake are its own.
    pub(crate) fn older<Working>(
        definition: Definition,
        input_schema: Value,
        handle: impl Fn(Call, Map<String, Value>) -> Working + Send + Sync + 'static,
    ) -> Self
    where
        Working: Future<Output = Result<Output, Rejection>> + Send + 'static,
    {
        let Definition { name, title, description, toolset, hints } = definition;
        let Value::Object(input_schema) = input_schema else { unreachable!("schemas are written here as objects") };
        let handler: Handler = Box::new(move |call, arguments| Box::pin(handle(call, arguments)));
        Self { name, title, description, toolset, hints, input_schema, output_schema: None, handler }
    }

    pub(crate) fn with_output_schema(mut self, schema: Value) -> Self {
        self.output_schema = schema.as_object().cloned();
        self
    }

    /// Say of an argument what is known only now, from the operator's settings.
    pub(crate) fn refine(&mut self, argument: &str, key: &str, value: impl Into<Value>) {
        refine(&mut self.input_schema, argument, key, value.into());
    }

    /// The input schema, with this said of an argument that has changed since.
    pub(crate) fn schema_with(&self, argument: &str, key: &str, value: impl Into<Value>) -> Map<String, Value> {
        let mut schema = self.input_schema.clone();
        refine(&mut schema, argument, key, value.into());
        schema
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

    pub async fn call(&self, call: Call, arguments: Map<String, Value>) -> Result<Output, Rejection> {
        (self.handler)(call, arguments).await
    }
}

/// What the caller is not told of an error.
pub(crate) fn log(tool: &str, error: &Error) {
    match error.kind() {
        ErrorKind::Internal | ErrorKind::Unavailable => tracing::warn!(tool, ?error, "a call failed"),
        ErrorKind::InvalidInput
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::WrongState
        | ErrorKind::LimitExceeded
        | ErrorKind::Denied
        | ErrorKind::Unsupported
        | ErrorKind::TimedOut => tracing::debug!(tool, ?error, "a call was refused"),
    }
}

pub(crate) fn parse<Input: DeserializeOwned>(tool: &str, arguments: Map<String, Value>) -> Result<Input> {
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

fn refine(schema: &mut Map<String, Value>, argument: &str, key: &str, value: Value) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    if let Some(Value::Object(schema)) = properties.and_then(|properties| properties.get_mut(argument)) {
        schema.insert(key.to_owned(), value);
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}
