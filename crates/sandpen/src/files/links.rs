//! Signed links: made for whoever may, used by whoever has one.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Extension, Router};
use http::header::HOST;
use http::{HeaderMap, Method, StatusCode, Uri};
use sandbox::{AskedPath, Error, ErrorKind};
use serde::Deserialize;
use serde_json::json;

use super::failure::{Answer, Failure};
use super::intake::Intake;
use super::link::{Grant, LONGEST, LinkMethod, Signer};
use super::record::{Action, Door};
use super::{FileServer, Reached, Target, address, download, served, upload};
use crate::audit::Deed;
use crate::auth::Principal;
use crate::http::answer;
use crate::http::listener::Peer;
use crate::time;

const FILES: &str = "/files/";

/// How long a link is good when nobody says.
const USUAL_SECONDS: u64 = 300;

/// More is no request for a link.
const MOST_BYTES: u64 = 32 << 10;

pub fn routes(server: Arc<FileServer>) -> Router {
    // Every method leads here: that a link is not for this one is nobody's to know.
    Router::new().route("/files/{*path}", axum::routing::any(follow)).with_state(server)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    path: String,
    method: Option<LinkMethod>,
    expires_s: Option<u64>,
}

/// `POST /api/sandboxes/{id}/links`
pub async fn make(
    State(server): State<Arc<FileServer>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let mut intake = Intake::new(&parts.headers, body, MOST_BYTES);
    let made = made(&server, &principal, &parts.uri, &parts.headers, &mut intake).await;
    server.answer(&principal.owner, Door::Token, Action::Link, began, made, Some(intake)).await
}

async fn made(
    server: &FileServer,
    principal: &Principal,
    uri: &Uri,
    headers: &HeaderMap,
    intake: &mut Intake,
) -> (Option<Target>, Answer) {
    let mut target = match server.sandbox(principal, uri.path(), &Method::POST).await {
        Ok(target) => target,
        Err(failure) => return (None, Err(failure)),
    };
    let signed = signed(server, &mut target, headers, intake).await;
    (Some(target), signed)
}

async fn signed(server: &FileServer, target: &mut Target, headers: &HeaderMap, intake: &mut Intake) -> Answer {
    let wish = intake.whole().await?;
    let wish: Wish = serde_json::from_slice(&wish).map_err(|cause| {
        Error::invalid_input(format!("this is no wish for a link: {cause}"))
            .with_hint("send for example {\"path\": \"/workspace/plot.png\", \"method\": \"GET\", \"expires_s\": 300}")
    })?;
    let method = wish.method.unwrap_or(LinkMethod::Get);
    let is_offered = match method {
        LinkMethod::Get => server.offers.read,
        LinkMethod::Put => server.offers.write,
    };
    if !is_offered {
        return Err(Failure::NotOffered);
    }
    let seconds = wish.expires_s.unwrap_or(USUAL_SECONDS);
    if !(1..=LONGEST.as_secs()).contains(&seconds) {
        return Err(Error::invalid_input(format!("a link is good for 1 to {} seconds", LONGEST.as_secs())).into());
    }
    let info = &target.info;
    target.path = AskedPath::new(wish.path.as_bytes())?.below(&info.work_directory)?;
    let expires = time::seconds(SystemTime::now()) + seconds;
    let (owner, sandbox, path) = (info.owner.clone(), info.id.clone(), target.path.clone());
    let grant = Grant { method, owner, sandbox, path, expires };
    let url = format!("{}{}", origin(server, headers), local_address(&server.signer, &grant)?);
    let expires_at = time::rfc3339(time::moment(expires));
    Ok(answer::json(StatusCode::CREATED, &json!({ "url": url, "expires_at": expires_at })))
}

/// The link without its host.
pub fn local_address(signer: &Signer, grant: &Grant) -> sandbox::Result<String> {
    let name = address::encode(grant.path.file_name().unwrap_or_default());
    Ok(format!("{FILES}{}/{name}", signer.sign(grant)?))
}

/// Unless the operator has said where we are, it is the word of whoever asks, and told to nobody else.
fn origin(server: &FileServer, headers: &HeaderMap) -> String {
    let scheme = match &server.reached {
        Reached::At(url) => return url.to_string(),
        Reached::AsAsked { scheme } => scheme,
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { scheme };
    match text(HOST.as_str()) {
        Some(host) => format!("{scheme}://{host}"),
        None => String::new(),
    }
}

/// `/files/…`: whatever is wrong with a link, the answer is the same.
async fn follow(State(server): State<Arc<FileServer>>, request: Request) -> Response {
    let began = Instant::now();
    let source = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let Some(grant) = granted(&server, &request) else {
        server.recorder.record(Deed::TurnedAway { source, why: "wrong_link" });
        return served::confine(answer::not_found());
    };
    let (parts, body) = request.into_parts();
    let mut intake = Intake::new(&parts.headers, body, server.largest.bytes());
    let action = match grant.method {
        LinkMethod::Get => Action::Download,
        LinkMethod::Put => Action::Upload,
    };
    let target = server.granted_target(&grant).await;
    let (target, done) = match target {
        Ok(target) => {
            let done = match grant.method {
                LinkMethod::Get => download::file(&target, &parts).await,
                LinkMethod::Put => upload::put(&server, &target, &parts.headers, &mut intake).await,
            };
            (Some(target), done)
        }
        Err(error) => (None, Err(error.into())),
    };
    let done = done.map_err(|failure| if is_telling(&failure) { Failure::Nothing } else { failure });
    server.answer(&grant.owner, Door::Link, action, began, (target, done), Some(intake)).await
}

fn granted(server: &FileServer, request: &Request) -> Option<Grant> {
    let (signed, name) = request.uri().path().strip_prefix(FILES)?.split_once('/')?;
    let grant = server.signer.read(signed, SystemTime::now());
    let grant = grant.inspect_err(|error| tracing::error!(?error, "the key of links cannot be read")).ok()??;
    let is_named = address::decode(name).ok()? == grant.path.file_name().unwrap_or_default();
    (is_named && grant.method.allows(request.method())).then_some(grant)
}

/// Whether it would say more than that there is nothing: of the sandbox, or of what else is in it.
fn is_telling(failure: &Failure) -> bool {
    match failure {
        Failure::Service(error) => match error.kind() {
            ErrorKind::InvalidInput
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::WrongState
            | ErrorKind::Denied
            | ErrorKind::Unsupported => true,
            ErrorKind::LimitExceeded | ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Internal => false,
        },
        _ => false,
    }
}
