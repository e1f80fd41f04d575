//! What the fake does with whole trees.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use async_trait::async_trait;

use super::difference::{Layer, changes, count, layer, take_out_fifos};
use super::sandbox::FakeSandbox;
use super::tree::{LastLink, Node};
use super::{FakeEngine, FakeHost, Operation};
use crate::engine::Made;
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::spec::SandboxSpec;
use crate::tree::{Changes, Checkpoint, Checkpoints, KeptTree, KeptTrees, SavedImage, SavedName, Snapshots, TreeName};

/// A saved image of the host, whole: what it shares with others is shared with nobody here.
#[derive(Debug)]
pub(super) struct Saved {
    pub told: SavedImage,
    pub made: Made,
    pub root: Node,
}

#[derive(Debug)]
pub(super) struct Kept {
    told: KeptTree,
    pub root: Node,
}

#[async_trait]
impl Snapshots for FakeEngine {
    async fn save(&self, id: &SandboxId, name: &SavedName) -> Result<SavedImage> {
        self.shared.enter(Operation::Save).await?;
        let sandbox = self.reach(id).sandbox()?;
        let mut root = sandbox.tree.lock().unwrap().own();
        let left_out = take_out_fifos(&mut root);
        if count(&root) > FakeHost::MOST_IMAGE_ENTRIES {
            return Err(Error::limit_exceeded("the sandbox has more files than an image may hold")
                .with_hint("remove files that are not needed"));
        }
        let told = SavedImage {
            name: name.clone(),
            digest: digest(&root, &[]),
            bytes: layer(&sandbox.image, &root).bytes,
            saved_at: SystemTime::now(),
            left_out,
        };
        let key = (sandbox.spec.owner.clone(), name.clone());
        self.shared.saved.lock().unwrap().insert(key, Saved { told: told.clone(), made: sandbox.made.clone(), root });
        Ok(told)
    }

    async fn saved(&self, owner: &Owner) -> Result<Vec<SavedImage>> {
        self.shared.enter(Operation::Saved).await?;
        let saved = self.shared.saved.lock().unwrap();
        Ok(saved.iter().filter(|((whose, _), _)| whose == owner).map(|(_, saved)| saved.told.clone()).collect())
    }

    async fn forget(&self, owner: &Owner, name: &SavedName) -> Result<bool> {
        self.shared.enter(Operation::Forget).await?;
        Ok(self.shared.saved.lock().unwrap().remove(&(owner.clone(), name.clone())).is_some())
    }

    async fn fork(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.shared.enter(Operation::Fork).await?;
        let source = self.reach(id).sandbox()?;
        let root = source.tree.lock().unwrap().own();
        self.insert(new, spec, source.made.clone(), source.image.clone(), root).map(drop)
    }
}

#[async_trait]
impl Checkpoints for FakeEngine {
    async fn checkpoint(&self, id: &SandboxId) -> Result<Checkpoint> {
        self.shared.enter(Operation::Checkpoint).await?;
        let sandbox = self.at_rest(id)?;
        let root = sandbox.tree.lock().unwrap().own();
        let mut checkpoints = sandbox.checkpoints.lock().unwrap();
        let next = match checkpoints.last() {
            Some((last, then)) if *then == root => return Ok(*last),
            Some((last, _)) => Checkpoint(last.0 + 1),
            None => Checkpoint(1),
        };
        if checkpoints.len() >= FakeHost::MOST_CHECKPOINTS {
            return Err(Error::limit_exceeded("the sandbox has as many checkpoints as it may have")
                .with_hint("fork it, and go on in the fork"));
        }
        checkpoints.push((next, root));
        Ok(next)
    }

    async fn changes(&self, id: &SandboxId, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        self.shared.enter(Operation::Changes).await?;
        let sandbox = self.reach(id).sandbox()?;
        let before = match since {
            None => sandbox.start.clone(),
            Some(checkpoint) => found(&sandbox, checkpoint)?,
        };
        let mut entries = changes(&before, &sandbox.tree.lock().unwrap().own());
        let truncated = entries.len() > most;
        entries.truncate(most);
        Ok(Changes { entries, truncated })
    }

    async fn restore(&self, id: &SandboxId, to: Checkpoint) -> Result<()> {
        self.shared.enter(Operation::Restore).await?;
        let sandbox = self.at_rest(id)?;
        let root = found(&sandbox, to)?;
        sandbox.checkpoints.lock().unwrap().retain(|(checkpoint, _)| *checkpoint <= to);
        sandbox.tree.lock().unwrap().become_of(&root);
        Ok(())
    }

    async fn checkpoint_bytes(&self, owner: &Owner) -> Result<Option<u64>> {
        let sandboxes = self.shared.sandboxes.lock().unwrap();
        let theirs = sandboxes.values().filter(|sandbox| sandbox.spec.owner == *owner && !sandbox.is_gone());
        let bytes = |sandbox: &Arc<FakeSandbox>| -> u64 {
            let checkpoints = sandbox.checkpoints.lock().unwrap();
            checkpoints.iter().map(|(_, root)| layer(&sandbox.image, root).bytes).sum()
        };
        Ok(Some(theirs.map(bytes).sum()))
    }
}

#[async_trait]
impl KeptTrees for FakeEngine {
    async fn keep(&self, id: &SandboxId, path: &GuestPath, name: &TreeName) -> Result<KeptTree> {
        let sandbox = self.reach(id).sandbox()?;
        let (mut root, removed) = if path.is_root() {
            let Layer { root, removed, .. } = layer(&sandbox.start, &sandbox.tree.lock().unwrap().own());
            (root, removed)
        } else {
            let tree = sandbox.tree.lock().unwrap();
            match tree.find(path, LastLink::Keep)? {
                directory @ Node::Directory { .. } => (directory.clone(), Vec::new()),
                Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => {
                    return Err(Error::invalid_input(format!("{path} is not a directory")));
                }
            }
        };
        take_out_fifos(&mut root);
        let told = KeptTree { name: name.clone(), digest: digest(&root, &removed), bytes: root.size() };
        let mut kept = self.shared.kept.lock().unwrap();
        Ok(kept.entry(name.clone()).or_insert(Kept { told, root }).told.clone())
    }

    async fn kept(&self, name: &TreeName) -> Result<Option<KeptTree>> {
        Ok(self.shared.kept.lock().unwrap().get(name).map(|kept| kept.told.clone()))
    }

    async fn list_kept(&self, prefix: &str) -> Result<Vec<KeptTree>> {
        let kept = self.shared.kept.lock().unwrap();
        let named = kept.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        Ok(named.map(|(_, kept)| kept.told.clone()).collect())
    }

    async fn drop_kept(&self, name: &TreeName) -> Result<bool> {
        Ok(self.shared.kept.lock().unwrap().remove(name).is_some())
    }
}

impl FakeEngine {
    fn at_rest(&self, id: &SandboxId) -> Result<Arc<FakeSandbox>> {
        let sandbox = self.reach(id).sandbox()?;
        if sandbox.processes.load(Ordering::Relaxed) > 0 {
            return Err(Error::wrong_state("a command runs in the sandbox").with_hint("wait for its end, or stop it"));
        }
        Ok(sandbox)
    }
}

fn found(sandbox: &FakeSandbox, checkpoint: Checkpoint) -> Result<Node> {
    let checkpoints = sandbox.checkpoints.lock().unwrap();
    let found = checkpoints.iter().find(|(made, _)| *made == checkpoint);
    found.map(|(_, root)| root.clone()).ok_or_else(|| Error::not_found("there is no such checkpoint"))
}

/// Looks like one, and is the same for the same contents.
fn digest(root: &Node, removed: &[GuestPath]) -> String {
    let part = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        hash(root, &mut hasher);
        removed.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    format!("sha256:{}", (0..4).map(part).collect::<String>())
}

fn hash(node: &Node, hasher: &mut DefaultHasher) {
    match node {
        Node::Directory { children, .. } => {
            0u8.hash(hasher);
            for (name, child) in children {
                name.hash(hasher);
                hash(child, hasher);
            }
            u8::MAX.hash(hasher);
        }
        Node::File { bytes, mode, .. } => (1u8, bytes, mode).hash(hasher),
        Node::Link { target, .. } => (2u8, target).hash(hasher),
        Node::Fifo { .. } => 3u8.hash(hasher),
    }
}
