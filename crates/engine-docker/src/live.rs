//! A sandbox that runs, and our stream to it.

use agent::{Connection, Hosted};
use sandbox::{Error, ExecRequest, Result, SandboxId};

use crate::client::Daemon;
use crate::record::Description;
use crate::translate::AGENT_PROGRAM;

#[derive(Debug)]
pub struct Live {
    pub description: Description,
    /// As the daemon knows it. A spare keeps the name that it was made under.
    pub container: String,
    pub connection: Connection,
}

impl Live {
    /// Reach process 1 of a container that runs.
    pub async fn reach(daemon: &Daemon, container: String, description: Description) -> Result<Self> {
        let bridge: Vec<&str> = [AGENT_PROGRAM].into_iter().chain(Hosted::bridge_arguments()).collect();
        let (reader, writer) = daemon.exec(&container, &bridge).await?;
        let connection = Connection::open(reader, writer).await?;
        Ok(Self { description, container, connection })
    }

    pub fn id(&self) -> &SandboxId {
        &self.description.id
    }

    /// A spare becomes somebody's. Its labels stay nobody's, which is no matter: it ends with us.
    pub fn for_owner(mut self, description: &Description) -> Self {
        self.description = description.clone();
        self
    }

    /// The request with what the sandbox adds to every command.
    pub fn completed(&self, request: &ExecRequest) -> ExecRequest {
        let mut request = request.clone();
        request.environment = self.description.environment.clone().overlaid_by(&request.environment);
        request.work_directory.get_or_insert_with(|| self.description.work_directory.clone());
        request
    }
}

pub fn not_found(id: &SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
        .with_hint("it may have been stopped or have expired; create another")
}
