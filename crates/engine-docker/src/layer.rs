//! What is different between the trees of a sandbox and those of its image, as an archive that a daemon puts over the image:
//! new and changed entries, and a mark for each that is gone. Pure: streams in, a stream out.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Builder, Entry, EntryType, Header};

use crate::plain_archive::is_left;
use crate::record::User;

/// How layers say that something of the layers below is gone. A file of a sandbox that is called so is left out.
const WHITEOUT: &str = ".wh.";

/// A file that is larger is written again without a look at what it was: it would have to be held in memory meanwhile.
const LARGEST_COMPARED: u64 = 32 << 20;

/// The place that is everybody's, as archives name it.
const EVERYBODYS: &str = "tmp";

/// Entries of an image that are remembered until all of the sandbox has come, and how long their names may be together.
const MOST_KNOWN: usize = 250_000;
const MOST_NAMES: usize = 64 << 20;

/// For the header and the padding of an entry.
const ENTRY_BYTES: u64 = 512;

/// What the image has, by path.
#[derive(Debug, Default)]
pub struct Known {
    entries: BTreeMap<PathBuf, What>,
    /// How long their names are together.
    names: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Directory {
        mode: u32,
    },
    File {
        mode: u32,
        bytes: u64,
        digest: [u8; 32],
    },
    Link {
        target: PathBuf,
    },
    /// Nothing that a sandbox can have, or somebody else's.
    Other,
}

/// What becomes of the places themselves, which the image may have too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tops {
    /// Whose they are, and their modes, is for those who mount them to say.
    #[default]
    Kept,
    /// They become the user's, but for the one that is everybody's.
    Written,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub bytes: u64,
    pub left_out: u64,
}

impl Known {
    /// Add a tree of the image, whose names begin below `parent`. Where it matters whose they are, entries of others are
    /// known by their names alone.
    pub fn read(&mut self, parent: &Path, archive: impl Read, owner: Option<User>) -> io::Result<()> {
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            if is_left(entry.header().entry_type()) {
                continue;
            }
            let path = parent.join(name(&entry)?);
            let ids = (entry.header().uid()?, entry.header().gid()?);
            let what = match what(&entry)? {
                _ if owner.is_some_and(|owner| (owner.id.into(), owner.group.into()) != ids) => What::Other,
                What::File { mode, bytes, .. } => What::File { mode, bytes, digest: digest(&mut entry)? },
                other => other,
            };
            self.names += path.as_os_str().len();
            if let What::Link { target } = &what {
                self.names += target.as_os_str().len();
            }
            if self.entries.len() == MOST_KNOWN || self.names > MOST_NAMES {
                let why = "the image has too many files where the sandbox can write";
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            self.entries.insert(path, what);
        }
        Ok(())
    }
}

/// Writes one layer.
pub struct LayerWriter<'a, W: Write> {
    archive: Builder<W>,
    known: &'a Known,
    user: User,
    tops: Tops,
    /// What the sandbox has of what the image has, and whether it is a directory. The rest is not remembered: a sandbox can
    /// have more of it, with longer names, than a server has memory.
    seen: BTreeMap<&'a Path, bool>,
    summary: Summary,
}

impl<W: Write> std::fmt::Debug for LayerWriter<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerWriter").field("summary", &self.summary).finish_non_exhaustive()
    }
}

impl<'a, W: Write> LayerWriter<'a, W> {
    /// Entries are to belong to this user.
    pub fn new(output: W, known: &'a Known, user: User) -> Self {
        let (tops, seen, summary) = (Tops::default(), BTreeMap::new(), Summary::default());
        Self { archive: Builder::new(output), known, user, tops, seen, summary }
    }

    pub fn with_tops(self, tops: Tops) -> Self {
        Self { tops, ..self }
    }

    /// Add a tree of the sandbox, whose names begin below `parent`.
    pub fn add(&mut self, parent: &Path, archive: impl Read) -> io::Result<()> {
        let mut top = true;
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            let path = parent.join(name(&entry)?);
            let is_mark = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WHITEOUT));
            let what = what(&entry)?;
            if is_mark || what == What::Other {
                self.summary.left_out += 1;
                continue;
            }
            let known = self.known;
            let before = known.entries.get_key_value(&path).map(|(name, before)| {
                self.seen.insert(name, matches!(what, What::Directory { .. }));
                before
            });
            let is_top = std::mem::take(&mut top);
            let stays = match self.tops {
                Tops::Kept => matches!(before, Some(What::Directory { .. })),
                Tops::Written => before.is_some() && path == Path::new(EVERYBODYS),
            };
            if !(is_top && stays) {
                let modified = entry.header().mtime()?;
                let before = before.filter(|_| !is_top);
                self.add_entry(&path, what, modified, before, &mut entry)?;
            }
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        path: &Path,
        what: What,
        modified: u64,
        before: Option<&What>,
        entry: &mut impl Read,
    ) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mtime(modified);
        header.set_uid(self.user.id.into());
        header.set_gid(self.user.group.into());
        header.set_size(0);
        match what {
            What::Directory { mode } => {
                if before == Some(&what) {
                    return Ok(());
                }
                header.set_entry_type(EntryType::Directory);
                header.set_mode(mode);
                self.archive.append_data(&mut header, path, io::empty())?;
            }
            What::Link { ref target } => {
                if before == Some(&what) {
                    return Ok(());
                }
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                self.archive.append_link(&mut header, path, target)?;
            }
            What::File { mode, bytes, .. } => {
                header.set_entry_type(EntryType::Regular);
                header.set_mode(mode);
                header.set_size(bytes);
                match before {
                    Some(What::File { mode: old_mode, bytes: old_bytes, digest: old })
                        if (mode, bytes) == (*old_mode, *old_bytes) && bytes <= LARGEST_COMPARED =>
                    {
                        let mut contents = Vec::new();
                        entry.read_to_end(&mut contents)?;
                        if digest(&mut contents.as_slice())? == *old {
                            return Ok(());
                        }
                        self.archive.append_data(&mut header, path, contents.as_slice())?;
                    }
                    Some(_) | None => self.archive.append_data(&mut header, path, entry)?,
                }
                self.summary.bytes += bytes;
            }
            What::Other => return Ok(()),
        }
        self.summary.bytes += ENTRY_BYTES;
        Ok(())
    }

    /// Mark what the sandbox no longer has, and end the archive.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        let gone: Vec<&PathBuf> =
            self.known.entries.keys().filter(|path| !self.seen.contains_key(path.as_path())).collect();
        for path in &gone {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            // With a directory goes all that is in it, also when something else has come in its place.
            if self.known.entries.contains_key(parent) && self.seen.get(parent) != Some(&true) {
                continue;
            }
            let mut mark = std::ffi::OsString::from(WHITEOUT);
            mark.push(name);
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o600);
            header.set_size(0);
            self.archive.append_data(&mut header, parent.join(mark), io::empty())?;
            self.summary.bytes += ENTRY_BYTES;
        }
        Ok((self.archive.into_inner()?, self.summary))
    }
}

/// The name of an entry, which must lead downwards.
fn name<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let path = entry.path()?;
    let downwards = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if path.components().next().is_none() || !path.components().all(downwards) {
        return Err(io::Error::other("a name in an archive leads elsewhere"));
    }
    Ok(path.components().collect())
}

fn what<R: Read>(entry: &Entry<'_, R>) -> io::Result<What> {
    let mode = entry.header().mode()? & 0o777;
    Ok(match entry.header().entry_type() {
        EntryType::Directory => What::Directory { mode },
        EntryType::Regular | EntryType::Continuous => What::File { mode, bytes: entry.size(), digest: [0; 32] },
        EntryType::Symlink => What::Link { target: entry.link_name()?.unwrap_or_default().into_owned() },
        _ => What::Other,
    })
}

fn digest(bytes: &mut impl Read) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` is a directory; a text that begins with `->` a link.
    fn tree(entries: &[(&str, Option<&str>)]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (path, contents) in entries {
            let mut header = Header::new_gnu();
            header.set_mode(0o755);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(0);
            match contents.map(|text| (text, text.strip_prefix("->"))) {
                None => {
                    header.set_entry_type(EntryType::Directory);
                    archive.append_data(&mut header, path, io::empty()).unwrap();
                }
                Some((_, Some(target))) => {
                    header.set_entry_type(EntryType::Symlink);
                    archive.append_link(&mut header, path, target).unwrap();
                }
                Some((text, None)) => {
                    header.set_size(text.len() as u64);
                    archive.append_data(&mut header, path, text.as_bytes()).unwrap();
                }
            }
        }
        archive.into_inner().unwrap()
    }

    fn difference(before: &[(&str, Option<&str>)], after: &[(&str, Option<&str>)]) -> (Vec<String>, Summary) {
        let mut known = Known::default();
        known.read(Path::new(""), tree(before).as_slice(), None).unwrap();
        let mut layer = LayerWriter::new(Vec::new(), &known, User::SANDBOX);
        layer.add(Path::new(""), tree(after).as_slice()).unwrap();
        let (bytes, summary) = layer.finish().unwrap();
        let mut archive = Archive::new(bytes.as_slice());
        let names = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        (names.collect(), summary)
    }

    #[test]
    fn what_is_remembered_does_not_grow_with_the_sandbox() {
        let mut known = Known::default();
        known.read(Path::new(""), tree(&[("w", None), ("w/a", Some("1"))]).as_slice(), None).unwrap();
        let mut layer = LayerWriter::new(io::sink(), &known, User::SANDBOX);
        let names: Vec<String> = (0..100).map(|number| format!("w/{number}")).collect();
        let new = names.iter().map(|name| (name.as_str(), Some("2")));
        let entries: Vec<_> = [("w", None), ("w/a", Some("1"))].into_iter().chain(new).collect();
        layer.add(Path::new(""), tree(&entries).as_slice()).unwrap();
        assert_eq!(layer.seen.len(), 2);
        assert_eq!(layer.summary.bytes, 100 * (ENTRY_BYTES + 1));
    }

    #[test]
    fn names_of_an_image_are_bounded() {
        let long = format!("w/{}", "x".repeat(200));
        let archive = tree(&[("w", None), (&long, Some("1"))]);
        let mut known = Known { names: MOST_NAMES - 100, ..Known::default() };
        let error = known.read(Path::new(""), archive.as_slice(), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn all_is_new_over_nothing() {
        let (names, summary) = difference(&[], &[("w", None), ("w/a", Some("1")), ("w/l", Some("->a"))]);
        assert_eq!(names, ["w", "w/a", "w/l"]);
        assert_eq!(summary, Summary { bytes: 3 * ENTRY_BYTES + 1, left_out: 0 });
    }

    #[test]
    fn only_what_differs_is_written() {
        let before = [("w", None), ("w/a", Some("1")), ("w/b", Some("1")), ("w/d", None), ("w/d/x", Some("x"))];
        let after = [("w", None), ("w/a", Some("1")), ("w/b", Some("2")), ("w/c", Some("3"))];
        let (names, summary) = difference(&before, &after);
        assert_eq!(names, ["w/b", "w/c", "w/.wh.d"], "with a directory goes what is in it");
        assert_eq!(summary.bytes, 3 * ENTRY_BYTES + 2);
        assert_eq!(difference(&before, &before).0, Vec::<String>::new());
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_no_loss() {
        let (names, _) =
            difference(&[("w", None), ("w/d", None), ("w/d/x", Some("x"))], &[("w", None), ("w/d", Some("f"))]);
        assert_eq!(names, ["w/d"]);
    }

    #[test]
    fn marks_that_a_program_made_mean_nothing() {
        let (names, summary) = difference(&[], &[("w", None), ("w/.wh.passwd", Some(""))]);
        assert_eq!((names, summary.left_out), (vec!["w".to_owned()], 1));
    }

    #[test]
    fn places_and_files_of_others_become_the_users() {
        let before = tree(&[("w", None), ("w/a", Some("1")), ("tmp", None)]);
        let names = |owner: Option<User>, tops: Tops| {
            let mut known = Known::default();
            known.read(Path::new(""), before.as_slice(), owner).unwrap();
            let mut layer = LayerWriter::new(Vec::new(), &known, User::SANDBOX).with_tops(tops);
            layer.add(Path::new(""), tree(&[("w", None), ("w/a", Some("1"))]).as_slice()).unwrap();
            layer.add(Path::new(""), tree(&[("tmp", None)]).as_slice()).unwrap();
            let (bytes, _) = layer.finish().unwrap();
            let mut archive = Archive::new(bytes.as_slice());
            let names = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(None, Tops::Kept), Vec::<String>::new());
        assert_eq!(names(Some(User::SANDBOX), Tops::Written), ["w", "w/a"], "the image has them as somebody else's");
        assert_eq!(names(Some(User { id: 0, group: 0 }), Tops::Written), ["w"]);
    }
}
