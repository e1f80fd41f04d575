//! Signatures of tokens, checked by the library that TLS uses here.
//!
//! Keys of others alone: nothing is signed, and a key that both sides would have to know is none.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{self as ring_signature, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

/// What a token may be signed by.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_: &Algorithm, _: &EncodingKey| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Before the first token is looked at.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The only one who installs one.
        let _ = PROVIDER.install_default();
    });
}

struct ByRing {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    // A key of one kind under the name of another is how signatures are forged.
    if key.family() != algorithm.family() || key.family() == AlgorithmFamily::Hmac {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(ByRing { algorithm: *algorithm, key: key.clone() }))
}

impl JwtVerifier for ByRing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for ByRing {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = rsa(self.algorithm).ok_or_else(Error::new)?;
                // Zeros in front are no part of the number, and are refused.
                let n = n.iter().position(|byte| *byte != 0).map_or(&n[..0], |start| &n[start..]);
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::SecretOrDer(bytes) => {
                let verified = match self.algorithm {
                    Algorithm::ES256 => UnparsedPublicKey::new(&ring_signature::ECDSA_P256_SHA256_FIXED, bytes)
                        .verify(message, signature),
                    Algorithm::ES384 => UnparsedPublicKey::new(&ring_signature::ECDSA_P384_SHA384_FIXED, bytes)
                        .verify(message, signature),
                    Algorithm::EdDSA => {
                        UnparsedPublicKey::new(&ring_signature::ED25519, bytes).verify(message, signature)
                    }
                    _ => return Err(Error::new()),
                };
                verified.map_err(|_| Error::new())
            }
        }
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&ring_signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}
