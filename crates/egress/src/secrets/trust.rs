//! How programs inside a sandbox come to trust its authority.
//!
//! There is no one place that all of them look at, so there is a variable for each kind. Most replace the roots that a
//! program knows instead of adding to them, so the files hold the roots of the host as well.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sandbox::{Environment, GuestPath, Result};

use super::authority::Authority;
use super::truststore;
use crate::grant::GuestFile;

/// Below the home directory, which every sandbox can write and no image has files in.
const DIRECTORY: &str = "/home/sandbox/.sandpen";

/// All roots and the authority.
const BUNDLE: &str = "ca-bundle.pem";

/// All roots and the authority, for Java.
const TRUSTSTORE: &str = "ca.jks";

/// Settings of wget, which looks at no variable for its roots but at one for these.
const WGETRC: &str = "wgetrc";

/// Variables, and the file that each names.
const VARIABLES: [(&str, &str); 11] = [
    // OpenSSL and with it Python, Ruby, PHP and .NET; Go, rustls, uv.
    ("SSL_CERT_FILE", BUNDLE),
    ("REQUESTS_CA_BUNDLE", BUNDLE),
    ("CURL_CA_BUNDLE", BUNDLE),
    ("GIT_SSL_CAINFO", BUNDLE),
    ("PIP_CERT", BUNDLE),
    ("npm_config_cafile", BUNDLE),
    ("AWS_CA_BUNDLE", BUNDLE),
    ("CARGO_HTTP_CAINFO", BUNDLE),
    ("WGETRC", WGETRC),
    // These two add to a list of the program's own, which lacks what only this host trusts.
    ("NODE_EXTRA_CA_CERTS", BUNDLE),
    ("DENO_CERT", BUNDLE),
];

pub(super) fn variables(environment: &mut Environment) -> Result<()> {
    for (name, file) in VARIABLES {
        environment.insert(name, format!("{DIRECTORY}/{file}"))?;
    }
    environment.insert("JAVA_TOOL_OPTIONS", format!("-Djavax.net.ssl.trustStore={DIRECTORY}/{TRUSTSTORE}"))
}

pub(super) fn files(authority: &Authority) -> Result<Vec<GuestFile>> {
    let roots = Roots::of_this_host();
    let mut bundle = roots.pem.clone();
    bundle.extend_from_slice(authority.certificate_pem().as_bytes());
    let truststore = truststore::with(&roots.truststore, roots.count, authority.certificate_der());
    let wgetrc = format!("ca_certificate = {DIRECTORY}/{BUNDLE}\n").into_bytes();
    [(BUNDLE, bundle), (TRUSTSTORE, truststore), (WGETRC, wgetrc)]
        .into_iter()
        .map(|(name, contents)| {
            let path = GuestPath::resolve(&GuestPath::root(), format!("{DIRECTORY}/{name}").as_bytes())?;
            Ok(GuestFile { path, contents })
        })
        .collect()
}

/// What this host trusts, in the shapes that are needed, read once.
struct Roots {
    pem: Vec<u8>,
    truststore: Vec<u8>,
    count: u32,
}

impl Roots {
    fn of_this_host() -> &'static Self {
        static ROOTS: OnceLock<Roots> = OnceLock::new();
        ROOTS.get_or_init(|| {
            let pem = bundle_of_this_host().unwrap_or_else(|| {
                rustls_native_certs::load_native_certs().certs.iter().flat_map(|root| pem(root)).collect()
            });
            let mut truststore = Vec::with_capacity(pem.len());
            let mut count = 0;
            for root in CertificateDer::pem_slice_iter(&pem).filter_map(|root| root.ok()) {
                truststore::push(&mut truststore, count, &root);
                count += 1;
            }
            Self { pem, truststore, count }
        })
    }
}

/// The one file that holds all roots, where there is one: to read it is ten times faster than to collect them.
fn bundle_of_this_host() -> Option<Vec<u8>> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let mut pem = match named {
        Some(named) => std::fs::read(named).ok()?,
        None => usual.iter().find_map(|path| std::fs::read(Path::new(path)).ok())?,
    };
    if !pem.ends_with(b"\n") {
        pem.push(b'\n');
    }
    Some(pem)
}

fn pem(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let text = STANDARD.encode(certificate);
    let mut pem = b"-----BEGIN CERTIFICATE-----\n".to_vec();
    for line in text.as_bytes().chunks(64) {
        pem.extend_from_slice(line);
        pem.push(b'\n');
    }
    pem.extend_from_slice(b"-----END CERTIFICATE-----\n");
    pem
}
