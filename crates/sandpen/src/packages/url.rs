//! The address of an index, apart from who may use it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use sandbox::{Error, HostRule, Result};

/// What is printed of it has no login.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexUrl {
    encrypted: bool,
    /// In lower case; an IPv6 address in its brackets.
    pub host: String,
    port: Option<u16>,
    path: String,
    pub login: Option<Login>,
}

/// Who may use an index. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    Basic {
        user: String,
        password: String,
    },
    /// User and password, in Base64 already.
    Encoded(String),
    Token(String),
}

impl IndexUrl {
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    pub fn is_loopback(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    pub fn host_rule(&self) -> Result<HostRule> {
        let port = self.port.unwrap_or(if self.encrypted { 443 } else { 80 });
        format!("{}:{port}", self.host).parse()
    }

    pub fn host_and_port(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Whether it is below what npm writes before a login: `host/path/`, without a scheme.
    pub fn begins_with(&self, start: &str) -> bool {
        let own = format!("{}{}", self.host_and_port(), self.path);
        let start = start.trim_end_matches('/');
        own.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl FromStr for IndexUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is not repeated: it may have a password in it.
        let wrong = || {
            Error::invalid_input("an index in the settings of pip, uv or npm is not an address of the web")
                .with_hint("it begins with https://, or http:// where that is trusted")
        };
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let login = match authority.as_str().rsplit_once('@') {
            None => None,
            Some((login, _)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                Some(Login::Basic { user: decoded(user), password: decoded(password) })
            }
        };
        let host = authority.host().to_ascii_lowercase();
        Ok(Self { encrypted, host, port: authority.port_u16(), path: uri.path().to_owned(), login })
    }
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

impl fmt::Display for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host_and_port(), self.path)
    }
}

impl fmt::Debug for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_taken_off_and_not_printed() {
        let url: IndexUrl = "https://me%40work:p%3Ass@Index.Example:8443/team/simple/".parse().unwrap();
        assert_eq!(url.to_string(), "https://index.example:8443/team/simple/");
        assert_eq!(format!("{url:?} {:?}", url.login), "https://index.example:8443/team/simple/ Some(Login(…))");
        let login = Login::Basic { user: "me@work".to_owned(), password: "p:ss".to_owned() };
        assert_eq!(url.login, Some(login));
        assert_eq!(url.host_rule().unwrap().to_string(), "index.example:8443");
    }

    #[test]
    fn what_is_no_address_of_the_web_is_refused_without_repeating_it() {
        for text in ["", "file:///srv/simple", "index.example/simple", "ftp://a/b", "https://user:secret word@host/"] {
            let error = text.parse::<IndexUrl>().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_login_of_npm_is_for_what_is_below_it() {
        let url: IndexUrl = "https://npm.example:8443/team/".parse().unwrap();
        for (start, expected) in [
            ("npm.example:8443/", true),
            ("npm.example:8443/team/", true),
            ("npm.example:8443/te", false),
            ("npm.example/", false),
            ("example:8443/", false),
        ] {
            assert_eq!(url.begins_with(start), expected, "{start}");
        }
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for (text, expected) in [
            ("http://127.0.0.1:1/s", true),
            ("http://[::1]:1/s", true),
            ("http://localhost/", true),
            ("http://a.example/", false),
        ] {
            assert_eq!(text.parse::<IndexUrl>().unwrap().is_loopback(), expected, "{text}");
        }
    }
}
