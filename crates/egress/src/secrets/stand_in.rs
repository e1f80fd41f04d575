//! For tests: a real host with a certificate of its own, and a sandbox's side of a connection to it.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sandbox::{EventBus, EventKind, Host, Network, Owner, SandboxId, SecretName};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Prepared, Secret, SecretSource, SecretValue, Vault, prepare};
use crate::activity::Activity;
use crate::grant::Grant;
use crate::inspect::{Dial, Flow, Inspect, Later, Unreached};
use crate::record::Record;
use crate::rule::Rules;

/// What the host got of one request.
#[derive(Clone, Debug)]
pub struct Got {
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// A host: every name leads to it. It answers `/echo` with the body that it got, `/mirror` with the headers, others as
/// their names say.
pub struct StandIn {
    pub root: CertificateDer<'static>,
    pub port: u16,
    pub got: Arc<Mutex<Vec<Got>>>,
    pub connections: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    pub async fn new(certified: &[&str]) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_key = KeyPair::generate().unwrap();
        let root = params.self_signed(&root_key).unwrap().der().clone();
        let issuer = Issuer::new(params, root_key);
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = certified.iter().map(ToString::to_string).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (got, connections) = <(Arc<Mutex<Vec<Got>>>, Arc<Mutex<usize>>)>::default();
        let task = tokio::spawn({
            let (got, connections) = (Arc::clone(&got), Arc::clone(&connections));
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    *connections.lock().unwrap() += 1;
                    let (tls, got) = (tls.clone(), Arc::clone(&got));
                    tokio::spawn(async move {
                        let mut first = [0];
                        if stream.peek(&mut first).await.is_ok_and(|count| count == 1) && first == [22] {
                            if let Ok(stream) = tls.accept(stream).await {
                                speak(stream, got).await;
                            }
                        } else {
                            speak(stream, got).await;
                        }
                    });
                }
            }
        });
        Self { root, port, got, connections, task }
    }

    pub fn last(&self) -> Got {
        self.got.lock().unwrap().last().cloned().expect("the host got a request")
    }
}

type Answer = UnsyncBoxBody<Bytes, io::Error>;

async fn speak(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, got: Arc<Mutex<Vec<Got>>>) {
    let service = service_fn(|request: Request<Incoming>| async {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
        let path = head.uri.path().to_owned();
        got.lock().unwrap().push(Got { uri: head.uri.to_string(), headers: head.headers.clone(), body: body.clone() });
        Ok::<_, io::Error>(answer(&path, &head.headers, body))
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn answer(path: &str, headers: &HeaderMap, body: Vec<u8>) -> Response<Answer> {
    let whole = |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync();
    match path {
        "/mirror" => {
            let mut response = Response::new(whole(format!("{headers:?}").into_bytes()));
            for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("x-")) {
                response.headers_mut().append(name.clone(), value.clone());
            }
            response
        }
        "/gzip" => {
            let mut response = Response::new(whole(body));
            response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
            response
        }
        "/phrase" => {
            let mut response = Response::new(whole(b"ok".to_vec()));
            response.extensions_mut().insert(hyper::ext::ReasonPhrase::try_from(body).unwrap());
            response
        }
        "/pieces" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-after", http::HeaderValue::from_bytes(&body).unwrap());
            let mut frames: Vec<_> =
                body.chunks(3).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
            frames.push(Ok(Frame::trailers(trailers)));
            let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)).boxed_unsync());
            response.headers_mut().insert("trailer", "x-after".parse().unwrap());
            response
        }
        "/cut" => {
            let (sender, frames) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                let _ = sender.send(Ok(Frame::data(Bytes::from(body)))).await;
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                let _ = sender.send(Err(io::Error::other("cut"))).await;
            });
            Response::new(StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(frames)).boxed_unsync())
        }
        "/close" => {
            let mut response = Response::new(whole(body));
            response.headers_mut().insert("connection", "close".parse().unwrap());
            response
        }
        "/echo" => Response::new(whole(body)),
        _ => {
            let mut response = Response::new(whole(Vec::new()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

/// A sandbox with secrets.
pub struct Sandbox {
    pub prepared: Prepared,
    activity: Arc<Activity>,
    events: Receiver<sandbox::Event>,
    dialer: Arc<Everywhere>,
}

#[derive(Debug)]
struct Everywhere(u16);

impl Dial for Everywhere {
    fn dial<'a>(&'a self, _: &'a Host, _: u16) -> Later<'a, Result<TcpStream, Unreached>> {
        Box::pin(async { TcpStream::connect(("127.0.0.1", self.0)).await.map_err(Unreached::Connect) })
    }
}

impl Sandbox {
    /// With secrets as name, value, host and perhaps a header.
    pub fn new(host: &StandIn, secrets: &[(&str, &str, &str, Option<&str>)]) -> Self {
        Self::trusting(host, secrets, std::slice::from_ref(&host.root))
    }

    pub fn trusting(
        host: &StandIn,
        secrets: &[(&str, &str, &str, Option<&str>)],
        roots: &[CertificateDer<'static>],
    ) -> Self {
        let mut vault = Vault::default();
        for (name, value, host, header) in secrets {
            let header = header.map(|header| header.parse().unwrap());
            let value = SecretValue::new(*value).unwrap();
            vault.insert(Secret::new(name.parse().unwrap(), value, vec![host.parse().unwrap()], header).unwrap());
        }
        Self::with_vault(host, vault, roots)
    }

    pub fn with_vault(host: &StandIn, vault: Vault, roots: &[CertificateDer<'static>]) -> Self {
        let id: SandboxId = "sb-7k2m9x4bqhtw3ecd".parse().unwrap();
        let names: BTreeSet<SecretName> = vault.iter().map(|secret| secret.name().clone()).collect();
        let grant = Grant {
            id: id.clone(),
            owner: Owner::local(),
            network: Network::Internet,
            private_hosts: Vec::new(),
            secrets: names,
        };
        let prepared = prepare(&SecretSource::Vault(vault), &grant, None, roots, &Rules::default()).unwrap().unwrap();
        let bus = EventBus::default();
        let events = bus.subscribe();
        let activity = Arc::new(Activity::new(Owner::local(), id, bus));
        Self { prepared, activity, events, dialer: Arc::new(Everywhere(host.port)) }
    }

    pub fn placeholder(&self, name: &str) -> String {
        self.prepared.environment.get(name).unwrap().to_owned()
    }

    /// A connection as a program in the sandbox makes it, and what becomes of it.
    pub fn connect(&self, host: &str, port: u16) -> (DuplexStream, JoinHandle<Result<(), Unreached>>) {
        let (inside, outside) = tokio::io::duplex(64 << 10);
        let host: Host = host.parse().unwrap();
        let record = Record::begin(&self.activity, &host, port);
        let flow = Flow { host, port, stream: Box::new(outside), dialer: Arc::clone(&self.dialer) as _, record };
        let inspector = Arc::clone(&self.prepared.inspector);
        (inside, tokio::spawn(async move { inspector.serve(flow).await }))
    }

    /// Over TLS, where the client says `name` and believes what the files of the sandbox say.
    pub async fn encrypted(&self, host: &str, port: u16, name: &str) -> io::Result<Client> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authority());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (stream, _) = self.connect(host, port);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(Client::new(stream).await)
    }

    pub async fn plain(&self, host: &str, port: u16) -> Client {
        Client::new(self.connect(host, port).0).await
    }

    fn authority(&self) -> Vec<CertificateDer<'static>> {
        use rustls::pki_types::pem::PemObject;
        let path = self.prepared.environment.get("NODE_EXTRA_CA_CERTS").unwrap();
        let file = self.prepared.files.iter().find(|file| file.path.to_string_lossy() == path).unwrap();
        let last = CertificateDer::pem_slice_iter(&file.contents).last();
        vec![last.unwrap().unwrap()]
    }

    /// The secrets that the next event of a connection tells of.
    pub async fn told(&mut self) -> Vec<String> {
        loop {
            let event = self.events.recv().await.unwrap();
            if let EventKind::Connected { secrets, .. } = event.kind {
                return secrets.iter().map(ToString::to_string).collect();
            }
        }
    }

    pub fn refused(&self) -> Vec<(String, sandbox::Denial)> {
        let refused = self.activity.since(crate::activity::Mark::default()).refused;
        refused.into_iter().map(|refusal| (refusal.host.to_string(), refusal.denial)).collect()
    }
}

/// A program in the sandbox that speaks HTTP.
pub struct Client {
    sender: SendRequest<UnsyncBoxBody<Bytes, io::Error>>,
}

/// An answer as the sandbox sees it.
#[derive(Debug)]
pub struct Seen {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// `Err` when it broke off.
    pub body: Result<String, String>,
    pub trailers: HeaderMap,
    pub phrase: Option<Vec<u8>>,
}

impl Seen {
    pub fn text(&self) -> &str {
        self.body.as_deref().unwrap()
    }
}

impl Client {
    async fn new(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub async fn send(&mut self, request: http::request::Builder, body: impl Into<Bytes>) -> Seen {
        self.send_body(request, Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()).await
    }

    pub async fn send_pieces(&mut self, request: http::request::Builder, pieces: Vec<Bytes>) -> Seen {
        let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
        self.send_body(request, StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()).await
    }

    async fn send_body(&mut self, request: http::request::Builder, body: UnsyncBoxBody<Bytes, io::Error>) -> Seen {
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request.body(body).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let phrase = head.extensions.get::<hyper::ext::ReasonPhrase>().map(|phrase| phrase.as_bytes().to_vec());
        let (body, trailers) = match body.collect().await {
            Ok(collected) => {
                let trailers = collected.trailers().cloned().unwrap_or_default();
                (Ok(String::from_utf8_lossy(&collected.to_bytes()).into_owned()), trailers)
            }
            Err(error) => (Err(error.to_string()), HeaderMap::new()),
        };
        Seen { status: head.status, headers: head.headers, body, trailers, phrase }
    }
}
