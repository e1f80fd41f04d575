//! What clients are told before they have a token: who gives them out, and for what (RFC 9728).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, StatusCode};
use serde_json::json;

use super::site::{PROTECTED_RESOURCE, Site};
use crate::auth::scope::Scope;
use crate::http::answer;

/// Asked for unless somebody needs more: the wider one is for operators, who know its name.
pub const OFFERED: &[Scope] = &[Scope::Read, Scope::Run];

#[derive(Clone, Debug)]
pub struct Resource {
    pub site: Arc<Site>,
    /// Whose tokens are taken, besides those of our own authorization server.
    pub issuers: Vec<String>,
    pub has_own_server: bool,
}

pub fn routes(resource: Resource) -> Router {
    Router::new()
        .route(PROTECTED_RESOURCE, get(of_all))
        .route(&format!("{PROTECTED_RESOURCE}/{{*path}}"), get(of_one))
        .with_state(resource)
}

async fn of_all(State(resource): State<Resource>, headers: HeaderMap) -> Response {
    resource.document(&headers, "")
}

async fn of_one(State(resource): State<Resource>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let path = format!("/{path}");
    if resource.site.has(&path) { resource.document(&headers, &path) } else { answer::not_found() }
}

impl Resource {
    fn document(&self, headers: &HeaderMap, path: &str) -> Response {
        let base = self.site.base(headers);
        let own = self.has_own_server.then(|| base.to_owned());
        let servers: Vec<String> = own.into_iter().chain(self.issuers.iter().cloned()).collect();
        let scopes: Vec<&str> = OFFERED.iter().map(|scope| scope.claim()).collect();
        let document = json!({
            "resource": format!("{base}{path}"),
            "authorization_servers": servers,
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
            "resource_name": "Sandpen",
        });
        answer::json(StatusCode::OK, &document)
    }
}
