//! Lines that a run prints, told while it goes on.

use std::sync::Arc;

use sandbox::JobStream;
use sandbox::service::{Job, JobFollower};

use crate::call::{Call, Progress};

/// A line that is longer is told in pieces.
const MOST: usize = 4 * 1024;

/// Follows a job for as long as somebody listens.
pub struct News {
    follower: Option<JobFollower>,
    progress: Arc<dyn Progress>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl News {
    pub fn of(call: &Call, job: &Job) -> Self {
        let follower = call.progress.is_wanted().then(|| job.follow());
        Self { follower, progress: Arc::clone(&call.progress), stdout: Vec::new(), stderr: Vec::new() }
    }

    /// The next piece of news; never returns when there is none to come.
    pub async fn told(&mut self) {
        let Some(follower) = &mut self.follower else { return std::future::pending().await };
        match follower.next().await {
            Some(chunk) => {
                let begun = match chunk.stream {
                    JobStream::Stdout => &mut self.stdout,
                    JobStream::Stderr => &mut self.stderr,
                };
                if chunk.skipped > 0 {
                    begun.clear();
                    self.progress.report(&format!("[… {} bytes left out …]", chunk.skipped));
                }
                begun.extend(chunk.bytes);
                for lines in complete_lines(begun) {
                    self.progress.report(&lines);
                }
            }
            None => {
                self.follower = None;
                for rest in [std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr)] {
                    if !rest.is_empty() {
                        self.progress.report(&String::from_utf8_lossy(&rest));
                    }
                }
            }
        }
    }
}

/// Takes whole lines off the front, many at a time, and what no line break will come for.
fn complete_lines(begun: &mut Vec<u8>) -> Vec<String> {
    let end = match begun.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        None if begun.len() >= MOST => begun.len(),
        None => 0,
    };
    let lines: Vec<u8> = begun.drain(..end).collect();
    lines.chunks(MOST).map(|piece| String::from_utf8_lossy(piece).trim_end_matches('\n').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_whole_and_the_rest_waits() {
        let mut begun = b"one\ntwo\nthr".to_vec();
        assert_eq!(complete_lines(&mut begun), ["one\ntwo"]);
        assert_eq!(begun, b"thr");
        assert!(complete_lines(&mut begun).is_empty());
        begun.extend(vec![b'x'; MOST]);
        let told = complete_lines(&mut begun);
        assert!(told.len() == 2 && begun.is_empty() && told.concat().starts_with("thrx"));
    }
}
