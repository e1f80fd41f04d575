//! An authority, and what a daemon and its client need of it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sandpen_tests::{Result, Trouble};

/// A place where a daemon speaks TLS, and certificates for whoever talks to it.
pub(crate) struct Encrypted {
    /// As `DOCKER_HOST` wants it.
    pub host: String,
    server: PathBuf,
    /// As `DOCKER_CERT_PATH` wants them: those that fit, with the certificate of another authority, and without our own.
    pub good: PathBuf,
    pub other_authority: PathBuf,
    pub without_certificate: PathBuf,
}

impl Encrypted {
    pub fn prepare(directory: &Path) -> Result<Self> {
        let place = |name: &str| -> Result<PathBuf> {
            let place = directory.join(name);
            fs::create_dir(&place)?;
            Ok(place)
        };
        let (authority, other) = (Authority::new()?, Authority::new()?);
        let server = place("tls-server")?;
        authority.issue(&server, ExtendedKeyUsagePurpose::ServerAuth)?;
        let good = place("tls-good")?;
        authority.issue(&good, ExtendedKeyUsagePurpose::ClientAuth)?;
        let other_authority = place("tls-other")?;
        authority.issue(&other_authority, ExtendedKeyUsagePurpose::ClientAuth)?;
        fs::write(other_authority.join("ca.pem"), &other.pem)?;
        let without_certificate = place("tls-without")?;
        fs::write(without_certificate.join("ca.pem"), &authority.pem)?;
        let host = format!("tcp://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?);
        Ok(Self { host, server, good, other_authority, without_certificate })
    }

    /// What the daemon is told of it.
    pub fn command_line(&self) -> Vec<String> {
        let file = |name: &str| self.server.join(name).display().to_string();
        vec![
            format!("--host={}", self.host),
            "--tlsverify".to_owned(),
            format!("--tlscacert={}", file("ca.pem")),
            format!("--tlscert={}", file("cert.pem")),
            format!("--tlskey={}", file("key.pem")),
        ]
    }
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Self> {
        let key = KeyPair::generate().map_err(trouble)?;
        let mut params = CertificateParams::new([]).map_err(trouble)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let pem = params.self_signed(&key).map_err(trouble)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// The three files that Docker's client and daemon want.
    fn issue(&self, directory: &Path, purpose: ExtendedKeyUsagePurpose) -> Result<()> {
        let key = KeyPair::generate().map_err(trouble)?;
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).map_err(trouble)?;
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![purpose];
        params.distinguished_name.push(DnType::CommonName, "one of a test");
        let certificate = params.signed_by(&key, &self.issuer).map_err(trouble)?;
        fs::write(directory.join("ca.pem"), &self.pem)?;
        fs::write(directory.join("cert.pem"), certificate.pem())?;
        fs::write(directory.join("key.pem"), key.serialize_pem())?;
        Ok(())
    }
}

fn trouble(error: impl std::fmt::Display) -> Trouble {
    Trouble(format!("no certificate can be made: {error}"))
}
