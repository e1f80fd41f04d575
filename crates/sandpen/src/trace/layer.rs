//! From spans of the code to spans of a trace. Only spans that are meant for it: those of libraries hold what is the client's.

use std::fmt;
use std::sync::Mutex;
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, layer};

use super::context::Context;
use super::settings::Sampler;
use super::{ERROR, KIND, LINK, NAME, PARENT};
use crate::random;

/// One that has ended.
#[derive(Debug)]
pub struct Span {
    pub context: Context,
    pub parent: Option<[u8; 8]>,
    pub link: Option<Context>,
    pub name: String,
    pub kind: Kind,
    pub started: SystemTime,
    pub ended: SystemTime,
    pub attributes: Vec<(&'static str, Value)>,
    /// The word for what went wrong.
    pub error: Option<String>,
}

/// Numbered as the protocol does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Internal = 1,
    Server = 2,
}

#[derive(Debug)]
pub struct Spans {
    pub sampler: Sampler,
    pub ended: mpsc::Sender<Span>,
}

/// What is known of a span that goes on.
struct Open(Mutex<Option<Span>>, Context);

/// Where a span stands that nobody else may know of.
pub fn context_of(span: &tracing::Span) -> Option<Context> {
    span.with_subscriber(|(id, dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        let extensions = span.extensions();
        extensions.get::<Open>().map(|open| open.1)
    })?
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: layer::Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let around = span.parent().and_then(|parent| parent.extensions().get::<Open>().map(|open| open.1));
        // What was said counts more than where the code is.
        let told = fields.parent;
        let parent = told.or(around);
        let Ok(random) = random::bytes::<24>() else { return };
        let mut own = Context { trace: [0; 16], span: [0; 8], sampled: false };
        own.trace.copy_from_slice(&random[..16]);
        own.span.copy_from_slice(&random[16..]);
        if let Some(parent) = parent {
            own.trace = parent.trace;
        }
        own.sampled = match (told, around) {
            // Of a trace that goes on here it was decided where it came in.
            (None, Some(around)) => around.sampled,
            (told, _) => self.sampler.keeps(told.as_ref(), &own.trace),
        };
        let started = SystemTime::now();
        let kept = own.sampled.then(|| Span {
            context: own,
            parent: parent.map(|parent| parent.span),
            link: fields.link,
            name: fields.name.unwrap_or_else(|| span.name().to_owned()),
            kind: fields.kind,
            started,
            ended: started,
            attributes: fields.attributes,
            error: fields.error,
        });
        span.extensions_mut().insert(Open(Mutex::new(kept), own));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: layer::Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let extensions = span.extensions();
        let Some(mut kept) = extensions.get::<Open>().and_then(|open| open.0.lock().ok()) else { return };
        let Some(kept) = &mut *kept else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        kept.attributes.extend(fields.attributes);
        kept.error = fields.error.or_else(|| kept.error.take());
    }

    fn on_close(&self, id: Id, context: layer::Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let kept = span.extensions().get::<Open>().and_then(|open| open.0.lock().ok()?.take());
        if let Some(span) = kept {
            // Nobody waits for who watches.
            let _ = self.ended.try_send(Span { ended: SystemTime::now(), ..span });
        }
    }
}

#[derive(Default)]
struct Fields {
    name: Option<String>,
    kind: Kind,
    parent: Option<Context>,
    link: Option<Context>,
    error: Option<String>,
    attributes: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            NAME => self.name = Some(value.to_owned()),
            KIND => self.kind = if value == "server" { Kind::Server } else { Kind::Internal },
            PARENT => self.parent = Context::read(value),
            LINK => self.link = Context::read(value),
            ERROR => self.error = Some(value.to_owned()),
            name => self.attributes.push((name, json!({ "stringValue": value }))),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        // A number of 64 bits is text in the JSON of this protocol.
        self.attributes.push((field.name(), json!({ "intValue": value.to_string() })));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.push((field.name(), json!({ "intValue": value.to_string() })));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attributes.push((field.name(), json!({ "boolValue": value })));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
