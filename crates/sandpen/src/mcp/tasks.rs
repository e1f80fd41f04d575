//! The Tasks extension: a run that takes long is answered with a task that the client asks about later.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// Of one owner, for a client to fetch the result. The oldest makes room.
const MOST_FINISHED: usize = 32;

/// Of all results of one owner together, as they are sent. The newest is kept in any case.
const MOST_FINISHED_BYTES: usize = 32 << 20;

/// A result is kept for so long.
const KEEP_FINISHED: Duration = Duration::from_secs(600);

const POLL_MS: u64 = 500;

/// The tasks, and whose they are: to everybody else they do not exist.
pub struct Tasks {
    table: Table,
    /// Beyond the longest run, so that no task ends before its run does.
    keep: Duration,
}

type Table = Arc<Mutex<HashMap<String, Held>>>;

struct Held {
    owner: Owner,
    /// One for each task, because the library's manager can forget all of its tasks but not one of them.
    manager: TaskManager,
    begun: Instant,
    finished: Option<Finished>,
}

#[derive(Clone, Copy)]
struct Finished {
    at: Instant,
    bytes: usize,
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
        Self { table: Table::default(), keep: longest_run + KEEP_FINISHED }
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
            () = tokio::time::sleep(GRACE) => match self.adopt(owner, working) {
                Ok(task) => {
                    quieten.await;
                    return Ok(CallToolResponse::Task(CreateTaskResult::new(task)));
                }
                Err(too_many) => {
                    working = too_many;
                    tokio::select! {
                        result = working.finished() => Some(result),
                        () = context.ct.cancelled() => None,
                    }
                }
            },
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
        let (manager, kept_for) = self.find(owner, id, |held| (held.manager.clone(), held.kept_for()))?;
        let mut task = manager.get_task(id)?;
        if kept_for.is_some() {
            task.task.ttl_ms = kept_for.map(milliseconds);
        }
        Ok(task)
    }

    /// No task of ours asks for anything, so that answers have nowhere to go; that the task exists is all there is to say.
    pub fn update(&self, owner: &Owner, id: &str) -> Result<(), ErrorData> {
        self.find(owner, id, |held| held.manager.clone())?.update_task(id, [])
    }

    pub fn cancel(&self, owner: &Owner, id: &str) -> Result<(), ErrorData> {
        self.find(owner, id, |held| held.manager.clone())?.cancel_task(id)
    }

    /// Lets go of all of them.
    pub fn shut_down(&self) {
        let table = std::mem::take(&mut *lock(&self.table));
        table.into_values().for_each(|held| held.manager.shutdown());
    }

    /// Gives the work back if the owner has too many tasks.
    fn adopt(&self, owner: &Owner, working: Working) -> Result<Task, Working> {
        let mut table = lock(&self.table);
        if running(&table, owner) >= MOST_RUNNING {
            return Err(working);
        }
        let options = TaskOptions::new().with_ttl_ms(milliseconds(self.keep)).with_poll_interval_ms(POLL_MS);
        let manager = TaskManager::new();
        let shared = self.table.clone();
        let task = manager.spawn(options, |context| Box::pin(carry_on(context, working, shared)));
        let held = Held { owner: owner.clone(), manager, begun: Instant::now(), finished: None };
        table.insert(task.task_id.clone(), held);
        Ok(task)
    }

    fn find<T>(&self, owner: &Owner, id: &str, part: impl FnOnce(&Held) -> T) -> Result<T, ErrorData> {
        let mut table = lock(&self.table);
        forget_old(&mut table, owner);
        match table.get(id) {
            Some(held) if held.owner == *owner => Ok(part(held)),
            Some(_) | None => Err(ErrorData::invalid_params(format!("there is no task {id:?}"), None)),
        }
    }
}

impl Held {
    /// From its beginning, once that is known.
    fn kept_for(&self) -> Option<Duration> {
        self.finished.map(|finished| finished.at.duration_since(self.begun) + KEEP_FINISHED)
    }
}

fn lock(table: &Table) -> MutexGuard<'_, HashMap<String, Held>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn running(table: &HashMap<String, Held>, owner: &Owner) -> usize {
    table.values().filter(|held| held.owner == *owner && held.finished.is_none()).count()
}

fn forget_old(table: &mut HashMap<String, Held>, owner: &Owner) {
    let own = table.iter().filter(|(_, held)| held.owner == *owner);
    let mut finished: Vec<_> = own.filter_map(|(id, held)| Some((held.finished?, id.clone()))).collect();
    finished.sort_by_key(|(finished, _)| std::cmp::Reverse(finished.at));
    let mut bytes = 0_usize;
    for (newer, (finished, id)) in finished.into_iter().enumerate() {
        bytes = bytes.saturating_add(finished.bytes);
        let too_many = newer > 0 && (newer >= MOST_FINISHED || bytes > MOST_FINISHED_BYTES);
        if too_many || finished.at.elapsed() > KEEP_FINISHED {
            table.remove(&id);
        }
    }
}

/// Says that a task is over however it ends, also when the library lets go of it.
struct Finishing {
    table: Table,
    id: String,
    bytes: usize,
}

impl Drop for Finishing {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        let Some(held) = table.get_mut(&self.id) else { return };
        held.finished = Some(Finished { at: Instant::now(), bytes: self.bytes });
        let owner = held.owner.clone();
        forget_old(&mut table, &owner);
    }
}

async fn carry_on(context: TaskContext, mut working: Working, table: Table) -> Result<CallToolResult, TaskExit> {
    let mut finishing = Finishing { table, id: context.task_id().to_owned(), bytes: 0 };
    tokio::select! {
        result = working.finished() => {
            finishing.bytes = result.as_ref().map_or(0, |result| serde_json::to_vec(result).map_or(0, |text| text.len()));
            result.map_err(TaskExit::Error)
        }
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

    fn count(tasks: &Tasks, of: &Owner) -> usize {
        running(&lock(&tasks.table), of)
    }

    async fn finished(tasks: &Tasks, of: &Owner, bytes: usize) -> String {
        let result = CallToolResult::success(vec![ContentBlock::text("x".repeat(bytes))]);
        let id = tasks.adopt(of, Working::start(|_| async { Ok(result) })).ok().unwrap().task_id;
        until(tasks, of, &id, TaskStatus::Completed).await;
        id
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
        let id = tasks.adopt(&mine, endless().0).ok().unwrap().task_id;
        let unknown = |id: &str| ErrorData::invalid_params(format!("there is no task {id:?}"), None);
        assert_eq!(tasks.get(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.update(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.cancel(&other, &id).unwrap_err(), unknown(&id));
        assert_eq!(tasks.get(&mine, "never made").unwrap_err(), unknown("never made"));
        assert_eq!((count(&tasks, &mine), count(&tasks, &other)), (1, 0));
        assert_eq!(tasks.get(&mine, &id).unwrap().status(), TaskStatus::Working);
    }

    #[tokio::test]
    async fn a_task_that_is_cancelled_stops_its_work_first() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (working, mut stopped) = endless();
        let of = owner("mine");
        let id = tasks.adopt(&of, working).ok().unwrap().task_id;
        tasks.cancel(&of, &id).unwrap();
        until(&tasks, &of, &id, TaskStatus::Cancelled).await;
        assert!(stopped.try_recv().is_ok());
        assert_eq!(count(&tasks, &of), 0);
    }

    #[tokio::test]
    async fn work_that_panics_fails_its_task() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let of = owner("mine");
        let working = Working::start(|_| async { panic!("this panic is part of the test") });
        let id = tasks.adopt(&of, working).ok().unwrap().task_id;
        until(&tasks, &of, &id, TaskStatus::Failed).await;
    }

    #[tokio::test]
    async fn the_end_of_the_server_stops_all_work() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (working, stopped) = endless();
        assert!(tasks.adopt(&owner("mine"), working).is_ok());
        tasks.shut_down();
        tokio::time::timeout(Duration::from_secs(30), stopped).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_results_is_forgotten() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let (mine, other) = (owner("mine"), owner("other"));
        let others = finished(&tasks, &other, 1).await;
        let mut ids = Vec::new();
        for _ in 0..=MOST_FINISHED {
            ids.push(finished(&tasks, &mine, 1).await);
        }
        assert!(tasks.get(&mine, &ids[0]).is_err());
        assert!(ids[1..].iter().all(|id| tasks.get(&mine, id).is_ok()));
        assert!(tasks.get(&other, &others).is_ok());
    }

    #[tokio::test]
    async fn results_that_are_too_large_together_are_forgotten() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let of = owner("mine");
        let first = finished(&tasks, &of, MOST_FINISHED_BYTES / 2).await;
        assert!(tasks.get(&of, &first).is_ok());
        let second = finished(&tasks, &of, MOST_FINISHED_BYTES / 2).await;
        assert!(tasks.get(&of, &first).is_err());
        assert!(tasks.get(&of, &second).is_ok());
    }

    #[tokio::test]
    async fn one_task_too_many_is_given_back() {
        let tasks = Tasks::new(Duration::from_secs(60));
        let of = owner("mine");
        for _ in 0..MOST_RUNNING {
            assert!(tasks.adopt(&of, endless().0).is_ok());
        }
        assert!(tasks.adopt(&of, endless().0).is_err());
        assert!(tasks.adopt(&owner("other"), endless().0).is_ok());
    }
}
