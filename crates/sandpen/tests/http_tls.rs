//! `sandpen serve` over HTTPS: by certificates of the operator's, which may be renewed while it runs.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::server::Server;
use support::{World, sandboxes_work, wait_until};

/// A certificate for this machine's own name, and its key, both in PEM.
fn made() -> (String, String) {
    let names = ["localhost".to_owned()];
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).unwrap();
    (cert.pem(), signing_key.serialize_pem())
}

struct Files {
    certificates: PathBuf,
    key: PathBuf,
}

impl Files {
    fn below(world: &World) -> Self {
        Self { certificates: world.state_dir().join("chain.pem"), key: world.state_dir().join("key.pem") }
    }

    fn write(&self, (certificates, key): &(String, String)) {
        std::fs::create_dir_all(self.key.parent().unwrap()).unwrap();
        std::fs::write(&self.certificates, certificates).unwrap();
        std::fs::write(&self.key, key).unwrap();
    }

    fn flags(&self) -> [&str; 4] {
        ["--tls-cert", self.certificates.to_str().unwrap(), "--tls-key", self.key.to_str().unwrap()]
    }
}

/// What a client is told that believes this certificate and no other.
fn ask(server: &Server, certificate: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), server.connect());
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn what_is_said_is_encrypted_and_certificates_can_be_renewed() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let files = Files::below(&world);
    let (first, second) = (made(), made());
    files.write(&first);
    let server = Server::start(&world, &files.flags());
    let answer = ask(&server, &first.0).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"status\":\"ok\"}"), "{answer}");
    assert!(ask(&server, &second.0).is_err(), "it is not the server that this client knows");

    let mut plain: TcpStream = server.connect();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "nothing is said in the clear");

    std::fs::write(&files.certificates, "half of a").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(ask(&server, &first.0).is_ok(), "while they make no sense, the ones before are used");
    files.write(&second);
    wait_until("the new certificates are used", || ask(&server, &second.0).is_ok());
    assert!(ask(&server, &first.0).is_err());
}

#[test]
fn half_of_the_files_or_wrong_ones_are_refused_before_anything_starts() {
    let world = World::new();
    let files = Files::below(&world);
    files.write(&made());
    let serve = |flags: &[&str]| world.run(&[&["serve", "--no-auth", "--listen", "127.0.0.1:0"], flags].concat());
    serve(&files.flags()[..2]).expect(1, "").says("no key for them").says("--tls-key");
    serve(&files.flags()[2..]).expect(1, "").says("no certificates for it");
    std::fs::write(&files.key, made().1).unwrap();
    serve(&files.flags()).expect(1, "").says("does not belong to");
    std::fs::remove_file(&files.certificates).unwrap();
    serve(&files.flags()).expect(1, "").says("there are no usable certificates");
}
