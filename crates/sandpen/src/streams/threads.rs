//! Our own stdin, stdout and stderr, each served by a thread: not every system can wait for all that these may be.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Stderr, Stdin, Stdout};
use tokio::sync::Mutex;

/// One of our three streams.
#[derive(Debug)]
pub struct OurStream(Mutex<Stream>);

#[derive(Debug)]
enum Stream {
    In(Stdin),
    Out(Stdout),
    Err(Stderr),
}

impl OurStream {
    pub fn stdin() -> io::Result<Self> {
        Ok(Self(Mutex::new(Stream::In(tokio::io::stdin()))))
    }

    pub fn stdout() -> io::Result<Self> {
        Ok(Self(Mutex::new(Stream::Out(tokio::io::stdout()))))
    }

    pub fn stderr() -> io::Result<Self> {
        Ok(Self(Mutex::new(Stream::Err(tokio::io::stderr()))))
    }

    /// Zero bytes are the end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut *self.0.lock().await {
            Stream::In(stream) => stream.read(buffer).await,
            Stream::Out(_) | Stream::Err(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// They are out when it returns: a process that ends does not wait for its threads.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.0.lock().await {
            Stream::In(_) => Err(io::ErrorKind::Unsupported.into()),
            Stream::Out(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
            Stream::Err(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }
}
