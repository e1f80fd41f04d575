//! Terminals in a browser: a shell in a sandbox whose output is a stream of events, and whose input is posted.
//!
//! A terminal is its stream. When that ends, for whatever reason, so does everything that was started in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use http::HeaderMap;
use sandbox::{Error, ExecRequest, Execution, ExecutionControl, Owner, Result, TerminalSize};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::answers::{Answered, need, ok, told};
use super::stream::{Told, response};
use super::{Desk, not_offered, request};
use crate::audit::CallOutcome;
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::drain::Drain;
use crate::http::places::{Place, Places, Table};
use crate::random;

const PLACES: Places = Places { most: 64, most_of_one: 8 };

/// Of output in one event.
const PIECE: usize = 32 << 10;

/// Bytes that may be typed or pasted at once.
const MOST_INPUT: u64 = 64 << 10;

/// For a program that does not read what is typed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What people are used to, where the sandbox has it.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

/// Those that are open.
#[derive(Debug)]
pub struct Terminals {
    places: Table,
    open: Open,
}

impl Default for Terminals {
    fn default() -> Self {
        Self { places: Table::new(PLACES), open: Arc::default() }
    }
}

type Open = Arc<Mutex<HashMap<String, Terminal>>>;

/// One of them, as its input finds it.
#[derive(Clone, Debug)]
struct Terminal {
    owner: Owner,
    keyboard: Arc<tokio::sync::Mutex<Keyboard>>,
    control: ExecutionControl,
}

/// `None` when the program was not given one.
struct Keyboard(Option<Box<dyn AsyncWrite + Send + Unpin>>);

impl std::fmt::Debug for Keyboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyboard")
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    rows: u16,
    columns: u16,
}

impl Size {
    /// Larger ones than any screen are a mistake, and programs make buffers of them.
    fn checked(self) -> Result<TerminalSize> {
        let Self { rows, columns } = self;
        if !(1..=500).contains(&rows) || !(1..=1000).contains(&columns) {
            return Err(Error::invalid_input("a terminal has 1 to 500 rows and 1 to 1000 columns"));
        }
        Ok(TerminalSize { rows, columns })
    }
}

pub async fn open(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Extension(drain): Extension<Drain>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    need(&principal, Scope::Run)?;
    if !desk.parts().offered.terminals {
        return Err(not_offered().into());
    }
    let size: Size = request::object(&desk.parts().bodies, &headers, body).await?;
    let size = size.checked()?;
    let sandbox = desk.service().find(&principal.owner, &id).await?;
    // Somebody else may have made it with more than may be had here.
    desk.parts().policy.ceiling.network.admit(sandbox.network.clone())?;
    let terminals = &desk.shared.terminals;
    let place = terminals.places.take(&principal.owner)?;
    let mut shell = ExecRequest::shell(SHELL, desk.parts().policy.longest_timeout)?;
    shell.terminal = Some(size);
    shell.environment.insert("TERM", "xterm-256color")?;
    let started = Instant::now();
    let begun = desk.service().exec(&principal.owner, &sandbox.id, shell).await;
    let outcome = if begun.is_ok() { CallOutcome::Begun } else { CallOutcome::Failed };
    desk.record(&principal, "terminal", Some(sandbox.id), started, outcome);
    let screen = Screen::new(terminals, &principal.owner, begun?, place)?;
    let events = stream::unfold(Some(screen), async |screen| screen?.next().await);
    // A server that ends does not wait for people to leave their terminals.
    Ok(response(Box::pin(events), async move { drain.begun().await }))
}

/// The side of a terminal that is looked at. Dropped, it takes everything along.
struct Screen {
    id: String,
    is_new: bool,
    output: Box<dyn AsyncRead + Send + Unpin>,
    control: ExecutionControl,
    open: Open,
    _place: Place,
}

impl Screen {
    fn new(terminals: &Terminals, owner: &Owner, execution: Execution, place: Place) -> Result<Self> {
        let Execution { stdin, stdout, stderr: _, control } = execution;
        let id = random::digits()?;
        let keyboard = Arc::new(tokio::sync::Mutex::new(Keyboard(stdin)));
        let terminal = Terminal { owner: owner.clone(), keyboard, control: control.clone() };
        lock(&terminals.open).insert(id.clone(), terminal);
        Ok(Self { id, is_new: true, output: stdout, control, open: terminals.open.clone(), _place: place })
    }

    async fn next(mut self) -> Option<(Told, Option<Self>)> {
        if std::mem::take(&mut self.is_new) {
            return Some((("opened", json!({ "terminal": self.id })), Some(self)));
        }
        let mut piece = vec![0; PIECE];
        // An error is an end too: the shell's own end says what happened.
        if let Ok(count @ 1..) = self.output.read(&mut piece).await {
            return Some((("output", json!({ "base64": STANDARD.encode(&piece[..count]) })), Some(self)));
        }
        let ended = match self.control.wait().await {
            Ok(outcome) => {
                let status = outcome.status;
                json!({ "state": status.as_str(), "exit_code": status.exit_code(), "signal": status.signal() })
            }
            Err(error) => json!({ "state": "failed", "error": told(&error) }),
        };
        Some((("ended", ended), None))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.id);
    }
}

/// What was typed, in the order in which it is posted: a page waits for one answer before it sends more.
pub async fn input(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
    body: Body,
) -> Answered {
    need(&principal, Scope::Run)?;
    let terminal = find(&desk, &principal, &id)?;
    let typed = request::bytes(MOST_INPUT, body).await?;
    let mut keyboard = terminal.keyboard.lock().await;
    if let Keyboard(Some(keyboard)) = &mut *keyboard {
        let written = timeout(PATIENCE, async {
            keyboard.write_all(&typed).await?;
            keyboard.flush().await
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::new(sandbox::ErrorKind::WrongState, "the terminal has ended").into()),
            Err(_) => return Err(Error::unavailable("the program does not read what is typed").into()),
        }
    }
    ok(&json!({}))
}

pub async fn resize(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    need(&principal, Scope::Run)?;
    let terminal = find(&desk, &principal, &id)?;
    let size: Size = request::object(&desk.parts().bodies, &headers, body).await?;
    terminal.control.resize(size.checked()?).await?;
    ok(&json!({}))
}

fn find(desk: &Desk, principal: &Principal, id: &str) -> Result<Terminal> {
    let open = lock(&desk.shared.terminals.open);
    let terminal = open.get(id).filter(|terminal| terminal.owner == principal.owner);
    terminal.cloned().ok_or_else(|| Error::not_found("there is no such terminal"))
}

fn lock(open: &Open) -> MutexGuard<'_, HashMap<String, Terminal>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
