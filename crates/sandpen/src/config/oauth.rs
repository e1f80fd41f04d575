//! Settings of OAuth: whose tokens are taken, and the authorization server of our own.

use clap::Args;
use sandbox::{Error, Result};

use super::Key;
use super::flags::push;
use super::written::Written;
use crate::auth::oauth::address::{IssuerUrl, PublicUrl};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuthConfig {
    /// Where clients reach the server, if not by its own address.
    pub public_url: Option<PublicUrl>,
    /// Whose tokens are taken.
    pub issuers: Vec<IssuerUrl>,
    /// Whom these must be for, if not for the address of the server.
    pub audiences: Vec<String>,
}

impl OAuthConfig {
    pub fn is_used(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// Whether what was said makes a whole.
    pub fn check(&self) -> Result<()> {
        if !self.audiences.is_empty() && self.issuers.is_empty() {
            return Err(Error::invalid_input("--oauth-audience is about the tokens of an issuer, and none is named")
                .with_hint("name it with --oauth-issuer"));
        }
        Ok(())
    }
}

#[derive(Args, Debug)]
pub struct OAuthFlags {
    /// Where clients reach this server, when a proxy is in front of it: https://sandpen.example.com [default: where it listens]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Take tokens (JWTs) that this authorization server has signed; may be given several times
    #[arg(long, value_name = "URL")]
    oauth_issuer: Vec<String>,

    /// What such tokens must have as their audience [default: the address of this server, or of one of its endpoints]
    #[arg(long, value_name = "NAME")]
    oauth_audience: Vec<String>,
}

impl OAuthFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::PublicUrl, &self.public_url);
        push(written, Key::OauthIssuer, &self.oauth_issuer);
        push(written, Key::OauthAudience, &self.oauth_audience);
    }
}
