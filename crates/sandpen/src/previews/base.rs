//! By which names previews are reached: one label before the name of the base, whatever else it has.

use std::fmt;
use std::str::FromStr;

use sandbox::{Error, Result};
use url::{Host, Url};

use super::table::Name;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    scheme: &'static str,
    host: String,
    port: Option<u16>,
}

impl Base {
    /// Names that lead to this machine wherever they are looked up.
    pub fn here(port: u16) -> Self {
        Self { scheme: "http", host: "localhost".to_owned(), port: Some(port) }
    }

    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    pub fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    /// Scheme, host and port of a preview, as browsers write them.
    pub fn origin(&self, name: &Name) -> String {
        let Self { scheme, host, port } = self;
        match port {
            Some(port) => format!("{scheme}://{name}.{host}:{port}"),
            None => format!("{scheme}://{name}.{host}"),
        }
    }

    /// Which preview a `Host`, or what follows the scheme of an origin, is about. The port may be that of a tunnel.
    pub fn name_in(&self, authority: &str) -> Option<Name> {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            Some(_) => return None,
            None => authority,
        };
        let host = host.to_ascii_lowercase();
        host.strip_suffix(&self.host)?.strip_suffix('.')?.parse().ok()
    }
}

impl FromStr for Base {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid_input(format!("{text:?} is not an address for previews"))
                .with_hint("write https://preview.example.com; each preview then has a name before that one")
        };
        let url = Url::parse(text).map_err(|_| wrong())?;
        let scheme = match url.scheme() {
            "https" => "https",
            "http" => "http",
            _ => return Err(wrong()),
        };
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none();
        match url.host() {
            Some(Host::Domain(host)) if is_plain => Ok(Self { scheme, host: host.to_owned(), port: url.port() }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        match port {
            Some(port) => write!(f, "{scheme}://{host}:{port}"),
            None => write!(f, "{scheme}://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_one_label_before_the_base() {
        let name = Name::random().unwrap();
        let base: Base = "https://preview.example.com:8443".parse().unwrap();
        assert_eq!(base.origin(&name), format!("https://{name}.preview.example.com:8443"));
        for host in [
            format!("{name}.preview.example.com"),
            format!("{name}.preview.example.com:8443"),
            format!("{name}.Preview.Example.COM:1"),
        ] {
            assert_eq!(base.name_in(&host), Some(name.clone()), "{host}");
        }
        for host in [
            "preview.example.com".to_owned(),
            format!("{name}.localhost"),
            format!("{name}.preview.example.com.evil.example"),
            format!("{name}-preview.example.com"),
            format!("{name}preview.example.com"),
            format!("a.{name}.preview.example.com"),
            format!("{name}.preview.example.com:x"),
            format!("{name}.preview.example.com:"),
            format!("x@{name}.preview.example.com"),
            format!("{name}."),
            name.to_string(),
        ] {
            assert_eq!(base.name_in(&host), None, "{host}");
        }
    }

    #[test]
    fn a_base_has_a_name_and_nothing_else() {
        for text in ["https://preview.example.com", "http://localhost:8229"] {
            assert_eq!(text.parse::<Base>().unwrap().to_string(), text);
        }
        for text in
            ["preview.example.com", "https://192.0.2.1", "https://[::1]", "https://a.example/x", "ftp://a.example", ""]
        {
            assert!(text.parse::<Base>().is_err(), "{text}");
        }
    }
}
