//! The HTTP server: its address, its routes, and the checks before each of them. Knows nothing of the protocol that the
//! routes speak.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::{Method, StatusCode};
use sandbox::{Error, ErrorKind, Result};
use serde_json::json;
use tokio::net::TcpListener;

use self::access::{Access, Caller, Refusal};
use self::drain::{Drain, Lasting};
use crate::output::reason;
use crate::service_manager;

pub mod access;
pub mod answer;
pub mod bearer;
pub mod body;
pub mod cors;
pub mod drain;
pub mod framing;
pub mod listener;
pub mod patience;
pub mod places;
pub mod tls;

/// Who gets in that can reach the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// Everybody.
    Open,
    /// Whoever has a token: one of ours, or the one that an older server asked for which is all that this server speaks for.
    Token,
}

/// The socket that this process was started with, or else a new one at the address.
pub async fn listen(address: SocketAddr, entrance: Entrance) -> Result<TcpListener> {
    let unusable = |cause: std::io::Error| Error::unavailable("the inherited socket is not usable").with_cause(cause);
    match service_manager::inherited_listener()? {
        Some(listener) => {
            check_reach(listener.local_addr().map_err(unusable)?, entrance)?;
            TcpListener::from_std(listener).map_err(unusable)
        }
        None => bind(address, entrance).await,
    }
}

pub async fn bind(address: SocketAddr, entrance: Entrance) -> Result<TcpListener> {
    check_reach(address, entrance)?;
    TcpListener::bind(address)
        .await
        .map_err(|cause| Error::unavailable(format!("cannot listen on {address}: {}", reason(&cause))))
}

/// Whoever can reach the address and gets in can run code, so other machines must not reach it where everybody gets in.
fn check_reach(address: SocketAddr, entrance: Entrance) -> Result<()> {
    if !address.ip().is_loopback() && entrance == Entrance::Open {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("listening on {address} would let other machines run code here without authentication"),
        )
        .with_hint(
            "leave --no-auth out and give each of them a token with `sandpen token create`, or listen on 127.0.0.1",
        ));
    }
    Ok(())
}

/// All routes behind their checks.
///
/// `links`: what is found by an address that nobody guesses, and asks nobody who they are. Another site's page may lead there.
/// Where a token is asked for, these, and whether the server is well, are all that strangers get, by whatever name they come.
pub fn routes(protocol: Router, links: Router, access: Access, drain: &Drain) -> Router {
    let to_tools = Gate { access, drain: drain.clone(), leads_to: LeadsTo::Tools };
    let to_links = Gate { leads_to: LeadsTo::Links, ..to_tools.clone() };
    let links = links
        .method_not_allowed_fallback(async || answer::method_not_allowed())
        .layer(middleware::from_fn_with_state(to_links, gate));
    protocol
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready).with_state(drain.clone()))
        .fallback(async || answer::not_found())
        .method_not_allowed_fallback(async || answer::method_not_allowed())
        .layer(middleware::from_fn_with_state(to_tools, gate))
        .merge(links)
}

#[derive(Clone, Debug)]
struct Gate {
    access: Access,
    drain: Drain,
    leads_to: LeadsTo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeadsTo {
    Tools,
    Links,
}

async fn gate(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let caller = match gate.access.admit(request.uri(), request.headers()) {
        Ok(caller) => caller,
        Err(Refusal::CrossSite) if gate.leads_to == LeadsTo::Links => Caller::Program,
        Err(refusal) => {
            tracing::warn!(?refusal, "a request was refused");
            return answer::refused(refusal);
        }
    };
    // A client that asks for something is waited for at the end; one that only listens is not.
    let going = (!request.method().is_safe()).then(|| gate.drain.going());
    // For what is asked for and only listens.
    request.extensions_mut().insert(gate.drain);
    let mut response =
        if request.method() == Method::OPTIONS { options(request, next).await } else { next.run(request).await };
    if let Caller::Page(origin) = caller {
        cors::show_to(origin, &mut response);
    }
    match going {
        Some(going) => response.map(|body| Lasting::wrap(body, going)),
        None => response,
    }
}

/// What a page asks before it asks is for nobody else to answer; of what a program asks, a route may know more.
async fn options(request: Request, next: Next) -> Response {
    let usual = cors::options(request.headers());
    if request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return usual;
    }
    let answered = next.run(request).await;
    if answered.status().is_success() { answered } else { usual }
}

/// The process answers.
async fn healthy() -> Response {
    answer::json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// New work is welcome.
async fn ready(State(drain): State<Drain>) -> Response {
    if drain.has_begun() {
        return answer::error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the server is about to end");
    }
    answer::json(StatusCode::OK, &json!({ "status": "ready" }))
}
