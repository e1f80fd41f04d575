//! From an image to the parts of a root, which are looked for once for many sandboxes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use images::Digest;
use images::unpack::Owners;
use sandbox::{Error, GuestPath, Image, ImageProgram, Result, Role, SandboxSpec};

use crate::base::Base;
use crate::engine::Shared;
use crate::image::{self, Bind, Ground, Hold, RootTree, WorkDirectory};
use crate::pack::blocking;
use crate::role;
use crate::skeleton::{self, RootLayout};

/// How long the parts of a root are taken to be where they were: programs may have been installed.
const AGE: Duration = Duration::from_secs(2);

/// What tells two roots apart: the image, what its name means now, the work directory that was asked for, whom programs
/// are, and what is attached where.
type Key = (Image, Option<Digest>, Option<GuestPath>, Role, Vec<Bind>);

/// Roots that were prepared, with the time when they were last looked at.
#[derive(Debug, Default)]
pub struct Layouts(Mutex<HashMap<Key, (Instant, RootLayout)>>);

impl Layouts {
    fn get(&self, key: &Key) -> Option<RootLayout> {
        let layouts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        layouts.get(key).filter(|(looked, _)| looked.elapsed() < AGE).map(|(_, layout)| layout.clone())
    }

    fn keep(&self, key: Key, layout: RootLayout) {
        let mut layouts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        layouts.retain(|_, (looked, _)| looked.elapsed() < AGE);
        layouts.insert(key, (Instant::now(), layout));
    }
}

/// A root that is ready to be built.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub layout: RootLayout,
    /// What keeps its image and what is attached in use.
    pub holds: Vec<Hold>,
    pub base: Base,
    /// What the image is made to run.
    pub program: ImageProgram,
    /// The role that is in force on this image and this host.
    pub role: Role,
}

impl Prepared {
    fn new(layout: RootLayout, spec: &SandboxSpec, role: Role, image: Option<&Hold>, attached: Vec<Hold>) -> Self {
        let base = Base::of(&spec.image, image.map(|image| &**image), layout.fill.len());
        let program = image.map(|image| &image.config.config).map_or_else(ImageProgram::default, |config| {
            ImageProgram::new(config.entrypoint.clone(), config.cmd.clone())
        });
        Self { layout, holds: image.cloned().into_iter().chain(attached).collect(), base, program, role }
    }
}

impl Shared {
    /// The root of a sandbox. The names of images are looked up each time, because they may mean others by now.
    pub(crate) async fn layout(&self, spec: &SandboxSpec) -> Result<Prepared> {
        let hold = match &spec.image {
            Image::Host | Image::Directory(_) | Image::Archive(_) => None,
            Image::Saved(name) => Some(self.hold_saved(spec.image_owner(), name).await?),
            Image::Named(name) => {
                let (name, role, store) = (name.clone(), spec.role, self.places.images.clone());
                Some(blocking(move || image::hold(&name, role, &store)).await?)
            }
        };
        self.layout_of(spec, hold).await
    }

    /// The same for an image that was looked up.
    pub(crate) async fn layout_of(&self, spec: &SandboxSpec, hold: Option<Hold>) -> Result<Prepared> {
        let state = self.places.state.clone();
        let (attachments, held) =
            self.attachments(&spec.attachments).await?.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let role = self.role_on(spec, hold.as_ref()).await?;
        let meaning = hold.as_ref().map(|image| image.named.manifest.digest);
        let key = (spec.image.clone(), meaning, spec.work_directory.clone(), role, attachments.clone());
        if let Some(layout) = self.layouts.get(&key) {
            return Ok(Prepared::new(layout, spec, role, hold.as_ref(), held));
        }
        let (skeletons, asked) = (self.places.skeletons.clone(), spec.work_directory.clone());
        let image = hold.clone();
        let prepare = move |tree: RootTree| {
            let mut tree = role::apply(role, tree);
            let work_directory = work_directory(asked, image.as_deref(), &tree, role)?;
            let places: Vec<_> = attachments.iter().map(|attachment| &attachment.target).collect();
            image::check_places(&tree, role.is_guest().then_some(&work_directory.path), &places)?;
            tree.directories.extend(attachments.iter().map(|attachment| attachment.target.clone()));
            let layout = skeleton::prepare(tree, &skeletons, work_directory, role)
                .map_err(|cause| Error::internal("the root of the sandbox could not be prepared").with_cause(cause))?;
            Ok(RootLayout { attachments, ..layout })
        };
        let layout = match image::known(&spec.image, &state) {
            Some(tree) => prepare(tree?)?,
            None => {
                let (image, hold) = (spec.image.clone(), hold.clone());
                let owners = self.image_ids(role);
                let copies = self.copies_belongings(role).then(|| self.places.skeletons.clone());
                let resolve = move || {
                    let tree = image::resolve(&image, hold.as_deref(), &state, owners, role)?;
                    let modes = match (&image, &hold) {
                        (Image::Saved(_), Some(held)) => image::saved_modes(held, &image::GIVEN)?,
                        _ => Vec::new(),
                    };
                    let belongings = match (&hold, copies) {
                        (Some(_), Some(directory)) => image::find_belongings(&tree.lowers, tree.user, &directory)?,
                        _ => None,
                    };
                    prepare(RootTree { modes, belongings, ..tree })
                };
                blocking(resolve).await?
            }
        };
        self.layouts.keep(key, layout.clone());
        Ok(Prepared::new(layout, spec, role, hold.as_ref(), held))
    }
}

/// Asked for, or what the image says. A builder has nothing of ours, and says for each command where it runs.
fn work_directory(
    asked: Option<GuestPath>,
    held: Option<&images::Image>,
    tree: &RootTree,
    role: Role,
) -> Result<WorkDirectory> {
    if !role.is_guest() {
        return Ok(WorkDirectory { path: asked.unwrap_or_else(GuestPath::root), made: Vec::new() });
    }
    let layers = match held {
        Some(held) => {
            let mut all: Vec<_> = held.directories().cloned().collect();
            all.reverse();
            all
        }
        None => tree.lowers.clone(),
    };
    // Trees that have owners on disk are seen with them.
    let owners = if tree.image_ids.is_some() { Owners::Known } else { Owners::for_caller() };
    let ground = Ground { layers, user: tree.user, owners };
    match (asked, held.map(|held| held.config.config.working_dir.as_str())) {
        (Some(path), _) => ground.asked(&path),
        (None, Some(word)) => ground.said(word),
        (None, None) => Ok(WorkDirectory::default()),
    }
}
