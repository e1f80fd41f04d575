//! Sessions of Streamable HTTP before 2026-07-28: how many, how long, and which revision each of them speaks.

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

/// Most clients never say that they are done, so the oldest idle session makes room for a new one.
const MOST: usize = 1024;

/// A session ends after so long without a message, whatever goes on in it: so it must be more than the longest run.
/// A person who comes back to a conversation on the next morning should find it.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// For a client that lost its connection to resume the stream of an answer that is complete. The library looks only when
/// the session is next used, so the answers of this last stretch stay in memory for as long as it is idle.
const KEEP_ANSWERS: Duration = Duration::from_secs(30);

/// The library's sessions, counted.
#[derive(Debug)]
pub struct Sessions {
    library: LocalSessionManager,
    known: Arc<Mutex<HashMap<SessionId, Known>>>,
    most: usize,
}

#[derive(Debug)]
struct Known {
    /// Who began it. Nobody else learns that it is there.
    owner: Option<Owner>,
    version: Option<ProtocolVersion>,
    used: Instant,
    /// Answers that are being sent.
    streams: usize,
}

#[derive(Debug)]
pub enum SessionFailure {
    /// All that there may be, and all in use.
    Full,
    Library(LocalSessionManagerError),
}

impl Sessions {
    pub fn new() -> Self {
        Self::at_most(MOST)
    }

    fn at_most(most: usize) -> Self {
        let mut library = LocalSessionManager::default();
        library.session_config.keep_alive = Some(IDLE);
        library.session_config.completed_cache_ttl = KEEP_ANSWERS;
        Self { library, known: Arc::default(), most }
    }

    pub fn is_full(&self) -> bool {
        let known = self.known();
        known.len() >= self.most && known.values().all(|session| session.streams > 0)
    }

    pub fn has(&self, id: &str) -> bool {
        self.known().contains_key(id)
    }

    /// A session that has just begun becomes somebody's.
    pub fn give(&self, id: &str, owner: &Owner) {
        if let Some(session) = self.known().get_mut(id) {
            session.owner.get_or_insert_with(|| owner.clone());
        }
    }

    pub fn is_of(&self, id: &str, owner: &Owner) -> bool {
        self.known().get(id).is_some_and(|session| session.owner.as_ref() == Some(owner))
    }

    /// The revision that was agreed upon.
    pub fn version(&self, id: &str) -> Option<ProtocolVersion> {
        self.known().get(id).and_then(|known| known.version.clone())
    }

    async fn make_room(&self) -> Result<(), SessionFailure> {
        loop {
            let oldest = {
                let known = self.known();
                if known.len() < self.most {
                    return Ok(());
                }
                let idle = known.iter().filter(|(_, session)| session.streams == 0);
                idle.min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone()).ok_or(SessionFailure::Full)?
            };
            self.close_session(&oldest).await?;
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
        self.make_room().await?;
        let (id, transport) = self.library.create_session().await?;
        self.known().insert(id.clone(), Known { owner: None, version: None, used: Instant::now(), streams: 0 });
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
            Self::Library(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SessionFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_session_that_was_used_longest_ago_makes_room() {
        let sessions = Sessions::at_most(2);
        let (first, _worker) = sessions.create_session().await.unwrap();
        let (second, _worker) = sessions.create_session().await.unwrap();
        sessions.touch(&first);
        let (third, _worker) = sessions.create_session().await.unwrap();
        assert!(sessions.has(&first) && !sessions.has(&second) && sessions.has(&third));
        assert!(!sessions.has_session(&second).await.unwrap());
    }

    #[tokio::test]
    async fn a_session_in_use_does_not_make_room() {
        let sessions = Sessions::at_most(1);
        let (first, _worker) = sessions.create_session().await.unwrap();
        let answer = sessions.counted(&first, futures_util::stream::pending());
        assert!(sessions.is_full());
        assert!(matches!(sessions.create_session().await, Err(SessionFailure::Full)));
        drop(answer);
        assert!(!sessions.is_full());
        assert!(sessions.create_session().await.is_ok());
        assert!(!sessions.has(&first));
    }
}
