//! The settings that only the older server `mcp-code-runner` had, from its own variables.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use http::Uri;
use sandbox::{Error, Result};

use super::absolute;
use super::env::text;
use crate::http::access::AllowedHost;
use crate::http::bearer::ApiToken;

pub const ADDRESS: &str = "MCP_HTTP_ADDR";
pub const TOKEN: &str = "MCP_API_TOKEN";
const ROOT: &str = "SANDBOX_ROOT";
const HOST_PATH: &str = "SANDBOX_HOST_PATH";
const SECRET: &str = "FILE_SECRET";
const BASE: &str = "PUBLIC_BASE_URL";

/// What a secret should have at least, as the older server advised.
const SECRET_BYTES: usize = 32;

/// Where it listened when nobody said.
const USUAL_ADDRESS: &str = ":8080";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeRunnerConfig {
    pub token: Option<ApiToken>,
    /// Where conversations keep their files.
    pub root: Option<PathBuf>,
    pub secret: Option<FileSecret>,
    pub base: Option<BaseUrl>,
    /// It says where the engine finds the files, which no longer looks for them.
    pub has_host_path: bool,
}

impl CodeRunnerConfig {
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |name: &str| lookup(name).map(|value| text(name, value)).transpose();
        Ok(Self {
            token: Self::token(&lookup),
            root: text(ROOT)?.map(|path| absolute(&path)).transpose()?,
            secret: lookup(SECRET).map(|secret| FileSecret(secret.into_encoded_bytes())),
            base: text(BASE)?.map(|text| BaseUrl::parse(&text)).transpose()?,
            has_host_path: lookup(HOST_PATH).is_some(),
        })
    }

    /// Whether all is there that the older server did not start without. Each of them forgotten would do harm later: files
    /// and links would be others than before, or lead nowhere.
    pub fn check(&self) -> Result<()> {
        let known = [
            (TOKEN, self.token.is_some()),
            (ROOT, self.root.is_some()),
            (SECRET, self.secret.is_some()),
            (BASE, self.base.is_some()),
        ];
        let missing: Vec<&str> = known.iter().filter(|(_, is_set)| !is_set).map(|(name, _)| *name).collect();
        let told = match missing.as_slice() {
            [] => return Ok(()),
            [one] => format!("{one} is not set"),
            [first @ .., last] => format!("{} and {last} are not set", first.join(", ")),
        };
        Err(Error::invalid_input(format!("{told}, and the older server did not start without"))
            .with_hint("set all four as it had them; without any, /profiles/code-runner/mcp of a plain `sandpen serve` has its tools"))
    }

    /// What guards it also where the rest of its variables are not read.
    pub fn token(lookup: impl Fn(&str) -> Option<OsString>) -> Option<ApiToken> {
        lookup(TOKEN).map(|token| ApiToken::new(&token))
    }
}

/// Where it listened by itself. Only those with the token got in there.
pub fn usual_address(lookup: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    lookup(TOKEN).map(|_| whole(USUAL_ADDRESS.to_owned()))
}

/// The address to listen on that somebody chose.
pub fn address(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>> {
    Ok(lookup(ADDRESS).map(|value| text(ADDRESS, value)).transpose()?.map(whole))
}

fn whole(address: String) -> String {
    match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address,
    }
}

/// What the names of directories are made with. Whoever knows it finds the files of a conversation by its name.
#[derive(Clone, PartialEq, Eq)]
pub struct FileSecret(Vec<u8>);

impl FileSecret {
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Addresses of files are as hard to guess as this is, and nothing else guards them.
    pub fn is_weak(&self) -> bool {
        self.0.len() < SECRET_BYTES
    }
}

impl fmt::Debug for FileSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSecret")
    }
}

/// What addresses of files begin with, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    text: String,
    host: Option<AllowedHost>,
}

impl BaseUrl {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid_input(format!("{BASE}: {text:?} is not the address of a server"))
                .with_hint("write for example https://sandbox.example.com")
        };
        let trimmed = text.trim_end_matches('/');
        let uri: Uri = trimmed.parse().map_err(|_| wrong())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().filter(|_| is_web && uri.query().is_none()).ok_or_else(wrong)?;
        // Whatever port a proxy has before the server, it may pass on or not.
        let host = authority.host().parse().map_err(|_| wrong())?;
        Ok(Self { text: trimmed.to_owned(), host: Some(host) })
    }

    /// Where a server is that listens here, `path` below its root.
    pub fn of(scheme: &str, address: SocketAddr, path: &str) -> Self {
        let host = match address.ip() {
            // Nobody else can be told an address that is all of them.
            ip if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        Self { text: format!("{scheme}://{}{path}", SocketAddr::new(host, address.port())), host: None }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name under which others come, which the operator has named by it.
    pub fn host(&self) -> Option<&AllowedHost> {
        self.host.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn its_address_is_understood() {
        let address = |variables| address(with(variables)).unwrap();
        assert_eq!(address(&[]), None);
        assert_eq!(address(&[("MCP_HTTP_ADDR", ":9000")]).as_deref(), Some("0.0.0.0:9000"));
        assert_eq!(address(&[("MCP_HTTP_ADDR", "127.0.0.1:9000")]).as_deref(), Some("127.0.0.1:9000"));
        assert_eq!(address(&[("MCP_API_TOKEN", "x")]), None);
        assert_eq!(usual_address(with(&[])), None);
        assert_eq!(usual_address(with(&[("MCP_API_TOKEN", "x")])).as_deref(), Some("0.0.0.0:8080"));
    }

    #[test]
    fn secrets_do_not_print_themselves() {
        let variables = [("MCP_API_TOKEN", "t0ken"), ("FILE_SECRET", "s3cret"), ("SANDBOX_ROOT", "/srv")];
        let config = CodeRunnerConfig::read(with(&variables)).unwrap();
        assert!(config.token.is_some() && config.secret.as_ref().unwrap().as_bytes() == b"s3cret");
        let shown = format!("{config:?}");
        assert!(!shown.contains("t0ken") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn it_does_not_start_without_what_it_needs() {
        let all =
            [("MCP_API_TOKEN", "t"), ("SANDBOX_ROOT", "/srv"), ("FILE_SECRET", "s"), ("PUBLIC_BASE_URL", "http://x")];
        let check = |variables: &[(&str, &str)]| CodeRunnerConfig::read(with(variables)).unwrap().check();
        check(&all).unwrap();
        for (index, (name, _)) in all.iter().enumerate() {
            let others: Vec<_> = all.iter().copied().filter(|(other, _)| other != name).collect();
            let error = check(&others).unwrap_err();
            assert!(error.message().starts_with(&format!("{name} is not set")), "{error}");
            let told = check(&all[index..index + 1]).unwrap_err().message().to_owned();
            assert!(!told.contains(name) && told.contains(" are not set"), "{told}");
        }
        let told = check(&[]).unwrap_err().message().to_owned();
        assert!(told.starts_with("MCP_API_TOKEN, SANDBOX_ROOT, FILE_SECRET and PUBLIC_BASE_URL are not set"), "{told}");
    }

    #[test]
    fn a_short_secret_is_weak() {
        assert!(FileSecret::new("x".repeat(31)).is_weak());
        assert!(!FileSecret::new("x".repeat(32)).is_weak());
    }

    #[test]
    fn addresses_of_files_begin_without_a_slash_at_the_end() {
        let parse = |text: &str| BaseUrl::parse(text).map(|base| base.as_str().to_owned());
        assert_eq!(parse("https://x.example/").unwrap(), "https://x.example");
        assert_eq!(parse("http://localhost:8080/a//").unwrap(), "http://localhost:8080/a");
        for text in ["", "x.example", "ftp://x.example", "https://", "https://x.example/?a", "/files"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let of = |address: &str| BaseUrl::of("http", address.parse().unwrap(), "/p").as_str().to_owned();
        assert_eq!(of("0.0.0.0:80"), "http://127.0.0.1:80/p");
        assert_eq!(of("[::1]:80"), "http://[::1]:80/p");
    }
}
