//! Files in a sandbox as the service and its engines speak of them.

use crate::path::GuestPath;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Directory,
    Link,
    /// A FIFO, socket or device: listed, never opened.
    Other,
}

/// What a path names, links not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub kind: FileKind,
    pub bytes: u64,
    /// Permission bits only; set-id bits are never shown nor taken.
    pub mode: u32,
    /// Nanoseconds since 1970.
    pub modified_ns: i128,
    /// When contents, name or rights last changed, in the same count. Unlike the modification time a program cannot set
    /// it. Engines that cannot tell answer with `modified_ns`.
    pub changed_ns: i128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub path: GuestPath,
    pub stat: FileStat,
}

/// A listing that ends early says so instead of growing without bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<DirectoryEntry>,
    pub truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOptions {
    pub recursive: bool,
    pub max_entries: usize,
}

/// Part of a file: `length` of `None` means to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    pub offset: u64,
    pub length: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits of a new file; set-id bits are dropped.
    pub mode: u32,
    /// Make missing parent directories.
    pub parents: bool,
    pub overwrite: Overwrite,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: 0o644, parents: true, overwrite: Overwrite::Replace }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    Replace,
    Refuse,
}
