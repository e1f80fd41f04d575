//! Trees as archives tell them, and what is different between two of them. Times are not looked at: no build repeats them.

use std::collections::BTreeMap;
use std::io::Read;

use sandpen_tests::{Result, Trouble};
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

#[derive(Debug, Default)]
pub(crate) struct Tree(BTreeMap<String, Item>);

/// All of a file but its name and its times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Item {
    kind: &'static str,
    mode: u32,
    owner: (u64, u64),
    /// Of a file the digest of what it holds, of a link where it points to, of a device its number.
    contents: String,
    attributes: BTreeMap<String, Vec<u8>>,
    /// The first of all names of a file that has several.
    same_as: Option<String>,
}

impl Tree {
    pub fn read(archive: impl Read) -> Result<Self> {
        let mut items = BTreeMap::new();
        let mut links = Vec::new();
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            let name = plain(&entry.path_bytes());
            let points_to = entry.link_name_bytes().map(|target| String::from_utf8_lossy(&target).into_owned());
            if entry.header().entry_type() == EntryType::Link {
                links.push((name, plain(points_to.unwrap_or_default().as_bytes())));
                continue;
            }
            items.insert(name, Item::read(&mut entry, points_to)?);
        }
        for (name, target) in &links {
            let missing = || Trouble(format!("{name} is a name of {target}, which is not there"));
            let item: Item = items.get(target).ok_or_else(missing)?.clone();
            items.insert(name.clone(), item);
        }
        // Which of the names comes first in an archive means nothing.
        let mut groups: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (name, target) in &links {
            groups.entry(target).or_default().push(name);
        }
        for (target, mut names) in groups {
            names.push(target);
            let first = names.iter().min().map(|name| (*name).clone());
            for name in names {
                items.entry(name.clone()).and_modify(|item| item.same_as = first.clone());
            }
        }
        Ok(Self(items))
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A line for each name that is not the same in both.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut names: Vec<&String> = self.0.keys().chain(other.0.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let tell = |name: &&String| match (self.0.get(*name), other.0.get(*name)) {
            (Some(one), Some(two)) if one == two => None,
            (Some(one), Some(two)) => Some(format!("{name}: {one:?} is not {two:?}")),
            (Some(_), None) => Some(format!("{name} is only in the first")),
            (None, _) => Some(format!("{name} is only in the second")),
        };
        names.iter().filter_map(tell).collect()
    }
}

impl Item {
    fn read(entry: &mut Entry<'_, impl Read>, points_to: Option<String>) -> Result<Self> {
        let mut attributes = BTreeMap::new();
        for record in entry.pax_extensions()?.into_iter().flatten() {
            let record = record?;
            if let Some(name) = record.key().ok().and_then(|key| key.strip_prefix("SCHILY.xattr.")) {
                attributes.insert(name.to_owned(), record.value_bytes().to_vec());
            }
        }
        let header = entry.header();
        let (mode, owner) = (header.mode()? & 0o7777, (header.uid()?, header.gid()?));
        let device = || Ok::<_, Trouble>(format!("{:?}:{:?}", header.device_major()?, header.device_minor()?));
        let (kind, mode, contents) = match header.entry_type() {
            EntryType::Directory => ("directory", mode, String::new()),
            // The mode of a link means nothing, and not everybody writes the same.
            EntryType::Symlink => ("link", 0, points_to.unwrap_or_default()),
            EntryType::Char => ("character device", mode, device()?),
            EntryType::Block => ("block device", mode, device()?),
            EntryType::Fifo => ("fifo", mode, String::new()),
            _ => ("file", mode, digest(entry)?),
        };
        Ok(Self { kind, mode, owner, contents, attributes, same_as: None })
    }
}

fn plain(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_start_matches("./").trim_matches('/').to_owned()
}

fn digest(file: &mut impl Read) -> Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Each thing that two trees can differ in is seen, and nothing else is.
pub(crate) fn every_difference_is_seen() -> Result<()> {
    let original = sample(|_, _| {});
    let same = Tree::read(&*sample(|name, header| {
        header.set_mtime(77);
        if name == "link" {
            header.set_mode(0o644);
        }
    }))?;
    let tree = Tree::read(&*original)?;
    expect(&tree.differences(&same), &[])?;
    if tree.count() != 5 || !tree.has("etc/file") {
        return Err(format!("it does not see everything: {tree:?}").into());
    }
    type Change = fn(&str, &mut tar::Header);
    let changes: &[(&str, Change)] = &[
        ("etc", |name, header| {
            if name == "etc" {
                header.set_mode(0o700)
            }
        }),
        ("etc/file", |name, header| {
            if name == "etc/file" {
                header.set_mode(0o4755)
            }
        }),
        ("etc/other", |name, header| {
            if name == "etc/other" {
                header.set_uid(1)
            }
        }),
        ("etc/other", |name, header| {
            if name == "etc/other" {
                header.set_gid(1)
            }
        }),
        ("link", |name, header| {
            if name == "link" {
                header.set_link_name("elsewhere").unwrap_or_default()
            }
        }),
        ("etc/other", |name, header| {
            if name == "etc/other" {
                header.set_entry_type(EntryType::Fifo)
            }
        }),
    ];
    for (name, change) in changes {
        let changed = Tree::read(&*sample(change))?;
        let found = tree.differences(&changed);
        // Names of one file change together.
        if !found.iter().any(|line| line.starts_with(&format!("{name}:"))) || found.len() > 2 {
            return Err(format!("{name} was changed, and seen was {found:?}").into());
        }
    }
    let contents = String::from_utf8_lossy(&original).replace("contents-", "something");
    let contents = Tree::read(contents.as_bytes())?;
    if tree.differences(&contents).len() != 2 {
        return Err(format!("other contents: {:?}", tree.differences(&contents)).into());
    }
    let empty = Tree::default();
    if tree.differences(&empty).len() != 5 || empty.differences(&tree).len() != 5 {
        return Err("what is missing is not seen".into());
    }
    Ok(())
}

/// A directory, two files, another name of one of them, and a link.
fn sample(change: impl Fn(&str, &mut tar::Header)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let all = [
        ("etc", EntryType::Directory, ""),
        ("etc/file", EntryType::Regular, "contents-"),
        ("etc/other", EntryType::Regular, ""),
        ("etc/name", EntryType::Link, "etc/file"),
        ("link", EntryType::Symlink, "etc/file"),
    ];
    for (name, kind, value) in all {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        let contents = if kind == EntryType::Regular { value } else { "" };
        if contents != value {
            let _ = header.set_link_name(value);
        }
        header.set_size(contents.len() as u64);
        change(name, &mut header);
        // Into memory: it cannot fail, and an archive that lacks something fails the test.
        let _ = builder.append_data(&mut header, name, contents.as_bytes());
    }
    builder.into_inner().unwrap_or_default()
}

pub(crate) fn expect(found: &[String], wanted: &[&str]) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let shown: Vec<&str> = found.iter().take(20).map(String::as_str).collect();
    Err(format!("{} differences:\n{}", found.len(), shown.join("\n")).into())
}
