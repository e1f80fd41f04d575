//! Sessions of Streamable HTTP before 2026-07-28: how many, how long, and which revision each of them speaks.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage, ServerResult};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use sandbox::Owner;

use crate::http::places::{NoPlace, Share};

/// Most clients never say that they are done, so an idle session makes room for a new one: never one of somebody who has fewer.
const MOST: usize = 1024;

/// A session ends after so long without a message, whatever goes on in it: so it must be more than the longest run.
/// A person who comes back to a conversation on the next morning should find it.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// For a client that lost its connection to resume the stream of an answer that is complete. The library looks only when
/// the session is next used, so the answers of this last stretch stay in memory for as long as it is idle.
const KEEP_ANSWERS: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// For whom the library works: it begins sessions in the task of the request, and does not know whose they are.
    static ASKING: Owner;
}

/// Sessions that begin in this work are the owner's.
pub async fn for_owner<T>(owner: Owner, work: impl Future<Output = T>) -> T {
    ASKING.scope(owner, work).await
}

/// The library's sessions, counted.
#[derive(Debug)]
pub struct Sessions {
    library: LocalSessionManager,
    known: Arc<Mutex<HashMap<SessionId, Known>>>,
    most: usize,
    /// Whoever has as many as this makes room for themselves alone.
    share: usize,
}

#[derive(Debug)]
struct Known {
    /// Who began it. Nobody else learns that it is there.
    owner: Owner,
    version: Option<ProtocolVersion>,
    used: Instant,
    /// Answers that are being sent.
    streams: usize,
}

#[derive(Debug)]
pub enum SessionFailure {
    /// All that there may be, and none that could make room for a new one.
    Full,
    /// Nobody asks.
    Nobody,
    Library(LocalSessionManagerError),
}

impl Sessions {
    pub fn new(share: Share) -> Self {
        Self::at_most(MOST, share)
    }

    fn at_most(most: usize, share: Share) -> Self {
        let mut library = LocalSessionManager::default();
        library.session_config.keep_alive = Some(IDLE);
        library.session_config.completed_cache_ttl = KEEP_ANSWERS;
        Self { library, known: Arc::default(), most, share: share.of(most) }
    }

    /// Why this owner cannot begin another one, if they cannot.
    pub fn why_full(&self, owner: &Owner) -> Option<NoPlace> {
        match room(&self.known(), self.most, self.share, owner) {
            Room::There | Room::After(_) => None,
            Room::Nowhere(no_place) => Some(no_place),
        }
    }

    pub fn has(&self, id: &str) -> bool {
        self.known().contains_key(id)
    }

    pub fn is_of(&self, id: &str, owner: &Owner) -> bool {
        self.known().get(id).is_some_and(|session| session.owner == *owner)
    }

    /// The revision that was agreed upon.
    pub fn version(&self, id: &str) -> Option<ProtocolVersion> {
        self.known().get(id).and_then(|known| known.version.clone())
    }

    async fn make_room(&self, owner: &Owner) -> Result<(), SessionFailure> {
        loop {
            let room = room(&self.known(), self.most, self.share, owner);
            match room {
                Room::There => return Ok(()),
                Room::After(idle) => self.close_session(&idle).await?,
                Room::Nowhere(_) => return Err(SessionFailure::Full),
            }
        }
    }

    fn touch(&self, id: &SessionId) {
        if let Some(session) = self.known().get_mut(id) {
            session.used = Instant::now();
        }
    }

    /// An answer that counts as one until it is sent or given up.
    fn counted<S>(
        &self,
        id: &SessionId,
        stream: S,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<S>
    where
        S: Stream<Item = ServerSseMessage> + Send + Sync + 'static,
    {
        if let Some(session) = self.known().get_mut(id) {
            session.used = Instant::now();
            session.streams += 1;
        }
        let sending = Sending { known: self.known.clone(), id: id.clone() };
        stream.map(move |message| {
            let _held = &sending;
            message
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SessionId, Known>> {
        lock(&self.known)
    }
}

/// Where a new session could go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Room {
    There,
    /// When this one has ended.
    After(SessionId),
    Nowhere(NoPlace),
}

/// Whoever has most makes room first, and whoever has a share makes room for themselves: so nobody loses a session to somebody who
/// has more.
fn room(known: &HashMap<SessionId, Known>, most: usize, share: usize, owner: &Owner) -> Room {
    if known.len() < most {
        return Room::There;
    }
    let mut counts: HashMap<&Owner, usize> = HashMap::new();
    for session in known.values() {
        *counts.entry(&session.owner).or_default() += 1;
    }
    let count = |owner: &Owner| counts.get(owner).copied().unwrap_or(0);
    let own = count(owner);
    let idle = known.iter().filter(|(_, session)| session.streams == 0);
    let may_go = idle.filter(|(_, session)| session.owner == *owner || (own < share && count(&session.owner) > own));
    let first = may_go.max_by_key(|(_, session)| (count(&session.owner), Reverse(session.used)));
    match first {
        Some((id, _)) => Room::After(id.clone()),
        None if own >= share && share < most => Room::Nowhere(NoPlace::Own(own)),
        None => Room::Nowhere(NoPlace::Full),
    }
}

fn lock(known: &Mutex<HashMap<SessionId, Known>>) -> MutexGuard<'_, HashMap<SessionId, Known>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sending {
    known: Arc<Mutex<HashMap<SessionId, Known>>>,
    id: SessionId,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.known).get_mut(&self.id) {
            session.used = Instant::now();
            session.streams -= 1;
        }
    }
}

impl SessionManager for Sessions {
    type Error = SessionFailure;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), SessionFailure> {
        let owner = ASKING.try_with(Owner::clone).map_err(|_| SessionFailure::Nobody)?;
        self.make_room(&owner).await?;
        let (id, transport) = self.library.create_session().await?;
        self.known().insert(id.clone(), Known { owner, version: None, used: Instant::now(), streams: 0 });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionFailure> {
        let answer = self.library.initialize_session(id, message).await?;
        if let JsonRpcMessage::Response(response) = &answer
            && let ServerResult::InitializeResult(result) = &response.result
            && let Some(session) = self.known().get_mut(id)
        {
            session.version = Some(result.protocol_version.clone());
        }
        Ok(answer)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionFailure> {
        Ok(self.library.has_session(id).await?)
    }

    /// Called at every end of a session, its own too.
    async fn close_session(&self, id: &SessionId) -> Result<(), SessionFailure> {
        self.known().remove(id);
        Ok(self.library.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        let stream = self.library.create_stream(id, message).await?;
        Ok(self.counted(id, stream))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), SessionFailure> {
        self.touch(id);
        Ok(self.library.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        let stream = self.library.create_standalone_stream(id).await?;
        Ok(self.counted(id, stream))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        let stream = self.library.resume(id, last_event_id).await?;
        Ok(self.counted(id, stream))
    }
}

impl From<LocalSessionManagerError> for SessionFailure {
    fn from(error: LocalSessionManagerError) -> Self {
        Self::Library(error)
    }
}

impl fmt::Display for SessionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("there are too many sessions"),
            Self::Nobody => f.write_str("nobody asks for a session"),
            Self::Library(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SessionFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Owner {
        "alice".parse().unwrap()
    }

    fn bob() -> Owner {
        "bob".parse().unwrap()
    }

    async fn begin(sessions: &Sessions, owner: Owner) -> Result<SessionId, SessionFailure> {
        for_owner(owner, sessions.create_session()).await.map(|(id, _worker)| id)
    }

    async fn begin_many(sessions: &Sessions, owner: Owner, count: usize) -> Vec<SessionId> {
        let mut begun = Vec::new();
        for _ in 0..count {
            begun.push(begin(sessions, owner.clone()).await.unwrap());
        }
        begun
    }

    #[tokio::test]
    async fn the_session_that_was_used_longest_ago_makes_room() {
        for share in [Share::Whole, Share::Quarter] {
            let sessions = Sessions::at_most(2, share);
            let [first, second] = begin_many(&sessions, alice(), 2).await.try_into().unwrap();
            sessions.touch(&first);
            let third = begin(&sessions, alice()).await.unwrap();
            assert!(sessions.has(&first) && !sessions.has(&second) && sessions.has(&third));
            assert!(!sessions.has_session(&second).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_session_in_use_does_not_make_room() {
        let sessions = Sessions::at_most(1, Share::Whole);
        let first = begin(&sessions, alice()).await.unwrap();
        let answer = sessions.counted(&first, futures_util::stream::pending());
        assert_eq!(sessions.why_full(&alice()), Some(NoPlace::Full));
        assert!(matches!(begin(&sessions, alice()).await, Err(SessionFailure::Full)));
        drop(answer);
        assert_eq!(sessions.why_full(&alice()), None);
        assert!(begin(&sessions, alice()).await.is_ok());
        assert!(!sessions.has(&first));
    }

    #[tokio::test]
    async fn who_begins_one_session_after_the_other_ends_none_of_somebody_else() {
        let sessions = Sessions::at_most(8, Share::Quarter);
        // The oldest of all is his.
        let his = begin_many(&sessions, bob(), 2).await;
        let hers = begin_many(&sessions, alice(), 40).await;
        assert!(his.iter().all(|id| sessions.has(id) && sessions.is_of(id, &bob())));
        let left: Vec<_> = hers.iter().filter(|id| sessions.has(id)).collect();
        assert_eq!(left, hers[34..].iter().collect::<Vec<_>>(), "who has no neighbours in need has more than a share");
        begin_many(&sessions, bob(), 2).await;
        let count = |ids: &[SessionId]| ids.iter().filter(|id| sessions.has(id)).count();
        assert_eq!((count(&his), count(&hers)), (0, 6), "who has a share ends one of their own for each new one");
    }

    #[tokio::test]
    async fn who_has_no_session_finds_room_where_somebody_has_most() {
        let sessions = Sessions::at_most(8, Share::Quarter);
        let hers = begin_many(&sessions, alice(), 8).await;
        let his = begin_many(&sessions, bob(), 2).await;
        assert!(his.iter().all(|id| sessions.has(id)));
        assert_eq!(hers.iter().filter(|id| sessions.has(id)).count(), 6);
    }

    #[tokio::test]
    async fn who_uses_all_of_a_share_is_told_so() {
        let sessions = Sessions::at_most(4, Share::Quarter);
        let hers = begin_many(&sessions, alice(), 4).await;
        let _used: Vec<_> = hers.iter().map(|id| sessions.counted(id, futures_util::stream::pending())).collect();
        assert_eq!(sessions.why_full(&alice()), Some(NoPlace::Own(4)));
        assert_eq!(sessions.why_full(&bob()), Some(NoPlace::Full));
    }
}
