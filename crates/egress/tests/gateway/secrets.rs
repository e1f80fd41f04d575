//! A sandbox with a secret, from its pass to the wire. What a trusted host gets is shown beside the code, where a host can be
//! given a certificate.

use std::collections::BTreeSet;
use std::sync::Arc;

use egress::{Door, Gateway, GatewaySettings, Grant, Mark, Pass, Secret, SecretSource, SecretValue, Vault};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sandbox::{Denial, ErrorKind, Owner, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{ask, connect, open_way, serve, settings, soon, until};

const VALUE: &str = "sk-canary-value";

struct Lab {
    pass: Pass,
    door: Door,
    mark: Mark,
    proxy: std::net::SocketAddr,
}

fn secret(hosts: &str) -> Secret {
    let (name, value) = ("KEY".parse().unwrap(), SecretValue::new(VALUE).unwrap());
    let header = Some("X-Key: {}".parse().unwrap());
    Secret::new(name, value, vec![hosts.parse().unwrap()], header).unwrap()
}

fn with_secret(hosts: &str) -> GatewaySettings {
    let mut vault = Vault::default();
    vault.insert(secret(hosts));
    GatewaySettings { secrets: SecretSource::Vault(vault), ..settings() }
}

fn grant(network: &str, secret: &str) -> Grant {
    Grant {
        id: SandboxId::random().unwrap(),
        owner: Owner::local(),
        network: network.parse().unwrap(),
        private_hosts: Vec::new(),
        secrets: BTreeSet::from([secret.parse().unwrap()]),
    }
}

fn open(settings: GatewaySettings) -> Lab {
    open_at(&Arc::new(Gateway::new(settings)))
}

fn open_at(gateway: &Arc<Gateway>) -> Lab {
    let pass = gateway.prepare(grant("localhost:*", "KEY"), None).unwrap();
    let streams = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let names = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let proxy = streams.local_addr().unwrap();
    let door = open_way(gateway, &pass, streams, names);
    Lab { mark: door.mark(), pass, door, proxy }
}

/// Gives each request's head back, and the value with it.
async fn tells_it(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let body = format!("{}{VALUE}", String::from_utf8_lossy(&head));
    let answer = format!("HTTP/1.1 200 OK\r\nX-Told: {VALUE}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(answer.as_bytes()).await;
}

#[tokio::test]
async fn over_plain_http_nothing_goes_out_and_nothing_comes_back() {
    let port = serve(tells_it).await;
    let lab = open(with_secret("localhost:*"));
    let mark = lab.pass.environment.get("KEY").unwrap();
    let request = format!(
        "GET http://localhost:{port}/?key={mark} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    );
    let by_proxy = ask(lab.proxy, request.as_bytes()).await;
    let mut tunnel = connect(lab.proxy, &format!("localhost:{port}")).await.unwrap();
    let request = format!("GET /?key={mark} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    tunnel.write_all(request.as_bytes()).await.unwrap();
    let mut by_tunnel = String::new();
    soon(tunnel.read_to_string(&mut by_tunnel)).await.unwrap();
    for answer in [by_proxy, by_tunnel] {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(!answer.contains("canary"), "{answer}");
        // In its header, in the query that the host got, and in the body.
        assert_eq!(answer.matches(mark).count(), 3, "{answer}");
    }
}

#[cfg(feature = "weaken")]
#[tokio::test]
async fn without_masking_the_value_would_come_back() {
    let port = serve(tells_it).await;
    let lab = open(GatewaySettings { without: BTreeSet::from([egress::Rule::Masking]), ..with_secret("localhost:*") });
    let request =
        format!("GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    assert!(ask(lab.proxy, request.as_bytes()).await.contains(VALUE));
}

#[tokio::test]
async fn a_host_that_nobody_vouches_for_gets_nothing() {
    let port = serve(shows_nothing).await;
    let lab = open(with_secret("localhost:*"));
    let answer = ask_encrypted(&lab, "GET", port).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("nothing was sent"), "{answer}");
}

#[tokio::test]
async fn what_is_entrusted_is_for_reading_alone() {
    let gateway = Arc::new(Gateway::new(settings()));
    gateway.entrust(secret("localhost:*"));
    let lab = open_at(&gateway);
    let port = serve(shows_nothing).await;
    for method in ["PUT", "POST", "DELETE"] {
        let answer = ask_encrypted(&lab, method, port).await;
        assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("for reading"), "{answer}");
    }
    // This one was on its way.
    let answer = ask_encrypted(&lab, "GET", port).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
}

/// Answers a greeting with what is no certificate.
async fn shows_nothing(mut stream: TcpStream) {
    let mut first = [0; 1024];
    let _ = stream.read(&mut first).await;
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
}

/// What comes back to a program that believes what the files of its sandbox say.
async fn ask_encrypted(lab: &Lab, method: &str, port: u16) -> String {
    let mut roots = RootCertStore::empty();
    let bundle = lab.pass.environment.get("SSL_CERT_FILE").unwrap();
    let file = lab.pass.files.iter().find(|file| file.path.to_string_lossy() == bundle).unwrap();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&file.contents).map(Result::unwrap));
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tunnel = connect(lab.proxy, &format!("localhost:{port}")).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = soon(TlsConnector::from(Arc::new(config)).connect(name, tunnel)).await.unwrap();
    let request = format!("{method} / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn what_is_not_http_is_refused_by_its_own_rule() {
    let port = serve(tells_it).await;
    let lab = open(with_secret("localhost:*"));
    let mut tunnel = connect(lab.proxy, &format!("localhost:{port}")).await.unwrap();
    tunnel.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(tunnel.read_to_end(&mut answer)).await;
    assert!(answer.is_empty());
    let refused = || lab.door.since(lab.mark).refused.iter().map(|refusal| refusal.denial).collect::<Vec<_>>();
    until("the refusal", || refused() == [Denial::NotHttp]).await;
}

#[test]
fn a_grant_that_cannot_work_is_refused() {
    let gateway = Gateway::new(with_secret("api.example.com"));
    for network in ["internet", "api.example.com", "*.example.com:443", "a.example,api.example.com:*"] {
        gateway.prepare(grant(network, "KEY"), None).unwrap_or_else(|error| panic!("{network}: {error:?}"));
    }
    for network in ["example.com", "api.example.com:80", "*.api.example.com"] {
        let error = gateway.prepare(grant(network, "KEY"), None).unwrap_err();
        assert!(error.message().contains("out of the sandbox's reach"), "{error:?}");
    }
    let error = gateway.prepare(grant("internet", "OTHER"), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn the_next_process_gives_the_sandbox_the_same() {
    let grant = grant("internet", "KEY");
    let pass = |keepsake| Gateway::new(with_secret("api.example.com")).prepare(grant.clone(), keepsake).unwrap();
    let first = pass(None);
    let keepsake = first.keepsake.unwrap();
    assert!(!keepsake.contains(VALUE));
    let second = pass(Some(&keepsake));
    assert_eq!(second.environment, first.environment);
    assert_eq!(second.files, first.files);
    assert_ne!(pass(None).environment, first.environment);
}
