//! Java's own format for certificates that are trusted, "JKS".
//!
//! Its last part, a digest over a password and the rest, is left out: Java asks for it only of those who name a password,
//! and for a store of roots nobody does.

use rustls::pki_types::CertificateDer;

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;

/// A whole store: entries that were pushed before, and one more.
pub(super) fn with(entries: &[u8], count: u32, certificate: &CertificateDer<'_>) -> Vec<u8> {
    let mut store = Vec::with_capacity(entries.len() + certificate.len() + 128);
    for number in [MAGIC, VERSION, count + 1] {
        store.extend_from_slice(&number.to_be_bytes());
    }
    store.extend_from_slice(entries);
    push(&mut store, count, certificate);
    store
}

pub(super) fn push(entries: &mut Vec<u8>, number: u32, certificate: &CertificateDer<'_>) {
    entries.extend_from_slice(&TRUSTED_CERTIFICATE.to_be_bytes());
    text(entries, &number.to_string());
    // When it was added, which nobody asks.
    entries.extend_from_slice(&0_u64.to_be_bytes());
    text(entries, "X.509");
    entries.extend_from_slice(&u32::try_from(certificate.len()).unwrap_or(u32::MAX).to_be_bytes());
    entries.extend_from_slice(certificate);
}

fn text(entries: &mut Vec<u8>, text: &str) {
    entries.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    entries.extend_from_slice(text.as_bytes());
}
