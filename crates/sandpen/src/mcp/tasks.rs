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

#[cfg(test)]
mod tests {
    use rmcp::model::{ContentBlock, TaskStatus};

    use super::*;

    fn owner(name: &str) -> Owner {
        name.parse().unwrap()
    }

    /// Ends only when it is told to, and then says so.
    fn endless() -> (Working, tokio::sync::oneshot::Receiver<()>) {
        let (sender, stopped) = tokio::sync::oneshot::channel();
        let working = Working::start(|cancelled| async move {
            cancelled.cancelled().await;
            let _ = sender.send(());
            Ok(CallToolResult::success(vec![ContentBlock::text("stopped")]))
        });
        (working, stopped)
    }

    async fn until(tasks: &Tasks, of: &Owner, id: &str, status: TaskStatus) {
        while tasks.get(of, id).unwrap().status() != status {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_task_does_not_exist_for_anybody_else() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (mine, other) = (owner("mine"), owner("other"));
        let id = tasks.adopt(&mine, endless().0).task_id;
        let unknown = |id: &str| ErrorData::invalid_params(format!("there is no task {id:?}"), None);
        assert_eq!(tasks.get(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.update(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.cancel(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.get(&mine, "never made").unwrap_err(), unknown("never made"));
        assert_eq!((tasks.running(&mine), tasks.running(&other)), (1, 0));
        assert_eq!(tasks.get(&mine, &id).unwrap().status(), TaskStatus::Working);
    }

    #[tokio::test]
    async fn a_task_that_is_cancelled_stops_its_work_first() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (working, mut stopped) = endless();
        let of = owner("mine");
        let id = tasks.adopt(&of, working).task_id;
        tasks.cancel(&of, &id).unwrap();
        until(&tasks, &of, &id, TaskStatus::Cancelled).await;
        assert!(stopped.try_recv().is_ok());
        assert_eq!(tasks.running(&of), 0);
    }

    #[tokio::test]
    async fn work_that_panics_fails_its_task() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let of = owner("mine");
        let working = Working::start(|_| async { panic!("this panic is part of the test") });
        let id = tasks.adopt(&of, working).task_id;
        until(&tasks, &of, &id, TaskStatus::Failed).await;
    }

    #[tokio::test]
    async fn the_end_of_the_server_stops_all_work() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (working, stopped) = endless();
        tasks.adopt(&owner("mine"), working);
        tasks.shut_down();
        tokio::time::timeout(Duration::from_secs(30), stopped).await.unwrap().unwrap();
    }
}
