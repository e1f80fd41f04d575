//! The way to the real host: dialled by the door, verified here before anything is sent.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, IpAddr, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sandbox::Host;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::refusal::Refusal;
use super::request::{Channel, Target};
use crate::explicit::MOST_BUFFERED;
use crate::inspect::{Body, Dial, Stream, Unreached};

/// From the connection to the first byte that can be trusted.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Connects to hosts, and believes them only with a certificate that this machine would believe.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Trusted besides the roots of this machine.
    extra_roots: Vec<CertificateDer<'static>>,
    tls: OnceCell<Arc<ClientConfig>>,
}

/// One connection to a host. Dropping it ends the connection, also in the middle of an answer.
#[derive(Debug)]
pub(super) struct Line {
    sender: SendRequest<Body>,
    driver: JoinSet<()>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    Unreached(Unreached),
    /// Told to the sandbox as it is.
    Refused(Refusal),
    /// The connection was closed before anything of the request was sent; here it is again.
    Stale(Box<Request<Body>>),
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Upstream {
    pub fn trusting(extra_roots: Vec<CertificateDer<'static>>) -> Self {
        Self { extra_roots, tls: OnceCell::new() }
    }

    pub async fn connect(&self, target: &Target, dialer: &dyn Dial) -> Result<Line, Trouble> {
        let stream = dialer.dial(&target.host, target.port).await.map_err(Trouble::Unreached)?;
        // Small requests are the rule, and each waits for an answer.
        let _ = stream.set_nodelay(true);
        let stream: Box<dyn Stream> = match target.channel {
            Channel::Plain => Box::new(stream),
            Channel::Encrypted => {
                let connector = TlsConnector::from(self.tls().await?);
                let name = server_name(&target.host)?;
                match tokio::time::timeout(HANDSHAKE, connector.connect(name, stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(error)) => return Err(distrust(&target.host, &error).into()),
                    Err(_) => return Err(Refusal::upstream("the host does not answer").into()),
                }
            }
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MOST_BUFFERED)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Refusal::upstream("the host closed the connection"))?;
        let mut driver = JoinSet::new();
        driver.spawn(async {
            // Whoever waits for the answer is told of its end, so there is nobody to tell here.
            let _ = connection.await;
        });
        Ok(Line { sender, driver })
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, Refusal> {
        let unusable = || Refusal::upstream("certificates cannot be checked on this machine");
        let config = self.tls.get_or_try_init(|| async {
            let extra = self.extra_roots.clone();
            // Hundreds of files in the worst case.
            let roots = tokio::task::spawn_blocking(move || {
                let mut roots = HOST_ROOTS.clone();
                roots.add_parsable_certificates(extra);
                roots
            });
            let roots = roots.await.map_err(|_| unusable())?;
            let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|_| unusable())?
                .with_root_certificates(roots)
                .with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok::<_, Refusal>(Arc::new(config))
        });
        config.await.cloned()
    }
}

impl Line {
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, Trouble> {
        let gone = || Refusal::upstream("the host closed the connection before it answered");
        if self.sender.ready().await.is_err() {
            return Err(Trouble::Stale(Box::new(request)));
        }
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            Some(request) => Trouble::Stale(Box::new(request)),
            None if error.error().is_parse() => Refusal::upstream("the host's answer is not HTTP").into(),
            None => gone().into(),
        })
    }

    /// What must live for as long as an answer is read.
    pub fn into_driver(self) -> JoinSet<()> {
        self.driver
    }
}

static HOST_ROOTS: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
});

fn server_name(host: &Host) -> Result<ServerName<'static>, Refusal> {
    match host {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
            .map_err(|_| Refusal::upstream("no certificate can be made out to this name")),
        Host::Address(address) => Ok(ServerName::IpAddress(IpAddr::from(*address))),
    }
}

fn distrust(host: &Host, error: &std::io::Error) -> Refusal {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    Refusal::upstream(match cause {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("the certificate of {host} is not one that this machine trusts ({why}), so nothing was sent")
        }
        Some(_) | None => format!("{host} does not speak TLS as it should, so nothing was sent"),
    })
}
