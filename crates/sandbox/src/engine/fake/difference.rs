//! What is different between two trees of the fake.

use super::tree::{Names, Node};
use crate::file::FileKind;
use crate::path::GuestPath;
use crate::tree::{Change, ChangeKind};

/// In byte order of the paths. Of a directory that is gone, its own path stands for all that was below.
pub(super) fn changes(before: &Node, now: &Node) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(&GuestPath::root(), Some(before), Some(now), &mut changes);
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    changes
}

/// What of `now` is different, with the directories that lead there, and how many bytes that is; and what is gone.
pub(super) fn layer(before: &Node, now: &Node) -> Layer {
    let mut layer = Layer { root: Node::directory(), bytes: 0, removed: Vec::new() };
    for change in changes(before, now) {
        let names: Names = change.path.components().map(<[u8]>::to_vec).collect();
        match change.kind {
            ChangeKind::Removed => layer.removed.push(change.path),
            ChangeKind::Added | ChangeKind::Modified => {
                layer.bytes += change.bytes;
                let node = names.iter().try_fold(now, |node, name| child(node, name));
                if let Some(node) = node {
                    put(&mut layer.root, &names, node);
                }
            }
        }
    }
    layer
}

pub(super) struct Layer {
    pub root: Node,
    pub bytes: u64,
    pub removed: Vec<GuestPath>,
}

/// Take out what no image can hold; how many there were.
pub(super) fn take_out_fifos(node: &mut Node) -> u64 {
    let Node::Directory { children, .. } = node else { return 0 };
    let before = children.len();
    children.retain(|_, child| !matches!(child, Node::Fifo { .. }));
    let taken = (before - children.len()) as u64;
    taken + children.values_mut().map(take_out_fifos).sum::<u64>()
}

pub(super) fn count(node: &Node) -> usize {
    match node {
        Node::Directory { children, .. } => 1 + children.values().map(count).sum::<usize>(),
        Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => 1,
    }
}

fn compare(path: &GuestPath, before: Option<&Node>, now: Option<&Node>, changes: &mut Vec<Change>) {
    let change = |kind, node: Option<&Node>| {
        let stat = node.map(Node::stat);
        Change {
            path: path.clone(),
            kind,
            file: stat.as_ref().map_or(FileKind::Regular, |stat| stat.kind),
            bytes: stat.as_ref().filter(|stat| stat.kind == FileKind::Regular).map_or(0, |stat| stat.bytes),
            changed_ns: stat.map_or(0, |stat| stat.changed_ns),
        }
    };
    match (before, now) {
        (None, None) => {}
        (Some(_), None) => changes.push(change(ChangeKind::Removed, None)),
        (None, Some(node)) => {
            changes.push(change(ChangeKind::Added, Some(node)));
            compare_children(path, None, Some(node), changes);
        }
        // A directory whose entries came and went is the same directory.
        (Some(old @ Node::Directory { .. }), Some(new @ Node::Directory { .. })) => {
            compare_children(path, Some(old), Some(new), changes);
        }
        (Some(old), Some(new)) => {
            if old != new {
                changes.push(change(ChangeKind::Modified, Some(new)));
                compare_children(path, None, Some(new), changes);
            }
        }
    }
}

fn compare_children(path: &GuestPath, before: Option<&Node>, now: Option<&Node>, changes: &mut Vec<Change>) {
    let names = |node: Option<&Node>| match node {
        Some(Node::Directory { children, .. }) => children.keys().cloned().collect::<Vec<_>>(),
        Some(Node::File { .. } | Node::Link { .. } | Node::Fifo { .. }) | None => Vec::new(),
    };
    let mut all = names(before);
    all.extend(names(now));
    all.sort();
    all.dedup();
    for name in all {
        let below = path.join(&name).expect("a name that is in a tree fits in a path");
        let of = |node: Option<&Node>| node.and_then(|node| child(node, &name)).cloned();
        compare(&below, of(before).as_ref(), of(now).as_ref(), changes);
    }
}

fn child<'a>(node: &'a Node, name: &[u8]) -> Option<&'a Node> {
    match node {
        Node::Directory { children, .. } => children.get(name),
        Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => None,
    }
}

fn put(root: &mut Node, names: &[Vec<u8>], node: &Node) {
    let Node::Directory { children, .. } = root else { return };
    match names {
        [] => {}
        [name] => {
            // What is below an added directory comes by itself, and must not be there twice.
            let bare = match node {
                Node::Directory { .. } => Node::directory(),
                Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => node.clone(),
            };
            children.insert(name.clone(), bare);
        }
        [name, rest @ ..] => put(children.entry(name.clone()).or_insert_with(Node::directory), rest, node),
    }
}
