//! Where this server is, as its clients know it: what tokens are for, and where its documents are.

use std::net::SocketAddr;

use http::HeaderMap;
use http::header::HOST;
use sandbox::{Error, Result};
use tools::ProfileName;

use super::address::PublicUrl;

pub const PROTECTED_RESOURCE: &str = "/.well-known/oauth-protected-resource";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Those that mean this server, the first one when nothing else says which.
    bases: Vec<String>,
    /// Behind each of them.
    paths: Vec<String>,
}

impl Site {
    /// By the name that the operator gave it, or, on loopback, by any name that this machine has for itself.
    pub fn new(public: Option<&PublicUrl>, scheme: &str, listening: SocketAddr) -> Result<Self> {
        let bases = match public {
            Some(public) => vec![public.as_str().to_owned()],
            None if listening.ip().is_loopback() => {
                let names = [listening.to_string()]
                    .into_iter()
                    .chain(["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{}", listening.port())));
                names.map(|name| format!("{scheme}://{name}")).collect()
            }
            None => {
                return Err(Error::invalid_input("OAuth needs the address by which clients reach this server")
                    .with_hint("name it: --public-url https://sandpen.example.com"));
            }
        };
        let profiles = ProfileName::ALL.iter().map(|profile| format!("/profiles/{profile}"));
        let paths = std::iter::once(String::new()).chain(profiles);
        let paths = paths.flat_map(|below| ["mcp", "sse"].map(|end| format!("{below}/{end}"))).collect();
        Ok(Self { bases, paths })
    }

    /// The address by which this request came, where that is one of ours.
    pub fn base(&self, headers: &HeaderMap) -> &str {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let named = self.bases.iter().find(|base| base.split_once("://").is_some_and(|(_, name)| name == host));
        named.or(self.bases.first()).map_or("", String::as_str)
    }

    pub fn bases(&self) -> impl Iterator<Item = &str> {
        self.bases.iter().map(String::as_str)
    }

    /// Whether something is served there that asks for tokens.
    pub fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path)
    }

    /// Everything that a token for this server may say that it is for.
    pub fn resources(&self) -> impl Iterator<Item = String> {
        let paths = || ["", "/"].into_iter().chain(self.paths.iter().map(String::as_str));
        self.bases.iter().flat_map(move |base| paths().map(move |path| format!("{base}{path}")))
    }

    pub fn owns(&self, resource: &str) -> bool {
        self.resources().any(|known| known == resource)
    }

    /// Where it is said who gives out tokens for what is at a path.
    pub fn metadata(&self, headers: &HeaderMap, path: &str) -> String {
        let path = if self.has(path) { path } else { "" };
        format!("{}{PROTECTED_RESOURCE}{path}", self.base(headers))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn host(name: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HOST, HeaderValue::from_static(name))])
    }

    #[test]
    fn a_server_on_loopback_has_the_names_of_loopback_and_its_own_port() {
        let site = Site::new(None, "http", "127.0.0.1:8228".parse().unwrap()).unwrap();
        assert_eq!(site.base(&host("localhost:8228")), "http://localhost:8228");
        assert_eq!(site.base(&host("evil.example:8228")), "http://127.0.0.1:8228");
        assert_eq!(site.base(&host("localhost:1")), "http://127.0.0.1:8228");
        assert!(site.owns("http://localhost:8228/mcp") && site.owns("http://127.0.0.1:8228"));
        assert!(site.owns("http://127.0.0.1:8228/profiles/cloudflare/mcp"));
        for foreign in
            ["http://localhost:1/mcp", "https://localhost:8228/mcp", "http://localhost:8228/other", "", "/mcp"]
        {
            assert!(!site.owns(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_server_for_others_is_where_its_operator_says() {
        let public: PublicUrl = "https://pen.example".parse().unwrap();
        let site = Site::new(Some(&public), "http", "0.0.0.0:8228".parse().unwrap()).unwrap();
        assert_eq!(site.base(&host("localhost:8228")), "https://pen.example");
        let metadata = |path: &str| site.metadata(&HeaderMap::new(), path);
        assert_eq!(metadata("/mcp"), "https://pen.example/.well-known/oauth-protected-resource/mcp");
        assert_eq!(metadata("/api/session"), "https://pen.example/.well-known/oauth-protected-resource");
        assert!(!site.owns("http://localhost:8228/mcp"));
        let error = Site::new(None, "http", "0.0.0.0:8228".parse().unwrap()).unwrap_err();
        assert!(error.hint().unwrap().contains("--public-url"));
    }
}
