//! Programs that ask people for access: ours, those that registered, and those whose name is the address of a document.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sandbox::Result;
use serde::Deserialize;
use url::Url;

use super::records::{ClientRecord, Records, RecordsFile};
use super::redirect;
use super::throttle::Throttle;
use crate::auth::oauth::address::{is_loopback, origin};
use crate::auth::oauth::fetch::{Fetcher, Named};
use crate::auth::oauth::site::Site;
use crate::auth::token::{moment, seconds_of};
use crate::random;

/// The pages of this server itself.
pub const DASHBOARD: &str = "sandpen-dashboard";

const MOST_CLIENTS: usize = 512;
const MOST_REDIRECTS: usize = 8;
const NAME_CHARACTERS: usize = 100;

/// How long a client is remembered that nobody has granted anything, and one that somebody has.
const UNUSED: Duration = Duration::from_secs(3600);
const USED: Duration = Duration::from_secs(90 * 86400);

/// How long a document is believed, and how many are.
const FRESH: Duration = Duration::from_secs(300);
const MOST_DOCUMENTS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub id: String,
    /// What it calls itself.
    pub name: Option<String>,
    pub redirect_uris: Vec<String>,
    /// Whose document it is, which nobody else can have put there.
    pub host: Option<String>,
}

impl Client {
    pub fn allows(&self, redirect_uri: &str) -> bool {
        // Pages of our own are at our own port; another one may show what sandboxed code made.
        if self.id == DASHBOARD {
            return self.redirect_uris.iter().any(|named| named == redirect_uri);
        }
        self.redirect_uris.iter().any(|named| redirect::is_same(named, redirect_uri))
    }
}

/// What a client says of itself, when it registers or in its document.
#[derive(Clone, Debug, Deserialize)]
pub struct Description {
    client_id: Option<String>,
    client_name: Option<String>,
    redirect_uris: Vec<String>,
    #[serde(default)]
    response_types: Vec<String>,
    #[serde(default)]
    grant_types: Vec<String>,
}

impl Description {
    /// Why it cannot be a client here.
    fn problem(&self) -> Option<&'static str> {
        if self.redirect_uris.is_empty() || self.redirect_uris.len() > MOST_REDIRECTS {
            return Some("there must be 1 to 8 redirect_uris");
        }
        if !self.redirect_uris.iter().all(|uri| redirect::is_acceptable(uri)) {
            return Some("a redirect URI is https, a loopback address by http, or a program's own scheme");
        }
        if !self.response_types.is_empty() && !self.response_types.iter().any(|kind| kind == "code") {
            return Some("the only response type is code");
        }
        if !self.grant_types.is_empty() && !self.grant_types.iter().any(|kind| kind == "authorization_code") {
            return Some("the grant type is authorization_code");
        }
        None
    }

    /// Without what could make it look like something else.
    fn name(&self) -> Option<String> {
        let name: String = self.client_name.as_ref()?.chars().filter(|character| !character.is_control()).collect();
        let name: String = name.trim().chars().take(NAME_CHARACTERS).collect();
        (!name.is_empty()).then_some(name)
    }
}

#[derive(Debug)]
pub struct Clients {
    records: Arc<RecordsFile>,
    site: Arc<Site>,
    fetcher: Fetcher,
    /// Hosts whose documents are fetched wherever they are.
    private_hosts: Vec<String>,
    documents: Mutex<HashMap<String, (Instant, Client)>>,
    /// Strangers choose the addresses, and must not use us to knock there.
    fetches: Throttle,
}

impl Clients {
    pub fn new(records: Arc<RecordsFile>, site: Arc<Site>, fetcher: Fetcher, private_hosts: Vec<String>) -> Self {
        Self {
            records,
            site,
            fetcher,
            private_hosts,
            documents: Mutex::default(),
            fetches: Throttle::new(60, Duration::from_secs(60)),
        }
    }

    pub async fn find(&self, id: &str) -> Option<Client> {
        if id == DASHBOARD {
            let redirect_uris = self.site.bases().map(|base| format!("{base}/")).collect();
            return Some(Client {
                id: id.to_owned(),
                name: Some("Sandpen's dashboard".to_owned()),
                redirect_uris,
                host: None,
            });
        }
        if id.contains("://") {
            return self.described(id).await;
        }
        let records = self.records.current();
        let known = records.clients.get(id).filter(|client| is_remembered(client, SystemTime::now()))?;
        let ClientRecord { name, redirect_uris, .. } = known.clone();
        Some(Client { id: id.to_owned(), name, redirect_uris, host: None })
    }

    /// One that is its own document.
    async fn described(&self, id: &str) -> Option<Client> {
        let now = Instant::now();
        let known = self.documents.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some((since, client)) = known
            && now.duration_since(since) < FRESH
        {
            return Some(client);
        }
        let (url, named) = self.document(id)?;
        if self.fetches.take("", now).is_none() {
            tracing::warn!("too many documents of clients were asked for");
            return None;
        }
        let described = self.fetcher.get::<Description>(&url, named).await;
        let description = match described {
            Ok(description) => description,
            Err(error) => {
                tracing::warn!(%error, "the document of a client cannot be fetched");
                return None;
            }
        };
        // A document at one address cannot speak for another.
        if description.client_id.as_deref() != Some(id) || description.problem().is_some() {
            return None;
        }
        let host = url.host_str().map(str::to_owned);
        let client =
            Client { id: id.to_owned(), name: description.name(), redirect_uris: description.redirect_uris, host };
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|_, (since, _)| now.duration_since(*since) < FRESH);
        if documents.len() >= MOST_DOCUMENTS {
            documents.clear();
        }
        documents.insert(id.to_owned(), (now, client.clone()));
        Some(client)
    }

    /// Where a document may be, and whether we go there for a stranger.
    fn document(&self, id: &str) -> Option<(Url, Named)> {
        let url = Url::parse(id).ok()?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
            && url.path().len() > 1
            && id.len() <= 512
            && url.as_str() == id;
        let host = url.host_str()?;
        let with_port = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let is_private = self.private_hosts.iter().any(|known| known == host || *known == with_port);
        let named = if is_private { Named::ByOperator } else { Named::ByStranger };
        let is_protected = url.scheme() == "https" || (is_private && is_loopback(&url));
        // Ours would be asked for by us.
        let is_ours = self.site.bases().any(|base| base == origin(&url));
        (is_plain && is_protected && !is_ours).then_some((url, named))
    }

    /// Blocks.
    pub fn register(
        &self,
        description: &Description,
        now: SystemTime,
    ) -> Result<std::result::Result<Client, &'static str>> {
        if let Some(problem) = description.problem() {
            return Ok(Err(problem));
        }
        let client = Client {
            id: random::digits()?,
            name: description.name(),
            redirect_uris: description.redirect_uris.clone(),
            host: None,
        };
        let record = ClientRecord {
            name: client.name.clone(),
            redirect_uris: client.redirect_uris.clone(),
            created: seconds_of(now).unwrap_or(0),
            used: None,
        };
        self.records.change(|records| {
            make_room(records, now);
            records.clients.insert(client.id.clone(), record);
            Ok(())
        })?;
        Ok(Ok(client))
    }
}

fn is_remembered(client: &ClientRecord, now: SystemTime) -> bool {
    match client.used {
        Some(used) => moment(used) + USED > now,
        None => moment(client.created) + UNUSED > now,
    }
}

/// Those that nobody uses go first.
fn make_room(records: &mut Records, now: SystemTime) {
    records.clients.retain(|_, client| is_remembered(client, now));
    while records.clients.len() >= MOST_CLIENTS {
        let oldest = records.clients.iter().min_by_key(|(_, client)| (client.used, client.created));
        match oldest.map(|(id, _)| id.clone()) {
            Some(id) => records.clients.remove(&id),
            None => break,
        };
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
