//! Which right a message needs, seen before it is understood as a whole: whoever lacks it is told so by the status of the
//! answer, with the right that would do, so that a client can ask its user for it.
//!
//! The adapter asks again for every call, however it came.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::adapter::Adapter;
use crate::auth::Insufficient;
use crate::auth::scope::{Scope, Scopes};

/// What each tool of a server needs.
#[derive(Clone)]
pub struct Rights(Arc<dyn Fn(&str) -> Scope + Send + Sync>);

impl Rights {
    pub fn of(adapter: &Adapter) -> Self {
        let adapter = adapter.clone();
        Self(Arc::new(move |tool| adapter.needs(tool)))
    }

    /// What somebody with these rights lacks for a message.
    pub fn lacking(&self, scopes: Scopes, body: &[u8]) -> Option<Insufficient> {
        if scopes.allow(Scope::Run) {
            return None;
        }
        let needed = match serde_json::from_slice(body) {
            Ok(Said::One(message)) => self.needed(&message),
            Ok(Said::Many(messages)) => {
                messages.iter().map(|message| self.needed(message)).max().unwrap_or(Scope::Read)
            }
            // It does nothing.
            Err(_) => Scope::Read,
        };
        (!scopes.allow(needed)).then_some(Insufficient(needed))
    }

    fn needed(&self, message: &Head) -> Scope {
        match message.method.as_str() {
            "tools/call" => (self.0)(message.params.name.as_deref().unwrap_or_default()),
            "tasks/cancel" | "tasks/update" => Scope::Run,
            _ => Scope::Read,
        }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rights")
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Many(Vec<Head>),
    One(Head),
}

/// As much of a message as tells what it asks for.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Params,
}

#[derive(Default, Deserialize)]
struct Params {
    name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(highest: &[Scope], body: &str) -> Option<Scope> {
        let rights = Rights(Arc::new(|tool| if tool == "look" { Scope::Read } else { Scope::Run }));
        let scopes = highest.iter().copied().collect();
        rights.lacking(scopes, body.as_bytes()).map(|Insufficient(scope)| scope)
    }

    #[test]
    fn a_reader_may_call_what_only_reads() {
        let call =
            |tool: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":{tool}}}}}"#);
        assert_eq!(lacking(&[Scope::Read], &call("\"look\"")), None);
        for tool in ["\"do\"", "\"\"", "null"] {
            assert_eq!(lacking(&[Scope::Read], &call(tool)), Some(Scope::Run), "{tool}");
            assert_eq!(lacking(&[Scope::Run], &call(tool)), None, "{tool}");
        }
        let batch = format!("[{}, {}]", call("\"look\""), call("\"do\""));
        assert_eq!(lacking(&[Scope::Read], &batch), Some(Scope::Run));
        assert_eq!(lacking(&[Scope::Read], r#"{"method":"tools/list"}"#), None);
        assert_eq!(lacking(&[Scope::Read], r#"{"method":"tasks/cancel","params":{"taskId":"x"}}"#), Some(Scope::Run));
    }

    #[test]
    fn without_any_right_nothing_is_allowed() {
        for body in [r#"{"method":"tools/list"}"#, "", "[]", "7"] {
            assert_eq!(lacking(&[], body), Some(Scope::Read), "{body}");
        }
    }
}
