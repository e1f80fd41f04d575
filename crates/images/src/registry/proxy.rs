//! The way to registries through a proxy, as the host's own clients know it: `HTTPS_PROXY` and `NO_PROXY`.
//!
//! Only connections that are encrypted go through one, as a tunnel in which it sees nothing. Registries that are spoken
//! to in the clear are near.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::address::Origin;
use super::connection::unreachable_registry;
use crate::error::{Error, Result};

const LONGEST_ANSWER: usize = 8 << 10;

/// Through whom, and to whom not.
#[derive(Clone, Default)]
pub struct Proxies {
    proxy: Option<Proxy>,
    direct: Vec<String>,
}

#[derive(Clone)]
struct Proxy {
    host: String,
    port: u16,
    /// For the proxy alone; it is no login of a registry.
    authorization: Option<String>,
}

impl Proxies {
    /// What the environment of this process says.
    pub fn of_environment() -> Result<Self> {
        let variable = |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
        let first = variable(["HTTPS_PROXY", "https_proxy"]);
        let proxy = if first.is_empty() { variable(["ALL_PROXY", "all_proxy"]) } else { first };
        Self::new(&proxy, &variable(["NO_PROXY", "no_proxy"]))
    }

    /// An address or nothing, and names with commas between them.
    pub fn new(proxy: &str, direct: &str) -> Result<Self> {
        let direct = direct.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
        Ok(Self { proxy: Proxy::parse(proxy.trim())?, direct: direct.collect() })
    }

    /// A connection to the origin, or one that goes on to it.
    pub(super) async fn connect(&self, origin: &Origin) -> Result<TcpStream> {
        let failed = |error: std::io::Error| unreachable_registry(origin, &error.to_string());
        let Some(proxy) = self.proxy.as_ref().filter(|_| origin.encrypted && !self.is_direct(origin)) else {
            return TcpStream::connect((origin.name(), origin.port)).await.map_err(failed);
        };
        let through = |why: &str| unreachable_registry(origin, &format!("the proxy {} {why}", proxy.host));
        let mut stream = TcpStream::connect((proxy.host.as_str(), proxy.port))
            .await
            .map_err(|error| through(&format!("does not answer ({error})")))?;
        let target = format!("{}:{}", origin.host, origin.port);
        let login = proxy.authorization.iter().map(|login| format!("Proxy-Authorization: {login}\r\n"));
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{}\r\n", login.collect::<String>());
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut answer = Vec::new();
        // Byte by byte: what follows the head is for whoever speaks TLS.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= LONGEST_ANSWER {
                return Err(through("does not stop talking"));
            }
            answer.push(stream.read_u8().await.map_err(|_| through("hangs up"))?);
        }
        let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        match line.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(through(&format!("says {:?}", line.chars().take(100).collect::<String>()))),
        }
    }

    fn is_direct(&self, origin: &Origin) -> bool {
        let name = origin.name();
        let is_near = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        is_near
            || self.direct.iter().any(|direct| {
                let suffix = direct.trim_start_matches("*.").trim_start_matches('.');
                direct == "*"
                    || suffix == name
                    || *direct == format!("{name}:{}", origin.port)
                    || name.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'))
            })
    }
}

impl Proxy {
    fn parse(text: &str) -> Result<Option<Self>> {
        if text.is_empty() {
            return Ok(None);
        }
        // It may hold a password, so it is not repeated.
        let wrong = || Error::Invalid("HTTPS_PROXY is not the address of an HTTP proxy, http://HOST:PORT".to_owned());
        let address = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = address.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let login = authority.as_str().rsplit_once('@').map(|(login, _)| login);
        let decode = |login: &str| percent_encoding::percent_decode_str(login).collect::<Vec<u8>>();
        Ok(Some(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authorization: login.map(|login| format!("Basic {}", STANDARD.encode(decode(login)))),
        }))
    }
}

impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let proxy = self.proxy.as_ref().map(|proxy| &proxy.host);
        f.debug_struct("Proxies").field("proxy", &proxy).field("direct", &self.direct).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::address::Address;

    #[test]
    fn some_hosts_are_reached_directly() {
        let proxies =
            Proxies::new("proxy.example:3128", "one.example, .two.example,*.three.example,four.example:8443").unwrap();
        for (address, direct) in [
            ("https://one.example/", true),
            ("https://sub.one.example/", true),
            ("https://evilone.example/", false),
            ("https://two.example/", true),
            ("https://a.three.example/", true),
            ("https://four.example:8443/", true),
            ("https://four.example/", false),
            ("https://localhost:5000/", true),
            ("https://127.0.0.2/", true),
            ("https://[::1]:5000/", true),
            ("https://registry.example/", false),
        ] {
            assert_eq!(proxies.is_direct(&Address::parse(address).unwrap().origin), direct, "{address}");
        }
        assert!(Proxies::new("", "*").unwrap().is_direct(&Address::parse("https://x.example/").unwrap().origin));
    }

    #[test]
    fn a_proxy_has_a_login_that_is_not_shown() {
        let proxies = Proxies::new("http://ada:p%40ss@proxy.example:8080/", "").unwrap();
        let proxy = proxies.proxy.clone().unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 8080));
        assert_eq!(proxy.authorization.unwrap(), format!("Basic {}", STANDARD.encode("ada:p@ss")));
        assert!(!format!("{proxies:?}").contains("p%40ss"));
        for wrong in ["socks5://proxy.example", "https://proxy.example", "http://", "http://a b"] {
            let error = Proxies::new(wrong, "").unwrap_err();
            assert!(!error.to_string().contains("proxy.example"), "{error}");
        }
    }
}
