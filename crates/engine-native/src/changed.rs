//! What is different between a stack of layers and the same stack without its highest ones.
//!
//! Only what the highest layers mention can be different, so only that is looked at, and what they hide. Whoever made the
//! layers is not trusted: each component is opened by descriptor, and no link is followed.

use std::collections::BTreeSet;
use std::io::{self, Read};

use images::Directory;
use images::confined::{Name, is_directory, is_regular, is_symlink, is_whiteout};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

/// Deeper than any program can make use of by path.
const DEEPEST: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Without a slash at either end.
    pub path: Vec<u8>,
    pub how: How,
    pub kind: Kind,
    pub bytes: u64,
    pub changed_seconds: i64,
    pub changed_nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Added,
    Modified,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Regular,
    Directory,
    Link,
    Other,
}

/// Tell what is different when `tops` lie over `below`, both the highest first, in byte order of the paths. `tell` answers
/// whether it wants more. Directories in `made` were there from the start, whatever lies below.
pub fn compare(
    tops: Vec<Directory>,
    below: Vec<Directory>,
    made: &[Vec<u8>],
    tell: &mut dyn FnMut(Changed) -> io::Result<bool>,
) -> io::Result<()> {
    let tops = tops.into_iter().map(|directory| Part { directory, is_top: true });
    let lower = below.iter().map(|directory| Ok(Part { directory: directory.try_clone()?, is_top: false }));
    let now = tops.map(Ok).chain(lower).collect::<io::Result<Vec<_>>>()?;
    Comparison { made, tell }.directory(&mut Vec::new(), &cut(now), &below, 0).map(drop)
}

/// A directory of one layer.
struct Part {
    directory: Directory,
    is_top: bool,
}

/// What a stack shows under a name.
enum Seen {
    Nothing,
    Object { stat: Stat, parent: Directory, is_top: bool },
    Directory { stat: Stat, parts: Vec<Part> },
}

struct Comparison<'a> {
    made: &'a [Vec<u8>],
    tell: &'a mut dyn FnMut(Changed) -> io::Result<bool>,
}

impl Comparison<'_> {
    /// `false` when no more is wanted.
    fn directory(&mut self, path: &mut Vec<u8>, now: &[Part], then: &[Directory], depth: usize) -> io::Result<bool> {
        if depth > DEEPEST {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let mut names = BTreeSet::new();
        for part in now.iter().filter(|part| part.is_top) {
            names.extend(part.directory.names()?);
        }
        let hides_below = now.iter().filter(|part| !part.is_top).count() < then.len();
        for directory in then.iter().filter(|_| hides_below) {
            names.extend(directory.names()?);
        }
        // What is in a directory comes after the slash, and others may come between its name and that.
        let keys = names.iter().flat_map(|name| [name.clone(), [name, b"/".as_slice()].concat()]);
        for key in keys.collect::<BTreeSet<_>>() {
            let (bare, within) = match key.strip_suffix(b"/") {
                Some(bare) => (bare, true),
                None => (&*key, false),
            };
            let Some(name) = Name::new(bare) else { continue };
            let (after, before) = (look(now, name)?, look_below(then, name)?);
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(bare);
            let goes_on = match within {
                false => self.name(path, name, &after, &before)?,
                true => {
                    let parts = |seen: Seen| match seen {
                        Seen::Directory { parts, .. } => parts,
                        Seen::Nothing | Seen::Object { .. } => Vec::new(),
                    };
                    let (after, before) = (parts(after), parts(before));
                    let before: Vec<Directory> = before.into_iter().map(|part| part.directory).collect();
                    self.directory(path, &after, &before, depth + 1)?
                }
            };
            path.truncate(length);
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn was_made(&self, path: &[u8]) -> bool {
        self.made.iter().any(|made| made == path)
    }

    fn name(&mut self, path: &[u8], name: Name<'_>, after: &Seen, before: &Seen) -> io::Result<bool> {
        let (how, stat) = match (after, before) {
            (Seen::Nothing, Seen::Nothing) => return Ok(true),
            (Seen::Nothing, Seen::Object { stat, .. } | Seen::Directory { stat, .. }) => (How::Removed, stat),
            (Seen::Directory { .. }, Seen::Nothing) if self.was_made(path) => return Ok(true),
            (Seen::Object { stat, .. } | Seen::Directory { stat, .. }, Seen::Nothing) => (How::Added, stat),
            (Seen::Directory { stat, .. }, Seen::Directory { stat: old, .. }) => {
                if has_same_rights(stat, old) || self.was_made(path) {
                    return Ok(true);
                }
                (How::Modified, stat)
            }
            (Seen::Object { is_top: false, .. }, Seen::Object { .. }) => return Ok(true),
            (Seen::Object { stat, parent, .. }, Seen::Object { stat: old, parent: old_parent, .. }) => {
                if is_same(name, (stat, parent), (old, old_parent))? {
                    return Ok(true);
                }
                (How::Modified, stat)
            }
            (Seen::Object { stat, .. }, Seen::Directory { .. })
            | (Seen::Directory { stat, .. }, Seen::Object { .. }) => (How::Modified, stat),
        };
        let removed = how == How::Removed;
        (self.tell)(Changed {
            path: path.to_vec(),
            how,
            kind: if removed { Kind::Regular } else { kind(stat) },
            bytes: if removed || !is_regular(stat) { 0 } else { stat.st_size as u64 },
            changed_seconds: if removed { 0 } else { stat.st_ctime },
            changed_nanoseconds: if removed { 0 } else { stat.st_ctime_nsec as u32 },
        })
    }
}

/// Without what an opaque directory hides.
fn cut(parts: Vec<Part>) -> Vec<Part> {
    let mut kept = Vec::new();
    for part in parts {
        let is_opaque = part.directory.is_opaque();
        kept.push(part);
        if is_opaque {
            break;
        }
    }
    kept
}

fn look(stack: &[Part], name: Name<'_>) -> io::Result<Seen> {
    look_through(stack.iter().map(|part| (&part.directory, part.is_top)), name)
}

fn look_below(stack: &[Directory], name: Name<'_>) -> io::Result<Seen> {
    look_through(stack.iter().map(|directory| (directory, false)), name)
}

fn look_through<'a>(stack: impl Iterator<Item = (&'a Directory, bool)>, name: Name<'_>) -> io::Result<Seen> {
    let mut found: Option<(Stat, Vec<Part>)> = None;
    for (directory, is_top) in stack {
        let Some(stat) = directory.stat(name)? else { continue };
        if is_whiteout(&stat) {
            break;
        }
        if !is_directory(&stat) {
            if found.is_none() {
                return Ok(Seen::Object { stat, parent: directory.try_clone()?, is_top });
            }
            break;
        }
        let entered = match directory.enter(name) {
            // Below lie files of an image, which may be closed to us where we are nobody to them.
            Err(error) if !is_top && error.kind() == io::ErrorKind::PermissionDenied => continue,
            result => result?,
        };
        let is_opaque = entered.is_opaque();
        found.get_or_insert((stat, Vec::new())).1.push(Part { directory: entered, is_top });
        if is_opaque {
            break;
        }
    }
    Ok(found.map_or(Seen::Nothing, |(stat, parts)| Seen::Directory { stat, parts }))
}

fn kind(stat: &Stat) -> Kind {
    match () {
        () if is_regular(stat) => Kind::Regular,
        () if is_directory(stat) => Kind::Directory,
        () if is_symlink(stat) => Kind::Link,
        () => Kind::Other,
    }
}

fn has_same_rights(one: &Stat, other: &Stat) -> bool {
    one.st_mode == other.st_mode && (one.st_uid, one.st_gid) == (other.st_uid, other.st_gid)
}

/// A file that was opened to be written to is copied by the kernel whether or not something is written; and times can be
/// set. So when everything else is alike, the contents decide.
fn is_same(name: Name<'_>, new: (&Stat, &Directory), old: (&Stat, &Directory)) -> io::Result<bool> {
    if !has_same_rights(new.0, old.0) || new.0.st_size != old.0.st_size {
        return Ok(false);
    }
    if is_symlink(new.0) {
        let target = |parent: &Directory| rustix::fs::readlinkat(parent, name.as_os_str(), Vec::new());
        return Ok(target(new.1)? == target(old.1)?);
    }
    if !is_regular(new.0) {
        return Ok(new.0.st_rdev == old.0.st_rdev);
    }
    if (new.0.st_mtime, new.0.st_mtime_nsec) != (old.0.st_mtime, old.0.st_mtime_nsec) {
        return Ok(false);
    }
    let (mut one, mut other) = (new.1.open_file(name)?, old.1.open_file(name)?);
    let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        match other.read_exact(&mut right[..count]) {
            Ok(()) if left[..count] == right[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::XattrFlags;

    use super::*;

    fn layer(place: &Path, name: &str, files: &[(&str, &str)]) -> Directory {
        let top = place.join(name);
        fs::create_dir_all(&top).unwrap();
        for (path, contents) in files {
            let file = top.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            match *contents {
                "whiteout" => {
                    let parent = Directory::open(file.parent().unwrap()).unwrap();
                    let name = file.file_name().unwrap().as_encoded_bytes().to_vec();
                    parent.make_whiteout(Name::new(&name).unwrap()).unwrap();
                }
                "opaque" => {
                    fs::create_dir_all(&file).unwrap();
                    let directory = Directory::open(&file).unwrap();
                    rustix::fs::fsetxattr(&directory, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
                }
                contents => fs::write(&file, contents).unwrap(),
            }
        }
        Directory::open(&top).unwrap()
    }

    fn changes(tops: Vec<Directory>, below: Vec<Directory>, most: usize) -> Vec<String> {
        let mut found = Vec::new();
        compare(tops, below, &[], &mut |changed| {
            let mark = match changed.how {
                How::Added => '+',
                How::Modified => '~',
                How::Removed => '-',
            };
            found.push(format!("{mark}{}", String::from_utf8(changed.path).unwrap()));
            Ok(found.len() < most)
        })
        .unwrap();
        found
    }

    #[test]
    fn what_the_highest_say_is_told_in_order() {
        let place = tempfile::tempdir().unwrap();
        let image = layer(place.path(), "0", &[("a/kept", "1"), ("a/old", "1"), ("gone/deep/x", "1"), ("b", "1")]);
        let frozen = layer(place.path(), "1", &[("a-b", "2"), ("a/made", "2"), ("early", "2")]);
        let top = layer(
            place.path(),
            "2",
            &[("a/old", "longer"), ("a/new", "3"), ("gone", "whiteout"), ("early", "whiteout"), ("none", "whiteout")],
        );
        let clone = |directory: &Directory| directory.try_clone().unwrap();
        let now = changes(vec![clone(&top)], vec![clone(&frozen), clone(&image)], 100);
        assert_eq!(now, ["+a/new", "~a/old", "-early", "-gone", "-gone/deep", "-gone/deep/x"]);
        let all = changes(vec![clone(&top), clone(&frozen)], vec![clone(&image)], 100);
        assert_eq!(all, ["+a-b", "+a/made", "+a/new", "~a/old", "-gone", "-gone/deep", "-gone/deep/x"]);
        assert_eq!(changes(vec![top, frozen], vec![image], 2), ["+a-b", "+a/made"]);
    }

    #[test]
    fn an_opaque_directory_counts_as_what_it_hides() {
        let place = tempfile::tempdir().unwrap();
        let below = layer(place.path(), "0", &[("dir/one", "1"), ("dir/two", "1"), ("file/x", "1")]);
        let top = layer(place.path(), "1", &[("dir", "opaque"), ("dir/two", "22"), ("file", "now a file")]);
        assert_eq!(changes(vec![top], vec![below], 100), ["-dir/one", "~dir/two", "~file", "-file/x"]);
    }

    #[test]
    fn a_copy_is_no_change() {
        let place = tempfile::tempdir().unwrap();
        let below = layer(place.path(), "0", &[("same", "text"), ("other", "text")]);
        let top = layer(place.path(), "1", &[("same", "text"), ("other", "TEXT")]);
        for name in ["same", "other"] {
            let time = fs::metadata(place.path().join("0").join(name)).unwrap().modified().unwrap();
            let copy = fs::File::options().write(true).open(place.path().join("1").join(name)).unwrap();
            copy.set_modified(time).unwrap();
        }
        assert_eq!(changes(vec![top], vec![below], 100), ["~other"]);
    }
}
