//! Settings of OAuth: whose tokens are taken, and the authorization server of our own.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use sandbox::{Error, Result};

use super::Key;
use super::flags::push;
use super::written::Written;
use crate::auth::oauth::address::{IssuerUrl, PublicUrl};
use crate::auth::scope::Scope;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthConfig {
    /// Where clients reach the server, if not by its own address.
    pub public_url: Option<PublicUrl>,
    /// Whose tokens are taken.
    pub issuers: Vec<IssuerUrl>,
    /// Whom these must be for, if not for the address of the server.
    pub audiences: Vec<String>,
    /// Whether there is an authorization server of our own.
    pub own_server: bool,
    /// How long the tokens are good that it gives out.
    pub access_life: Duration,
    /// Hosts whose documents of clients are fetched wherever they are.
    pub private_clients: Vec<String>,
    /// Who says who people are, and as whom we ask.
    pub oidc_issuer: Option<IssuerUrl>,
    pub oidc_client_id: Option<String>,
    pub oidc_client_secret_file: Option<PathBuf>,
    /// Who of them is let in, and what they may do.
    pub oidc_admitted: Vec<Admitted>,
    pub oidc_scope: Scope,
}

impl Default for OAuthConfig {
    fn default() -> Self {
        Self {
            public_url: None,
            issuers: Vec::new(),
            audiences: Vec::new(),
            own_server: false,
            access_life: Duration::from_secs(900),
            private_clients: Vec::new(),
            oidc_issuer: None,
            oidc_client_id: None,
            oidc_client_secret_file: None,
            oidc_admitted: Vec::new(),
            oidc_scope: Scope::Run,
        }
    }
}

/// An identity provider, as far as we must know it.
#[derive(Clone, Copy, Debug)]
pub struct Oidc<'a> {
    pub issuer: &'a IssuerUrl,
    pub client_id: &'a str,
    pub secret_file: &'a Path,
}

/// People of an identity provider who are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    Everybody,
    /// By the part behind the @ of an address that the provider has checked.
    Domain(String),
    Address(String),
}

impl Admitted {
    pub fn is(&self, email: Option<&str>) -> bool {
        match (self, email) {
            (Self::Everybody, _) => true,
            (Self::Domain(domain), Some(email)) => {
                email.rsplit_once('@').is_some_and(|(_, host)| host.eq_ignore_ascii_case(domain))
            }
            (Self::Address(address), Some(email)) => email.eq_ignore_ascii_case(address),
            (Self::Domain(_) | Self::Address(_), None) => false,
        }
    }
}

impl FromStr for Admitted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.split_once('@') {
            None if text == "*" => Ok(Self::Everybody),
            Some(("", domain)) if is_plain && !domain.is_empty() && !domain.contains('@') => {
                Ok(Self::Domain(domain.to_ascii_lowercase()))
            }
            Some((name, domain)) if is_plain && !name.is_empty() && !domain.is_empty() && !domain.contains('@') => {
                Ok(Self::Address(text.to_ascii_lowercase()))
            }
            Some(_) | None => Err(Error::invalid_input(format!("{text:?} says nothing about who is let in"))
                .with_hint("write alice@example.com, @example.com for all of a domain, or * for everybody there is")),
        }
    }
}

impl OAuthConfig {
    pub fn is_used(&self) -> bool {
        !self.issuers.is_empty() || self.own_server
    }

    /// Whether what was said makes a whole.
    pub fn check(&self) -> Result<()> {
        if !self.audiences.is_empty() && self.issuers.is_empty() {
            return Err(Error::invalid_input("--oauth-audience is about the tokens of an issuer, and none is named")
                .with_hint("name it with --oauth-issuer"));
        }
        if self.oidc()?.is_some() && !self.own_server {
            return Err(Error::invalid_input(
                "--oidc-issuer is how people sign in to the server's own pages, and it has none",
            )
            .with_hint("add --oauth; to take the provider's own tokens instead, use --oauth-issuer"));
        }
        Ok(())
    }

    /// The identity provider where people sign in.
    pub fn oidc(&self) -> Result<Option<Oidc<'_>>> {
        match (&self.oidc_issuer, &self.oidc_client_id, &self.oidc_client_secret_file) {
            (None, None, None) => Ok(None),
            (Some(issuer), Some(client_id), Some(secret_file)) if !self.oidc_admitted.is_empty() => {
                Ok(Some(Oidc { issuer, client_id, secret_file }))
            }
            (Some(_), Some(_), Some(_)) => Err(Error::invalid_input("nobody of the identity provider is let in")
                .with_hint("say who is: --oidc-allow @example.com")),
            (_, _, _) => Err(Error::invalid_input("an identity provider needs to be named in full")
                .with_hint("give all of --oidc-issuer, --oidc-client-id and --oidc-client-secret-file")),
        }
    }
}

/// A host, with a port if it has one of its own.
pub fn host(text: &str) -> Result<String> {
    match text.parse::<http::uri::Authority>() {
        Ok(authority) if !text.contains('@') && !authority.host().is_empty() => Ok(text.to_ascii_lowercase()),
        Ok(_) | Err(_) => Err(Error::invalid_input(format!("{text:?} is not the name of a host"))
            .with_hint("write tools.example.com or 127.0.0.1:8080")),
    }
}

#[derive(Args, Debug)]
pub struct OAuthFlags {
    /// Let people sign in on pages of this server, by accounts of `sandpen account` or an identity provider, so that their clients get tokens
    #[arg(long)]
    oauth: bool,

    /// Where clients reach this server, when a proxy is in front of it: https://sandpen.example.com [default: where it listens]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// How long a token is good that was given out here; clients renew it by themselves [default: 15m]
    #[arg(long, value_name = "TIME")]
    oauth_access_lifetime: Option<String>,

    /// Fetch documents of clients from these hosts too, though they are not of the public network
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    oauth_private_clients: Vec<String>,

    /// Take tokens (JWTs) that this authorization server has signed; may be given several times
    #[arg(long, value_name = "URL")]
    oauth_issuer: Vec<String>,

    /// What such tokens must have as their audience [default: the address of this server, or of one of its endpoints]
    #[arg(long, value_name = "NAME")]
    oauth_audience: Vec<String>,

    /// With --oauth: let people sign in at this OpenID Connect provider
    #[arg(long, value_name = "URL")]
    oidc_issuer: Option<String>,

    /// As whom this server is registered there, with the redirect URI <its own address>/oauth/callback
    #[arg(long, value_name = "ID")]
    oidc_client_id: Option<String>,

    /// The file with the secret that goes with it, for its owner alone
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    oidc_client_secret_file: Option<String>,

    /// Who is let in that the provider knows: alice@example.com, @example.com, or * for everybody
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    oidc_allow: Vec<String>,

    /// The most that they can let a client do: read, run or admin [default: run]
    #[arg(long, value_name = "SCOPE")]
    oidc_scope: Option<String>,
}

impl OAuthFlags {
    pub fn write_to(&self, written: &mut Written) {
        if self.oauth {
            written.push(Key::Oauth, "true");
        }
        push(written, Key::PublicUrl, &self.public_url);
        push(written, Key::OauthAccessLifetime, &self.oauth_access_lifetime);
        push(written, Key::OauthPrivateClients, &self.oauth_private_clients);
        push(written, Key::OauthIssuer, &self.oauth_issuer);
        push(written, Key::OauthAudience, &self.oauth_audience);
        push(written, Key::OidcIssuer, &self.oidc_issuer);
        push(written, Key::OidcClientId, &self.oidc_client_id);
        push(written, Key::OidcClientSecretFile, &self.oidc_client_secret_file);
        push(written, Key::OidcAllow, &self.oidc_allow);
        push(written, Key::OidcScope, &self.oidc_scope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_let_in_is_said_exactly() {
        let is = |who: &str, email: Option<&str>| who.parse::<Admitted>().unwrap().is(email);
        assert!(is("@Example.com", Some("alice@example.com")) && is("Alice@example.com", Some("alice@example.com")));
        assert!(is("*", None));
        for email in ["alice@evil-example.com", "alice@example.com.evil", "alice@sub.example.com", "example.com", ""] {
            assert!(!is("@example.com", Some(email)), "{email}");
        }
        assert!(!is("@example.com", None) && !is("alice@example.com", Some("bob@example.com")));
        for text in ["", "example.com", "@", "alice@", "a@b@c", "a b@c"] {
            assert!(text.parse::<Admitted>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn half_of_a_provider_is_refused() {
        let mut config = OAuthConfig { oidc_client_id: Some("pen".into()), ..OAuthConfig::default() };
        assert!(config.check().is_err());
        config.oidc_issuer = Some("https://login.example".parse().unwrap());
        config.oidc_client_secret_file = Some("/secret".into());
        assert!(config.check().unwrap_err().hint().unwrap().contains("--oidc-allow"));
        config.oidc_admitted = vec![Admitted::Everybody];
        assert!(config.check().unwrap_err().hint().unwrap().contains("--oauth"));
        config.own_server = true;
        config.check().unwrap();
        config.audiences = vec!["x".into()];
        assert!(config.check().is_err());
    }
}
