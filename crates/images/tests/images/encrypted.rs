//! Registries behind TLS, known by the certificates that the host trusts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use images::registry::{self, Proxies, Settings};
use images::{Error, Work};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::archive::Archive;
use crate::place::{Place, reference};
use crate::server::Registry;

/// A certificate authority, and a certificate with its key for this machine.
fn certificates() -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "registry.example".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    (authority.pem(), certificate.pem(), key.serialize_pem())
}

/// Whom a process trusts is looked up once, so each case is a process of its own.
fn child(host: &str, trusted: Option<&Path>) -> String {
    child_with_proxy(host, trusted, "")
}

fn child_with_proxy(host: &str, trusted: Option<&Path>, proxy: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "encrypted::push_and_pull_in_a_child", "--nocapture"]);
    command.env("SANDPEN_TEST_ENCRYPTED", host).env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE");
    command.env("HTTPS_PROXY", proxy).env("NO_PROXY", "");
    if let Some(trusted) = trusted {
        command.env("SSL_CERT_FILE", trusted);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_registry_is_known_by_its_certificate() {
    let (authority, certificate, key) = certificates();
    let Some(registry) = Registry::start_encrypted(&certificate, &key) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (trusted, other) = (directory.path().join("trusted.pem"), directory.path().join("other.pem"));
    std::fs::write(&trusted, authority).unwrap();
    std::fs::write(&other, certificates().0).unwrap();
    let host = format!("localhost:{}", registry.port);
    assert!(child(&host, Some(&trusted)).contains("pulled"));
    assert!(child(&host, Some(&other)).contains("unavailable"), "signed by somebody else");
    assert!(child(&host, None).contains("unavailable"), "signed by somebody whom nobody knows");
}

/// The name is one that only the proxy knows.
#[test]
fn a_proxy_is_a_way_to_a_registry() {
    let (authority, certificate, key) = certificates();
    let Some(registry) = Registry::start_encrypted(&certificate, &key) else { return };
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("trusted.pem");
    std::fs::write(&trusted, authority).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://ada:secret@127.0.0.1:{}", listener.local_addr().unwrap().port());
    let heads = Arc::new(Mutex::new(Vec::new()));
    let (seen, port) = (heads.clone(), registry.port);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let seen = seen.clone();
            std::thread::spawn(move || tunnel(client, port, &seen));
        }
    });
    let pulled = child_with_proxy("registry.example", Some(&trusted), &proxy);
    assert!(pulled.contains("pulled"), "{pulled}");
    let heads = heads.lock().unwrap();
    assert!(
        !heads.is_empty() && heads.iter().all(|head| head.starts_with("CONNECT registry.example:443 ")),
        "{heads:?}"
    );
    assert!(heads[0].contains("Proxy-Authorization: Basic YWRhOnNlY3JldA=="), "{heads:?}");
    let unknown = child("registry.example", Some(&trusted));
    assert!(unknown.contains("unavailable"), "the control: {unknown}");
}

fn tunnel(mut client: TcpStream, port: u16, seen: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    seen.lock().unwrap().push(String::from_utf8(head).unwrap());
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
    let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut client, &mut server);
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn push_and_pull_in_a_child() {
    let Ok(host) = std::env::var("SANDPEN_TEST_ENCRYPTED") else { return };
    let place = Place::new();
    place.import(&Archive::new().file("file", "contents").bytes()).unwrap();
    let name = reference(&format!("{host}/tool:1"));
    let proxied = Settings { proxies: Proxies::of_environment().unwrap(), ..Settings::default() };
    let pushed = registry::push(&place.store, &place.image(), &name, &proxied, &Work::default());
    match pushed {
        Err(Error::Unavailable(why)) => println!("unavailable: {why}"),
        Err(error) => panic!("{error:?}"),
        Ok(_) => {
            registry::pull(&Place::new().store, &name, &proxied, &Work::default()).unwrap();
            println!("pulled");
        }
    }
}
