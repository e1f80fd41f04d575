//! Sandboxes from sandboxes, with all files and, where the host can do that, none of them copied.
//!
//! The writable layer of the source is frozen, and both go on over it: the source by a restart, the new one as a sandbox of
//! its own, which sees the frozen layers through mounts that give them owners of its own ids. Neither can write to them.
//! Where that cannot be, the files are copied, as a save and a start from what was saved would do it.

use std::sync::Arc;

use images::Local;
use sandbox::{Error, Image, ImageProgram, Layer, Result, SandboxId, SandboxSpec};

use crate::base::Base;
use crate::checkpoint::{Alone, to_its_end};
use crate::create::Legacy;
use crate::engine::Shared;
use crate::history::inheritance;
use crate::ids::Pool;
use crate::image::{Hold, WorkDirectory, image_error};
use crate::layout::Prepared;
use crate::live::Live;
use crate::pack::blocking;
use crate::plan::Heir;
use crate::restart::freeze;
use crate::saved::{base_of, name_image, writing_of};

impl Shared {
    pub(crate) async fn fork(self: &Arc<Self>, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_new(new, spec)?;
        let (shared, id, new, spec) = (self.clone(), id.clone(), new.clone(), spec.clone());
        to_its_end(async move {
            let shared_files = shared.can_share() && shared.fork_sharing(&id, &new, &spec).await?;
            match shared_files {
                true => Ok(()),
                false => shared.fork_copying(&id, &new, &spec).await,
            }
        })
        .await
    }

    /// Giving files of one range of ids to another is for root, and for ranges that are as large.
    fn can_share(&self) -> bool {
        let apart = |layer| self.walls().is_ok_and(|walls| walls.contains(&layer));
        self.host.root && self.host.pool == Some(Pool::System) && apart(Layer::UserNamespace) && apart(Layer::UidRange)
    }

    /// `false` when the files cannot be shared now: something runs in the source, or it has as many layers as it may.
    async fn fork_sharing(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<bool> {
        let Alone { live, .. } = &self.alone(id).await?;
        let Some(frozen) = freeze(live).await? else { return Ok(false) };
        let history = live.history();
        // Where nothing was made since the last time, what lies below is all there is.
        if frozen.untouched && !history.layers.is_empty() {
            self.make_fork(live, new, spec).await?;
            return Ok(true);
        }
        let after = history.clone().with_layer(frozen.held);
        if after.check(&live.description.limits, Heir::Successor).is_err() {
            return Ok(false);
        }
        after.check(&spec.limits, Heir::Fork)?;
        let successor = self.restart(frozen, inheritance(Heir::Successor, live, true), after).await?;
        self.make_fork(&successor, new, spec).await?;
        Ok(true)
    }

    /// On the frozen layers of the source.
    async fn make_fork(&self, source: &Live, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let history = source.history();
        history.check(&spec.limits, Heir::Fork)?;
        // Its files are of whom programs were in the source.
        let spec = &SandboxSpec { role: source.description.role, ..spec.clone() };
        let mut layout = source.description.root.clone().ok_or_else(|| Error::internal("there is no root to share"))?;
        let asked = spec.work_directory.as_ref().filter(|asked| **asked != source.description.work_directory);
        if let Some(path) = asked {
            // In the frozen layers, or nowhere.
            layout.work_directory = WorkDirectory { path: path.clone(), made: Vec::new() };
        }
        // Process 1 of the source holds its image, and hands that on.
        let base = source.description.base.clone().unwrap_or(Base::Tree);
        let role = source.description.role;
        let root = Prepared { layout, holds: Vec::new(), base, program: ImageProgram::default(), role };
        let pass = self.pass(new, spec, &root.layout)?;
        let inheritance = inheritance(Heir::Fork, source, false);
        let legacy = Legacy { from: source, inheritance, history: history.of_fork() };
        let made = self.make(new, spec, &root, pass.as_ref(), Some(&legacy)).await?;
        self.keep(Arc::new(made));
        Ok(())
    }

    /// By way of an image that has no name any more when the new sandbox stands: only that one keeps it.
    async fn fork_copying(self: &Arc<Self>, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let (live, inside) = self.enter(id).await?;
        let base = base_of(&live)?;
        let work_directory = live.description.work_directory.clone();
        let layers = self.pack_all(&live).await?;
        drop(inside);
        let name = Local::Fork.reference(new.as_str()).map_err(image_error)?;
        let hold = blocking(move || {
            name_image(&layers, &base, &work_directory, &name)?;
            let store = writing_of(&layers)?.store();
            let image = store.resolve(&name).map_err(image_error)?;
            store.remove_name(&name).map_err(image_error)?;
            image.map(Hold::new).ok_or_else(|| Error::internal("what was copied is not there"))
        })
        .await?;
        let mut spec = spec.clone();
        spec.work_directory.get_or_insert_with(|| live.description.work_directory.clone());
        spec.role = live.description.role;
        // Only its contents count, which what is held tells apart.
        spec.image = Image::Saved("fork".parse()?);
        let root = self.layout_of(&spec, Some(hold)).await?;
        self.create_on(new, &spec, root).await
    }
}
