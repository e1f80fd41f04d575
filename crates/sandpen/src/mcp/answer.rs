//! Our values in the library's types, shaped for the revision that the client speaks.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    Annotations, CacheScope, CallToolResult, ContentBlock, Implementation, MetaObject, Prompt, PromptArgument,
    Resource, ResourceContents, ResourceTemplate, Role, Tool, ToolAnnotations,
};
use serde_json::{Value, json};
use tools::{Body, Content, Embedded, Hints, Output, ResourceLink, prompts, resources};

use super::era::Era;

/// Lists that are the same for everybody until the server is started anew.
pub const STABLE_MS: u64 = 60 * 60 * 1000;

/// What the newest revision wants to be said about a result besides the result. Older ones know none of it.
pub struct Labels {
    pub meta: Option<MetaObject>,
    pub ttl_ms: Option<u64>,
    pub cache_scope: Option<CacheScope>,
}

impl Labels {
    pub fn stable(era: Era, server: Implementation) -> Self {
        Self::new(era, server, Some((STABLE_MS, CacheScope::Public)))
    }

    /// For what is everybody's and may change at any moment.
    pub fn current(era: Era, server: Implementation) -> Self {
        Self::new(era, server, Some((0, CacheScope::Public)))
    }

    /// For what belongs to one owner and may change at any moment.
    pub fn private(era: Era, server: Implementation) -> Self {
        Self::new(era, server, Some((0, CacheScope::Private)))
    }

    /// For what cannot be kept at all.
    pub fn passing(era: Era, server: Implementation) -> Self {
        Self::new(era, server, None)
    }

    fn new(era: Era, server: Implementation, keep: Option<(u64, CacheScope)>) -> Self {
        match era {
            Era::Plain | Era::Structured => Self { meta: None, ttl_ms: None, cache_scope: None },
            Era::Modern => {
                let mut meta = MetaObject::new();
                meta.0.insert(SERVER_INFO.to_owned(), json!(server));
                let (ttl_ms, cache_scope) = keep.unzip();
                Self { meta: Some(meta), ttl_ms, cache_scope }
            }
        }
    }
}

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

pub fn tool(tool: &tools::Tool, era: Era) -> Tool {
    let Hints { read_only, destructive, idempotent, open_world } = tool.hints;
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(read_only)
        .destructive(destructive)
        .idempotent(idempotent)
        .open_world(open_world);
    let described = Tool::new(tool.name, tool.description.clone(), Arc::new(tool.input_schema.clone()))
        .with_annotations(annotations);
    match era {
        // A client that sees an output schema insists on structured content, which these revisions do not have.
        Era::Plain => described,
        Era::Structured | Era::Modern => match &tool.output_schema {
            Some(schema) => described.with_title(tool.title).with_raw_output_schema(Arc::new(schema.clone())),
            None => described.with_title(tool.title),
        },
    }
}

pub fn result(output: Output, era: Era) -> CallToolResult {
    let content = output.content.into_iter().map(|content| block(content, era)).collect();
    let mut result = if output.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    match era {
        Era::Plain => {}
        Era::Structured | Era::Modern => result.structured_content = output.structured.map(Value::Object),
    }
    result
}

fn block(content: Content, era: Era) -> ContentBlock {
    match content {
        Content::Text(text) => ContentBlock::text(text),
        Content::Image { mime_type, bytes } => ContentBlock::image(STANDARD.encode(bytes), mime_type),
        Content::Embedded(Embedded { uri, mime_type, body }) => {
            ContentBlock::resource(body_of(body, &uri).with_mime_type(mime_type))
        }
        Content::Link(link) => match era {
            Era::Plain => ContentBlock::text(link_in_words(&link)),
            Era::Structured | Era::Modern => {
                let ResourceLink { uri, name, mime_type, bytes } = link;
                ContentBlock::resource_link(Resource::new(uri, name).with_mime_type(mime_type).with_size(bytes))
            }
        },
    }
}

fn link_in_words(link: &ResourceLink) -> String {
    format!("{} ({}, {} bytes): {}", link.name, link.mime_type, link.bytes, link.uri)
}

pub fn resource(resource: resources::Resource) -> Resource {
    let resources::Resource { uri, name, description, mime_type, bytes } = resource;
    let described = Resource::new(uri, name).with_description(description).with_mime_type(mime_type);
    match bytes {
        Some(bytes) => described.with_size(bytes),
        None => described,
    }
}

pub fn template(template: &resources::Template) -> ResourceTemplate {
    let resources::Template { uri_template, name, title, description, mime_type, priority } = *template;
    let mut described = ResourceTemplate::new(uri_template, name).with_title(title).with_description(description);
    described.mime_type = mime_type.map(str::to_owned);
    described.annotations = priority.map(|priority| {
        Annotations::default().with_audience(vec![Role::Assistant, Role::User]).with_priority(priority)
    });
    described
}

pub fn contents(contents: resources::Contents, uri: &str) -> ResourceContents {
    body_of(contents.body, uri).with_mime_type(contents.mime_type)
}

fn body_of(body: Body, uri: &str) -> ResourceContents {
    match body {
        Body::Text(text) => ResourceContents::text(text, uri),
        Body::Bytes(bytes) => ResourceContents::blob(STANDARD.encode(bytes), uri),
    }
}

pub fn prompt(prompt: &prompts::Prompt) -> Prompt {
    let arguments = prompt.arguments.iter().map(|argument| {
        PromptArgument::new(argument.name)
            .with_description(argument.description)
            .with_required(argument.default.is_none())
    });
    Prompt::new(prompt.name, Some(prompt.description), Some(arguments.collect())).with_title(prompt.title)
}
