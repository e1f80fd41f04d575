//! Moments that a sandbox can go back to, as files beside our own state: a daemon has nothing to keep them in that would
//! go away with a sandbox by itself, and they are read here to be compared.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::Frozen;
use async_trait::async_trait;
use sandbox::{Changes, Checkpoint, Checkpoints, Error, GuestPath, Owner, Result, SandboxId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::RwLockReadGuard;
use tokio_util::io::SyncIoBridge;

use crate::bounded::{Allowance, Bounded};
use crate::carrier::Carrier;
use crate::compare::{Known, Walk, differences};
use crate::engine::{DockerEngine, Shared};
use crate::live::Live;
use crate::record::Storage;
use crate::recovery::unless_unavailable;
use crate::shelf::{Shelf, bytes_of, unusable};

/// Of one sandbox.
const MOST: usize = 64;

/// How much larger than its disk limit all of them may be together.
const TIMES_THE_DISK: u64 = 4;

const BUFFER: usize = 256 << 10;

#[async_trait]
impl Checkpoints for DockerEngine {
    async fn checkpoint(&self, id: &SandboxId) -> Result<Checkpoint> {
        let live = self.shared.live(id).await?;
        let taken = self.shared.daemon.unless_hanging(self.shared.checkpoint(&live)).await;
        self.shared.settled(&live, taken).await
    }

    async fn changes(&self, id: &SandboxId, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        let live = self.shared.live(id).await?;
        let changes = self.shared.daemon.unless_hanging(self.shared.changes(&live, since, most)).await;
        self.shared.settled(&live, changes).await
    }

    async fn restore(&self, id: &SandboxId, to: Checkpoint) -> Result<()> {
        let live = self.shared.live(id).await?;
        let restored = self.shared.daemon.unless_hanging(self.shared.restore(&live, to)).await;
        self.shared.settled(&live, restored).await
    }

    async fn checkpoint_bytes(&self, owner: &Owner) -> Result<Option<u64>> {
        let (place, owner) = (self.shared.places.checkpoints.clone(), owner.clone());
        let counting = tokio::task::spawn_blocking(move || bytes_of(&place, &owner));
        counting.await.map(Some).map_err(|cause| Error::internal("checkpoints could not be counted").with_cause(cause))
    }
}

impl Shared {
    async fn checkpoint(&self, live: &Arc<Live>) -> Result<Checkpoint> {
        check_memory(live)?;
        let _alone = live.turn.write().await;
        self.check_whole(live)?;
        let _frozen = frozen(live).await?;
        let shelf = self.shelf(live.id());
        shelf.prepare(self.config.instance.as_str(), &live.description.owner)?;
        shelf.drop_drafts();
        let taken = shelf.numbers()?;
        let trees = live.description.trees();
        let held = taken.iter().map(|number| shelf.bytes(*number)).sum::<u64>();
        let room = (live.description.limits.disk.bytes() * TIMES_THE_DISK).saturating_sub(held);
        let draft = shelf.draft()?;
        write_down(live.connection.own_files().pack_trees(&trees).await?, &draft.0, room).await?;
        if let Some(last) = taken.last() {
            let (before, now) = (shelf.path(*last), draft.0.clone());
            let changes = in_background(move || differences(read(&before)?, read(&now)?, &trees, 0)).await?;
            if !changes.truncated {
                return Ok(Checkpoint(*last));
            }
        }
        if taken.len() >= MOST {
            return Err(too_many(format!("a sandbox can have {MOST} checkpoints")));
        }
        let number = shelf.highest()?.saturating_add(1);
        shelf.keep(&draft, number)?;
        Ok(Checkpoint(number))
    }

    async fn changes(&self, live: &Arc<Live>, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        let _inside = self.inside(live).await?;
        let in_layer = match live.description.storage {
            Storage::Memory => Changes { entries: Vec::new(), truncated: false },
            Storage::Layer => {
                let (entries, truncated) = self.layer_changes(live, most).await?;
                Changes { entries, truncated }
            }
        };
        Ok(together(in_layer, self.changes_in_memory(live, since, most).await?, most))
    }

    async fn changes_in_memory(&self, live: &Arc<Live>, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        let shelf = self.shelf(live.id());
        let trees = live.description.trees();
        let before = match since {
            Some(checkpoint) => Before::Checkpoint(shelf.find(checkpoint)?),
            None => Before::Image(self.known_of(live, &trees).await?),
        };
        // Programs go on meanwhile, and may write where the walk comes next.
        let allowance = Allowance::of_places(&live.description.limits, trees.len());
        let now = SyncIoBridge::new(live.connection.own_files().pack_trees(&trees).await?);
        in_background(move || {
            let now = Walk::new(BufReader::with_capacity(BUFFER, Bounded::new(now, allowance)))?;
            match before {
                Before::Checkpoint(path) => differences(read(&path)?, now, &trees, most),
                Before::Image(known) => differences(known.into_items(), now, &trees, most),
            }
        })
        .await
    }

    async fn restore(&self, live: &Arc<Live>, to: Checkpoint) -> Result<()> {
        check_memory(live)?;
        let _alone = live.turn.write().await;
        let shelf = self.shelf(live.id());
        let kept = shelf.find(to)?;
        let _frozen = frozen(live).await?;
        let mut kept = tokio::fs::File::open(&kept).await.map_err(unusable)?;
        shelf.begin_restoring()?;
        let mut place = live.connection.own_files().replace_trees(&live.description.trees()).await?;
        let copied = tokio::io::copy(&mut kept, &mut place).await;
        let ended = place.shutdown().await;
        // Whoever unpacks says best what was wrong; a stream can only say that it broke.
        place.commit().await?;
        copied.map(drop).and(ended).map_err(unusable)?;
        shelf.end_restoring()?;
        shelf.numbers()?.into_iter().filter(|number| *number > to.0).try_for_each(|number| shelf.remove(number))
    }

    /// What the image has where the sandbox can write.
    async fn known_of(&self, live: &Live, trees: &[GuestPath]) -> Result<Known> {
        let carrier = Carrier::make(&self.daemon, self.maker(), &live.description.image).await?;
        let mut known = Known::default();
        for tree in trees {
            let place = tree.to_string_lossy().into_owned();
            // What the image has in this one is not seen in sandboxes.
            if place == "/tmp" || self.daemon.file_size(&carrier.id, &place).await?.is_none() {
                continue;
            }
            let archive = SyncIoBridge::new(self.daemon.download(&carrier.id, &place));
            let parent = tree.parent().unwrap_or_else(GuestPath::root);
            known = in_background(move || known.read(&parent, archive).map(|()| known)).await?;
        }
        carrier.end().await?;
        Ok(known)
    }

    /// A turn in a sandbox whose files are what they should be.
    pub(crate) async fn inside<'live>(&self, live: &'live Live) -> Result<RwLockReadGuard<'live, ()>> {
        let turn = live.turn.read().await;
        self.check_whole(live)?;
        Ok(turn)
    }

    /// To be asked by whoever has a turn: who restores has it alone, and is waited for.
    fn check_whole(&self, live: &Live) -> Result<()> {
        if !self.shelf(live.id()).is_restoring()? {
            return Ok(());
        }
        let message = format!("sandbox {} was cut off while it went back to a checkpoint, and lacks files", live.id());
        Err(Error::wrong_state(message).with_hint("go back to a checkpoint again, or stop the sandbox"))
    }

    fn shelf(&self, id: &SandboxId) -> Shelf {
        Shelf { directory: self.places.checkpoints.join(id.as_str()) }
    }

    /// Those of a sandbox that has ended.
    pub(crate) fn forget_checkpoints(&self, id: &SandboxId) {
        self.shelf(id).clear();
    }

    /// Those of sandboxes that have ended without us.
    pub(crate) async fn sweep_checkpoints(&self) -> Result<()> {
        for entry in fs::read_dir(&self.places.checkpoints).into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()) else { continue };
            let shelf = self.shelf(&id);
            let maker = shelf.maker();
            let is_used = self.knows(&id) || maker.is_some_and(|maker| self.is_another_alive(&maker));
            if is_used {
                continue;
            }
            let found = self.daemon.inspect(&crate::record::container_name(&id)).await;
            let is_gone = found.map(|found| found.is_none());
            if unless_unavailable(is_gone, "whose checkpoints these are cannot be looked at")? == Some(true) {
                shelf.clear();
            }
        }
        Ok(())
    }

    fn is_another_alive(&self, instance: &str) -> bool {
        instance != self.config.instance.as_str() && self.places.is_alive(instance)
    }
}

/// A container's own layer cannot be put back to what it was while the container is there.
fn check_memory(live: &Live) -> Result<()> {
    match live.description.storage {
        Storage::Memory => Ok(()),
        Storage::Layer => Err(Error::unsupported(format!(
            "sandbox {} has no checkpoints: its programs are root, and what they change is the container's",
            live.id()
        ))
        .with_hint("save it, or fork it and go on in one of the two; or leave programs the sandbox's own user by --container-user sandbox")),
    }
}

/// Each of them is in byte order of its paths, and so is the whole.
fn together(one: Changes, other: Changes, most: usize) -> Changes {
    let mut entries = [one.entries, other.entries].concat();
    entries.sort_by(|one, other| one.path.as_bytes().cmp(other.path.as_bytes()));
    let truncated = one.truncated || other.truncated || entries.len() > most;
    entries.truncate(most);
    Changes { entries, truncated }
}

enum Before {
    Checkpoint(PathBuf),
    Image(Known),
}

/// With nothing that runs, and nobody who could start something.
async fn frozen(live: &Live) -> Result<Frozen> {
    let busy = || Error::wrong_state("a command runs in the sandbox").with_hint("wait for it, or stop it");
    live.connection.freeze().await?.ok_or_else(busy)
}

async fn write_down(stream: Box<dyn AsyncRead + Send + Unpin>, path: &Path, room: u64) -> Result<()> {
    let input = SyncIoBridge::new(stream.take(room.saturating_add(1)));
    let path = path.to_owned();
    let written = in_background(move || {
        let mut input = input;
        let mut output = BufWriter::with_capacity(BUFFER, File::create_new(path)?);
        let written = std::io::copy(&mut input, &mut output)?;
        output.flush()?;
        Ok(written)
    })
    .await?;
    if written > room {
        return Err(too_many("the checkpoints of the sandbox take too much room".to_owned()));
    }
    Ok(())
}

fn read(path: &Path) -> std::io::Result<Walk<BufReader<File>>> {
    Walk::new(BufReader::with_capacity(BUFFER, File::open(path)?))
}

fn too_many(message: String) -> Error {
    Error::limit_exceeded(message).with_hint("go back to an earlier one, or save the sandbox and go on in another")
}

fn too_large(cause: &std::io::Error) -> Error {
    let why = cause.get_ref().map_or_else(|| "the sandbox writes while it is compared".to_owned(), ToString::to_string);
    Error::limit_exceeded(why).with_hint("wait for its commands, or stop them")
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|cause| match cause.kind() {
            IoErrorKind::FileTooLarge => too_large(&cause),
            _ => unusable(cause),
        }),
        Err(cause) => Err(Error::internal("work on the files of a sandbox ended unexpectedly").with_cause(cause)),
    }
}
