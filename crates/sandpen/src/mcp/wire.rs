//! JSON-RPC from text: what can be understood, and an answer for what cannot.

use rmcp::model::{ClientNotification, ClientRequest, ErrorData, RequestId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// More is not a batch but an attempt to make a small message into a large answer.
const MOST_IN_BATCH: usize = 1000;

/// An identifier comes back with its answer, and is kept until then.
const LONGEST_ID: usize = 1024;

/// What one line or one body says.
#[derive(Debug)]
pub enum Incoming {
    One(Message),
    Many(Vec<Message>),
}

#[derive(Debug)]
pub enum Message {
    Request {
        id: RequestId,
        request: Box<ClientRequest>,
    },
    Notification(Box<ClientNotification>),
    /// An answer, although this server asks nothing; or a notification that makes no sense, which is never answered.
    Ignored,
    /// Not a message; to be answered with this.
    Broken {
        id: Option<RequestId>,
        error: ErrorData,
    },
}

/// Never fails: what is wrong is part of what comes out.
pub fn read(text: &[u8]) -> Incoming {
    match serde_json::from_slice(text) {
        Ok(Value::Array(values)) if values.is_empty() => broken(ErrorData::invalid_request("an empty batch", None)),
        Ok(Value::Array(values)) if values.len() > MOST_IN_BATCH => {
            let problem = format!("a batch of more than {MOST_IN_BATCH} messages");
            broken(ErrorData::invalid_request(problem, None))
        }
        Ok(Value::Array(values)) => Incoming::Many(values.into_iter().map(message).collect()),
        Ok(value) => Incoming::One(message(value)),
        // Its position helps; the text itself is the client's and stays out.
        Err(error) => broken(ErrorData::parse_error(format!("not JSON: {error}"), None)),
    }
}

/// A message that was let go. Its sender waits for an answer to it, so its identifier is looked for where libraries put it:
/// at the very start, or as the last thing before the end.
pub fn too_long(most: usize, start: &[u8], end: &[u8]) -> Incoming {
    let error = ErrorData::invalid_request(format!("a message of more than {most} bytes"), None);
    let id = first_identifier(start).or_else(|| last_identifier(end));
    Incoming::One(Message::Broken { id, error })
}

fn first_identifier(start: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(start);
    let text = text.trim_start().strip_prefix('{')?.trim_start();
    let text = match text.strip_prefix("\"jsonrpc\"") {
        Some(rest) => rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix("\"2.0\"")?.trim_start(),
        None => text,
    };
    let text = text.strip_prefix(',').unwrap_or(text).trim_start();
    let text = text.strip_prefix("\"id\"")?.trim_start().strip_prefix(':')?;
    serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
}

/// Before a single closing brace: one of an inner object has another behind it.
fn last_identifier(end: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(end);
    let text = text.trim_end().strip_suffix('}')?;
    let (_, text) = text.rsplit_once("\"id\"")?;
    serde_json::from_str(text.trim_start().strip_prefix(':')?).ok()
}

/// An error as it is sent. Without a readable identifier it says `null`, as JSON-RPC asks.
pub fn error_text(id: Option<&RequestId>, error: &ErrorData) -> Vec<u8> {
    let (id, error) = (json!(id), json!(error));
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes()
}

fn broken(error: ErrorData) -> Incoming {
    Incoming::One(Message::Broken { id: None, error })
}

fn message(value: Value) -> Message {
    let Value::Object(mut object) = value else {
        return Message::Broken { id: None, error: ErrorData::invalid_request("a message is an object", None) };
    };
    let id = match object.get("id").map(identifier) {
        Some(Err(error)) => return Message::Broken { id: None, error },
        Some(Ok(id)) => Some(id),
        None => None,
    };
    if object.get("jsonrpc") != Some(&Value::from("2.0")) {
        return Message::Broken { id, error: ErrorData::invalid_request("jsonrpc must be \"2.0\"", None) };
    }
    match object.get("method") {
        Some(Value::String(_)) => {}
        None if object.contains_key("result") || object.contains_key("error") => return Message::Ignored,
        Some(_) | None => return Message::Broken { id, error: ErrorData::invalid_request("there is no method", None) },
    }
    match object.get("params") {
        None | Some(Value::Object(_)) => {}
        // Some clients write this for "none".
        Some(Value::Null) => {
            object.remove("params");
        }
        Some(_) if id.is_some() => {
            return Message::Broken { id, error: ErrorData::invalid_params("params must be an object", None) };
        }
        Some(_) => return Message::Ignored,
    }
    match id {
        Some(id) => request(id, object),
        None => notification(object),
    }
}

fn request(id: RequestId, object: Map<String, Value>) -> Message {
    match ClientRequest::deserialize(Value::Object(object)) {
        Ok(request) => Message::Request { id, request: Box::new(request) },
        Err(_) => {
            let error = ErrorData::invalid_params("the parameters are not as they must be", None);
            Message::Broken { id: Some(id), error }
        }
    }
}

fn notification(object: Map<String, Value>) -> Message {
    match ClientNotification::deserialize(Value::Object(object)) {
        Ok(notification) => Message::Notification(Box::new(notification)),
        Err(_) => Message::Ignored,
    }
}

fn identifier(value: &Value) -> Result<RequestId, ErrorData> {
    let refused = || {
        let problem = format!("an id is a whole number of 64 bits or a text of at most {LONGEST_ID} bytes");
        ErrorData::invalid_request(problem, None)
    };
    match value {
        Value::String(text) if text.len() > LONGEST_ID => Err(refused()),
        Value::String(_) | Value::Number(_) => RequestId::deserialize(value).map_err(|_| refused()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(refused()),
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
