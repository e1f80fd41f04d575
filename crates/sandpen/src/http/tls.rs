//! Encryption of connections, by two files of the operator's: a chain of certificates, and its key.
//!
//! Files that were renewed are taken without a restart. While they make no sense, the last ones that did are used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sandbox::{Error, Result};
use tokio_rustls::TlsAcceptor;

/// How often files are looked at, at most.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// In PEM, the server's own first.
    pub certificates: PathBuf,
    pub key: PathBuf,
}

/// What tells one state of the two files from the next.
type Stamps = [Option<(SystemTime, u64)>; 2];

pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    looked_at: Instant,
    stamps: Stamps,
    acceptor: TlsAcceptor,
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Self> {
        let stamps = files.stamps();
        let current = Current { looked_at: Instant::now(), stamps, acceptor: files.read()? };
        Ok(Self { files, current: Mutex::new(current) })
    }

    /// By the files as they are now.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked_at.elapsed() >= LOOK_AGAIN {
            current.looked_at = Instant::now();
            let stamps = self.files.stamps();
            if stamps != current.stamps {
                current.stamps = stamps;
                match self.files.read() {
                    Ok(acceptor) => current.acceptor = acceptor,
                    Err(error) => tracing::error!(?error, "new certificates are not used, the ones before are"),
                }
            }
        }
        current.acceptor.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsFiles {
    fn stamps(&self) -> Stamps {
        [&self.certificates, &self.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    fn read(&self) -> Result<TlsAcceptor> {
        let Self { certificates, key } = self;
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
            .map_err(|cause| unusable("certificates", certificates).with_cause(cause))?;
        if chain.is_empty() {
            return Err(unusable("certificates", certificates));
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| unusable("key", key).with_cause(cause))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret))
            .map_err(|cause| {
                Error::invalid_input(format!("{} does not belong to {}", key.display(), certificates.display()))
                    .with_hint("the file of certificates begins with the one that the key was made for")
                    .with_cause(cause)
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn unusable(what: &str, path: &Path) -> Error {
    Error::invalid_input(format!("there are no usable {what} in {}", path.display()))
        .with_hint("both files are in PEM, as certificate authorities hand them out")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate for its name, and its key.
    fn made(name: &str) -> (String, String) {
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (cert.pem(), signing_key.serialize_pem())
    }

    #[test]
    fn files_that_make_no_sense_are_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificates: place.path().join("chain.pem"), key: place.path().join("key.pem") };
        let refused = |files: &TlsFiles| Tls::load(files.clone()).unwrap_err().message().to_owned();
        assert!(refused(&files).contains("chain.pem"));
        let ((chain, key), (_, other)) = (made("a.example"), made("b.example"));
        std::fs::write(&files.certificates, "").unwrap();
        assert!(refused(&files).contains("chain.pem"));
        std::fs::write(&files.certificates, &chain).unwrap();
        std::fs::write(&files.key, "nothing").unwrap();
        assert!(refused(&files).contains("key.pem"));
        std::fs::write(&files.key, &other).unwrap();
        assert!(refused(&files).contains("does not belong to"), "{}", refused(&files));
        std::fs::write(&files.key, &key).unwrap();
        Tls::load(files).unwrap();
    }
}
