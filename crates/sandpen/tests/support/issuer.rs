//! Somebody else's authorization server and identity provider, with keys of its own that can be changed, and a memory for whatever
//! it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::StatusCode;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub struct Key {
    pub id: String,
    pair: EcdsaKeyPair,
}

impl Key {
    pub fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        Self { id: id.to_owned(), pair }
    }

    pub fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |range: std::ops::Range<usize>| BASE64_URL_SAFE_NO_PAD.encode(&point[range]);
        json!({ "kty": "EC", "crv": "P-256", "x": part(1..33), "y": part(33..65), "kid": self.id, "use": "sig", "alg": "ES256" })
    }

    /// The point, as somebody might take it for a shared secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

pub fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// What it says at one address.
type Page = (String, Value);

#[derive(Default)]
struct Site {
    pages: Vec<Page>,
    /// Every request: its line, its headers, its body.
    asked: Vec<String>,
}

pub struct Issuer {
    pub address: SocketAddr,
    url: String,
    site: Arc<Mutex<Site>>,
}

impl Issuer {
    pub fn start(keys: &[&Key]) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let site = Arc::new(Mutex::new(Site::default()));
        let routes = Router::new().fallback(answer).with_state(site.clone());
        // Until the test program ends.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { axum::serve(TcpListener::from_std(listener).unwrap(), routes).await })
        });
        let issuer = Self { address, url: format!("http://{address}"), site };
        issuer.introduce();
        issuer.publish(keys);
        issuer
    }

    /// The same by HTTPS, and the certificate that whoever asks must trust, in PEM.
    pub fn start_encrypted(keys: &[&Key]) -> (Self, String) {
        let mut issuer = Self::start(keys);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        issuer.url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        issuer.introduce();
        let plain = issuer.address;
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { decrypt(TcpListener::from_std(listener).unwrap(), Arc::new(config), plain).await })
        });
        (issuer, made.cert.pem())
    }

    fn introduce(&self) {
        let url = self.url();
        let about = json!({
            "issuer": url,
            "jwks_uri": format!("{url}/keys"),
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
        });
        self.say("/.well-known/openid-configuration", about);
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn publish(&self, keys: &[&Key]) {
        self.say("/keys", json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() }));
    }

    pub fn say(&self, path: &str, page: Value) {
        let mut site = self.site.lock().unwrap();
        site.pages.retain(|(known, _)| known != path);
        site.pages.push((path.to_owned(), page));
    }

    pub fn asked(&self) -> Vec<String> {
        self.site.lock().unwrap().asked.clone()
    }

    pub fn claims(&self, audience: &str) -> Value {
        json!({
            "iss": self.url(),
            "sub": "alice",
            "aud": audience,
            "exp": now() + 600,
            "scope": "sandpen:run",
        })
    }
}

async fn answer(State(site): State<Arc<Mutex<Site>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mut site = site.lock().unwrap();
    let body = String::from_utf8_lossy(&body).into_owned();
    site.asked.push(format!("{} {}\n{:?}\n{body}", parts.method, parts.uri, parts.headers));
    match site.pages.iter().find(|(path, _)| path == parts.uri.path()) {
        Some((_, page)) => page.to_string().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Whatever comes in by TLS goes on without.
async fn decrypt(listener: TcpListener, config: Arc<rustls::ServerConfig>, plain: SocketAddr) {
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    while let Ok((stream, _)) = listener.accept().await {
        // Those who do not trust the certificate end here.
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        tokio::spawn(async move {
            let mut inner = tokio::net::TcpStream::connect(plain).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
        });
    }
}
