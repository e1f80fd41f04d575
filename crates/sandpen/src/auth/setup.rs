//! How callers are known, as the settings say; and what strangers are told who want to be.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use sandbox::Result;

use super::Authentication;
use super::doorkeeper::{Doorkeeper, OAuth};
use super::keyring::Keyring;
use super::oauth::fetch::Fetcher;
use super::oauth::issuer::Issuer;
use super::oauth::jwt::Issuers;
use super::oauth::metadata::{self, Resource};
use super::oauth::site::Site;
use super::server::AuthorizationServer;
use super::server::oidc::Provider;
use crate::audit::Recorder;
use crate::config::Config;

#[derive(Debug)]
pub struct Setup {
    pub authentication: Authentication,
    /// Behind no guard: they are for those who have no token yet.
    pub routes: Router,
    /// Where people sign in who are known elsewhere.
    pub provider: Option<Arc<Provider>>,
}

/// `keyring`: none where everybody is let in.
pub fn set_up(config: &Config, keyring: Option<Keyring>, listening: SocketAddr, recorder: Recorder) -> Result<Setup> {
    let Some(keyring) = keyring else {
        return Ok(Setup { authentication: Authentication::Nobody, routes: Router::new(), provider: None });
    };
    let settings = &config.oauth;
    let mut doorkeeper = Doorkeeper { keyring, oauth: None };
    let (mut routes, mut provider) = (Router::new(), None);
    if settings.is_used() {
        let site = Arc::new(Site::new(settings.public_url.as_ref(), config.http.scheme(), listening)?);
        let fetcher = Fetcher::default();
        let issuers = settings.issuers.iter().map(|url| Arc::new(Issuer::new(url.clone(), fetcher.clone()))).collect();
        let audiences: Vec<String> = match settings.audiences.as_slice() {
            [] => site.resources().collect(),
            named => named.to_vec(),
        };
        let resource = Resource {
            site: site.clone(),
            issuers: settings.issuers.iter().map(ToString::to_string).collect(),
            has_own_server: settings.own_server,
        };
        routes = routes.merge(metadata::routes(resource));
        let mut grants = None;
        if settings.own_server {
            let server = Arc::new(AuthorizationServer::open(config, site.clone(), fetcher, recorder)?);
            grants = Some(server.grants.clone());
            provider.clone_from(&server.provider);
            routes = routes.merge(server.routes());
        }
        doorkeeper.oauth = Some(OAuth { site, issuers: Issuers::new(issuers, audiences), grants });
    }
    Ok(Setup { authentication: Authentication::Tokens(Arc::new(doorkeeper)), routes, provider })
}
