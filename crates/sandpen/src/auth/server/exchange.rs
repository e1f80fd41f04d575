//! What programs ask of the authorization server: to be known, for tokens, and to end them.

use std::time::{Instant, SystemTime};

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use sandbox::Result;
use serde_json::{Value, json};

use super::Shared;
use super::authorize::{form, media_type, source_of, whole};
use super::clients::Description;
use super::codes::{Redeemed, is_verified};
use super::grants::Issued;
use super::request::Parameters;
use crate::auth::oauth::metadata::OFFERED;
use crate::http::answer;

/// In the words of OAuth.
fn refused(status: StatusCode, error: &str, description: &str) -> Response {
    answer::json(status, &json!({ "error": error, "error_description": description }))
}

fn bad(error: &str, description: &str) -> Response {
    refused(StatusCode::BAD_REQUEST, error, description)
}

fn unavailable() -> Response {
    answer::retry_soon(refused(StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable", "come back later"))
}

/// Work that waits for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Some(value),
        Ok(Err(error)) => {
            tracing::error!(?error, "the authorization server cannot keep what it is told");
            None
        }
        Err(_) => None,
    }
}

pub(super) async fn metadata(State(server): State<Shared>, headers: HeaderMap) -> Response {
    let issuer = server.site.base(&headers);
    let at = |path: &str| format!("{issuer}{path}");
    let scopes: Vec<&str> = OFFERED.iter().map(|scope| scope.claim()).collect();
    let document = json!({
        "issuer": issuer,
        "authorization_endpoint": at("/oauth/authorize"),
        "token_endpoint": at("/oauth/token"),
        "registration_endpoint": at("/oauth/register"),
        "revocation_endpoint": at("/oauth/revoke"),
        "scopes_supported": scopes,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
        "client_id_metadata_document_supported": true,
    });
    answer::json(StatusCode::OK, &document)
}

pub(super) async fn register(State(server): State<Shared>, request: Request) -> Response {
    let from = source_of(&request).map(|source| source.to_string()).unwrap_or_default();
    let now = Instant::now();
    if server.registrations.take(&from, now).is_none() {
        let answer =
            refused(StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable", "too many registrations from there");
        return answer::retry_soon(answer);
    }
    if media_type(request.headers()).as_deref() != Some("application/json") {
        return bad("invalid_client_metadata", "a registration is a JSON object");
    }
    let description = whole(request.into_body()).await.and_then(|body| serde_json::from_slice(&body).ok());
    let Some(description): Option<Description> = description else {
        return bad("invalid_client_metadata", "a registration is a JSON object with redirect_uris");
    };
    let registered = blocking(move || server.clients.register(&description, SystemTime::now())).await;
    match registered {
        None => unavailable(),
        Some(Err(problem)) => bad("invalid_redirect_uri", problem),
        Some(Ok(client)) => {
            let mut document = json!({
                "client_id": client.id,
                "redirect_uris": client.redirect_uris,
                "token_endpoint_auth_method": "none",
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
            });
            if let Some(name) = client.name {
                document["client_name"] = json!(name);
            }
            answer::json(StatusCode::CREATED, &document)
        }
    }
}

pub(super) async fn token(State(server): State<Shared>, request: Request) -> Response {
    let Some(parameters) = form(request).await else {
        return bad("invalid_request", "the request is a form in which nothing is said twice");
    };
    if !parameters.resources.iter().all(|resource| server.site.owns(resource)) {
        return bad("invalid_target", "the resource is not of this server");
    }
    match parameters.get("grant_type") {
        Some("authorization_code") => by_code(server, parameters).await,
        Some("refresh_token") => by_refresh(server, parameters).await,
        Some(_) => bad("unsupported_grant_type", "the grant types are authorization_code and refresh_token"),
        None => bad("invalid_request", "the grant_type is missing"),
    }
}

async fn by_code(server: Shared, parameters: Parameters) -> Response {
    let (Some(code), Some(client), Some(verifier)) =
        (parameters.get("code"), parameters.get("client_id"), parameters.get("code_verifier"))
    else {
        return bad("invalid_request", "code, client_id and code_verifier are needed");
    };
    let wrong = || bad("invalid_grant", "the code is not known, over, used, or for another client");
    let now = SystemTime::now();
    let pending = match server.codes.redeem(code, now) {
        Redeemed::Fresh(pending) => pending,
        Redeemed::Unknown => return wrong(),
        Redeemed::Again(grant) => {
            tracing::warn!(client, "a code came twice, and what it gave is taken back");
            if let Some(grant) = grant {
                blocking(move || server.grants.end(&grant)).await;
            }
            return wrong();
        }
    };
    let is_same_place = parameters.get("redirect_uri").is_none_or(|asked| asked == pending.redirect_uri);
    if pending.agreed.client != client || !is_same_place || !is_verified(&pending.challenge, verifier) {
        return wrong();
    }
    let code = code.to_owned();
    let begun = blocking(move || {
        let (grant, issued) = server.grants.begin(&pending.agreed, now)?;
        server.codes.gave(&code, grant);
        Ok(issued)
    });
    begun.await.map_or_else(unavailable, |issued| handed(&issued))
}

async fn by_refresh(server: Shared, parameters: Parameters) -> Response {
    let (Some(token), Some(client)) = (parameters.get("refresh_token"), parameters.get("client_id")) else {
        return bad("invalid_request", "refresh_token and client_id are needed");
    };
    let (token, client, scope) = (token.to_owned(), client.to_owned(), parameters.get("scope").map(str::to_owned));
    let renewed = blocking(move || server.grants.renew(&token, &client, scope.as_deref(), SystemTime::now())).await;
    match renewed {
        None => unavailable(),
        Some(None) => bad("invalid_grant", "the token is not known, over, used, or for another client"),
        Some(Some(issued)) => handed(&issued),
    }
}

/// Whether there was anything to end is nobody's business.
pub(super) async fn revoke(State(server): State<Shared>, request: Request) -> Response {
    let Some(parameters) = form(request).await else {
        return bad("invalid_request", "the request is a form in which nothing is said twice");
    };
    let Some(token) = parameters.get("token").map(str::to_owned) else {
        return bad("invalid_request", "the token is missing");
    };
    match blocking(move || server.grants.revoke(&token)).await {
        Some(()) => answer::json(StatusCode::OK, &json!({})),
        None => unavailable(),
    }
}

fn handed(issued: &Issued) -> Response {
    let document: Value = json!({
        "access_token": issued.access,
        "token_type": "Bearer",
        "expires_in": issued.lives.as_secs(),
        "refresh_token": issued.refresh,
        "scope": issued.scopes.claims(),
    });
    answer::json(StatusCode::OK, &document)
}
