//! The certificate authority of the world, and the certificates of its places.

use std::collections::BTreeMap;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sandpen_tests::{Result, Trouble};

use super::places::{DOMAIN, PLACES};

pub struct Authority {
    /// What must be trusted by whoever believes the places.
    pub pem: String,
    pub configs: BTreeMap<&'static str, Arc<ServerConfig>>,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().map_err(trouble)?;
        let mut params = CertificateParams::new([]).map_err(trouble)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "stand-in authority of a test");
        let pem = params.self_signed(&key).map_err(trouble)?.pem();
        let issuer = Issuer::new(params, key);
        let mut configs = BTreeMap::new();
        for place in PLACES {
            // The one whose certificate is somebody else's.
            let named = if place.name == "wrong" { "elsewhere" } else { place.name };
            let mut names = vec![format!("{named}.{DOMAIN}")];
            if place.name == "public" {
                names.push(format!("*.deep.{DOMAIN}"));
            }
            let key = KeyPair::generate().map_err(trouble)?;
            let mut params = CertificateParams::new(names).map_err(trouble)?;
            params.use_authority_key_identifier_extension = true;
            params.distinguished_name.push(DnType::CommonName, named);
            let certificate = params.signed_by(&key, &issuer).map_err(trouble)?;
            let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(trouble)?
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], private)
                .map_err(trouble)?;
            configs.insert(place.name, Arc::new(config));
        }
        Ok(Self { pem, configs })
    }
}

fn trouble(error: impl std::fmt::Display) -> Trouble {
    Trouble(format!("no certificate can be made: {error}"))
}
