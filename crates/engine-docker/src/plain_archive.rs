//! An archive of what an image has, without what only root can make. Pure: a stream in, a stream out.

use std::io::{self, Read, Write};

use tar::{Archive, Builder, EntryType, Header};

/// Devices and FIFOs, which mail servers have in their volumes. No sandbox gets them, and so none has removed them.
pub fn is_left(kind: EntryType) -> bool {
    matches!(kind, EntryType::Fifo | EntryType::Char | EntryType::Block)
}

/// Copy directories, files and links.
pub fn copy<W: Write>(archive: impl Read, output: W) -> io::Result<W> {
    let mut copied = Builder::new(output);
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        if is_left(kind) {
            continue;
        }
        let mut header = Header::new_gnu();
        header.set_mtime(entry.header().mtime()?);
        header.set_mode(entry.header().mode()?);
        header.set_entry_type(kind);
        header.set_size(0);
        match kind {
            EntryType::Directory => copied.append_data(&mut header, path, io::empty())?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(entry.size());
                copied.append_data(&mut header, path, &mut entry)?;
            }
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                copied.append_link(&mut header, path, target)?;
            }
            _ => return Err(io::Error::other("an image has something of an unknown kind")),
        }
    }
    copied.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_can_have_stays_as_it_is() {
        let long = format!("data/{}", "x".repeat(200));
        let mut archive = Builder::new(Vec::new());
        for (name, kind, content) in [
            ("data/", EntryType::Directory, ""),
            ("data/file", EntryType::Regular, "text"),
            (&long, EntryType::Regular, "long"),
            ("data/pipe", EntryType::Fifo, ""),
            ("data/disk", EntryType::Block, ""),
            ("data/null", EntryType::Char, ""),
        ] {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o640);
            header.set_mtime(77);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        for (name, kind, target) in
            [("data/soft", EntryType::Symlink, "/elsewhere/../file"), ("data/hard", EntryType::Link, "data/file")]
        {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o777);
            header.set_mtime(77);
            header.set_size(0);
            archive.append_link(&mut header, name, target).unwrap();
        }
        let bytes = copy(archive.into_inner().unwrap().as_slice(), Vec::new()).unwrap();
        let mut read = Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let target = entry.link_name().unwrap().map(|target| target.display().to_string());
            found.push((entry.path().unwrap().display().to_string(), content + &target.unwrap_or_default()));
        }
        let expected = [
            ("data/", ""),
            ("data/file", "text"),
            (&long, "long"),
            ("data/soft", "/elsewhere/../file"),
            ("data/hard", "data/file"),
        ];
        assert_eq!(found, expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
    }
}
