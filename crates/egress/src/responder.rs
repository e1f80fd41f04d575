//! Answers the questions of one sandbox for names.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandbox::{Denial, Host, HostName};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::activity::Activity;
use crate::dial::Dialer;
use crate::dns::{self, Question, Verdict};
use crate::far::Asked;
use crate::inspect::Unreached;
use crate::names::Names;

/// Names that are being looked for at the same time. A question beyond is not heard; whoever asked asks again.
const MOST_AT_ONCE: usize = 64;

/// Questions in one turn, and how long a turn takes at least. A flood fills the socket's buffer and costs us nothing.
const QUESTIONS_PER_TURN: usize = 100;
const TURN: Duration = Duration::from_millis(100);

/// A question is one name of 253 bytes at most; what is longer is none of ours.
const MOST_BYTES: usize = 4096;

pub(crate) struct Responder {
    pub questions: Questions,
    pub dialer: Dialer,
    pub names: Arc<Mutex<Names>>,
    pub activity: Arc<Activity>,
}

impl Responder {
    /// Until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let this = self;
        let room = Arc::new(Semaphore::new(MOST_AT_ONCE));
        let mut searches = JoinSet::new();
        let mut packet = vec![0; MOST_BYTES];
        loop {
            let turn = Instant::now();
            for _ in 0..QUESTIONS_PER_TURN {
                while searches.try_join_next().is_some() {}
                let Ok((length, from)) = this.questions.next(&mut packet).await else { continue };
                match dns::decide(&packet[..length], |host| this.dialer.names(host)) {
                    Verdict::Drop => {}
                    Verdict::Reply(reply) => this.send(&reply, from).await,
                    Verdict::Refuse(name, reply) => {
                        this.activity.refuse(&Host::Name(name), None, Denial::HostNotAllowed);
                        this.send(&reply, from).await;
                    }
                    Verdict::Find(name, question) => {
                        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
                        let this = Arc::clone(&this);
                        searches.spawn(async move {
                            if let Some(reply) = this.find(name, &question).await {
                                this.send(&reply, from).await;
                            }
                            drop(permit);
                        });
                    }
                }
            }
            tokio::time::sleep_until(turn + TURN).await;
        }
    }

    async fn find(&self, name: HostName, question: &Question) -> Option<Vec<u8>> {
        let host = Host::Name(name.clone());
        match self.dialer.leads_somewhere(&host).await {
            Ok(()) => question.found(self.names.lock().unwrap_or_else(PoisonError::into_inner).give(&name)),
            Err(Unreached::Refused(denial)) => {
                self.activity.refuse(&host, None, denial);
                question.no_such_name()
            }
            Err(Unreached::NoSuchName) => question.no_such_name(),
            Err(Unreached::NameServers | Unreached::Connect(_)) => question.no_answer(),
        }
    }

    async fn send(&self, reply: &[u8], to: Asker) {
        // Whoever asked may be gone.
        match (&self.questions, to) {
            (Questions::Near(socket), Asker::Near(to)) => drop(socket.send_to(reply, to).await),
            (Questions::Near(_) | Questions::Far(_), Asker::Far(to)) => drop(to.send(reply.to_vec())),
            (Questions::Far(_), Asker::Near(_)) => {}
        }
    }
}

/// Where questions of a sandbox come from.
pub(crate) enum Questions {
    /// A socket in its network, which this process holds.
    Near(UdpSocket),
    Far(tokio::sync::Mutex<mpsc::Receiver<Asked>>),
}

enum Asker {
    Near(SocketAddr),
    Far(oneshot::Sender<Vec<u8>>),
}

impl Questions {
    async fn next(&self, packet: &mut [u8]) -> io::Result<(usize, Asker)> {
        match self {
            Self::Near(socket) => socket.recv_from(packet).await.map(|(length, from)| (length, Asker::Near(from))),
            Self::Far(questions) => match questions.lock().await.recv().await {
                Some(Asked { packet: asked, reply }) => {
                    // What is longer than a question can be is cut off, as a socket does.
                    let length = asked.len().min(packet.len());
                    packet[..length].copy_from_slice(&asked[..length]);
                    Ok((length, Asker::Far(reply)))
                }
                // Nobody asks any more, and those who have asked are still answered.
                None => std::future::pending().await,
            },
        }
    }
}
