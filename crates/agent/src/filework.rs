//! Files as the domain speaks of them and as process 1 does: one conversion, for every engine.

use std::io;

use sandbox::{DirectoryEntry, Error, ErrorKind, FileKind, FileStat, GuestPath, Listing, Result};

use crate::errno;
use crate::messages::{FileFailure, Kind, Stat};

pub fn refused(failure: FileFailure, path: &GuestPath) -> Error {
    let invalid = |what: &str| Error::invalid_input(format!("{path} {what}"));
    match failure {
        FileFailure::NotRegular => invalid("is not a regular file"),
        FileFailure::IsDirectory => invalid("is a directory"),
        FileFailure::NotDirectory => invalid("is not a directory"),
        FileFailure::BadArchive => {
            Error::invalid_input("the archive is damaged, or has entries that lead outside or are not files")
        }
        FileFailure::System(number) => system_failure(number, path).with_cause(io::Error::from_raw_os_error(number)),
    }
}

/// The number of an error in the sandbox, about a path there.
pub fn system_failure(number: i32, path: &GuestPath) -> Error {
    match number {
        errno::ENOENT => Error::not_found(format!("there is no {path} in the sandbox")),
        errno::EEXIST => Error::new(ErrorKind::AlreadyExists, format!("{path} exists already")),
        errno::EACCES | errno::EPERM => {
            Error::new(ErrorKind::Denied, format!("{path} is closed to the sandbox's user"))
        }
        errno::EROFS | errno::EXDEV => {
            Error::new(ErrorKind::Denied, format!("{path} is in a read-only part of the sandbox"))
                .with_hint("write below /workspace, /tmp or /home/sandbox")
        }
        errno::ENOSPC | errno::EDQUOT => Error::limit_exceeded("the sandbox's disk is full")
            .with_hint("delete files, or create a sandbox with more disk and memory"),
        errno::ENOTDIR => Error::invalid_input(format!("a part of {path} is not a directory")),
        errno::EISDIR => Error::invalid_input(format!("{path} is a directory")),
        errno::EINVAL => Error::invalid_input(format!("{path} cannot be used like this")),
        errno::ENOTEMPTY => Error::invalid_input(format!("{path} is not empty")),
        errno::ELOOP => Error::invalid_input(format!("{path} leads through too many links")),
        errno::ENAMETOOLONG => Error::invalid_input(format!("{path} is too long")),
        errno::EBUSY => Error::new(ErrorKind::Denied, format!("{path} is part of the sandbox itself")),
        errno::ENOMEM => Error::limit_exceeded("the sandbox's memory is used up"),
        _ => Error::internal(format!("{path} could not be worked on")),
    }
}

/// The worker was killed, or there was no room for it.
pub fn no_worker(path: &GuestPath) -> Error {
    Error::limit_exceeded(format!("the sandbox could not work on {path}"))
        .with_hint("it may be out of processes or memory; end some of its programs")
}

pub fn stat(stat: &Stat) -> FileStat {
    FileStat {
        kind: match stat.kind {
            Kind::Regular => FileKind::Regular,
            Kind::Directory => FileKind::Directory,
            Kind::Link => FileKind::Link,
            Kind::Other => FileKind::Other,
        },
        bytes: stat.bytes,
        mode: stat.mode,
        modified_ns: nanoseconds(stat.modified_seconds, stat.modified_nanoseconds),
        changed_ns: nanoseconds(stat.changed_seconds, stat.changed_nanoseconds),
    }
}

fn nanoseconds(seconds: i64, rest: u32) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

/// Entries as they come. The worker stops at the number that it was given; process 1 is not trusted to.
pub fn add_entries(listing: &mut Listing, most: usize, entries: Vec<(Vec<u8>, Stat)>) -> Result<()> {
    for (path, found) in entries {
        if listing.entries.len() < most {
            let path = GuestPath::resolve(&GuestPath::root(), &path)?;
            listing.entries.push(DirectoryEntry { path, stat: stat(&found) });
        }
    }
    Ok(())
}
