//! File operations of the fake.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use super::archive;
use super::sandbox::{FakeSandbox, Reach, gone};
use super::tree::{LastLink, Node};
use crate::engine::{Files, ReadFile, WriteFile};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteRange, FileStat, ListOptions, Listing, Overwrite, WriteOptions};
use crate::path::GuestPath;

pub(super) struct FakeFiles {
    pub reach: Reach,
}

#[async_trait]
impl Files for FakeFiles {
    async fn stat(&self, path: &GuestPath) -> Result<FileStat> {
        let sandbox = self.reach.sandbox()?;
        let tree = sandbox.tree.lock().unwrap();
        tree.find(path, LastLink::Keep).map(Node::stat)
    }

    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        self.reach.sandbox()?.tree.lock().unwrap().list(path, options)
    }

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile> {
        let (stat, bytes) = self.reach.sandbox()?.tree.lock().unwrap().read(path)?;
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX).min(bytes.len());
        let rest = &bytes[start..];
        let length = range.length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        let part = rest[..length.min(rest.len())].to_vec();
        Ok(ReadFile { stat, stream: Box::new(io::Cursor::new(part)) })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let sandbox = self.reach.sandbox()?;
        {
            let mut tree = sandbox.tree_of(sandbox.user());
            if options.parents
                && let Some(parent) = path.parent()
            {
                tree.make_directories(&parent)?;
            }
            let names = tree.resolve(path, LastLink::Follow)?;
            tree.check_writable(&names, path)?;
            match tree.get(&names) {
                None => {}
                Some(Node::File { .. }) if options.overwrite == Overwrite::Replace => {}
                Some(Node::File { .. }) => return Err(exists(path)),
                Some(Node::Directory { .. } | Node::Link { .. } | Node::Fifo { .. }) => {
                    return Err(Error::invalid_input(format!("{path} is not a regular file")));
                }
            }
            if tree.get(&names[..names.len() - 1]).is_none() {
                return Err(Error::not_found(format!("there is no directory for {path} in the sandbox")));
            }
        }
        Ok(Box::new(Incoming {
            sandbox,
            path: path.clone(),
            bytes: Vec::new(),
            full: false,
            target: Target::File(options),
        }))
    }

    async fn make_directory(&self, path: &GuestPath) -> Result<()> {
        let sandbox = self.reach.sandbox()?;
        sandbox.tree_of(sandbox.user()).make_directories(path)
    }

    async fn remove(&self, path: &GuestPath) -> Result<()> {
        let sandbox = self.reach.sandbox()?;
        let mut tree = sandbox.tree_of(sandbox.user());
        let names = tree.resolve(path, LastLink::Keep)?;
        tree.remove(&names, path).map(drop)
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()> {
        let sandbox = self.reach.sandbox()?;
        let mut tree = sandbox.tree_of(sandbox.user());
        let source = tree.resolve(from, LastLink::Keep)?;
        let target = tree.resolve(to, LastLink::Keep)?;
        if let Some(Node::Directory { .. }) = tree.get(&target) {
            return Err(exists(to));
        }
        if target.starts_with(&source) && target != source {
            return Err(Error::invalid_input(format!("{to} is inside of {from}")));
        }
        tree.check_writable(&target, to)?;
        if tree.get(&target[..target.len() - 1]).is_none() {
            return Err(Error::not_found(format!("there is no directory for {to} in the sandbox")));
        }
        let node = tree.remove(&source, from)?;
        tree.insert(&target, node, to)
    }

    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let sandbox = self.reach.sandbox()?;
        let tree = sandbox.tree.lock().unwrap();
        let node = tree.find(path, LastLink::Follow)?;
        let bytes = archive::pack(path.file_name().unwrap_or(b"."), node)?;
        Ok(Box::new(io::Cursor::new(bytes)))
    }

    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        let sandbox = self.reach.sandbox()?;
        sandbox.tree_of(sandbox.user()).make_directories(path)?;
        Ok(Box::new(Incoming { sandbox, path: path.clone(), bytes: Vec::new(), full: false, target: Target::Archive }))
    }
}

fn exists(path: &GuestPath) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("{path} exists"))
}

enum Target {
    File(WriteOptions),
    Archive,
}

/// Bytes on their way in. They are in nobody's tree before `commit`.
struct Incoming {
    sandbox: Arc<FakeSandbox>,
    path: GuestPath,
    bytes: Vec<u8>,
    full: bool,
    target: Target,
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let limit = self.sandbox.tree.lock().unwrap().disk_limit();
        if (self.bytes.len() + bytes.len()) as u64 > limit {
            self.full = true;
            return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
        }
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
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
        if self.sandbox.is_gone() {
            return Err(gone());
        }
        if self.full {
            return Err(Error::limit_exceeded("the sandbox's disk is full"));
        }
        let mut tree = self.sandbox.tree_of(self.sandbox.user());
        let options = match self.target {
            Target::Archive => return archive::unpack(&mut tree, &self.path, &self.bytes),
            Target::File(options) => options,
        };
        let names = tree.resolve(&self.path, LastLink::Follow)?;
        if tree.get(&names).is_some() && options.overwrite == Overwrite::Refuse {
            return Err(exists(&self.path));
        }
        tree.insert(&names, Node::file(self.bytes, options.mode), &self.path)
    }
}
