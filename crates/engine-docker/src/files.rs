//! The file tree of one sandbox: every operation looks for the sandbox first, because it may have gone or been found again.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    ByteRange, FileStat, Files, GuestPath, ListOptions, Listing, ReadFile, Result, SandboxId, WriteFile, WriteOptions,
};
use tokio::io::AsyncRead;

use crate::engine::Shared;
use crate::live::Live;

#[derive(Debug)]
pub struct DockerFiles {
    pub shared: Arc<Shared>,
    pub id: SandboxId,
}

impl DockerFiles {
    async fn of_live(&self) -> Result<(Arc<Live>, Box<dyn Files>)> {
        let live = self.shared.live(&self.id).await?;
        let files = live.connection.files();
        Ok((live, files))
    }
}

#[async_trait]
impl Files for DockerFiles {
    async fn stat(&self, path: &GuestPath) -> Result<FileStat> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.stat(path).await;
        self.shared.settled(&live, done).await
    }

    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.list(path, options).await;
        self.shared.settled(&live, done).await
    }

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.read(path, range).await;
        self.shared.settled(&live, done).await
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.write(path, options).await;
        self.shared.settled(&live, done).await
    }

    async fn make_directory(&self, path: &GuestPath) -> Result<()> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.make_directory(path).await;
        self.shared.settled(&live, done).await
    }

    async fn remove(&self, path: &GuestPath) -> Result<()> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.remove(path).await;
        self.shared.settled(&live, done).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.rename(from, to).await;
        self.shared.settled(&live, done).await
    }

    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.pack(path).await;
        self.shared.settled(&live, done).await
    }

    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        let (live, files) = self.of_live().await?;
        let _inside = self.shared.inside(&live).await?;
        let done = files.unpack(path).await;
        self.shared.settled(&live, done).await
    }
}
