//! Trees on top of each other, looked at as an overlay will show them, before anything is mounted.
//!
//! Whoever made the trees is not trusted: each component is opened by descriptor, and no link is followed.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::PathBuf;

use images::confined::{Directory, Name, is_directory, is_regular, is_whiteout};
use images::pack::owner_note;
use images::unpack::Owners;
use rustix::fs::Stat;

#[derive(Debug)]
pub struct Layers {
    /// The highest first.
    trees: Vec<Directory>,
}

/// What an overlay shows at a path.
#[derive(Debug)]
pub struct Found<'a> {
    parent: Directory,
    name: Name<'a>,
    pub stat: Stat,
}

/// What one tree has to say about a path.
enum Seen<'a> {
    Here(Found<'a>),
    /// Nothing is there, whatever the trees below have.
    Hidden,
    /// Ask the next one.
    Below,
}

impl Layers {
    /// The highest first, as they lie over each other.
    pub fn open(paths: &[PathBuf]) -> io::Result<Self> {
        Ok(Self { trees: paths.iter().map(|path| Directory::open(path)).collect::<io::Result<_>>()? })
    }

    pub fn find<'a>(&self, path: &'a str) -> io::Result<Option<Found<'a>>> {
        let names: Vec<Name<'a>> = path.split('/').filter_map(|name| Name::new(name.as_bytes())).collect();
        for tree in &self.trees {
            match look(tree, &names)? {
                Seen::Here(found) => return Ok(Some(found)),
                Seen::Hidden => return Ok(None),
                Seen::Below => {}
            }
        }
        Ok(None)
    }

    /// A regular file of at most so many bytes; `None` for everything else.
    pub fn read(&self, path: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(found) = self.find(path)?.filter(Found::is_file) else { return Ok(None) };
        if u64::try_from(found.stat.st_size).is_ok_and(|size| size > most) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        found.parent.open_file(found.name)?.take(most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The directories in the root, without those whose names are not text.
    pub fn top_directories(&self) -> io::Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for tree in &self.trees {
            names.extend(tree.names()?.into_iter().filter_map(|name| String::from_utf8(name).ok()));
        }
        let is_shown =
            |name: &String| self.find(name).is_ok_and(|found| found.is_some_and(|found| found.is_directory()));
        Ok(names.into_iter().filter(is_shown).collect())
    }
}

impl Found<'_> {
    pub fn is_directory(&self) -> bool {
        is_directory(&self.stat)
    }

    pub fn is_file(&self) -> bool {
        is_regular(&self.stat)
    }

    /// Whose a directory is in the image: who owns it, where root has unpacked that, and what is written down elsewhere.
    pub fn owner(&self) -> io::Result<u32> {
        match Owners::for_caller() {
            Owners::Kept | Owners::Mapped | Owners::Known => Ok(self.stat.st_uid),
            Owners::Noted => Ok(owner_note(self.parent.enter(self.name)?).map_or(0, |(user, _)| user)),
        }
    }
}

fn look<'a>(tree: &Directory, names: &[Name<'a>]) -> io::Result<Seen<'a>> {
    let Some((&last, parents)) = names.split_last() else { return Ok(Seen::Hidden) };
    let mut directory = tree.try_clone()?;
    let mut is_opaque = false;
    let absent = |is_opaque| if is_opaque { Seen::Hidden } else { Seen::Below };
    for &name in parents {
        match directory.stat(name)? {
            None => return Ok(absent(is_opaque)),
            Some(found) if is_directory(&found) => directory = directory.enter(name)?,
            Some(_) => return Ok(Seen::Hidden),
        }
        is_opaque |= directory.is_opaque();
    }
    Ok(match directory.stat(last)? {
        None => absent(is_opaque),
        Some(stat) if is_whiteout(&stat) => Seen::Hidden,
        Some(stat) => Seen::Here(Found { parent: directory, name: last, stat }),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::XattrFlags;

    use super::*;

    /// Layers of files, the highest first.
    fn layers(place: &Path, files: &[&[&str]]) -> Layers {
        let paths: Vec<PathBuf> = (0..files.len()).map(|index| place.join(index.to_string())).collect();
        for (path, files) in paths.iter().zip(files) {
            fs::create_dir_all(path).unwrap();
            for file in *files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, path.file_name().unwrap().as_encoded_bytes()).unwrap();
            }
        }
        Layers::open(&paths).unwrap()
    }

    fn read(layers: &Layers, path: &str) -> Option<String> {
        layers.read(path, 16).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_highest_has_its_way() {
        let place = tempfile::tempdir().unwrap();
        let layers = layers(place.path(), &[&["etc/one"], &["etc/one", "etc/two", "usr/x"]]);
        assert_eq!(read(&layers, "/etc/one").as_deref(), Some("0"));
        assert_eq!(read(&layers, "/etc/two").as_deref(), Some("1"));
        assert_eq!(read(&layers, "/etc"), None);
        assert_eq!(layers.top_directories().unwrap(), ["etc", "usr"]);
    }

    #[test]
    fn what_is_removed_or_covered_is_not_there() {
        let place = tempfile::tempdir().unwrap();
        let all = ["etc/passwd", "opaque/below/file", "link/file", "gone/file"];
        let layers = layers(place.path(), &[&["etc/x", "opaque/x"], &all]);
        let top = place.path().join("0");
        let root = Directory::open(&top).unwrap();
        root.make_whiteout(Name::new(b"gone").unwrap()).unwrap();
        Directory::open(&top.join("etc")).unwrap().make_whiteout(Name::new(b"passwd").unwrap()).unwrap();
        let opaque = Directory::open(&top.join("opaque")).unwrap();
        rustix::fs::fsetxattr(&opaque, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        symlink("etc", top.join("link")).unwrap();
        for path in ["/etc/passwd", "/opaque/below/file", "/link/file", "/link/x", "/gone/file"] {
            assert_eq!(read(&layers, path), None, "{path}");
        }
        assert_eq!(read(&layers, "/opaque/x").as_deref(), Some("0"));
        assert_eq!(layers.top_directories().unwrap(), ["etc", "opaque"]);
    }

    #[test]
    fn large_files_are_not_read() {
        let place = tempfile::tempdir().unwrap();
        let layers = layers(place.path(), &[&["file"]]);
        fs::write(place.path().join("0/file"), "x".repeat(17)).unwrap();
        assert_eq!(read(&layers, "/file"), None);
    }
}
