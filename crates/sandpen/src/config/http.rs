//! Settings of the HTTP server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use sandbox::{ByteSize, Error, Result};

use crate::http::access::{AllowedHost, AllowedOrigin};
use crate::http::tls::TlsFiles;
use crate::previews::base::Base;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    pub listen: SocketAddr,
    /// Besides the loopback names.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Besides the server's own.
    pub allowed_origins: Vec<AllowedOrigin>,
    pub max_body: ByteSize,
    /// Of a file, which is never in memory as a whole.
    pub max_upload: ByteSize,
    pub legacy_sse: bool,
    /// Whoever reaches the server may use it.
    pub no_auth: bool,
    /// Where the certificates of the server are, and their key.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Where numbers are shown to everybody on this machine.
    pub metrics_listen: Option<SocketAddr>,
    /// Where previews of what programs serve are, and by which names others reach them.
    pub preview_listen: Option<SocketAddr>,
    pub preview_url: Option<Base>,
}

impl HttpConfig {
    /// What connections are encrypted by.
    pub fn tls(&self) -> Result<Option<TlsFiles>> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(certificates), Some(key)) => {
                Ok(Some(TlsFiles { certificates: certificates.clone(), key: key.clone() }))
            }
            (Some(_), None) => Err(Error::invalid_input("there are certificates, and no key for them")
                .with_hint("name the file of the key with --tls-key")),
            (None, Some(_)) => Err(Error::invalid_input("there is a key, and no certificates for it")
                .with_hint("name the file of the certificates with --tls-cert")),
        }
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8228)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            // A file of some 20 MiB in base64.
            max_body: ByteSize::mebibytes(32),
            // As much as a sandbox has room for, unless it asks for more.
            max_upload: ByteSize::mebibytes(1024),
            legacy_sse: true,
            no_auth: false,
            tls_cert: None,
            tls_key: None,
            metrics_listen: None,
            preview_listen: None,
            preview_url: None,
        }
    }
}

/// An address, a port, or `localhost` with one.
pub fn address(text: &str) -> Result<SocketAddr> {
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    if let Ok(port) = port.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| {
        Error::invalid_input(format!("{text:?} is not an address to listen on"))
            .with_hint("write 127.0.0.1:8228, [::1]:8228 or 8228")
    })
}

/// An address that other machines cannot reach.
pub fn loopback(text: &str) -> Result<SocketAddr> {
    let address = address(text)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(Error::invalid_input(format!(
        "{address} can be reached by other machines, and nobody is asked for a token there"
    ))
    .with_hint("name a loopback address, or show a token of the scope admin to /metrics of the server itself"))
}

pub fn body_size(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    let (least, most) = (ByteSize::mebibytes(1), ByteSize::mebibytes(1024));
    if size < least || size > most {
        return Err(Error::invalid_input(format!("a request can be as large as {least} to {most}")));
    }
    Ok(size)
}

pub fn upload_size(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    let (least, most) = (ByteSize::mebibytes(1), ByteSize::mebibytes(1 << 20));
    if size < least || size > most {
        return Err(Error::invalid_input(format!("an upload can be as large as {least} to {most}")));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_short() {
        for (text, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("0", "127.0.0.1:0"),
            ("localhost:8228", "127.0.0.1:8228"),
            ("0.0.0.0:1", "0.0.0.0:1"),
        ] {
            assert_eq!(address(text).unwrap(), expected.parse().unwrap(), "{text}");
        }
        for text in ["", "example.com:80", "127.0.0.1", "99999", "::1:80:x"] {
            assert!(address(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_body_has_a_sensible_size() {
        assert!(body_size("1k").is_err());
        assert!(body_size("2G").is_err());
        assert_eq!(body_size("64M").unwrap().bytes(), 64 << 20);
    }
}
