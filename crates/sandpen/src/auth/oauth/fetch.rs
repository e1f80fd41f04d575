//! Small documents of other servers: bounded in size and time, without redirects, and by TLS unless they are on this machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::address::is_protected;

/// For all of a document.
const PATIENCE: Duration = Duration::from_secs(10);

const MOST_BYTES: usize = 256 << 10;

/// Who named the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    ByOperator,
    /// By whoever asks: it must be one of the public network, or they would look around in ours.
    ByStranger,
}

/// Why there is no document; for the log.
#[derive(Debug)]
pub struct Unfetched(String);

impl Unfetched {
    pub fn new(why: String) -> Self {
        Self(why)
    }
}

impl fmt::Display for Unfetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A form that is sent, with the client's own secret.
pub struct Form<'a> {
    pub body: String,
    pub client: &'a str,
    pub secret: &'a str,
}

impl fmt::Debug for Form<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Form")
    }
}

#[derive(Clone, Debug, Default)]
pub struct Fetcher {
    tls: Arc<OnceCell<Arc<ClientConfig>>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Fetcher {
    pub async fn get<T: DeserializeOwned>(&self, url: &Url, named: Named) -> Result<T, Unfetched> {
        let request = Request::builder().method(Method::GET);
        self.ask(url, named, request, Bytes::new()).await
    }

    pub async fn post<T: DeserializeOwned>(&self, url: &Url, form: Form<'_>) -> Result<T, Unfetched> {
        // Both are written as in a form first (RFC 6749, section 2.3.1).
        let escaped = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let pair = BASE64_STANDARD.encode(format!("{}:{}", escaped(form.client), escaped(form.secret)));
        let request = Request::builder()
            .method(Method::POST)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(AUTHORIZATION, format!("Basic {pair}"));
        self.ask(url, Named::ByOperator, request, form.body.into()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        url: &Url,
        named: Named,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<T, Unfetched> {
        let bytes = tokio::time::timeout(PATIENCE, self.exchange(url, named, request, body))
            .await
            .map_err(|_| Unfetched(format!("{} does not answer in time", shown(url))))??;
        serde_json::from_slice(&bytes)
            .map_err(|error| Unfetched(format!("what {} says makes no sense: {error}", shown(url))))
    }

    async fn exchange(
        &self,
        url: &Url,
        named: Named,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Bytes, Unfetched> {
        if !is_protected(url) {
            return Err(Unfetched(format!("{} is neither HTTPS nor on this machine", shown(url))));
        }
        let trouble = |what: &str, error: &dyn fmt::Display| Unfetched(format!("{}: {what}: {error}", shown(url)));
        let stream = dial(url, named).await?;
        let stream: Box<dyn Stream> = if url.scheme() == "https" {
            let name = server_name(url).ok_or_else(|| Unfetched(format!("{} has no host", shown(url))))?;
            let connector = TlsConnector::from(self.tls().await?);
            Box::new(connector.connect(name, stream).await.map_err(|error| trouble("no TLS", &error))?)
        } else {
            Box::new(stream)
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| trouble("no HTTP", &error))?;
        // Dropped with the answer, or when time is over.
        let mut driver = tokio::task::JoinSet::new();
        driver.spawn(async {
            let _ = connection.await;
        });
        let host = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let request = request
            .uri(path)
            .header(HOST, host)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("sandpen/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|error| trouble("no request", &error))?;
        let response = sender.send_request(request).await.map_err(|error| trouble("no answer", &error))?;
        if response.status() != StatusCode::OK {
            return Err(Unfetched(format!("{} answers {}", shown(url), response.status())));
        }
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| trouble("no whole answer", &error))
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, Unfetched> {
        let unusable = || Unfetched("certificates cannot be checked on this machine".to_owned());
        let config = self.tls.get_or_try_init(|| async {
            // Hundreds of files in the worst case.
            let roots = tokio::task::spawn_blocking(|| {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            });
            let roots = roots.await.map_err(|_| unusable())?;
            let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|_| unusable())?
                .with_root_certificates(roots)
                .with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Arc::new(config))
        });
        config.await.cloned()
    }
}

/// To the very address that was judged: a name could lead elsewhere when it is asked again.
async fn dial(url: &Url, named: Named) -> Result<TcpStream, Unfetched> {
    let port = url.port_or_known_default().unwrap_or(443);
    let addresses: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(address)) => vec![(address, port).into()],
        Some(Host::Ipv6(address)) => vec![(address, port).into()],
        Some(Host::Domain(name)) => tokio::net::lookup_host((name, port))
            .await
            .map_err(|error| Unfetched(format!("{} cannot be found: {error}", shown(url))))?
            .collect(),
        None => Vec::new(),
    };
    if let Some(address) = addresses.iter().map(SocketAddr::ip).find(|address| !may_reach(*address, named)) {
        return Err(Unfetched(format!("{} is at {address}, which is not of the public network", shown(url))));
    }
    let mut last = Unfetched(format!("{} has no address", shown(url)));
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Unfetched(format!("{} cannot be reached: {error}", shown(url))),
        }
    }
    Err(last)
}

fn may_reach(address: IpAddr, named: Named) -> bool {
    match named {
        Named::ByOperator => true,
        Named::ByStranger => egress::is_public(address),
    }
}

fn server_name(url: &Url) -> Option<ServerName<'static>> {
    match url.host()? {
        Host::Domain(name) => ServerName::try_from(name.to_owned()).ok(),
        Host::Ipv4(address) => Some(ServerName::IpAddress(IpAddr::from(address).into())),
        Host::Ipv6(address) => Some(ServerName::IpAddress(IpAddr::from(address).into())),
    }
}

/// Without what might be a secret.
fn shown(url: &Url) -> &str {
    &url[..url::Position::AfterPath]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that says this to whoever connects.
    async fn saying(answer: Vec<u8>) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/a", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(&answer).await;
            }
        });
        url
    }

    async fn fetched(answer: &str) -> Result<Value, Unfetched> {
        Fetcher::default().get(&saying(answer.into()).await, Named::ByOperator).await
    }

    #[tokio::test]
    async fn only_a_small_document_that_is_there_is_taken() {
        let good = fetched("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}").await.unwrap();
        assert_eq!(good["a"], 1);
        let large = " ".repeat(MOST_BYTES + 1);
        for answer in [
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
            &format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{large}", large.len()),
        ] {
            assert!(fetched(answer).await.is_err(), "{answer:.80}");
        }
    }

    #[tokio::test]
    async fn strangers_lead_us_nowhere_in_our_own_network() {
        let here = saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec()).await;
        let refused = Fetcher::default().get::<Value>(&here, Named::ByStranger).await.unwrap_err();
        assert!(refused.to_string().contains("not of the public network"), "{refused}");
        for url in ["https://localhost/", "https://169.254.169.254/", "https://[::ffff:10.0.0.1]/", "https://0/"] {
            let refused = Fetcher::default().get::<Value>(&url.parse().unwrap(), Named::ByStranger).await.unwrap_err();
            assert!(refused.to_string().contains("not of the public network"), "{url}: {refused}");
        }
        for url in ["http://192.0.2.1/", "ftp://192.0.2.1/"] {
            let refused = Fetcher::default().get::<Value>(&url.parse().unwrap(), Named::ByOperator).await.unwrap_err();
            assert!(refused.to_string().contains("neither HTTPS"), "{url}: {refused}");
        }
    }
}
