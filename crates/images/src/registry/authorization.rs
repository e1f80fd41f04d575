//! Getting in: from a challenge to what goes into the `Authorization` header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::Deserialize;

use super::address::{Address, is_insecure};
use super::challenge::Challenge;
use super::client::{AGENT, Client};
use super::connection::{Body, no_body};
use crate::credentials::Login;
use crate::error::{Error, Result};

const LONGEST_TOKEN: u64 = 1 << 20;

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Client<'_> {
    /// What the registry wants to see, for what is going to be done.
    ///
    /// The login goes to the registry it is kept for, or to the place that this very registry names for getting tokens, as
    /// encrypted as the registry itself. Neither a mirror nor whoever a request was sent on to is asked for a challenge.
    pub(super) async fn authorize(&self, challenge: &Challenge, scope: &str) -> Result<HeaderValue> {
        let login = self.login()?;
        match challenge {
            Challenge::Basic => match login {
                Some(Login::Password { user, secret }) => basic(&user, &secret),
                Some(Login::Identity(_)) | None => Err(self.denied("it wants a user and a password")),
            },
            Challenge::Bearer { realm, service } => {
                let realm = Address::parse(realm)?;
                if !realm.origin.encrypted && !is_insecure(&self.settings.insecure, &realm.origin) {
                    return Err(Error::Refused("the registry wants passwords to be sent in the clear".to_owned()));
                }
                self.token(&realm, service.as_deref(), scope, login).await
            }
        }
    }

    async fn token(
        &self,
        realm: &Address,
        service: Option<&str>,
        scope: &str,
        login: Option<Login>,
    ) -> Result<HeaderValue> {
        let identity = match &login {
            Some(Login::Identity(token)) => Some(token.clone()),
            Some(Login::Password { .. }) | None => None,
        };
        let mut address = realm.clone();
        let mut form = vec![("scope", scope.to_owned())];
        form.extend(service.map(|service| ("service", service.to_owned())));
        if let Some(token) = identity {
            form.push(("grant_type", "refresh_token".to_owned()));
            form.push(("client_id", AGENT.to_owned()));
            form.push(("refresh_token", token));
        } else {
            for (key, value) in form.drain(..) {
                address = address.with_query(key, &value);
            }
        }
        let authorization = match &login {
            Some(Login::Password { user, secret }) => Some(basic(user, secret)?),
            Some(Login::Identity(_)) | None => None,
        };
        let make = || token_request(&address, &form, authorization.as_ref());
        let answer = self.connections.send(&address.origin, make).await?;
        let status = answer.response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) {
            return Err(self.denied("it gives no token"));
        }
        if !status.is_success() {
            return Err(Error::Unavailable(format!("{} gives no token ({status})", address.origin.authority())));
        }
        let bytes = self.connections.read_all(answer, LONGEST_TOKEN).await?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token)).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| Error::Unavailable("the registry's token is not understood".to_owned()))?;
        secret_value(&format!("Bearer {token}"))
    }
}

fn token_request(address: &Address, form: &[(&str, String)], authorization: Option<&HeaderValue>) -> Request<Body> {
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    let (method, body) = if form.is_empty() {
        (Method::GET, no_body())
    } else {
        let body = Full::new(Bytes::from(pairs.join("&"))).map_err(|never| match never {}).boxed_unsync();
        (Method::POST, body)
    };
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = address.path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.extend(HeaderValue::from_str(&address.origin.authority()).map(|host| (HOST, host)));
    if !form.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    }
    headers.extend(authorization.map(|value| (AUTHORIZATION, value.clone())));
    request
}

fn basic(user: &str, secret: &str) -> Result<HeaderValue> {
    secret_value(&format!("Basic {}", STANDARD.encode(format!("{user}:{secret}"))))
}

fn secret_value(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::Unavailable("the registry's token is not understood".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}
