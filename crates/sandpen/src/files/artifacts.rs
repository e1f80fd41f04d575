//! Links to the files that runs made, for whoever called the tool.

use std::net::SocketAddr;
use std::time::SystemTime;

use sandbox::{GuestPath, Owner, SandboxId};
use tools::Links;

use super::link::{Grant, KeyFile, LONGEST, LinkMethod, Signer};
use super::links::local_address;
use crate::auth::oauth::address::PublicUrl;
use crate::time;

#[derive(Debug)]
pub struct ArtifactLinks {
    signer: Signer,
    base: String,
}

impl ArtifactLinks {
    /// `None` where nobody has said by which address others reach the server: a link that leads nowhere is worse than none.
    pub fn new(key: KeyFile, public: Option<&PublicUrl>, scheme: &str, address: SocketAddr) -> Option<Self> {
        let base = match public {
            Some(url) => url.to_string(),
            None if address.ip().is_unspecified() => return None,
            None => format!("{scheme}://{address}"),
        };
        Some(Self { signer: Signer::new(key), base })
    }
}

impl Links for ArtifactLinks {
    fn link(&self, owner: &Owner, sandbox: &SandboxId, path: &GuestPath) -> Option<String> {
        let expires = time::seconds(SystemTime::now()) + LONGEST.as_secs();
        let (owner, sandbox, path) = (owner.clone(), sandbox.clone(), path.clone());
        let grant = Grant { method: LinkMethod::Get, owner, sandbox, path, expires };
        match local_address(&self.signer, &grant) {
            Ok(address) => Some(format!("{}{address}", self.base)),
            Err(error) => {
                tracing::warn!(?error, "no link can be made to a file");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_where_the_server_is_or_there_is_none() {
        let place = tempfile::tempdir().unwrap();
        let links = |public: Option<&str>, address: &str| {
            let public = public.map(|url| url.parse().unwrap());
            let key = KeyFile::of_state_directory(place.path());
            let links = ArtifactLinks::new(key, public.as_ref(), "http", address.parse().unwrap())?;
            let sandbox = SandboxId::random().unwrap();
            links.link(&Owner::local(), &sandbox, &"/workspace/a plot.png".parse().unwrap())
        };
        let here = links(None, "127.0.0.1:8228").unwrap();
        assert!(here.starts_with("http://127.0.0.1:8228/files/") && here.ends_with("/a%20plot.png"), "{here}");
        let there = links(Some("https://sandpen.example.com"), "0.0.0.0:8228").unwrap();
        assert!(there.starts_with("https://sandpen.example.com/files/"), "{there}");
        assert_eq!(links(None, "0.0.0.0:8228"), None);
        assert_eq!(links(None, "[::]:8228"), None);
    }
}
