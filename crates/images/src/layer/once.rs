//! A layer in which something was described more than once, written anew with each path once: Docker takes no other.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek};

use tar::{Archive, Builder, Entry, EntryType, Header};

use super::shown;
use crate::digest::Hasher;
use crate::error::{Error, Result};
use crate::pack::{Counting, as_path};

/// All that is said of one path.
struct Said {
    first: usize,
    last: usize,
    header: Header,
}

pub(super) struct Once {
    pub counting: Counting<BufWriter<File>>,
    pub entries: u64,
}

/// A directory stands where it stood first, because others are in it, and is as it was said last. Of everything else the
/// last one counts.
pub(super) fn each_once(layer: &mut File, to: File) -> Result<Once> {
    let said = read(layer)?;
    let counting = Counting { inner: BufWriter::with_capacity(1 << 20, to), hasher: Hasher::default(), size: 0 };
    let (mut builder, mut entries) = (Builder::new(counting), 0);
    for_each(layer, |index, mut entry| {
        let path = entry.path_bytes().into_owned();
        let Some(Said { first, last, header }) = said.get(&path) else { return Ok(()) };
        let kind = entry.header().entry_type();
        if index != if kind == EntryType::Directory { *first } else { *last } {
            return Ok(());
        }
        entries += 1;
        let mut header = header.clone();
        let written = match entry.link_name_bytes() {
            Some(target) => builder.append_link(&mut header, as_path(&path), as_path(&target)),
            None => builder.append_data(&mut header, as_path(&path), &mut entry),
        };
        written.map_err(Error::io("writing a layer"))
    })?;
    let counting = builder.into_inner().map_err(Error::io("writing a layer"))?;
    Ok(Once { counting, entries })
}

fn read(layer: &mut File) -> Result<HashMap<Vec<u8>, Said>> {
    let mut all: HashMap<Vec<u8>, Said> = HashMap::new();
    let mut links = Vec::new();
    for_each(layer, |index, entry| {
        let header = entry.header().clone();
        if header.entry_type() == EntryType::Link {
            links.extend(entry.link_name_bytes().map(|target| (index, target.into_owned())));
        }
        let said = Said { first: index, last: index, header: header.clone() };
        let known = all.entry(entry.path_bytes().into_owned()).or_insert(said);
        (known.last, known.header) = (index, header);
        Ok(())
    })?;
    // Its other name would be left without what it names.
    match links.into_iter().find(|(index, target)| all.get(target).is_some_and(|said| said.last > *index)) {
        Some((_, path)) => {
            Err(Error::Unsupported(format!("{} has another name, and something else is copied over it", shown(&path))))
        }
        None => Ok(all),
    }
}

fn for_each(
    layer: &mut File,
    mut take: impl FnMut(usize, Entry<'_, BufReader<&mut File>>) -> Result<()>,
) -> Result<()> {
    let reading = || Error::io("reading a layer");
    layer.rewind().map_err(reading())?;
    let mut archive = Archive::new(BufReader::with_capacity(1 << 20, layer));
    for (index, entry) in archive.entries().map_err(reading())?.enumerate() {
        take(index, entry.map_err(reading())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Kind, path, mode, and contents or where it leads to.
    type Line = (EntryType, &'static str, u32, &'static str);

    fn layer(lines: &[Line]) -> File {
        let mut builder = Builder::new(tempfile::tempfile().unwrap());
        for &(kind, path, mode, value) in lines {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(0);
            if kind == EntryType::Regular {
                header.set_size(value.len() as u64);
                builder.append_data(&mut header, path, value.as_bytes()).unwrap();
            } else if value.is_empty() {
                builder.append_data(&mut header, path, &[][..]).unwrap();
            } else {
                builder.append_link(&mut header, path, value).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    fn written(lines: &[Line]) -> Result<Vec<String>> {
        let mut file =
            each_once(&mut layer(lines), tempfile::tempfile().unwrap())?.counting.inner.into_inner().unwrap();
        let mut found = Vec::new();
        for_each(&mut file, |_, mut entry| {
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let target = entry.link_name().unwrap().map(|target| target.display().to_string()).unwrap_or_default();
            let (path, mode) = (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap());
            found.push(format!("{path} {mode:o} {text}{target}"));
            Ok(())
        })?;
        Ok(found)
    }

    use EntryType::{Directory, Link, Regular, Symlink};

    #[test]
    fn what_was_said_last_counts() {
        let long = "long/".repeat(40) + "name";
        let long: &'static str = long.leak();
        let lines = [
            (Directory, "a/", 0o755, ""),
            (Regular, "a/file", 0o644, "old"),
            (Symlink, "a/link", 0o777, "old"),
            (Directory, "a/", 0o700, ""),
            (Regular, long, 0o644, "kept"),
            (Regular, "a/file", 0o600, "newer"),
            (Link, "a/same", 0o600, "a/file"),
            (Regular, "a/link", 0o644, "no link"),
        ];
        let kept = format!("{long} 644 kept");
        let expected = ["a/ 700 ", &kept, "a/file 600 newer", "a/same 600 a/file", "a/link 644 no link"];
        assert_eq!(written(&lines).unwrap(), expected);
    }

    #[test]
    fn a_name_does_not_lose_what_it_names() {
        let lines = [(Regular, "file", 0o644, "old"), (Link, "same", 0o644, "file"), (Regular, "file", 0o644, "new")];
        assert!(matches!(written(&lines), Err(Error::Unsupported(_))));
        assert_eq!(written(&lines[..2]).unwrap().len(), 2);
    }
}
