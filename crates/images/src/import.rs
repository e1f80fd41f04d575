//! Images from files: what `docker save` writes, OCI layouts as archive or directory, and plain root trees.
//!
//! Which of them a file is shows in its contents. All of it is untrusted, and goes the same way as what a registry sends:
//! by digest into the store, and visible only when all of it is there.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

pub use self::layout::{FULL_NAME, TAG};
use self::members::{Contents, DirectoryMembers, Members, TarMembers};
use crate::config::ImageConfig;
use crate::confined::Directory;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD};
use crate::meter::{Compression, Stream};
use crate::reference::Reference;
use crate::store::{Named, NewImage, Store, Writing};
use crate::work::{Step, Work};

mod docker;
mod layout;
mod members;

/// What to take from a file, and what to call it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The name it gets; without one, the name that it has in the file.
    pub name: Option<Reference>,
    /// Which one, of a file with several images: its name there.
    pub pick: Option<String>,
}

/// Takes an image from a file or directory. Reads all of it, so this belongs on a thread that may block.
pub fn import(store: &Arc<Store>, path: &Path, request: &Request, work: &Work) -> Result<Named> {
    // A reader that was told to stop looks like one that is broken.
    import_all(store, path, request, work).map_err(|error| work.check().err().unwrap_or(error))
}

type Imported = (NewImage, Option<Reference>);

fn import_all(store: &Arc<Store>, path: &Path, request: &Request, work: &Work) -> Result<Named> {
    work.progress.step(Step::Reading);
    let writing = Writing::begin(store)?;
    let doing = || Error::io(format!("opening {}", path.display()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| doing()(error.into()))?;
    let file = File::from(file);
    let found = file.metadata().map_err(doing())?;
    let (image, own_name) = if found.is_dir() {
        let members = DirectoryMembers::new(Directory::open(path).map_err(doing())?);
        layout::import(&writing, &members, request, work)?
    } else if found.is_file() {
        work.progress.total(found.size());
        import_file(&writing, file, request, work)?
    } else {
        return Err(Error::Refused("it is neither a file nor a directory".to_owned()));
    };
    work.progress.step(Step::Unpacking);
    writing.unpack_all(&image, &work.limits, &work.cancel)?;
    let name = request
        .name
        .clone()
        .or(own_name)
        .ok_or_else(|| Error::Invalid("the image has no name of its own, so it has to be given one".to_owned()))?;
    writing.name(&name, &image)
}

fn import_file(writing: &Writing, file: File, request: &Request, work: &Work) -> Result<Imported> {
    let (contents, members) = members::look_into(writing.store(), file, work)?;
    match contents {
        Contents::Layout => layout::import(writing, &members, request, work),
        Contents::Docker => docker::import(writing, &members, request, work),
        Contents::Tree => import_tree(writing, members, work),
    }
}

/// The file is the only layer of an image that says nothing else.
fn import_tree(writing: &Writing, members: TarMembers, work: &Work) -> Result<Imported> {
    let mut file = members.into_file()?;
    let limits = &work.limits.layer;
    let diff_id = Stream::hashing(work.watch(&file), limits.ratio)?.digest(limits)?;
    std::io::Seek::rewind(&mut file).map_err(Error::io("reading the archive"))?;
    let media_type = layer_type(&file)?;
    let (digest, size) = writing.put_file(&mut file, &work.cancel)?;
    let layers = vec![Descriptor::new(media_type, digest, size)];
    let image = writing.assemble(ImageConfig::bare(vec![diff_id]), layers, &work.limits)?;
    Ok((image, None))
}

/// By what is in it: those who write layers do not always know.
fn layer_type(file: &File) -> Result<&'static str> {
    let mut start = [0; 4];
    let count = std::os::unix::fs::FileExt::read_at(file, &mut start, 0).map_err(Error::io("reading a layer"))?;
    Ok(media_type(Compression::of(&start[..count])?))
}

fn media_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => OCI_LAYER,
        Compression::Gzip => OCI_LAYER_GZIP,
        Compression::Zstd => OCI_LAYER_ZSTD,
    }
}

/// A manifest or the like, which is small.
fn read_small(members: &impl Members, path: &str) -> Result<Vec<u8>> {
    let member = members.open(path)?.ok_or_else(|| Error::Refused(format!("it has no {path:?}")))?;
    member.read_small(path)
}
