//! News of a call while it goes on, at a pace that a client can read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tools::{Progress, Silent};

/// Between two notifications; what comes meanwhile goes with the next.
const PACE: Duration = Duration::from_millis(100);

/// Of text in one notification. The whole output is in the result; this is for somebody who watches.
const MOST: usize = 4 * 1024;

/// Sends what a call reports, for as long as the call goes on.
pub struct Reporter {
    news: Arc<News>,
    over: CancellationToken,
    sender: JoinHandle<()>,
}

/// What was reported and not yet sent.
#[derive(Default)]
struct News {
    text: Mutex<String>,
    arrived: Notify,
}

impl Reporter {
    /// Nobody is told anything who did not ask for it.
    pub fn start(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        let news = Arc::<News>::default();
        let over = context.ct.child_token();
        let sender = tokio::spawn(send(news.clone(), context.peer.clone(), token, over.clone()));
        Some(Self { news, over, sender })
    }

    pub fn progress(reporter: Option<&Self>) -> Arc<dyn Progress> {
        match reporter {
            Some(reporter) => reporter.news.clone(),
            None => Arc::new(Silent),
        }
    }

    /// After this nothing more is sent: the answer must be the last that a client hears of a call.
    pub async fn finish(reporter: Option<Self>) {
        if let Some(Self { over, sender, .. }) = reporter {
            over.cancel();
            let _ = sender.await;
        }
    }
}

async fn send(news: Arc<News>, peer: Peer<RoleServer>, token: ProgressToken, over: CancellationToken) {
    let mut sent = 0.0;
    loop {
        tokio::select! {
            () = over.cancelled() => return,
            () = news.arrived.notified() => {}
        }
        let text = news.take();
        if text.is_empty() {
            continue;
        }
        sent += 1.0;
        let notification = ProgressNotificationParam::new(token.clone(), sent).with_message(text);
        // Returns when it has its place before everything that is said later.
        if peer.notify_progress(notification).await.is_err() {
            return;
        }
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(PACE) => {}
        }
    }
}

impl Progress for News {
    fn is_wanted(&self) -> bool {
        true
    }

    fn report(&self, message: &str) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(message);
        keep_end(&mut text);
        self.arrived.notify_one();
    }
}

impl News {
    fn take(&self) -> String {
        std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Who watches wants the newest.
fn keep_end(text: &mut String) {
    const CUT: &str = "…\n";
    if text.len() > MOST {
        let begin = text.len() - (MOST - CUT.len());
        let begin = (begin..text.len()).find(|index| text.is_char_boundary(*index)).unwrap_or(text.len());
        text.replace_range(..begin, CUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_yet_sent_is_joined_and_bounded() {
        let news = News::default();
        news.report("one");
        news.report("two");
        assert_eq!(news.take(), "one\ntwo");
        for number in 0..10_000 {
            news.report(&format!("line ä {number}"));
        }
        let text = news.take();
        assert!(text.len() <= MOST && text.starts_with("…\n") && text.ends_with("line ä 9999"), "{text}");
        assert_eq!(news.take(), "");
    }
}
