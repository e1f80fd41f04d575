//! Connections to registries: TCP, TLS, HTTP/1.1; those that are free again are used again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::Origin;
use super::proxy::Proxies;
use crate::error::{Error, Result};

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub fn no_body() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

#[derive(Default)]
pub struct Connections {
    free: Mutex<HashMap<Origin, Vec<SendRequest<Body>>>>,
    patience: Duration,
    proxies: Proxies,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

/// An answer of which the body has not been read.
#[derive(Debug)]
pub struct Answer {
    pub response: Response<Incoming>,
    origin: Origin,
    connection: SendRequest<Body>,
}

impl Connections {
    pub fn new(patience: Duration, proxies: Proxies) -> Self {
        Self { free: Mutex::default(), patience, proxies }
    }

    /// One request, whose body is made by `body` because a connection that was kept too long takes a second try.
    pub async fn send(&self, origin: &Origin, make: impl Fn() -> Request<Body>) -> Result<Answer> {
        if let Some(mut connection) = self.take(origin)
            && let Ok(Ok(response)) = timeout(self.patience, connection.send_request(make())).await
        {
            return Ok(Answer { response, origin: origin.clone(), connection });
        }
        let silent = || unreachable_registry(origin, "it is silent");
        let mut connection = timeout(self.patience, connect(origin, &self.proxies)).await.map_err(|_| silent())??;
        let sent = timeout(self.patience, connection.send_request(make())).await.map_err(|_| silent())?;
        let response = sent.map_err(|error| unreachable_registry(origin, &explain(&error)))?;
        Ok(Answer { response, origin: origin.clone(), connection })
    }

    /// The next part of the body; `None` at its end.
    pub async fn read(&self, answer: &mut Answer) -> Result<Option<Bytes>> {
        let broken = |why: &str| unreachable_registry(&answer.origin, why);
        loop {
            let next = timeout(self.patience, answer.response.body_mut().frame()).await;
            match next.map_err(|_| broken("it is silent"))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(&explain(&error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// A whole body that must not be longer than that.
    pub async fn read_all(&self, mut answer: Answer, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(part) = self.read(&mut answer).await? {
            if (bytes.len() + part.len()) as u64 > most {
                return Err(Error::LimitExceeded(format!("the registry answers with more than {most} bytes")));
            }
            bytes.extend(part);
        }
        self.finish(answer);
        Ok(bytes)
    }

    /// Keeps the connection of an answer that was read to its end.
    pub fn finish(&self, answer: Answer) {
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        free.entry(answer.origin).or_default().push(answer.connection);
    }

    fn take(&self, origin: &Origin) -> Option<SendRequest<Body>> {
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let connections = free.get_mut(origin)?;
        while let Some(connection) = connections.pop() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }
}

async fn connect(origin: &Origin, proxies: &Proxies) -> Result<SendRequest<Body>> {
    let failed = |error: std::io::Error| unreachable_registry(origin, &error.to_string());
    let stream = proxies.connect(origin).await?;
    let _ = stream.set_nodelay(true);
    if !origin.encrypted {
        return shake_hands(origin, TokioIo::new(stream)).await;
    }
    let name = ServerName::try_from(origin.name().to_owned())
        .map_err(|_| unreachable_registry(origin, "its name is not one that a certificate can have"))?;
    let stream = TlsConnector::from(tls()?).connect(name, stream).await.map_err(failed)?;
    shake_hands(origin, TokioIo::new(stream)).await
}

async fn shake_hands<I>(origin: &Origin, io: I) -> Result<SendRequest<Body>>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let shaken = http1::handshake(io).await;
    let (sender, connection) = shaken.map_err(|error| unreachable_registry(origin, &explain(&error)))?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Trusts whom the host trusts. Looked up once: there are many files.
fn tls() -> Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::Unavailable("this machine has no certificates to know registries by".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unavailable(format!("TLS cannot be set up ({error})")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

pub fn unreachable_registry(origin: &Origin, why: &str) -> Error {
    Error::Unavailable(format!("the registry {} cannot be reached: {why}", origin.authority()))
}

/// What lies behind a failed exchange, which the library keeps one level below.
fn explain(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
