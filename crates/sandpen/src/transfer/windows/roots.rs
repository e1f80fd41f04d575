//! The places of this machine that a model may copy from and to. On Windows none can be opened: a path cannot be resolved
//! there in one step below a directory and through no link, and a sandbox could plant one.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use sandbox::{Error, Files, GuestPath, Limits, Result};
use tools::{Copied, HostEntry, HostFiles};

/// What an operator would write; there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedPath {}

impl FromStr for OpenedPath {
    type Err = Error;

    fn from_str(_: &str) -> Result<Self> {
        Err(Error::unsupported("directories of this machine cannot be opened to sandboxes on Windows")
            .with_hint("copy by sandpen cp, or give files to the tools"))
    }
}

impl fmt::Display for OpenedPath {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

#[derive(Debug)]
pub enum Roots {}

impl Roots {
    pub fn open(paths: &[OpenedPath]) -> Result<Self> {
        match paths.first() {
            Some(path) => match *path {},
            None => Err(Error::internal("no place was opened")),
        }
    }
}

#[async_trait]
impl HostFiles for Roots {
    async fn copy_in(&self, _: &str, _: &dyn Files, _: &GuestPath) -> Result<Copied> {
        match *self {}
    }

    async fn copy_out(&self, _: &dyn Files, _: &GuestPath, _: &str, _: Limits) -> Result<Copied> {
        match *self {}
    }

    fn open(&self, _: &str) -> Result<Box<dyn HostEntry>> {
        match *self {}
    }

    async fn copy_file_out(&self, _: &dyn Files, _: &GuestPath, _: &str, _: Limits) -> Result<Copied> {
        match *self {}
    }
}
