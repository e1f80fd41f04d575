//! Files between this machine and a sandbox, for `cp`, `--input` and `--output`.
//!
//! What comes out of a sandbox is the work of code that nobody trusts: see [`host_tree`] for what it cannot do here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use sandbox::{
    AskedPath, ByteRange, ByteSize, Error, ErrorKind, FileKind, Files, GuestPath, Limits, ReadFile, Result,
    WriteOptions,
};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio_util::io::SyncIoBridge;

use self::host_tree::{HostTree, NewFile};
use self::links::Links;
use self::revocable::Waiting;
use crate::output::reason;

#[cfg_attr(windows, path = "transfer/windows/host_tree.rs")]
pub mod host_tree;
pub mod kept;
#[cfg_attr(windows, path = "transfer/windows/links.rs")]
mod links;
#[cfg_attr(windows, path = "transfer/windows/names.rs")]
pub mod names;
#[cfg_attr(windows, path = "transfer/windows/pack.rs")]
mod pack;
#[cfg(unix)]
#[cfg_attr(not(target_os = "linux"), path = "transfer/resolve/walk.rs")]
mod resolve;
mod revocable;
#[cfg_attr(windows, path = "transfer/windows/roots.rs")]
pub mod roots;
#[cfg_attr(windows, path = "transfer/windows/source.rs")]
mod source;
mod unpack;
#[cfg(all(test, target_os = "linux"))]
#[path = "transfer/resolve/walk.rs"]
mod walk;

/// What was copied; links and special files that could not be are counted, never hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
    pub skipped: u64,
}

/// How much may come out of one sandbox.
///
/// A sparse file claims any size it likes, so the bound is what the sandbox may really hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    bytes: u64,
    entries: u64,
}

impl From<Limits> for Bounds {
    fn from(limits: Limits) -> Self {
        Self { bytes: limits.disk.bytes(), entries: limits.inodes }
    }
}

impl Bounds {
    /// When so much is there already.
    fn less(self, bytes: u64) -> Self {
        Self { bytes: self.bytes.saturating_sub(bytes), ..self }
    }

    fn check(&self, copied: &Copied, next_bytes: u64) -> Result<()> {
        let entries = copied.files + copied.directories + copied.links;
        if copied.bytes.saturating_add(next_bytes) <= self.bytes && entries <= self.entries {
            return Ok(());
        }
        Err(Error::limit_exceeded(format!(
            "that is more than the {} and {} files that this sandbox may write",
            ByteSize::new(self.bytes),
            self.entries
        ))
        .with_hint("copy smaller parts of it, or make the sandbox with a larger --disk"))
    }
}

/// A file or directory of this machine, opened: from here on it is that one, whatever its name comes to mean.
#[derive(Debug)]
pub struct HostSource {
    file: File,
    /// For messages, and for its last name.
    path: PathBuf,
}

impl HostSource {
    /// What the person named; links in that name are theirs and are followed.
    pub fn open(path: &Path) -> Result<Self> {
        let file = source::open(path).map_err(|cause| host_error(path, &cause))?;
        Ok(Self { file, path: path.to_owned() })
    }
}

/// Where on this machine a copy goes: a directory that is open, and the name in it.
#[derive(Debug)]
pub struct HostTarget {
    above: HostTree,
    name: OsString,
    links: Links,
}

impl HostTarget {
    /// What the person named: into it if it is a directory, under its name otherwise.
    fn open(to: &Path, from: &GuestPath, kind: FileKind) -> Result<Self> {
        let (above, name) = if to.is_dir() {
            (HostTree::open_existing(to)?, own_name(from)?)
        } else {
            let name = to
                .file_name()
                .ok_or_else(|| Error::invalid_input(format!("{} is not the name of a file", to.display())))?;
            let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let above = match kind {
                FileKind::Directory => HostTree::open(parent)?,
                FileKind::Regular | FileKind::Link | FileKind::Other => HostTree::open_existing(parent)?,
            };
            (above, name.to_owned())
        };
        Ok(Self { above, name, links: Links::AsTheyAre })
    }
}

fn own_name(path: &GuestPath) -> Result<OsString> {
    let name = path.file_name().ok_or_else(|| Error::invalid_input("the root directory has no name of its own"))?;
    names::here(name)
}

/// A file or directory of this machine into a sandbox, as `cp -r` does it: into `to` if that is a directory.
pub async fn copy_in(files: &dyn Files, from: &Path, to: &GuestPath) -> Result<Copied> {
    send(files, HostSource::open(from)?, to).await
}

async fn send(files: &dyn Files, from: HostSource, to: &GuestPath) -> Result<Copied> {
    let to = match files.stat(to).await {
        Ok(stat) if stat.kind == FileKind::Directory => to.join(names::inside(&last_name(&from.path)?)?)?,
        Ok(_) => to.clone(),
        Err(error) if error.kind() == ErrorKind::NotFound => to.clone(),
        Err(error) => return Err(error),
    };
    send_as(files, from, &to).await
}

/// To exactly this path.
async fn send_as(files: &dyn Files, from: HostSource, to: &GuestPath) -> Result<Copied> {
    let metadata = from.file.metadata().map_err(|cause| host_error(&from.path, &cause))?;
    if metadata.is_dir() {
        files.make_directory(to).await?;
        return send_below(files, from, to, Links::AsTheyAre).await;
    }
    let HostSource { file, path } = from;
    if !metadata.is_file() {
        return Err(Error::invalid_input(format!("{} is neither a file nor a directory", path.display())));
    }
    let options = WriteOptions { mode: source::mode(&metadata), ..WriteOptions::default() };
    let mut writer = files.write(to, options).await?;
    let bytes = pour(&mut file.into(), &mut writer, &path, to).await?;
    writer.commit().await?;
    Ok(Copied { files: 1, bytes, ..Copied::default() })
}

/// What is in a directory, into one that is there.
async fn send_below(files: &dyn Files, from: HostSource, to: &GuestPath, links: Links) -> Result<Copied> {
    let writer = files.unpack(to).await?;
    let waiting = Waiting::default();
    let (copied, writer) = blocking({
        let stream = waiting.stream(SyncIoBridge::new(writer));
        move || pack::pack(&from, stream, links).map(|(copied, stream)| (copied, stream.into_inner().into_inner()))
    })
    .await?;
    writer.commit().await?;
    Ok(copied)
}

/// A file or directory of a sandbox to this machine: into `to` if that is a directory.
pub async fn copy_out(files: &dyn Files, from: &GuestPath, to: &Path, bounds: Bounds) -> Result<Copied> {
    let kind = files.stat(from).await?.kind;
    fetch(files, from, kind, HostTarget::open(to, from, kind)?, bounds).await
}

async fn fetch(files: &dyn Files, from: &GuestPath, kind: FileKind, to: HostTarget, bounds: Bounds) -> Result<Copied> {
    match kind {
        FileKind::Directory => {
            let HostTarget { above, name, links } = to;
            let waiting = Waiting::default();
            let stream = waiting.stream(SyncIoBridge::new(files.pack(from).await?));
            blocking(move || unpack::unpack(stream, &above.below(&name)?, bounds, links)).await
        }
        FileKind::Regular | FileKind::Link => {
            let source = files.read(from, ByteRange::default()).await?;
            fetch_file(source, from, to, bounds).await
        }
        FileKind::Other => Err(Error::invalid_input(format!("{from} is neither a file nor a directory"))),
    }
}

async fn fetch_file(mut source: ReadFile, from: &GuestPath, to: HostTarget, bounds: Bounds) -> Result<Copied> {
    bounds.check(&Copied::default(), source.stat.bytes)?;
    let mut new = to.above.new_file(&[] as &[&OsStr], &to.name)?;
    // What it grows by meanwhile is not part of the copy: a program could make it grow without end.
    source.stream = Box::new(source.stream.take(source.stat.bytes));
    let bytes = receive(&mut source, &mut new, from).await?;
    new.commit(source.stat.mode)?;
    Ok(Copied { files: 1, bytes, ..Copied::default() })
}

async fn pour(
    from: &mut tokio::fs::File,
    to: &mut Box<dyn sandbox::WriteFile>,
    source: &Path,
    target: &GuestPath,
) -> Result<u64> {
    use tokio::io::AsyncWriteExt;
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        let count = from.read(&mut buffer).await.map_err(|cause| host_error(source, &cause))?;
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count]).await.map_err(|cause| guest_error(target, &cause))?;
        total += count as u64;
    }
    to.flush().await.map_err(|cause| guest_error(target, &cause))?;
    Ok(total)
}

async fn receive(from: &mut ReadFile, to: &mut NewFile, source: &GuestPath) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        let count = from.stream.read(&mut buffer).await.map_err(|cause| guest_error(source, &cause))?;
        if count == 0 {
            return Ok(total);
        }
        to.write_all(&buffer[..count])?;
        total += count as u64;
    }
}

const COPY_BYTES: usize = 256 * 1024;

/// Work on files of this machine, on a thread where nobody waits for it who did not ask.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|cause| Error::internal("the copy was torn down").with_cause(cause))?
}

fn last_name(path: &Path) -> Result<OsString> {
    let named = if path.file_name().is_some() { Ok(path.to_owned()) } else { path.canonicalize() };
    named
        .ok()
        .and_then(|path| path.file_name().map(OsStr::to_owned))
        .ok_or_else(|| Error::invalid_input(format!("{} has no name of its own", path.display())))
}

fn host_error(path: &Path, cause: &std::io::Error) -> Error {
    let message = format!("{}: {}", path.display(), reason(cause));
    match cause.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(message),
        std::io::ErrorKind::PermissionDenied => Error::new(ErrorKind::Denied, message),
        _ => Error::unavailable(message),
    }
}

fn guest_error(path: &GuestPath, cause: &std::io::Error) -> Error {
    Error::unavailable(format!("{path} in the sandbox: {}", reason(cause)))
}

/// `ID:PATH` names a file in a sandbox, everything else one of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Host(PathBuf),
    Sandbox { sandbox: String, path: AskedPath },
}

impl Place {
    /// A `/` before the colon makes it a path, so `./a:b` is how a file with a colon is named.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let Some((sandbox, path)) = names::split(text) else {
            return Ok(Self::Host(text.into()));
        };
        let sandbox = match sandbox.to_str() {
            Some(sandbox) if !sandbox.is_empty() && !sandbox.contains('/') => sandbox.to_owned(),
            Some(_) | None => return Ok(Self::Host(text.into())),
        };
        let path = if path.is_empty() { OsStr::new(".") } else { path };
        Ok(Self::Sandbox { sandbox, path: asked(path)? })
    }
}

/// `HOST[:GUEST]`, the file keeping its name in the work directory unless told otherwise.
pub fn parse_input(text: &OsStr) -> Result<(PathBuf, AskedPath)> {
    if !Path::new(text).exists()
        && let Some((host, path)) = names::split_last(text)
    {
        return Ok((host.into(), asked(path)?));
    }
    let host = PathBuf::from(text);
    let name = last_name(&host)?;
    Ok((host, asked(&name)?))
}

/// `GUEST[:HOST]`, into the current directory unless told otherwise.
pub fn parse_output(text: &OsStr) -> Result<(AskedPath, PathBuf)> {
    match names::split(text) {
        Some((path, host)) if !host.is_empty() => Ok((asked(path)?, host.into())),
        Some((path, _)) => Ok((asked(path)?, ".".into())),
        None => Ok((asked(text)?, ".".into())),
    }
}

fn asked(path: &OsStr) -> Result<AskedPath> {
    AskedPath::new(names::inside(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> AskedPath {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_told_apart_by_the_colon() {
        let parse = |text: &str| Place::parse(text.as_ref()).unwrap();
        let inside = |sandbox: &str, path| Place::Sandbox { sandbox: sandbox.into(), path: asked(path) };
        assert_eq!(parse("data.csv"), Place::Host("data.csv".into()));
        assert_eq!(parse("./a:b"), Place::Host("./a:b".into()));
        assert_eq!(parse("lab:data.csv"), inside("lab", "data.csv"));
        assert_eq!(parse("lab:/etc/passwd"), inside("lab", "/etc/passwd"));
        assert_eq!(parse("lab:"), inside("lab", "."));
        assert!(Place::parse("lab:../x".as_ref()).is_err());
    }

    #[test]
    fn inputs_and_outputs_keep_their_names() {
        assert_eq!(parse_input("a/b.csv".as_ref()).unwrap(), ("a/b.csv".into(), asked("b.csv")));
        assert_eq!(parse_input("a/b.csv:c/d".as_ref()).unwrap(), ("a/b.csv".into(), asked("c/d")));
        assert_eq!(parse_output("plot.png".as_ref()).unwrap(), (asked("plot.png"), ".".into()));
        assert_eq!(parse_output("/tmp/x:y".as_ref()).unwrap(), (asked("/tmp/x"), "y".into()));
    }
}
