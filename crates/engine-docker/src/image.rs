//! Images of the daemon: which one is meant, where it comes from when it is not there, and what it says of itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::models::ImageInspect;
use futures_util::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sandbox::{Environment, Error, ErrorKind, GuestPath, Image, ImageProgram, Owner, Result, SandboxSpec, SavedName};
use sha2::{Digest, Sha256};

use crate::carrier::Carrier;
use crate::client::{Daemon, Failure};
use crate::record::{Description, Maker, User};
use crate::reference::Reference;
use crate::users::Tables;
use crate::{ContainerUser, Logins, translate};

/// A pull that says nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(120);
/// A larger table of users is not read, and so has nobody in it.
const LARGEST_TABLE: u64 = 1 << 20;
/// Images that are remembered.
const MOST_KNOWN: usize = 256;

/// Volumes of an image, and trees of one that was saved. Each is a mount of every sandbox of it.
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
    pub user: User,
    /// Directories for which it asks for volumes.
    pub volumes: Vec<String>,
    /// Where it has files that a sandbox is to begin with: those of an image that was saved.
    pub trees: Vec<GuestPath>,
    /// Where its programs start, where it has a word on that.
    pub work_directory: Option<GuestPath>,
    pub program: ImageProgram,
}

/// What a daemon says while it fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    pub status: String,
    /// The layer that this is about.
    pub layer: Option<String>,
    pub bytes: Option<(u64, u64)>,
}

#[derive(Debug)]
pub struct Images {
    pub default: Option<String>,
    pub user: ContainerUser,
    pub logins: Option<Arc<dyn Logins>>,
    known: Mutex<HashMap<String, Arc<Facts>>>,
    /// Whether images have something at a place, by digest and place.
    places: Mutex<HashMap<(String, GuestPath), bool>>,
    /// Whoever wants an image that is under way waits for it and does not fetch it twice.
    pulling: tokio::sync::Mutex<()>,
}

impl Images {
    pub fn new(default: Option<String>, user: ContainerUser, logins: Option<Arc<dyn Logins>>) -> Self {
        Self {
            default,
            user,
            logins,
            known: Mutex::default(),
            places: Mutex::default(),
            pulling: tokio::sync::Mutex::default(),
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
        self.pull(daemon, &reference, &|_| {}).await
    }

    /// Fetch an image, unless somebody has just done so.
    pub async fn pull(
        &self,
        daemon: &Daemon,
        reference: &Reference,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<ImageInspect> {
        let _turn = self.pulling.lock().await;
        if let Some(found) = look(daemon, reference).await? {
            return Ok(found);
        }
        let absent = |cause: String| {
            Error::not_found(format!("the image {reference} is not there and cannot be fetched"))
                .with_hint(format!(
                    "look for it by `{0} images`; `{0} login` when its registry wants one",
                    daemon.flavour().as_str()
                ))
                .with_cause(cause)
        };
        let login = self.login(reference.registry()).await?;
        let mut said = Box::pin(daemon.pull(&reference.repository, reference.version(), login));
        loop {
            let step = match tokio::time::timeout(SILENCE, said.next()).await {
                Ok(step) => step,
                Err(_) => return Err(absent(format!("the daemon said nothing for {} s", SILENCE.as_secs()))),
            };
            match step {
                None => break,
                Some(Ok(info)) => progress(PullProgress {
                    status: info.status.unwrap_or_default(),
                    layer: info.id,
                    bytes: info.progress_detail.and_then(|detail| {
                        let count = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
                        Some((count(detail.current)?, count(detail.total)?))
                    }),
                }),
                Some(Err(failure)) => return Err(not_pulled(daemon, failure, absent)),
            }
        }
        look(daemon, reference).await?.ok_or_else(|| absent("the pull ended without it".to_owned()))
    }

    async fn login(&self, registry: &str) -> Result<Option<(String, crate::Login)>> {
        let Some(logins) = self.logins.clone() else { return Ok(None) };
        let asked = registry.to_owned();
        let found = tokio::task::spawn_blocking(move || logins.find(&asked)).await;
        let found = found.map_err(|cause| Error::internal("a login could not be looked up").with_cause(cause))??;
        Ok(found.map(|login| (registry.to_owned(), login)))
    }

    pub async fn facts(&self, daemon: &Daemon, maker: Maker<'_>, image: ImageInspect) -> Result<Arc<Facts>> {
        let id = image.id.ok_or_else(|| Error::internal("the daemon did not say which image it has"))?;
        if let Some(known) = self.known().get(&id) {
            return Ok(known.clone());
        }
        let config = image.config.unwrap_or_default();
        let volumes = volumes(config.volumes.as_deref().unwrap_or_default())?;
        let word = config.user.unwrap_or_default();
        let tables = look_inside(daemon, maker, &id, Tables::is_needed(&word)).await?;
        let facts = Arc::new(Facts {
            id: id.clone(),
            environment: config.env.iter().flatten().filter_map(|pair| usable(pair)).collect(),
            user: runs_as(self.user, tables.find(&word)?),
            volumes,
            trees: within_bounds(paths(config.labels.as_ref(), TREES), "saved trees")?,
            work_directory: work_directory(config.labels.as_ref(), config.working_dir.as_deref()),
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
            let key = (description.image.clone(), place.clone());
            let known = self.places().get(&key).copied();
            let is_there = match known {
                Some(is_there) => is_there,
                None => daemon.file_size(container, &place.to_string_lossy()).await?.is_some(),
            };
            let mut places = self.places();
            if places.len() >= MOST_KNOWN {
                places.clear();
            }
            places.insert(key, is_there);
            if is_there {
                found.push(place.clone());
            }
        }
        Ok(found)
    }

    fn places(&self) -> MutexGuard<'_, HashMap<(String, GuestPath), bool>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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
    if reference.registry() == SAVED {
        return Err(Error::denied("saved images are found by saved:NAME only"));
    }
    let found = daemon.image(&reference.to_string()).await?;
    Ok(found.filter(|image| {
        let tags = image.repo_tags.iter().flatten();
        tags.chain(image.repo_digests.iter().flatten()).any(|name| reference.is_called(name))
    }))
}

fn not_pulled(daemon: &Daemon, failure: Failure, absent: impl Fn(String) -> Error) -> Error {
    let said_something = failure.status().is_some();
    let error = daemon.told("fetch an image", failure);
    let cause = error.cause().map(ToString::to_string).unwrap_or_default();
    match error.kind() {
        ErrorKind::Unavailable if !said_something => error,
        _ => absent(cause),
    }
}

/// Read the tables where they are needed, of an image that leaves the place of process 1's program to us. With a link there
/// the image would say what that program is. Seen without the volume of that program, into which Podman would look.
async fn look_inside(daemon: &Daemon, maker: Maker<'_>, image: &str, needs_tables: bool) -> Result<Tables> {
    let carrier = Carrier::make_as_root(daemon, maker, image).await?;
    let agent_directory = translate::AGENT_DIRECTORY;
    let is_free = daemon.is_free_for_a_mount(&carrier.id, agent_directory).await?;
    let text = async |path: &str| -> Result<String> {
        let bytes = daemon.small_file(&carrier.id, path, LARGEST_TABLE).await?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let tables = if needs_tables && is_free {
        Tables { users: text("/etc/passwd").await?, groups: text("/etc/group").await? }
    } else {
        Tables::default()
    };
    carrier.end().await?;
    if is_free {
        return Ok(tables);
    }
    Err(Error::denied(format!(
        "the image has something else than a directory at {agent_directory}, which is not its own"
    ))
    .with_hint("use an image without it"))
}

/// Each once, however often it is written in different ways.
fn volumes(asked: &[String]) -> Result<Vec<String>> {
    let places: Result<BTreeSet<String>> = asked.iter().map(|place| translate::place_of(place)).collect();
    within_bounds(places?.into_iter().collect(), "volumes")
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

fn paths(labels: Option<&HashMap<String, String>>, label: &str) -> Vec<GuestPath> {
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

fn runs_as(policy: ContainerUser, wanted: User) -> User {
    match policy {
        ContainerUser::Sandbox if wanted.id == 0 => User::SANDBOX,
        ContainerUser::Sandbox | ContainerUser::Image => wanted,
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
    use super::*;

    #[test]
    fn nobody_is_root_unless_the_operator_said_so() {
        let (root, web) = (User { id: 0, group: 0 }, User { id: 33, group: 33 });
        assert_eq!(runs_as(ContainerUser::Sandbox, root), User::SANDBOX);
        assert_eq!(runs_as(ContainerUser::Sandbox, web), web);
        assert_eq!(runs_as(ContainerUser::Image, root), root);
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
