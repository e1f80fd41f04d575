//! The Tasks extension: a run that takes long is answered with a task that the client asks about later.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CallToolResponse, CallToolResult, CreateTaskResult, DetailedTask, ErrorData, Task};
use rmcp::service::RequestContext;
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use sandbox::Owner;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::guard::guarded;

/// What is done by then is answered as always.
const GRACE: Duration = Duration::from_secs(1);

/// Of one owner at once. One more is waited for as if the client knew no tasks.
const MOST_RUNNING: usize = 64;

const POLL_MS: u64 = 500;

/// The library's tasks, and whose they are: to everybody else they do not exist.
pub struct Tasks {
    manager: TaskManager,
    owners: Mutex<HashMap<String, Owner>>,
    /// Beyond the longest run, so that no task ends before its run does.
    keep: Duration,
}

/// Work that goes on by itself and ends when it is let go.
pub struct Working {
    result: JoinHandle<Result<CallToolResult, ErrorData>>,
    cancelled: CancellationToken,
    _let_go: DropGuard,
}

impl Working {
    /// `work` is given the token that tells it to stop.
    pub fn start<F>(work: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<CallToolResult, ErrorData>> + Send + 'static,
    {
        let cancelled = CancellationToken::new();
        let result = tokio::spawn(guarded(work(cancelled.clone())));
        Self { result, _let_go: cancelled.clone().drop_guard(), cancelled }
    }

    async fn finished(&mut self) -> Result<CallToolResult, ErrorData> {
        (&mut self.result).await.unwrap_or_else(|_| Err(ErrorData::internal_error("the server is shutting down", None)))
    }
}

impl Tasks {
    pub fn new(longest_run: Duration) -> Self {
        Self { manager: TaskManager::new(), owners: Mutex::default(), keep: longest_run + Duration::from_secs(600) }
    }

    /// The result if it comes soon, a task otherwise. `quieten` is awaited before a task is answered: nothing may be
    /// told about its request afterwards.
    pub async fn answer(
        &self,
        owner: &Owner,
        mut working: Working,
        context: &RequestContext<RoleServer>,
        quieten: impl Future<Output = ()>,
    ) -> Result<CallToolResponse, ErrorData> {
        let soon = tokio::select! {
            result = working.finished() => Some(result),
            () = context.ct.cancelled() => None,
            () = tokio::time::sleep(GRACE), if self.running(owner) < MOST_RUNNING => {
                quieten.await;
                return Ok(CallToolResponse::Task(CreateTaskResult::new(self.adopt(owner, working))));
            }
        };
        let result = match soon {
            Some(result) => result,
            None => {
                working.cancelled.cancel();
                working.finished().await
            }
        };
        quieten.await;
        result.map(CallToolResponse::from)
    }

    pub fn get(&self, owner: &Owner, id: &str) -> Result<DetailedTask, ErrorData> {
        self.check(owner, id)?;
        self.manager.get_task(id)
    }

    /// No task of ours asks for anything, so that answers have nowhere to go; that the task exists is all there is to say.
    pub fn update(&self, owner: &Owner, id: &str) -> Result<(), ErrorData> {
        self.check(owner, id)?;
        self.manager.update_task(id, [])
    }

    pub fn cancel(&self, owner: &Owner, id: &str) -> Result<(), ErrorData> {
        self.check(owner, id)?;
        self.manager.cancel_task(id)
    }

    /// Lets go of all of them.
    pub fn shut_down(&self) {
        self.manager.shutdown();
    }

    fn adopt(&self, owner: &Owner, working: Working) -> Task {
        let keep_ms = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        let options = TaskOptions::new().with_ttl_ms(keep_ms).with_poll_interval_ms(POLL_MS);
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.retain(|id, _| self.manager.get_task(id).is_ok());
        let task = self.manager.spawn(options, |context| Box::pin(carry_on(context, working)));
        owners.insert(task.task_id.clone(), owner.clone());
        task
    }

    fn running(&self, owner: &Owner) -> usize {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let own = owners.iter().filter(|(_, of)| *of == owner);
        own.filter(|(id, _)| self.manager.get_task(id).is_ok_and(|task| !task.status().is_terminal())).count()
    }

    fn check(&self, owner: &Owner, id: &str) -> Result<(), ErrorData> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        match owners.get(id) {
            Some(of) if of == owner => Ok(()),
            Some(_) | None => Err(ErrorData::invalid_params(format!("there is no task {id:?}"), None)),
        }
    }
}

async fn carry_on(context: TaskContext, mut working: Working) -> Result<CallToolResult, TaskExit> {
    tokio::select! {
        result = working.finished() => result.map_err(TaskExit::Error),
        () = context.cancelled() => {
            working.cancelled.cancel();
            let _ = working.finished().await;
            Err(TaskExit::Cancelled)
        }
    }
}
