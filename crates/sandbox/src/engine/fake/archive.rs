//! Tar streams of the fake.

use std::io::Read;

use super::tree::{LastLink, Names, Node, Tree};
use crate::error::{Error, Result};
use crate::path::GuestPath;

pub(super) fn pack(name: &[u8], node: &Node) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    append(&mut builder, name.to_vec(), node)?;
    builder.into_inner().map_err(broken)
}

fn append(builder: &mut tar::Builder<Vec<u8>>, name: Vec<u8>, node: &Node) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(node.stat().mode);
    header.set_mtime((node.stat().modified_ns / 1_000_000_000) as u64);
    let path = String::from_utf8_lossy(&name).into_owned();
    match node {
        Node::Directory { children, .. } => {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            builder.append_data(&mut header, format!("{path}/"), std::io::empty()).map_err(broken)?;
            for (child, node) in children {
                append(builder, [name.as_slice(), b"/", child].concat(), node)?;
            }
        }
        Node::File { bytes, .. } => {
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, bytes.as_slice()).map_err(broken)?;
        }
        Node::Link { target, .. } => {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            builder.append_link(&mut header, path, &*String::from_utf8_lossy(target)).map_err(broken)?;
        }
        // Nobody on the other side could open one.
        Node::Fifo { .. } => {}
    }
    Ok(())
}

/// Two passes: a stream with one hostile name changes nothing.
pub(super) fn unpack(tree: &mut Tree, path: &GuestPath, bytes: &[u8]) -> Result<()> {
    let base = tree.resolve(path, LastLink::Follow)?;
    let mut archive = tar::Archive::new(bytes);
    let mut planned: Vec<(Names, Node)> = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let names = inside(&entry.path_bytes())?;
        if names.is_empty() {
            continue;
        }
        let node = match entry.header().entry_type() {
            tar::EntryType::Directory => Node::directory(),
            tar::EntryType::Symlink => Node::link(entry.link_name_bytes().unwrap_or_default().into_owned()),
            tar::EntryType::Regular => {
                let mode = entry.header().mode().unwrap_or(0o644);
                let mut content = Vec::new();
                entry.read_to_end(&mut content).map_err(broken)?;
                Node::file(content, mode)
            }
            other => return Err(Error::invalid_input(format!("the archive has an entry of type {other:?}"))),
        };
        planned.push((names, node));
    }
    for (names, node) in planned {
        let mut place = base.clone();
        for (index, name) in names.iter().enumerate() {
            place.push(name.clone());
            let is_last = index + 1 == names.len();
            match tree.get(&place) {
                Some(Node::Directory { .. }) => {}
                Some(Node::File { .. } | Node::Link { .. } | Node::Fifo { .. }) if is_last => {}
                Some(Node::File { .. } | Node::Link { .. } | Node::Fifo { .. }) => {
                    return Err(Error::invalid_input("the archive goes through a link or a file"));
                }
                None if is_last => {}
                None => tree.insert(&place, Node::directory(), path)?,
            }
        }
        let keeps_directory =
            matches!((tree.get(&place), &node), (Some(Node::Directory { .. }), Node::Directory { .. }));
        if !keeps_directory {
            tree.insert(&place, node, path)?;
        }
    }
    Ok(())
}

fn inside(name: &[u8]) -> Result<Names> {
    if name.starts_with(b"/") {
        return Err(Error::invalid_input("the archive has an absolute name"));
    }
    let mut names = Names::new();
    for component in name.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(Error::invalid_input("the archive has a name that goes up with `..`")),
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

fn broken(cause: std::io::Error) -> Error {
    Error::invalid_input("the archive is broken").with_cause(cause)
}
