//! `expose_port`: an address at which a server inside can be seen.

use std::time::{Duration, SystemTime};

use sandbox::{Error, GuestPort, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use crate::call::{Call, Preview};
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// The TCP port that the server inside listens on, on 127.0.0.1, ::1 or all addresses.
    #[schemars(range(min = 1))]
    port: u16,
    /// Seconds until the address is good for nothing. Default 3600, at most 86400.
    #[schemars(range(min = 1))]
    lifetime_s: Option<u64>,
    /// Close the preview of this port instead, at once.
    stop: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Exposed {
    sandbox_id: String,
    port: u16,
    /// Open it in a browser or with curl. Whoever has it gets in.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_s: Option<u64>,
    /// Whether something listens on the port already; where nothing does, the address says so until it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    listening: Option<bool>,
    /// Whether a preview was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<bool>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "expose_port",
        title: "Preview a port",
        description:
            "Get a URL at which an HTTP or WebSocket server in a sandbox can be opened, for the user's browser. Start \
                      the server first with run_command and background set. It needs no network. The URL ends with the \
                      sandbox, or earlier; stop closes it."
                .to_owned(),
        toolset: Toolset::Sandboxes,
        hints: Hints { read_only: false, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, expose)
}

async fn expose(call: Call, arguments: Arguments) -> Result<Answer<Exposed>> {
    let Arguments { sandbox_id, port, lifetime_s, stop } = arguments;
    let port = GuestPort::new(port)?;
    let sandbox = target::sandbox(&call, &sandbox_id).await?;
    let previews = call.previews.as_ref().ok_or_else(|| Error::unsupported("there are no previews here"))?;
    let mut value = Exposed {
        sandbox_id: sandbox.id.to_string(),
        port: port.number(),
        url: None,
        expires_in_s: None,
        listening: None,
        stopped: None,
    };
    if stop == Some(true) {
        let was_there = previews.close(&call.owner, &sandbox.id, port);
        value.stopped = Some(was_there);
        let text = if was_there { "is closed" } else { "has no preview" };
        return Ok(Answer { content: vec![Content::Text(format!("port {port} {text}"))], value });
    }
    let lifetime = lifetime_s.map(Duration::from_secs);
    let Preview { url, expires_at, is_listening } = previews.open(&call.owner, &sandbox.id, port, lifetime).await?;
    let left = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
    let seconds = left.as_secs_f64().round() as u64;
    let mut text = format!("port {port} can be opened at {url} for {seconds} s");
    if !is_listening {
        text += "; nothing listens there yet";
    }
    value.url = Some(url);
    value.expires_in_s = Some(seconds);
    value.listening = Some(is_listening);
    Ok(Answer { content: vec![Content::Text(text)], value })
}
