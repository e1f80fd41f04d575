//! `/api/session`: who the caller is and what they may, or how they sign in.

use axum::Extension;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{Method, StatusCode};
use serde_json::json;

use super::answers::{Answered, ok};
use super::{Desk, Offered};
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::answer;

pub const PATH: &str = "/api/session";

/// How somebody in a browser becomes known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignIn {
    /// Everybody who gets here is the person at the keyboard.
    Nobody,
    /// By a token that they have and paste.
    Token,
    /// By the built-in authorization server, or by a token.
    OAuth,
}

impl SignIn {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nobody => "none",
            Self::Token => "token",
            Self::OAuth => "oauth",
        }
    }
}

/// `routes` behind their guard, and one answer before it: who shows nothing is told how to sign in. Somebody who shows a
/// wrong token is told by the guard.
pub fn announced(routes: Router, sign_in: SignIn) -> Router {
    routes.layer(middleware::from_fn_with_state(sign_in, announce))
}

async fn announce(State(sign_in): State<SignIn>, request: Request, next: Next) -> Response {
    let is_stranger = sign_in != SignIn::Nobody && !request.headers().contains_key(AUTHORIZATION);
    if is_stranger && request.method() == Method::GET && request.uri().path() == PATH {
        return answer::json(StatusCode::OK, &json!({ "signed_in": false, "sign_in": sign_in.as_str() }));
    }
    next.run(request).await
}

pub async fn show(State(desk): State<Desk>, Extension(principal): Extension<Principal>) -> Answered {
    let scopes: Vec<_> = Scope::ALL.iter().filter(|scope| principal.scopes.allow(**scope)).collect();
    let parts = desk.parts();
    let runs = principal.scopes.allow(Scope::Run);
    let Offered { run, create, stop, stop_runs, terminals, read_files, write_files, delete_files } = parts.offered;
    let is_admin = principal.scopes.allow(Scope::Admin);
    ok(&json!({
        "signed_in": true,
        "sign_in": parts.sign_in.as_str(),
        "owner": principal.owner.as_str(),
        "scopes": scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
        "version": env!("CARGO_PKG_VERSION"),
        "profile": parts.profile.map(|profile| profile.as_str()),
        "audit_trail": parts.trail.is_some(),
        "may": {
            "run": runs && run,
            "create": runs && create,
            "stop": runs && stop,
            "stop_runs": runs && stop_runs,
            "open_terminals": runs && terminals,
            "read_files": principal.scopes.allow(Scope::Read) && read_files,
            "write_files": runs && write_files,
            "delete_files": runs && delete_files,
            "see_all": is_admin,
            "read_audit": is_admin,
        },
    }))
}
