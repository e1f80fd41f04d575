//! Requests to one registry: authorised when it asks for it, followed where it sends us, with our name on them.

use std::sync::Mutex;

use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use serde::Deserialize;

use super::Settings;
use super::address::{Address, is_insecure};
use super::challenge::Challenge;
use super::connection::{Answer, Body, Connections, no_body};
use crate::credentials::Login;
use crate::error::{Error, Result};

pub const AGENT: &str = concat!("sandpen/", env!("CARGO_PKG_VERSION"));

/// How often a request is sent on.
const MOST_REDIRECTS: usize = 5;
const LONGEST_ERROR: u64 = 64 << 10;

/// What is going to be done in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Pull,
    Push,
}

pub struct Client<'a> {
    pub(super) settings: &'a Settings,
    pub(super) connections: Connections,
    /// As it stands in names.
    registry: String,
    repository: String,
    access: Access,
    authorization: Mutex<Option<HeaderValue>>,
    login: Mutex<Option<Option<Login>>>,
}

impl<'a> Client<'a> {
    pub fn new(settings: &'a Settings, registry: &str, repository: &str, access: Access) -> Self {
        Self {
            settings,
            connections: Connections::new(settings.patience, settings.proxies.clone()),
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            access,
            authorization: Mutex::default(),
            login: Mutex::default(),
        }
    }

    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Something in the repository.
    pub fn address(&self, path: &str) -> Result<Address> {
        let address = Address::of_registry(&self.registry, &format!("{}/{path}", self.repository), true)?;
        let encrypted = !is_insecure(&self.settings.insecure, &plain(&address).origin);
        Address::of_registry(&self.registry, &format!("{}/{path}", self.repository), encrypted)
    }

    /// Reads something, wherever the registry keeps it.
    pub async fn get(&self, address: &Address, headers: &[(HeaderName, String)]) -> Result<Answer> {
        self.read(Method::GET, address, headers).await
    }

    pub async fn head(&self, address: &Address) -> Result<Answer> {
        self.read(Method::HEAD, address, &[]).await
    }

    async fn read(&self, method: Method, address: &Address, headers: &[(HeaderName, String)]) -> Result<Answer> {
        let mut address = address.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.send(&method, &address, headers, no_body).await?;
            if !answer.response.status().is_redirection() || answer.response.status() == StatusCode::NOT_MODIFIED {
                return Ok(answer);
            }
            address = self.redirected(&address, &answer)?;
        }
        Err(Error::Unavailable(format!("the registry {} sends us around in circles", self.registry)))
    }

    /// One request, and a second one if the registry wants to know who asks.
    pub async fn send(
        &self,
        method: &Method,
        address: &Address,
        headers: &[(HeaderName, String)],
        body: impl Fn() -> Body,
    ) -> Result<Answer> {
        // What was meant for the registry is for the registry alone.
        let own = address.origin == self.address("")?.origin;
        let known = if own { lock(&self.authorization).clone() } else { None };
        let answer =
            self.connections.send(&address.origin, || request(method, address, headers, known.as_ref(), body()));
        let answer = answer.await?;
        if answer.response.status() != StatusCode::UNAUTHORIZED || !own {
            return Ok(answer);
        }
        let offered =
            answer.response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenge = Challenge::choose(offered).ok_or_else(|| self.denied("it does not say how to log in"))?;
        drop(answer);
        let scope = match self.access {
            Access::Pull => format!("repository:{}:pull", self.repository),
            Access::Push => format!("repository:{}:pull,push", self.repository),
        };
        let fresh = self.authorize(&challenge, &scope).await?;
        *lock(&self.authorization) = Some(fresh.clone());
        self.connections.send(&address.origin, || request(method, address, headers, Some(&fresh), body())).await
    }

    fn redirected(&self, from: &Address, answer: &Answer) -> Result<Address> {
        let location = answer.response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| Error::Unavailable("the registry sends us nowhere".to_owned()))?;
        let to = from.join(location)?;
        if !to.origin.encrypted && !is_insecure(&self.settings.insecure, &to.origin) {
            let host = to.origin.authority();
            return Err(Error::Refused(format!("the registry sends us to {host}, which is not encrypted")));
        }
        Ok(to)
    }

    /// The login for this registry, looked up once and only when it is asked for.
    pub(super) fn login(&self) -> Result<Option<Login>> {
        let mut login = lock(&self.login);
        if login.is_none() {
            *login = Some(self.settings.credentials.find(&self.registry)?);
        }
        Ok(login.clone().flatten())
    }

    pub(super) fn denied(&self, why: &str) -> Error {
        let who = match self.login() {
            Ok(Some(_)) => "the login that Docker has for it is not taken",
            Ok(None) | Err(_) => "no login for it is known",
        };
        Error::Denied(format!("the registry {} does not let us in: {why}, and {who}", self.registry))
    }

    /// An answer that is not what was asked for.
    pub async fn refusal(&self, answer: Answer, what: &str) -> Error {
        let status = answer.response.status();
        let body = self.connections.read_all(answer, LONGEST_ERROR).await.unwrap_or_default();
        let message = registry_message(&body);
        let said = message.map_or_else(|| status.to_string(), |message| format!("{status}, {message:?}"));
        let registry = &self.registry;
        match status {
            StatusCode::NOT_FOUND => Error::NotFound(format!("the registry {registry} has no {what}")),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied(&said),
            StatusCode::TOO_MANY_REQUESTS => {
                Error::Unavailable(format!("the registry {registry} has had enough of us for now ({said})"))
            }
            _ => Error::Unavailable(format!("the registry {registry} does not give {what} ({said})")),
        }
    }
}

impl std::fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("registry", &self.registry).finish_non_exhaustive()
    }
}

pub fn header(answer: &Answer, name: HeaderName) -> Option<&str> {
    answer.response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn request(
    method: &Method,
    address: &Address,
    headers: &[(HeaderName, String)],
    authorization: Option<&HeaderValue>,
    body: Body,
) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = address.path.parse().unwrap_or_default();
    let map: &mut HeaderMap = request.headers_mut();
    map.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    map.extend(HeaderValue::from_str(&address.origin.authority()).map(|host| (HOST, host)));
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            map.append(name, value);
        }
    }
    map.extend(authorization.map(|value| (AUTHORIZATION, value.clone())));
    request
}

/// All kinds of manifests.
pub fn accepted() -> [(HeaderName, String); 1] {
    [(ACCEPT, crate::manifest::ACCEPTED.join(", "))]
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<OneError>,
}

#[derive(Deserialize)]
struct OneError {
    message: String,
}

/// What the registry itself says about it, short.
fn registry_message(body: &[u8]) -> Option<String> {
    let errors: Errors = serde_json::from_slice(body).ok()?;
    Some(errors.errors.into_iter().next()?.message.chars().take(200).collect())
}

fn plain(address: &Address) -> Address {
    let mut plain = address.clone();
    if plain.origin.port == 443 {
        plain.origin.port = 80;
    }
    plain.origin.encrypted = false;
    plain
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
