//! An authorization server of our own, for those who have none: people sign in, agree, and their clients get tokens.
//!
//! Authorization code with PKCE alone, for clients that can keep no secret. What it gives out is known by its digest, so that what is
//! taken back is gone at once.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use sandbox::Result;
use tokio::sync::Semaphore;

use self::clients::Clients;
use self::codes::Codes;
use self::grants::Grants;
use self::oidc::Provider;
use self::records::RecordsFile;
use self::seal::Sealer;
use self::throttle::Throttle;
use super::account::AccountFile;
use super::oauth::fetch::Fetcher;
use super::oauth::site::Site;
use crate::audit::Recorder;
use crate::config::Config;

pub mod clients;
pub mod grants;
pub mod oidc;
pub mod records;

mod authorize;
mod codes;
mod exchange;
mod page;
mod redirect;
mod request;
mod seal;
mod throttle;

/// Passwords that are looked at at the same time; each takes some 20 MiB.
const VERIFYING: usize = 2;

const WINDOW: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct AuthorizationServer {
    site: Arc<Site>,
    accounts: Arc<AccountFile>,
    pub grants: Arc<Grants>,
    clients: Clients,
    codes: Codes,
    sealer: Sealer,
    pub provider: Option<Arc<Provider>>,
    verifying: Semaphore,
    /// Wrong passwords: from one place for one account, from one place, and for one account from everywhere.
    by_pair: Throttle,
    by_source: Throttle,
    by_name: Throttle,
    registrations: Throttle,
    recorder: Recorder,
}

pub type Shared = Arc<AuthorizationServer>;

impl AuthorizationServer {
    pub fn open(config: &Config, site: Arc<Site>, fetcher: Fetcher, recorder: Recorder) -> Result<Self> {
        let settings = &config.oauth;
        let directory = config.state_dir()?;
        let records = Arc::new(RecordsFile::of_state_directory(directory)?);
        let accounts = Arc::new(AccountFile::of_state_directory(directory)?);
        let provider = Provider::open(settings, &fetcher)?.map(Arc::new);
        let allowed = provider.clone();
        let elsewhere: grants::Allowed =
            Arc::new(move |who| allowed.as_ref().and_then(|provider| provider.allows(who)));
        let grants = Arc::new(Grants::new(records.clone(), accounts.clone(), elsewhere, settings.access_life));
        Ok(Self {
            clients: Clients::new(records, site.clone(), fetcher, settings.private_clients.clone()),
            site,
            accounts,
            grants,
            codes: Codes::default(),
            sealer: Sealer::new()?,
            provider,
            verifying: Semaphore::new(VERIFYING),
            by_pair: Throttle::new(5, WINDOW),
            by_source: Throttle::new(30, WINDOW),
            by_name: Throttle::new(100, WINDOW),
            registrations: Throttle::new(30, Duration::from_secs(60)),
            recorder,
        })
    }

    pub fn routes(self: Arc<Self>) -> Router {
        Router::new()
            .route("/.well-known/oauth-authorization-server", get(exchange::metadata))
            .route("/oauth/authorize", get(authorize::begin))
            .route("/oauth/sign-in", post(authorize::sign_in))
            .route("/oauth/consent", post(authorize::decide))
            .route("/oauth/elsewhere", get(oidc::leave))
            .route("/oauth/callback", get(oidc::come_back))
            .route("/oauth/token", post(exchange::token))
            .route("/oauth/register", post(exchange::register))
            .route("/oauth/revoke", post(exchange::revoke))
            .with_state(self)
    }
}
