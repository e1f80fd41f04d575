//! Batches of 2025-03-26: several messages in one body, which no revision before or after it has to take.

use std::collections::HashSet;

use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use serde::Deserialize;
use serde_json::Value;

/// Each request of a batch runs at once, and a body is large enough for very many.
const MOST: usize = 100;

/// One message of a batch.
#[derive(Debug)]
pub enum Item {
    /// For the session.
    Message(Box<ClientJsonRpcMessage>),
    /// Answered with this at once.
    Refused(Box<ServerJsonRpcMessage>),
}

/// Why a body is no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBatch {
    NotJson,
    Empty,
    TooMany,
}

impl NoBatch {
    pub fn message(self) -> &'static str {
        match self {
            Self::NotJson => "the batch is not JSON, or is nested too deeply",
            Self::Empty => "a batch must have at least one message",
            Self::TooMany => "a batch can have 100 messages at most",
        }
    }

    pub fn code(self) -> ErrorCode {
        match self {
            Self::NotJson => ErrorCode::PARSE_ERROR,
            Self::Empty | Self::TooMany => ErrorCode::INVALID_REQUEST,
        }
    }
}

/// Whether a body begins like an array, which is all that needs to be known to treat it as a batch.
pub fn looks_like_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

pub fn split(body: &[u8]) -> Result<Vec<Item>, NoBatch> {
    let messages: Vec<Value> = serde_json::from_slice(body).map_err(|_| NoBatch::NotJson)?;
    match messages.len() {
        0 => return Err(NoBatch::Empty),
        1..=MOST => {}
        _ => return Err(NoBatch::TooMany),
    }
    let mut ids = HashSet::new();
    Ok(messages.into_iter().map(|message| item(message, &mut ids)).collect())
}

fn item(message: Value, ids: &mut HashSet<RequestId>) -> Item {
    let id = message.get("id").and_then(|id| RequestId::deserialize(id).ok());
    let refused = |why: &'static str| {
        Item::Refused(Box::new(ServerJsonRpcMessage::error(ErrorData::invalid_request(why, None), id)))
    };
    let Ok(message) = serde_json::from_value::<ClientJsonRpcMessage>(message) else {
        return refused("this is not a JSON-RPC 2.0 message");
    };
    match &message {
        JsonRpcMessage::Request(request) => match &request.request {
            ClientRequest::InitializeRequest(_) => refused("initialize must not be part of a batch"),
            _ if !ids.insert(request.id.clone()) => refused("another request of this batch has the same id"),
            _ => Item::Message(Box::new(message)),
        },
        JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => {
            Item::Message(Box::new(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_array_is_a_batch() {
        assert!(looks_like_batch(b" \n[{}]"));
        assert!(!looks_like_batch(b"{\"a\":[]}"));
        assert!(!looks_like_batch(b""));
    }

    #[test]
    fn a_batch_is_split_and_wrong_parts_are_answered_alone() {
        let items = split(
            br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},
                 {"jsonrpc":"2.0","method":"notifications/initialized"},
                 {"jsonrpc":"2.0","id":1,"method":"ping"},
                 {"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-03-26",
                  "capabilities":{},"clientInfo":{"name":"n","version":"0"}}},
                 {"id":{},"method":3}, 7]"#,
        )
        .unwrap();
        let shape: Vec<_> = items
            .iter()
            .map(|item| match item {
                Item::Message(_) => "message".to_owned(),
                Item::Refused(answer) => serde_json::to_value(answer).unwrap()["id"].to_string(),
            })
            .collect();
        assert_eq!(shape, ["message", "message", "1", "\"i\"", "null", "null"]);
    }

    #[test]
    fn a_batch_of_nothing_or_of_too_much_is_none() {
        assert_eq!(split(b"[]").unwrap_err(), NoBatch::Empty);
        assert_eq!(split(b"[1").unwrap_err(), NoBatch::NotJson);
        let many = serde_json::to_vec(&vec![1; MOST + 1]).unwrap();
        assert_eq!(split(&many).unwrap_err(), NoBatch::TooMany);
    }
}
