//! Registries behind TLS, known by the certificates that the host trusts.

use std::path::Path;
use std::process::Command;

use images::registry::{self, Settings};
use images::{Error, Work};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::archive::Archive;
use crate::place::{Place, reference};
use crate::registries::settings;
use crate::server::Registry;

/// A certificate authority, and a certificate with its key for this machine.
fn certificates() -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    (authority.pem(), certificate.pem(), key.serialize_pem())
}

/// Whom a process trusts is looked up once, so each case is a process of its own.
fn child(host: &str, trusted: Option<&Path>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "encrypted::push_and_pull_in_a_child", "--nocapture"]);
    command.env("SANDPEN_TEST_ENCRYPTED", host).env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE");
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

#[test]
fn push_and_pull_in_a_child() {
    let Ok(host) = std::env::var("SANDPEN_TEST_ENCRYPTED") else { return };
    let place = Place::new();
    place.import(&Archive::new().file("file", "contents").bytes()).unwrap();
    let (name, nobody) = (reference(&format!("{host}/tool:1")), settings(&[]));
    let pushed = registry::push(&place.store, &place.image(), &name, &nobody, &Work::default());
    match pushed {
        Err(Error::Unavailable(why)) => println!("unavailable: {why}"),
        Err(error) => panic!("{error:?}"),
        Ok(_) => {
            registry::pull(&Place::new().store, &name, &Settings::default(), &Work::default()).unwrap();
            println!("pulled");
        }
    }
}
