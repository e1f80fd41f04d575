//! The build context: files of a sandbox, out of its saved layers, as a directory on the host.
//!
//! ```text
//! Dockerfile
//! files/1/workspace/…    plain files of the sandbox's user, for COPY
//! files/1.tar            what only an archive can say (links, directories by themselves, other owners, odd names), for ADD
//! code/2.py              code that was run
//! ```
//!
//! Nothing in it is a link, and every name in it is ordinary text, whatever was in the sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use images::confined::{Directory, Missing, Name};
use images::difference::{Facts, Kind, Origin, Tree, ancestors, pick};
use images::{Error, ImageLayer, Result, Store};
use rustix::fs::{Mode, Timespec, Timestamps};
use sandbox::GuestPath;
use tokio_util::sync::CancellationToken;

/// Where the files of a sandbox are: the layers that it has of its own, and what is in them.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub store: &'a Store,
    pub layers: &'a [ImageLayer],
    pub tree: &'a Tree,
    /// Whom its programs run as.
    pub user: (u64, u64),
}

/// How the files of one step are put in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// From which directory of the context to which of the image.
    pub copies: BTreeSet<(String, String)>,
    pub archive: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    Plain { root: String },
    Archive,
}

/// Writes the files of each step, under the step's number, to a directory that is ours alone.
pub fn write(
    source: Source<'_>,
    steps: &BTreeMap<usize, BTreeSet<GuestPath>>,
    context: &Path,
    cancel: &CancellationToken,
) -> Result<BTreeMap<usize, Placed>> {
    let mut writing =
        Writing { context: Directory::open(context).map_err(writing_error())?, source, archives: BTreeMap::new() };
    let origins: BTreeMap<&[u8], &Origin> =
        source.tree.entries().map(|(path, _, origin)| (&path[..], origin)).collect();
    let mut placed = BTreeMap::new();
    let mut contents: BTreeMap<&Origin, Vec<(usize, GuestPath, How)>> = BTreeMap::new();
    for (number, paths) in steps {
        let mut place = Placed::default();
        for (path, how) in ways(source, paths) {
            let Some(facts) = source.tree.get(inner(&path)) else { continue };
            match &how {
                How::Plain { root } => _ = place.copies.insert((format!("files/{number}{root}/"), format!("{root}/"))),
                How::Archive => place.archive = Some(format!("files/{number}.tar")),
            }
            match &facts.kind {
                Kind::Directory => writing.directory(*number, &path, facts)?,
                Kind::Link(target) => writing.link(*number, &path, facts, target)?,
                Kind::File(_) => {
                    let origin = *origins.get(inner(&path)).expect("what has facts has an origin");
                    contents.entry(origin).or_default().push((*number, path, how));
                }
                Kind::Special => {}
            }
        }
        placed.insert(*number, place);
    }
    // A file that goes to several places is read as often.
    while !contents.is_empty() {
        let wanted: BTreeSet<Origin> = contents.keys().map(|origin| (*origin).clone()).collect();
        pick(source.store, source.layers, &wanted, cancel, &mut |origin, reader, size| {
            let Some((number, path, how)) = contents.get_mut(origin).and_then(Vec::pop) else { return Ok(()) };
            let facts = source.tree.get(inner(&path)).expect("it was there a moment ago");
            writing.file(number, &path, facts, &how, reader, size)
        })?;
        contents.retain(|_, places| !places.is_empty());
    }
    writing.finish()?;
    Ok(placed)
}

/// Code that was run, as a file of the context.
pub fn write_code(context: &Path, name: &str, code: &[u8]) -> Result<()> {
    let top = Directory::open(context).map_err(writing_error())?;
    let directory = top.descend([constant("code")], Missing::Create).map_err(writing_error())?;
    let mut file = directory.create_file(constant(name), 0o644).map_err(writing_error())?;
    io::Write::write_all(&mut file, code).map_err(writing_error())
}

/// How each path is put in place, from above. An archive has the directories on the way too, as far as they are the
/// sandbox's own: whose they are depends on the builder otherwise.
fn ways(source: Source<'_>, paths: &BTreeSet<GuestPath>) -> BTreeMap<GuestPath, How> {
    let mut ways = BTreeMap::new();
    for path in paths {
        let Some(facts) = source.tree.get(inner(path)) else { continue };
        let how = how(source, path, facts);
        let mut above = path.parent().filter(|_| how == How::Archive);
        while let Some(directory) = above.filter(|directory| !directory.is_root()) {
            above = directory.parent();
            if source.tree.get(inner(&directory)).is_some() {
                ways.entry(directory).or_insert(How::Archive);
            }
        }
        ways.insert(path.clone(), how);
    }
    ways
}

/// Plain are files of the sandbox's user, below a directory that is the user's too: to copy one changes nothing else, whatever
/// a builder does with the directories on the way. A directory that is there already keeps its rights when one is copied over
/// it, and what keeps contexts may lose an empty one.
fn how(source: Source<'_>, path: &GuestPath, facts: &Facts) -> How {
    let is_own = |facts: &Facts| (facts.user, facts.group) == source.user;
    let is_readable = match facts.kind {
        Kind::File(_) => facts.mode & 0o400 != 0,
        Kind::Directory | Kind::Link(_) | Kind::Special => return How::Archive,
    };
    let is_text = std::str::from_utf8(path.as_bytes()).is_ok_and(|text| !text.chars().any(char::is_control));
    let own_directory = |one: &&[u8]| {
        let found = source.tree.get(one);
        !one.is_empty() && found.is_some_and(|found| found.kind == Kind::Directory && is_own(found))
    };
    // The highest one.
    let root = ancestors(inner(path)).filter(own_directory).last();
    match root {
        Some(root) if is_own(facts) && is_readable && is_text && is_ordinary(root) => {
            How::Plain { root: format!("/{}", String::from_utf8_lossy(root)) }
        }
        Some(_) | None => How::Archive,
    }
}

/// Whether it can stand in a COPY as it is.
fn is_ordinary(path: &[u8]) -> bool {
    path.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-'))
}

struct Writing<'a> {
    context: Directory,
    source: Source<'a>,
    archives: BTreeMap<usize, tar::Builder<File>>,
}

impl Writing<'_> {
    fn directory(&mut self, number: usize, path: &GuestPath, facts: &Facts) -> Result<()> {
        let mut header = header(facts, tar::EntryType::Directory);
        let name = [inner(path), b"/"].concat();
        self.archive(number)?.append_data(&mut header, as_path(&name), io::empty()).map_err(writing_error())
    }

    fn link(&mut self, number: usize, path: &GuestPath, facts: &Facts, target: &[u8]) -> Result<()> {
        let mut header = header(facts, tar::EntryType::Symlink);
        header.set_mode(0o777);
        let archive = self.archive(number)?;
        archive.append_link(&mut header, as_path(inner(path)), as_path(target)).map_err(writing_error())
    }

    fn file(
        &mut self,
        number: usize,
        path: &GuestPath,
        facts: &Facts,
        how: &How,
        mut reader: &mut dyn Read,
        size: u64,
    ) -> Result<()> {
        match how {
            How::Plain { .. } => {
                let parent = path.parent().unwrap_or_else(GuestPath::root);
                let directory = self.plain_directory(number, inner(&parent))?;
                let name = path.file_name().and_then(Name::new).expect("a file of a layer has a name");
                let mut file = directory.create_file(name, 0o600).map_err(writing_error())?;
                io::copy(&mut reader, &mut file).map_err(writing_error())?;
                let mode = Mode::from_raw_mode(facts.mode & 0o777);
                rustix::fs::fchmod(&file, mode).map_err(|error| writing_error()(error.into()))?;
                let time = Timespec { tv_sec: i64::try_from(facts.modified).unwrap_or(0), tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::futimens(&file, &times).map_err(|error| writing_error()(error.into()))
            }
            How::Archive => {
                let mut header = header(facts, tar::EntryType::Regular);
                header.set_size(size);
                let archive = self.archive(number)?;
                archive.append_data(&mut header, as_path(inner(path)), reader).map_err(writing_error())
            }
        }
    }

    /// Made with its parents, each with the rights that it has in the sandbox.
    fn plain_directory(&self, number: usize, path: &[u8]) -> Result<Directory> {
        let number = number.to_string();
        let mut directory =
            self.context.descend([constant("files"), constant(&number)], Missing::Create).map_err(writing_error())?;
        let mut end = 0;
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            end += part.len() + usize::from(end > 0);
            let name = Name::new(part).expect("a path of a layer is made of names");
            directory = directory.descend([name], Missing::Create).map_err(writing_error())?;
            let mode = self.source.tree.get(&path[..end]).map_or(0o755, |facts| facts.mode);
            directory.set_mode(mode & 0o777 | 0o700).map_err(writing_error())?;
        }
        Ok(directory)
    }

    fn archive(&mut self, number: usize) -> Result<&mut tar::Builder<File>> {
        if !self.archives.contains_key(&number) {
            let directory = self.context.descend([constant("files")], Missing::Create).map_err(writing_error())?;
            let name = format!("{number}.tar");
            let file = directory.create_file(constant(&name), 0o644).map_err(writing_error())?;
            self.archives.insert(number, tar::Builder::new(file));
        }
        Ok(self.archives.get_mut(&number).expect("it was made just now"))
    }

    fn finish(self) -> Result<()> {
        for archive in self.archives.into_values() {
            archive.into_inner().map_err(writing_error())?;
        }
        Ok(())
    }
}

fn header(facts: &Facts, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(facts.mode);
    header.set_uid(facts.user);
    header.set_gid(facts.group);
    header.set_mtime(facts.modified);
    header.set_size(0);
    header
}

/// As layers have it: without the slash in front.
pub fn inner(path: &GuestPath) -> &[u8] {
    path.as_bytes().strip_prefix(b"/").unwrap_or_default()
}

fn constant(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("names in a context are made of constants and numbers")
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn writing_error() -> impl FnOnce(io::Error) -> Error {
    Error::io("writing the build context")
}
