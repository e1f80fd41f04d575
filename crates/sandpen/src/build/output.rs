//! What a `RUN` writes: shown as it comes, and its end kept for when it fails.

use std::time::Duration;

use sandbox::{CappedOutput, ExecOutcome, Execution, OutputCaps, Result};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

use super::{News, Watcher};

/// How long output is read after the command has ended: a daemon that it left behind may hold its pipe open for ever.
const AFTER_END: Duration = Duration::from_millis(500);

/// Of what the command wrote to each stream.
const KEPT: OutputCaps = OutputCaps { head: 16 * 1024, tail: 16 * 1024 };

/// Of a line that becomes part of a message.
const LONGEST_LINE: usize = 200;

#[derive(Debug)]
pub struct Ended {
    pub outcome: ExecOutcome,
    stdout: CappedOutput,
    stderr: CappedOutput,
}

impl Ended {
    /// What it said last, unable to drive a terminal. Which stream was the last nobody can tell; complaints are on stderr.
    pub fn last_line(&self) -> Option<String> {
        last_line(&self.stderr.bytes()).or_else(|| last_line(&self.stdout.bytes()))
    }

    /// Whether it said that it misses a network.
    pub fn missed_network(&self) -> bool {
        tools::network::is_missed_in(&self.stderr.bytes())
    }
}

pub async fn follow(execution: Execution, watcher: &dyn Watcher) -> Result<Ended> {
    let Execution { stdin, mut stdout, mut stderr, control } = execution;
    drop(stdin);
    let (mut out, mut err) = (vec![0; 32 * 1024], vec![0; 32 * 1024]);
    let (mut out_open, mut err_open) = (true, true);
    let (mut out_kept, mut err_kept) = (CappedOutput::new(KEPT), CappedOutput::new(KEPT));
    let mut end: Option<(ExecOutcome, Instant)> = None;
    loop {
        let deadline = end.as_ref().map(|(_, deadline)| *deadline);
        if let Some((outcome, _)) = &end
            && !out_open
            && !err_open
        {
            return Ok(Ended { outcome: outcome.clone(), stdout: out_kept, stderr: err_kept });
        }
        tokio::select! {
            count = read(&mut stdout, &mut out), if out_open => {
                out_open = count > 0;
                out_kept.push(&out[..count]);
                watcher.news(News::Output(&out[..count]));
            }
            count = read(&mut stderr, &mut err), if err_open => {
                err_open = count > 0;
                err_kept.push(&err[..count]);
                watcher.news(News::Output(&err[..count]));
            }
            outcome = control.wait(), if end.is_none() => end = Some((outcome?, Instant::now() + AFTER_END)),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                (out_open, err_open) = (false, false);
            }
        }
    }
}

/// An error is an end too: the command's own end says what happened.
async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> usize {
    stream.read(buffer).await.unwrap_or(0)
}

fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let clean = |line: &str| -> String {
        let shown = line.trim().chars().filter(|character| !character.is_control());
        shown.take(LONGEST_LINE).collect()
    };
    text.lines().rev().map(clean).find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_fit_to_be_shown() {
        assert_eq!(last_line(b"one\ntwo \x1b[31mred\n\n  \n").as_deref(), Some("two [31mred"));
        assert_eq!(last_line(b"\n\n"), None);
        assert_eq!(last_line(&[b'x'; 5000]).unwrap().len(), LONGEST_LINE);
    }
}
