//! A certificate authority for one sandbox, trusted inside it and nowhere else.
//!
//! It is not bound to the names of the hosts: its key never leaves this process and the sandbox's connections end here, so
//! that would protect nobody, and a secret that gets a further host later would need another authority.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sandbox::{Error, Host, Result, SandboxId};
use serde::{Deserialize, Serialize};

const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// One that has less left is made anew when the sandbox is next opened.
const RENEWAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Clocks differ.
const SLACK: Duration = Duration::from_secs(60 * 60);

/// A sandbox can ask for any number of names below a suffix.
const MOST_HOSTS: usize = 256;

pub(super) struct Authority {
    written: Written,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// One key serves all hosts: they are all played by this process.
    host_key: KeyPair,
    servers: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

/// As it is kept for the next process.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Written {
    subject: String,
    /// Seconds since 1970.
    expires: u64,
    key: String,
    certificate: String,
}

/// Whether the name in a client's greeting must be that of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerNames {
    OnlyTheHost,
    /// For tests that show that somebody would notice.
    Any,
}

impl Authority {
    pub fn new(id: &SandboxId) -> Result<Self> {
        let expires = SystemTime::now() + LIFETIME;
        let subject = format!("Sandpen, inside {id} only");
        let key = KeyPair::generate().map_err(unmade)?;
        let params = params(&subject, expires);
        let certificate = params.self_signed(&key).map_err(unmade)?;
        let seconds = expires.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let written = Written { subject, expires: seconds, key: key.serialize_pem(), certificate: certificate.pem() };
        Self::assemble(written, key, certificate.der().clone())
    }

    /// The one that was kept, or `None` if it is too old to serve on.
    pub fn restore(written: &Written) -> Result<Option<Self>> {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(written.expires);
        if expires < SystemTime::now() + RENEWAL {
            return Ok(None);
        }
        let key = KeyPair::from_pem(&written.key).map_err(unmade)?;
        let certificate = CertificateDer::from_pem_slice(written.certificate.as_bytes())
            .map_err(|_| Error::internal("the certificate that was kept cannot be read"))?;
        Self::assemble(written.clone(), key, certificate).map(Some)
    }

    fn assemble(written: Written, key: KeyPair, certificate: CertificateDer<'static>) -> Result<Self> {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(written.expires);
        let issuer = Issuer::new(params(&written.subject, expires), key);
        let host_key = KeyPair::generate().map_err(unmade)?;
        Ok(Self { written, issuer, certificate, host_key, servers: Mutex::default() })
    }

    pub fn written(&self) -> &Written {
        &self.written
    }

    pub fn certificate_pem(&self) -> &str {
        &self.written.certificate
    }

    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What plays this host towards the sandbox.
    pub fn server(&self, host: &Host, names: ServerNames) -> Result<Arc<ServerConfig>> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(host) {
            return Ok(Arc::clone(server));
        }
        if servers.len() >= MOST_HOSTS {
            servers.clear();
        }
        let server = Arc::new(self.make_server(host, names)?);
        servers.insert(host.clone(), Arc::clone(&server));
        Ok(server)
    }

    fn make_server(&self, host: &Host, names: ServerNames) -> Result<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.host_key.serialize_der()));
        let key = provider.key_provider.load_private_key(key).map_err(unmade)?;
        let chain = vec![self.sign(host)?, self.certificate.clone()];
        let resolver = OneHost { host: host.clone(), names, key: Arc::new(CertifiedKey::new(chain, key)) };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unmade)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn sign(&self, host: &Host) -> Result<CertificateDer<'static>> {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(self.written.expires);
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(unmade)?),
            Host::Address(IpAddr::V4(address)) => SanType::IpAddress((*address).into()),
            Host::Address(IpAddr::V6(address)) => SanType::IpAddress((*address).into()),
        }];
        params.distinguished_name = named(&format!("Sandpen for {host}").chars().take(64).collect::<String>());
        (params.not_before, params.not_after) = ((SystemTime::now() - SLACK).into(), expires.into());
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&self.host_key, &self.issuer).map_err(unmade)?;
        Ok(certificate.der().clone())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({:?})", self.written.subject)
    }
}

fn params(subject: &str, expires: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(subject);
    (params.not_before, params.not_after) = ((SystemTime::now() - SLACK).into(), expires.into());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn unmade(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("a certificate could not be made").with_cause(cause)
}

/// Shows the certificate of one host to whoever asks for that host, or for none.
#[derive(Debug)]
struct OneHost {
    host: Host,
    names: ServerNames,
    key: Arc<CertifiedKey>,
}

impl ResolvesServerCert for OneHost {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let fits = match (self.names, hello.server_name()) {
            (ServerNames::Any, _) | (ServerNames::OnlyTheHost, None) => true,
            (ServerNames::OnlyTheHost, Some(name)) => name.parse::<Host>().is_ok_and(|name| name == self.host),
        };
        fits.then(|| Arc::clone(&self.key))
    }
}
