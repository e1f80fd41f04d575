//! Commands that were begun before anybody asked for them: what a spare is expected to start first runs in it already, as
//! its user and behind all of its walls, and waits for its script.
//!
//! It has run nobody's code and knows nothing of whoever will get it. It serves the first request that would have started
//! the very same command; whatever else comes first ends it.

use std::sync::Arc;
use std::time::Duration;

use agent::execs::{message, not_started};
use sandbox::{Environment, ExecRequest, Expected, GuestPath, Prelude, Process, Result, Script};

use crate::channel::Channel;
use crate::live::Live;
use crate::process::{self, Begun, Watch};
use crate::wire::{EndCause, Exec, FromExec, ToExec};

/// Ending one takes milliseconds; a machine under the heaviest load has done it by then.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// What is begun in a spare. Part of what tells two spares apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Ahead {
    argv: Vec<String>,
    script: GuestPath,
    environment: Environment,
    prelude: Option<Prelude>,
}

impl Ahead {
    /// `environment` is what commands of such a sandbox get, but for what a network adds to it.
    pub fn new(expected: &Expected, directory: &GuestPath, environment: Environment) -> Result<Self> {
        let script = directory.join(expected.script.as_bytes())?;
        let argv = expected.argv.iter().cloned().chain([script.to_string_lossy().into_owned()]).collect();
        let environment = environment.overlaid_by(&expected.environment);
        Ok(Self { argv, script, environment, prelude: expected.prelude.clone() })
    }

    /// Whether it has more in memory than its own start.
    pub fn has_modules(&self) -> bool {
        self.prelude.as_ref().is_some_and(|prelude| prelude.is_heavy)
    }

    /// Begin it in a sandbox that is nobody's.
    pub async fn begin(&self, live: &Live) -> Result<Waiting> {
        let mut request = ExecRequest::new(self.argv.clone(), Duration::ZERO)?;
        request.script = Script::new(&self.script, b"");
        request.prelude.clone_from(&self.prelude);
        let directory = live.description.work_directory.clone();
        let exec = Exec { ahead: true, ..message(&request, self.environment.clone(), &directory) };
        let begun = process::begin(live, &request, exec.clone()).await?;
        Ok(Waiting { exec, begun })
    }
}

/// A command that waits for its script.
#[derive(Debug)]
pub struct Waiting {
    exec: Exec,
    begun: Begun,
}

impl Waiting {
    /// Whether this is what the request would start. Its script comes later, and its time begins later.
    fn serves(&self, asked: &Exec) -> bool {
        let place = |exec: &Exec| exec.script.as_ref().map(|(path, _)| path.clone());
        let (script, timeout_milliseconds) = (asked.script.clone(), asked.timeout_milliseconds);
        let same = Exec { script, timeout_milliseconds, ahead: false, ..self.exec.clone() };
        place(&self.exec) == place(asked) && same == *asked
    }

    /// It says nothing before it gets its script, but that it has ended.
    pub fn has_ended(&self) -> bool {
        self.begun.channel.has_news()
    }

    /// End it, and wait until nothing of it is left.
    async fn dismiss(self, live: &Live) {
        let channel = &self.begun.channel;
        let ending = async {
            // One that has ended takes no messages, and has said so.
            let _ = channel.send(&ToExec::Kill, &[]).await;
            while let Ok(Some((message, _))) = channel.receive::<FromExec>().await {
                if let FromExec::Ended(end) | FromExec::Leaving(end) = message {
                    // What has ended by itself, before it had a script, has left nothing behind.
                    return end.tree_empty || end.cause == EndCause::Itself;
                }
            }
            false
        };
        if !matches!(tokio::time::timeout(END_PATIENCE, ending).await, Ok(true)) {
            tracing::warn!(sandbox = %live.id(), "a command that was begun ahead would not end; ending the sandbox");
            live.kill();
        }
    }
}

/// End what was begun ahead, before anything else happens in the sandbox.
pub async fn dismiss(live: &Live) {
    if let Some(waiting) = live.take_waiting() {
        waiting.dismiss(live).await;
    }
}

/// Have what was begun ahead serve a request. `None` when there is no such thing, and then nothing of it is left.
pub async fn go(live: &Arc<Live>, request: &ExecRequest) -> Result<Option<Process>> {
    let Some(waiting) = live.take_waiting() else { return Ok(None) };
    let mut asked = message(request, live.description.environment.clone(), live.work_directory(request));
    if !waiting.serves(&asked) || waiting.has_ended() {
        waiting.dismiss(live).await;
        return Ok(None);
    }
    let timeout_milliseconds = asked.timeout_milliseconds;
    let script = asked.script.take().map(|(_, contents)| contents).unwrap_or_default();
    let order = ToExec::Go { script, timeout_milliseconds };
    let watch = Watch::begin(live);
    match process::in_time(live, answer(&waiting.begun.channel, &order)).await? {
        Some(FromExec::Started) => waiting.begun.watched(live.clone(), watch).map(Some),
        Some(FromExec::NotStarted { stage, errno }) => {
            Err(not_started(stage, errno, live.work_directory(request), request))
        }
        // It had ended before it could have its script, and so without running it.
        Some(FromExec::Ended(_) | FromExec::Leaving(_)) | None => Ok(None),
    }
}

/// What one that waits answers to an order. `None` when it could not even be told.
async fn answer(channel: &Channel, order: &ToExec) -> Option<FromExec> {
    // It may have ended since it was looked at. Then it takes no orders, but has said so.
    let told = channel.send(order, &[]).await;
    match channel.receive().await {
        Ok(Some((answer, _))) => Some(answer),
        // Whoever saw to it is gone after it was told. How that ended is heard by whoever waits.
        Ok(None) | Err(_) => told.is_ok().then_some(FromExec::Started),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::channel::has_news;
    use crate::wire::{self, ExecEnd};

    fn go() -> ToExec {
        ToExec::Go { script: b"print(1)".to_vec(), timeout_milliseconds: 1000 }
    }

    fn ended() -> FromExec {
        FromExec::Ended(ExecEnd {
            status: 0,
            cause: EndCause::Itself,
            wall_microseconds: 0,
            cpu_microseconds: 0,
            peak_memory: 0,
            tree_empty: false,
            memory_ran_out: false,
        })
    }

    #[tokio::test]
    async fn one_that_ends_while_it_is_told_is_heard() {
        // Gone before the order.
        let (ours, theirs) = Channel::pair().unwrap();
        wire::send(theirs.as_fd(), &ended(), &[]).unwrap();
        drop(theirs);
        assert!(matches!(answer(&ours, &go()).await, Some(FromExec::Ended(_))));

        // Gone with the order unread.
        let (ours, theirs) = Channel::pair().unwrap();
        let dying = async {
            while !has_news(&theirs) {
                tokio::task::yield_now().await;
            }
            wire::send(theirs.as_fd(), &ended(), &[]).unwrap();
            drop(theirs);
        };
        let order = go();
        let (heard, ()) = tokio::join!(answer(&ours, &order), dying);
        assert!(matches!(heard, Some(FromExec::Ended(_))));

        // Gone without a word.
        let (ours, theirs) = Channel::pair().unwrap();
        drop(theirs);
        assert!(answer(&ours, &go()).await.is_none());
    }
}
