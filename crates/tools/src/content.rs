//! What a tool answers with, in blocks that a model and a person both can use.

use serde_json::{Map, Value};

/// The answer to one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub content: Vec<Content>,
    /// As the tool's output schema says; absent from refusals.
    pub structured: Option<Map<String, Value>>,
    /// The request was refused or failed. A program that fails is not a failed request.
    pub is_error: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Text(String),
    Image {
        mime_type: &'static str,
        bytes: Vec<u8>,
    },
    Link(ResourceLink),
    /// A file in place, as some older servers give it.
    Embedded(Embedded),
}

/// A file that is part of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    pub uri: String,
    pub mime_type: String,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Text(String),
    Bytes(Vec<u8>),
}

/// A pointer to a file or an output that can be read by its address.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceLink {
    pub uri: String,
    pub name: String,
    pub mime_type: &'static str,
    pub bytes: u64,
}

impl Output {
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Content::Text(text.into())], structured: None, is_error: false }
    }

    pub fn refusal(text: impl Into<String>) -> Self {
        Self { content: vec![Content::Text(text.into())], structured: None, is_error: true }
    }
}
