//! Images of the daemon: which one is meant, where it comes from when it is not there, and what it says of itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bollard::models::ImageInspect;
use futures_util::FutureExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sandbox::{
    Environment, Error, GuestPath, Image, ImageProgram, Insistence, Owner, Persistence, Result, Role, SandboxSpec,
    SavedName,
};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast::Sender;

use crate::client::Daemon;
use crate::engine::DockerConfig;
use crate::inside::{self, Inside, Question};
use crate::isolation::Kernel;
use crate::pull::{Pull, PullProgress};
use crate::pulls::Pulls;
use crate::record::{Description, Maker, Storage, User};
use crate::reference::Reference;
use crate::runners::NOWHERE;
use crate::seen::Seen;
use crate::{Fetch, Flavour, Logins, PullWatcher, translate};

/// Images that are remembered.
const MOST_KNOWN: usize = 256;

/// Volumes of an image, and trees besides of one that was saved. Each is a mount of every sandbox of it.
const MOST_PLACES: usize = 64;

/// Where saved images are kept: a registry that cannot be, so that nothing is ever fetched from there or sent to it.
pub const SAVED: &str = "saved.sandpen.invalid";

/// Where a saved image has the files of its sandbox, as a label of the image.
pub const TREES: &str = "org.sandpen.saved.trees";

/// Where the sandbox of a saved image worked, written as its trees are.
pub const WORK_DIRECTORY: &str = "org.sandpen.saved.work-directory";

/// An image as sandboxes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its digest, which always means the same.
    pub id: String,
    pub environment: Vec<(String, String)>,
    /// Whom it names, which is root where it says nothing.
    pub user: User,
    /// Directories for which it asks for volumes.
    pub volumes: Vec<String>,
    /// Those of them that are where they say and not behind a link: what a sandbox writes there is its own.
    pub volume_places: Vec<GuestPath>,
    /// Where it has files that a sandbox is to begin with: those of an image that was saved.
    pub trees: Vec<GuestPath>,
    /// Where its programs start, where it has a word on that.
    pub work_directory: Option<GuestPath>,
    /// It has a word on that and no such directory. Builders make it; who imports an image can forget it.
    pub lacks_work_directory: bool,
    pub program: ImageProgram,
}

#[derive(Debug)]
pub struct Images {
    default: Option<String>,
    fetch: Fetch,
    logins: Option<Arc<dyn Logins>>,
    watcher: Option<Arc<dyn PullWatcher>>,
    known: Mutex<HashMap<String, Arc<Facts>>>,
    seen: Seen,
    /// Whoever wants an image that is under way waits for it and does not fetch it twice.
    pulls: Pulls,
}

impl Images {
    pub fn new(config: &DockerConfig) -> Self {
        Self {
            default: config.default_image.clone(),
            fetch: config.fetch,
            logins: config.logins.clone(),
            watcher: config.watcher.clone(),
            known: Mutex::default(),
            seen: Seen::new(&config.state_dir),
            pulls: Pulls::default(),
        }
    }

    /// The image of a sandbox, fetched if it is not there.
    pub async fn find(&self, daemon: &Daemon, maker: Maker<'_>, spec: &SandboxSpec) -> Result<Arc<Facts>> {
        let title = daemon.flavour().title();
        let found = match &spec.image {
            Image::Host => {
                let missing = || {
                    Error::invalid_input(format!("sandboxes of {title} need an image, and none was named"))
                        .with_hint("name one by --image, or set one for all by --container-image")
                };
                self.named(daemon, self.default.as_deref().ok_or_else(missing)?).await?
            }
            Image::Directory(_) | Image::Archive(_) => {
                return Err(Error::unsupported(format!("{title} makes sandboxes from its own images only"))
                    .with_hint(format!("make one of it by `{} import`", daemon.flavour().as_str())));
            }
            Image::Named(name) => self.named(daemon, name.as_str()).await?,
            Image::Saved(name) => {
                let place = saved_name(maker.installation, spec.image_owner(), name);
                daemon.image(&place).await?.ok_or_else(|| {
                    Error::not_found(format!("there is no saved image {name}"))
                        .with_hint("names are of those who saved them")
                })?
            }
        };
        self.facts(daemon, maker, found).await
    }

    async fn named(&self, daemon: &Daemon, name: &str) -> Result<ImageInspect> {
        let reference = Reference::parse(name)?;
        if let Some(found) = look(daemon, &reference).await? {
            return Ok(found);
        }
        match &self.watcher {
            Some(watcher) => self.provide(daemon, &reference, &*watcher.begin(name)).await,
            None => self.provide(daemon, &reference, &|_| {}).await,
        }
    }

    /// An image that is there, or is fetched when it may be and nobody has just done so.
    pub async fn provide(
        &self,
        daemon: &Daemon,
        reference: &Reference,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<ImageInspect> {
        if let Some(found) = look(daemon, reference).await? {
            return Ok(found);
        }
        if daemon.flavour() == Flavour::Podman && reference.registry() == NOWHERE {
            return Err(Error::not_found(format!(
                "there is no image {reference} here, and such names are of no registry"
            ))
            .with_hint("`podman images` shows those that are there"));
        }
        match self.fetch {
            Fetch::Missing => {}
            Fetch::Never => {
                return Err(Error::not_found(format!("there is no image {reference} here, and none is to be fetched"))
                    .with_hint(format!(
                        "get it by `{} pull`, or allow it by --pull missing",
                        daemon.flavour().as_str()
                    )));
            }
        }
        let begin = |said: Sender<PullProgress>| {
            let pull = self.pull_of(daemon, reference);
            async move {
                // Perhaps somebody else's has ended since this one looked.
                if look(&pull.daemon, &pull.reference).await?.is_some() {
                    return Ok(());
                }
                // It cannot be sent when nobody listens, which does not matter then.
                pull.follow(&|word| _ = said.send(word)).await
            }
            .boxed()
        };
        self.pulls.join(&reference.to_string(), begin, progress).await?;
        there(daemon, reference).await
    }

    /// Whether a sandbox that asks for it would get it, as far as that is known without a question to a registry.
    pub async fn can_be_had(&self, daemon: &Daemon, reference: &Reference) -> Result<bool> {
        match self.fetch {
            Fetch::Missing => Ok(true),
            Fetch::Never => Ok(look(daemon, reference).await?.is_some()),
        }
    }

    /// An image as its registry has it now.
    pub async fn pull(
        &self,
        daemon: &Daemon,
        reference: &Reference,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<ImageInspect> {
        refuse_saved(reference)?;
        self.pull_of(daemon, reference).follow(progress).await?;
        there(daemon, reference).await
    }

    fn pull_of(&self, daemon: &Daemon, reference: &Reference) -> Pull {
        Pull { daemon: daemon.clone(), reference: reference.clone(), logins: self.logins.clone() }
    }

    pub async fn facts(&self, daemon: &Daemon, maker: Maker<'_>, image: ImageInspect) -> Result<Arc<Facts>> {
        let id = image.id.ok_or_else(|| Error::internal("the daemon did not say which image it has"))?;
        if let Some(known) = self.known().get(&id) {
            return Ok(known.clone());
        }
        let config = image.config.unwrap_or_default();
        let volumes = volumes(config.volumes.as_deref().unwrap_or_default())?;
        let word = config.user.unwrap_or_default();
        let work_directory = work_directory(config.labels.as_ref(), config.working_dir.as_deref());
        let volume_places: Vec<GuestPath> = volumes.iter().filter_map(|place| place.parse().ok()).collect();
        let question = Question { user: &word, work_directory: work_directory.as_ref(), volumes: &volume_places };
        let inside = match inside::seen(&self.seen, &id, &question) {
            Some(inside) => inside,
            None => {
                let inside = inside::look(daemon, maker, &id, &question).await?;
                inside::keep(&self.seen, &id, &question, &inside);
                inside
            }
        };
        let Inside { user, has_work_directory, volumes: volume_places } = inside;
        let facts = Arc::new(Facts {
            id: id.clone(),
            environment: config.env.iter().flatten().filter_map(|pair| usable(pair)).collect(),
            user: User { id: user.id, group: user.group },
            volumes,
            trees: trees_of(config.labels.as_ref(), &volume_places)?,
            volume_places,
            work_directory,
            lacks_work_directory: !has_work_directory,
            program: ImageProgram::new(config.entrypoint.unwrap_or_default(), config.cmd.unwrap_or_default()),
        });
        let mut known = self.known();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(id, facts.clone());
        Ok(facts)
    }

    /// Places of a sandbox that its image has too, seen through a container that does not run yet. `/tmp` is not among them:
    /// what lies there is left over from the making of the image.
    pub async fn places_in(
        &self,
        daemon: &Daemon,
        container: &str,
        description: &Description,
    ) -> Result<Vec<GuestPath>> {
        let mut found = Vec::new();
        for place in description.places.iter().filter(|place| translate::is_own_directory(place)) {
            let is_there = match self.seen.place(&description.image, place) {
                Some(is_there) => is_there,
                None => {
                    let is_there = daemon.file_size(container, &place.to_string_lossy()).await?.is_some();
                    self.seen.keep_place(&description.image, place, is_there);
                    is_there
                }
            };
            if is_there {
                found.push(place.clone());
            }
        }
        Ok(found)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Facts>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a saved image is called by the daemon. Owners are not in it as they are: a name may hold little.
pub fn saved_name(installation: &str, owner: &Owner, name: &SavedName) -> String {
    format!("{}:{name}", saved_repository(installation, owner))
}

pub fn saved_repository(installation: &str, owner: &Owner) -> String {
    let digest = Sha256::digest(owner.as_str().as_bytes());
    let owner: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{SAVED}/{installation}/{owner}")
}

/// A daemon takes the beginning of an image's digest for a name too. That would be a way to images that others have saved,
/// so what was found must have the name that was asked for.
async fn look(daemon: &Daemon, reference: &Reference) -> Result<Option<ImageInspect>> {
    refuse_saved(reference)?;
    let found = daemon.image(&reference.to_string()).await?;
    Ok(found.filter(|image| {
        let tags = image.repo_tags.iter().flatten();
        tags.chain(image.repo_digests.iter().flatten()).any(|name| reference.is_called(name))
    }))
}

fn refuse_saved(reference: &Reference) -> Result<()> {
    if reference.registry() == SAVED {
        return Err(Error::denied("saved images are found by saved:NAME only"));
    }
    Ok(())
}

/// What was fetched.
async fn there(daemon: &Daemon, reference: &Reference) -> Result<ImageInspect> {
    let vanished = || Error::internal(format!("the daemon has fetched the image {reference} and does not have it"));
    look(daemon, reference).await?.ok_or_else(vanished)
}

/// Each once, however often it is written in different ways.
fn volumes(asked: &[String]) -> Result<Vec<String>> {
    let places: Result<BTreeSet<String>> = asked.iter().map(|place| translate::place_of(place)).collect();
    within_bounds(places?.into_iter().collect(), "volumes")
}

/// Where a saved image has files, besides its volumes, which have a bound of their own.
fn trees_of(labels: Option<&HashMap<String, String>>, volumes: &[GuestPath]) -> Result<Vec<GuestPath>> {
    let trees = paths(labels, TREES).into_iter().filter(|tree| !volumes.contains(tree));
    within_bounds(trees.collect(), "saved trees")
}

fn within_bounds<T>(places: Vec<T>, what: &str) -> Result<Vec<T>> {
    if places.len() > MOST_PLACES {
        let count = places.len();
        return Err(Error::invalid_input(format!("the image has {count} {what}, and a sandbox at most {MOST_PLACES}")));
    }
    Ok(places)
}

/// The root is no place to work in, and what the daemon mounts itself is not the image's to have.
fn work_directory(labels: Option<&HashMap<String, String>>, word: Option<&str>) -> Option<GuestPath> {
    let said = word.and_then(|word| GuestPath::resolve(&GuestPath::root(), word.as_bytes()).ok());
    paths(labels, WORK_DIRECTORY).into_iter().next().or(said.filter(translate::is_own_directory))
}

/// The paths of a label, as [`tree_list`] writes them.
pub fn paths(labels: Option<&HashMap<String, String>>, label: &str) -> Vec<GuestPath> {
    let listed = labels.and_then(|labels| labels.get(label)).map_or("", String::as_str);
    let paths = listed.split(',').filter(|path| !path.is_empty()).map(percent_decode_str);
    paths
        .filter_map(|path| GuestPath::resolve(&GuestPath::root(), &path.collect::<Vec<u8>>()).ok())
        .filter(translate::is_own_directory)
        .collect()
}

/// As the value of a label that daemons take from an instruction of a Dockerfile, where spaces and quotes mean something.
pub fn tree_list(trees: &[GuestPath]) -> String {
    const ODD: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    let words: Vec<String> = trees.iter().map(|tree| percent_encode(tree.as_bytes(), &ODD).to_string()).collect();
    words.join(",")
}

impl Facts {
    /// Whom programs of a sandbox are.
    pub fn runs_as(&self, spec: &SandboxSpec, kernel: Kernel) -> User {
        let is_lost = Storage::of(self.user, kernel) == Storage::Memory || !self.volume_places.is_empty();
        match (spec.role, spec.persistence) {
            (Role::Guest | Role::Builder, _) if self.user.id == 0 => User::SANDBOX,
            // What a program that is root has written in memory is not kept through a stop, and that is worth more than a wish.
            (Role::ImageUser(Insistence::IfPossible), Persistence::Persistent) if self.user.id == 0 && is_lost => {
                User::SANDBOX
            }
            (Role::Guest | Role::ImageUser(_) | Role::Builder, _) => self.user,
        }
    }
}

/// Those that a shell could set as well; whose home and name they are is told by us.
fn usable(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=')?;
    let is_ours = ["HOME", "USER"].contains(&name);
    (!is_ours && Environment::default().insert(name, value).is_ok()).then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use sandbox::ErrorKind;

    use super::*;

    #[test]
    fn nobody_is_root_unless_somebody_wants_it() {
        let image = |id, group| Facts {
            id: String::new(),
            environment: Vec::new(),
            user: User { id, group },
            volumes: Vec::new(),
            volume_places: Vec::new(),
            trees: Vec::new(),
            work_directory: None,
            lacks_work_directory: false,
            program: ImageProgram::default(),
        };
        let (root, web) = (image(0, 0), image(33, 34));
        let (must, wish) = (Role::ImageUser(Insistence::Must), Role::ImageUser(Insistence::IfPossible));
        let (once, kept) = (Persistence::Ephemeral, Persistence::Persistent);
        let with_volume = Facts { volume_places: vec!["/data".parse().unwrap()], ..root.clone() };
        for (role, persistence, expected, on_another_kernel) in [
            (Role::Guest, once, User::SANDBOX, User::SANDBOX),
            (must, once, root.user, root.user),
            (must, kept, root.user, root.user),
            (wish, once, root.user, root.user),
            (wish, kept, root.user, User::SANDBOX),
        ] {
            let spec = SandboxSpec { role, persistence, ..SandboxSpec::new(Owner::local()) };
            assert_eq!(root.runs_as(&spec, Kernel::Hosts), expected, "{role:?} {persistence:?}");
            assert_eq!(root.runs_as(&spec, Kernel::Gvisor), on_another_kernel, "{role:?} {persistence:?}");
            assert_eq!(with_volume.runs_as(&spec, Kernel::Hosts), on_another_kernel, "{role:?} {persistence:?}");
            assert_eq!(web.runs_as(&spec, Kernel::Hosts), web.user, "{role:?} {persistence:?}");
        }
    }

    #[test]
    fn saved_images_of_two_owners_have_two_names() {
        let (ada, bob): (Owner, Owner) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let name: SavedName = "lab".parse().unwrap();
        let (first, second) = (saved_name("one", &ada, &name), saved_name("one", &bob, &name));
        assert_ne!(first, second);
        assert!(Reference::parse(&first).is_ok_and(|reference| reference.registry() == SAVED));
    }

    #[test]
    fn trees_are_read_as_they_were_written() {
        let odd: Vec<GuestPath> = ["/workspace", "/tmp", "/a b/\"c\",$d"].map(|path| path.parse().unwrap()).to_vec();
        let labels = HashMap::from([(TREES.to_owned(), tree_list(&odd))]);
        assert!(!labels[TREES].contains([' ', '"', '$']));
        assert_eq!(paths(Some(&labels), TREES), odd);
        let strange = HashMap::from([(TREES.to_owned(), "/proc,,/,/dev/shm".to_owned())]);
        assert!(paths(Some(&strange), TREES).is_empty());
    }

    #[test]
    fn an_image_does_not_have_any_number_of_places() {
        let places = |count: usize| (0..count).map(|number| format!("/data/{number}")).collect::<Vec<_>>();
        assert_eq!(volumes(&places(MOST_PLACES)).unwrap().len(), MOST_PLACES);
        assert_eq!(volumes(&places(MOST_PLACES + 1)).unwrap_err().kind(), ErrorKind::InvalidInput);
        let twice = ["/data", "/data/", "/x/../data"].map(str::to_owned);
        assert_eq!(volumes(&twice).unwrap(), ["/data"]);
    }

    #[test]
    fn a_sandbox_with_as_many_volumes_as_may_be_can_be_saved() {
        let places: Vec<GuestPath> =
            (0..MOST_PLACES).map(|number| format!("/data/{number}").parse().unwrap()).collect();
        let trees =
            [places.as_slice(), &["/home/sandbox", "/tmp", "/workspace"].map(|path| path.parse().unwrap())].concat();
        let labels = HashMap::from([(TREES.to_owned(), tree_list(&trees))]);
        assert_eq!(trees_of(Some(&labels), &places).unwrap(), trees[MOST_PLACES..]);
        assert_eq!(trees_of(Some(&labels), &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn an_image_says_where_its_programs_start() {
        let said = |word| work_directory(None, Some(word)).map(|path| path.to_string());
        assert_eq!(said("/srv/app").as_deref(), Some("/srv/app"));
        for word in ["", "/", "/..", "/proc/self", "/dev"] {
            assert_eq!(said(word), None, "{word}");
        }
        let saved = HashMap::from([(WORK_DIRECTORY.to_owned(), tree_list(&["/a b".parse().unwrap()]))]);
        assert_eq!(work_directory(Some(&saved), Some("/srv")), Some("/a b".parse().unwrap()));
    }

    #[test]
    fn variables_of_images_are_taken_when_they_are_any() {
        assert_eq!(usable("A=b=c"), Some(("A".to_owned(), "b=c".to_owned())));
        for pair in ["HOME=/root", "USER=root", "A", "=x", "A B=c"] {
            assert_eq!(usable(pair), None, "{pair}");
        }
    }
}
