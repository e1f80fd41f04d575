//! The one thread on which all doors of a process are served.

use std::io;
use std::sync::Once;
use std::thread::JoinHandle;

use sandbox::system;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Ends when it is dropped, and everything that runs on it.
#[derive(Debug)]
pub(crate) struct Worker {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn start() -> io::Result<Self> {
        allow_descriptors();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("sandpen-egress".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection needs two descriptors, and many systems begin with 1,024 although a process may have more.
fn allow_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        system::allow_descriptors();
    });
}
