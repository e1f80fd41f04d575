//! Files that outlive their runs, as the host keeps them: one directory for each conversation.

use std::fmt;

use async_trait::async_trait;
use sandbox::{ByteSize, Files, GuestPath, Limits, Result};

use super::names::{Directory, FileName, Links, Located};

/// All conversations of one server. What a caller reads in errors names no path of the host.
#[async_trait]
pub trait Conversations: fmt::Debug + Send + Sync {
    /// One of them, for nobody else until it is dropped: whoever comes later waits. `limits` bound what it holds.
    async fn open(&self, conversation: &[u8], limits: Limits) -> Result<Box<dyn Conversation>>;

    /// A file that is not larger than this.
    async fn read(&self, located: &Located, at_most: u64) -> Result<Vec<u8>>;

    fn links(&self) -> &Links;
}

/// The files of one conversation, held alone.
#[async_trait]
pub trait Conversation: Send + Sync {
    fn directory(&self) -> &Directory;

    /// Those at the top, by name. No directories.
    async fn files(&self) -> Result<Vec<FileName>>;

    /// What all of them take of the memory of a sandbox that they are lent to.
    async fn memory(&self) -> Result<ByteSize>;

    /// In one step, in place of what has the name.
    async fn put(&mut self, name: &FileName, contents: Vec<u8>) -> Result<()>;

    /// All of them go into a sandbox. Links that lead out of them and special files stay behind.
    async fn lend(&mut self, files: &dyn Files, to: &GuestPath) -> Result<()>;

    /// What is new or changed there since they were lent comes back, and what is gone goes. A copy that fails leaves what
    /// was there before, or what it has copied whole.
    async fn take_back(&mut self, files: &dyn Files, from: &GuestPath) -> Result<()>;
}
