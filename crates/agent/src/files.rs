//! The file tree of one sandbox, through a worker inside it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use sandbox::{
    ByteRange, Error, FileStat, Files, GuestPath, ListOptions, Listing, Overwrite, ReadFile, Result, WriteFile,
    WriteOptions,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::channel::Channel;
use crate::connection::Connection;
use crate::filework::{self, add_entries, no_worker, refused};
use crate::frame::{Part, Task};
use crate::lane::{LaneReader, LaneWriter};
use crate::messages::{FileFailure, FileOperation, FromFile, ToFile, Work};
use crate::mux::Handles;

#[derive(Debug)]
pub struct AgentFiles(Connection);

/// How long all names of one listing may be together. Each may have four thousand bytes, and a listing is held in memory.
const MOST_NAMES: usize = 64 << 20;

/// One operation under way.
struct Operation {
    connection: Connection,
    channel: Channel,
    path: GuestPath,
}

/// With the lanes that it may have.
struct Begun {
    operation: Operation,
    input: LaneWriter,
    output: LaneReader,
}

impl AgentFiles {
    pub fn new(connection: Connection) -> Self {
        Self(connection)
    }

    async fn begin(&self, path: &GuestPath, message: FileOperation, part: Part) -> Result<Begun> {
        let task = Task::Work(Work::File(message));
        let Handles { channel, input, output, errors: _ } = self.0.begin(task, part).await?;
        let operation = Operation { connection: self.0.clone(), channel, path: path.clone() };
        Ok(Begun { operation, input, output })
    }

    /// All of these directories, in the form of [`crate::stream`].
    pub async fn pack_trees(&self, places: &[GuestPath]) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let message = FileOperation::PackTrees { places: bytes_of(places) };
        let Begun { operation, output, .. } = self.begin(&GuestPath::root(), message, Part::default()).await?;
        operation.done().await?;
        Ok(Box::new(Outgoing { stream: output, operation, is_complete: false }))
    }

    /// Have these directories hold what is written, in that form, and nothing else. What they held is gone from the first
    /// moment on.
    pub async fn replace_trees(&self, places: &[GuestPath]) -> Result<Box<dyn WriteFile>> {
        self.incoming(&GuestPath::root(), FileOperation::ReplaceTrees { places: bytes_of(places) }).await
    }

    async fn do_only(&self, path: &GuestPath, message: FileOperation) -> Result<()> {
        self.begin(path, message, Part::default()).await?.operation.done().await
    }

    async fn incoming(&self, path: &GuestPath, message: FileOperation) -> Result<Box<dyn WriteFile>> {
        let Begun { operation, input, .. } = self.begin(path, message, Part::default()).await?;
        operation.done().await?;
        Ok(Box::new(Incoming { stream: input, operation, failure: None }))
    }
}

fn bytes_of(places: &[GuestPath]) -> Vec<Vec<u8>> {
    places.iter().map(|place| place.as_bytes().to_vec()).collect()
}

impl Operation {
    async fn answer(&self) -> Result<FromFile> {
        match self.connection.unless_silent(self.channel.receive()).await? {
            Ok(Some(FromFile::Failed(failure))) => Err(refused(failure, &self.path)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => Err(self.connection.lost().unwrap_or_else(|| no_worker(&self.path))),
        }
    }

    async fn done(&self) -> Result<()> {
        match self.answer().await? {
            FromFile::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, answer: &FromFile) -> Error {
        Error::internal("the sandbox gave an answer that does not fit").with_cause(format!("{}: {answer:?}", self.path))
    }
}

#[async_trait]
impl Files for AgentFiles {
    async fn stat(&self, path: &GuestPath) -> Result<FileStat> {
        let message = FileOperation::Stat { path: path.as_bytes().to_vec() };
        let Begun { operation, .. } = self.begin(path, message, Part::default()).await?;
        match operation.answer().await? {
            FromFile::Stat(stat) => Ok(filework::stat(&stat)),
            other => Err(operation.unexpected(&other)),
        }
    }

    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        let message = FileOperation::List {
            path: path.as_bytes().to_vec(),
            recursive: options.recursive,
            max_entries: options.max_entries as u64,
        };
        let Begun { operation, .. } = self.begin(path, message, Part::default()).await?;
        let mut listing = Listing::default();
        let mut names = 0;
        loop {
            match operation.answer().await? {
                FromFile::Entries(entries) => {
                    names += entries.iter().map(|(path, _)| path.len()).sum::<usize>();
                    if names > MOST_NAMES {
                        return Err(Error::limit_exceeded(format!(
                            "the names of what is in {path} are too long to be listed"
                        ))
                        .with_hint("list directories in it one by one"));
                    }
                    add_entries(&mut listing, options.max_entries, entries)?;
                }
                FromFile::ListEnd { truncated } => {
                    listing.truncated = truncated;
                    return Ok(listing);
                }
                other => return Err(operation.unexpected(&other)),
            }
        }
    }

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile> {
        if range.offset > i64::MAX as u64 {
            return Err(Error::invalid_input(format!("{path} has no such part")));
        }
        let part = Part { offset: range.offset, length: range.length };
        let message = FileOperation::Read { path: path.as_bytes().to_vec() };
        let Begun { operation, output, .. } = self.begin(path, message, part).await?;
        match operation.answer().await? {
            FromFile::Opened(stat) => Ok(ReadFile { stat: filework::stat(&stat), stream: Box::new(output) }),
            other => Err(operation.unexpected(&other)),
        }
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let message = FileOperation::Write {
            path: path.as_bytes().to_vec(),
            mode: options.mode,
            parents: options.parents,
            replace: options.overwrite == Overwrite::Replace,
        };
        self.incoming(path, message).await
    }

    async fn make_directory(&self, path: &GuestPath) -> Result<()> {
        self.do_only(path, FileOperation::MakeDirectory { path: path.as_bytes().to_vec() }).await
    }

    async fn remove(&self, path: &GuestPath) -> Result<()> {
        self.do_only(path, FileOperation::Remove { path: path.as_bytes().to_vec() }).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()> {
        let message = FileOperation::Rename { from: from.as_bytes().to_vec(), to: to.as_bytes().to_vec() };
        self.do_only(from, message).await
    }

    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let message = FileOperation::Pack { path: path.as_bytes().to_vec() };
        let Begun { operation, output, .. } = self.begin(path, message, Part::default()).await?;
        operation.done().await?;
        Ok(Box::new(Outgoing { stream: output, operation, is_complete: false }))
    }

    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        self.incoming(path, FileOperation::Unpack { path: path.as_bytes().to_vec() }).await
    }
}

/// Bytes into the sandbox.
struct Incoming {
    stream: LaneWriter,
    operation: Operation,
    /// Why the worker gave up, once that is known.
    failure: Option<FileFailure>,
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            // The worker has given up, and has said why before it closed the pipe.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                if let Some(FromFile::Failed(failure)) = self.operation.channel.try_receive() {
                    self.failure = Some(failure);
                }
                Poll::Ready(Err(self
                    .failure
                    .map_or(error, |failure| io::Error::other(refused(failure, &self.operation.path)))))
            }
            other => other,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl WriteFile for Incoming {
    async fn commit(self: Box<Self>) -> Result<()> {
        let Self { stream, operation, failure } = *self;
        drop(stream);
        if let Some(failure) = failure {
            return Err(refused(failure, &operation.path));
        }
        // A worker that has given up does not take it, and its reason is read below.
        let _ = operation.channel.send(&ToFile::Commit).await;
        operation.done().await
    }
}

/// A tar stream out of the sandbox. Its end counts only when the worker says that all was sent.
struct Outgoing {
    stream: LaneReader,
    operation: Operation,
    is_complete: bool,
}

impl AsyncRead for Outgoing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let at_end = matches!(polled, Poll::Ready(Ok(()))) && buffer.filled().len() == before && buffer.remaining() > 0;
        if !at_end || self.is_complete {
            return polled;
        }
        match self.operation.channel.try_receive() {
            Some(FromFile::Done) => {
                self.is_complete = true;
                polled
            }
            Some(FromFile::Failed(failure)) => {
                Poll::Ready(Err(io::Error::other(refused(failure, &self.operation.path))))
            }
            _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}
