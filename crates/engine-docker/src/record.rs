//! What a container says of itself, in its labels: all that a later process must know to find it, to reach it and to tell
//! about it. The daemon keeps it, so it exists exactly as long as the container does.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use sandbox::{
    ByteSize, Environment, GuestPath, HostRule, Limits, Network, Owner, Persistence, SandboxId, SandboxName, SecretName,
};
use serde::{Deserialize, Serialize};

use crate::attach::Attached;
use crate::isolation::Kernel;

pub const INSTALLATION: &str = "org.sandpen.installation";
pub const INSTANCE: &str = "org.sandpen.instance";
pub const ID: &str = "org.sandpen.id";
pub const OWNER: &str = "org.sandpen.owner";
pub const NAME: &str = "org.sandpen.name";
pub const PERSISTENCE: &str = "org.sandpen.persistence";
/// When it is to end at the latest, in seconds since 1970, for whoever looks at the daemon's containers. As it was made: who
/// may use it can be given more time, and labels stay.
pub const DEADLINE: &str = "org.sandpen.deadline";
pub const TOKEN: &str = "org.sandpen.token";
pub const AGENT: &str = "org.sandpen.agent";
const RECORD: &str = "org.sandpen.record";

const VERSION: u32 = 2;

const KEPT_VOLUME: &str = "sandpen-kept-";

/// One sandbox, as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub id: SandboxId,
    pub owner: Owner,
    pub name: Option<SandboxName>,
    pub persistence: Persistence,
    pub limits: Limits,
    /// Not in the labels, where whoever may look at the daemon's containers could read it. `None`: it has to be looked for.
    pub environment: Option<Environment>,
    pub work_directory: GuestPath,
    /// Where it has files in memory, besides `/tmp`: home, work directory, and those that it began with files in. Of one that
    /// has its files elsewhere, only those that its image wants to be volumes.
    pub places: Vec<GuestPath>,
    pub storage: Storage,
    pub user: User,
    /// The image by its digest: its name may mean another one by now.
    pub image: String,
    /// Kept trees that it sees.
    pub attachments: Vec<Attached>,
    pub idle: Duration,
    /// In seconds since 1970.
    pub deadline: Option<u64>,
    pub network: Network,
    pub secrets: BTreeSet<SecretName>,
    /// Not in the labels: only sandboxes have any that end with their maker.
    pub private_hosts: Vec<HostRule>,
    /// Shown to process 1 by whoever connects, so that programs inside cannot.
    pub token: String,
    /// Which process 1 is in it.
    pub agent: String,
    /// What the daemon made it with: whoever uses it later may have chosen another one. `None`: whoever made it did not say.
    pub runtime: Option<String>,
}

impl Description {
    /// Whether it can be stopped and started.
    pub fn keeps_files(&self) -> bool {
        let outlive_it = match self.storage {
            // A program that is root could write to the volume that outlives it, without a bound.
            Storage::Memory => self.user.id != 0,
            // What is in memory besides would be lost.
            Storage::Layer => self.places.is_empty(),
        };
        self.persistence == Persistence::Persistent && outlive_it
    }

    /// Whether a stop writes its files into a volume.
    pub fn has_kept_volume(&self) -> bool {
        self.keeps_files() && self.storage == Storage::Memory
    }

    /// Every place that holds files of the sandbox in memory, none of them below another.
    pub fn trees(&self) -> Vec<GuestPath> {
        let temporary = match self.storage {
            Storage::Memory => "/tmp".parse().ok(),
            Storage::Layer => None,
        };
        let all: Vec<GuestPath> = self.places.iter().cloned().chain(temporary).collect();
        let is_top = |place: &GuestPath| !all.iter().any(|other| other != place && other.contains(place));
        let mut trees: Vec<GuestPath> = all.iter().filter(|place| is_top(place)).cloned().collect();
        trees.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        trees.dedup();
        trees
    }
}

/// Where files of a sandbox are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// In memory, over an image that nobody can write to.
    #[default]
    Memory,
    /// In the container's own layer, on the daemon's disk: for programs that are root and change the image itself.
    Layer,
}

impl Storage {
    /// Runtimes with a kernel of their own may keep to themselves what is written to an image, where no save would see it. So it
    /// is not written to there, and root is root without a right.
    pub fn of(user: User, kernel: Kernel) -> Self {
        match kernel {
            Kernel::Hosts if user.id == 0 => Self::Layer,
            Kernel::Hosts | Kernel::Gvisor | Kernel::Virtual | Kernel::Unknown => Self::Memory,
        }
    }
}

/// The ids that programs run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct User {
    pub id: u32,
    pub group: u32,
}

impl User {
    pub const SANDBOX: Self = Self { id: 1000, group: 1000 };
}

/// Who makes containers: one directory of state, and one process that uses it.
#[derive(Clone, Copy, Debug)]
pub struct Maker<'a> {
    pub installation: &'a str,
    pub instance: &'a str,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    cpu_millis: u32,
    memory: u64,
    processes: u32,
    disk: u64,
    inodes: u64,
    open_files: u64,
    work_directory: String,
    places: Vec<String>,
    #[serde(default, skip_serializing_if = "is_in_memory")]
    storage: Storage,
    user: User,
    image: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attached>,
    idle_milliseconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<NetworkRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkRecord {
    reaches: String,
    secrets: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_in_memory(storage: &Storage) -> bool {
    *storage == Storage::Memory
}

/// All of them.
pub const LABELS: [&str; 10] = [INSTALLATION, INSTANCE, ID, OWNER, NAME, PERSISTENCE, DEADLINE, TOKEN, AGENT, RECORD];

/// Every label is set, also one without a value: an image may bring labels of the same names.
pub fn labels(maker: Maker<'_>, description: &Description) -> HashMap<String, String> {
    let limits = &description.limits;
    let text = |path: &GuestPath| path.to_string_lossy().into_owned();
    let record = Record {
        version: VERSION,
        cpu_millis: limits.cpu_millis,
        memory: limits.memory.bytes(),
        processes: limits.processes,
        disk: limits.disk.bytes(),
        inodes: limits.inodes,
        open_files: limits.open_files,
        work_directory: text(&description.work_directory),
        places: description.places.iter().map(text).collect(),
        storage: description.storage,
        user: description.user,
        image: description.image.clone(),
        attachments: description.attachments.clone(),
        idle_milliseconds: u64::try_from(description.idle.as_millis()).unwrap_or(u64::MAX),
        network: (!description.network.is_none()).then(|| NetworkRecord {
            reaches: description.network.to_string(),
            secrets: description.secrets.iter().map(ToString::to_string).collect(),
        }),
        runtime: description.runtime.clone(),
    };
    let record = serde_json::to_string(&record).unwrap_or_default();
    let name = description.name.as_ref().map_or("", SandboxName::as_str);
    let deadline = description.deadline.map(|seconds| seconds.to_string()).unwrap_or_default();
    [
        (INSTALLATION, maker.installation),
        (INSTANCE, maker.instance),
        (ID, description.id.as_str()),
        (OWNER, description.owner.as_str()),
        (NAME, name),
        (PERSISTENCE, word(description.persistence)),
        (DEADLINE, &deadline),
        (TOKEN, &description.token),
        (AGENT, &description.agent),
        (RECORD, &record),
    ]
    .into_iter()
    .map(|(label, value)| (label.to_owned(), value.to_owned()))
    .collect()
}

/// `None` for labels that are not ours or make no sense.
pub fn read(labels: &HashMap<String, String>) -> Option<Description> {
    let label = |name: &str| labels.get(name).map(String::as_str);
    let record: Record = serde_json::from_str(label(RECORD)?).ok()?;
    if record.version != VERSION {
        return None;
    }
    let (network, secrets) = match record.network {
        None => (Network::None, BTreeSet::new()),
        Some(given) => {
            let secrets = given.secrets.iter().map(|name| name.parse().ok()).collect::<Option<_>>()?;
            (given.reaches.parse().ok()?, secrets)
        }
    };
    Some(Description {
        id: label(ID)?.parse().ok()?,
        owner: label(OWNER)?.parse().ok()?,
        name: label(NAME).filter(|name| !name.is_empty()).map(str::parse).transpose().ok()?,
        persistence: persistence(label(PERSISTENCE)?)?,
        limits: Limits {
            cpu_millis: record.cpu_millis,
            memory: ByteSize::new(record.memory),
            processes: record.processes,
            disk: ByteSize::new(record.disk),
            inodes: record.inodes,
            open_files: record.open_files,
        },
        environment: None,
        work_directory: record.work_directory.parse().ok()?,
        places: record.places.iter().map(|place| place.parse().ok()).collect::<Option<_>>()?,
        storage: record.storage,
        user: record.user,
        image: record.image,
        attachments: record.attachments,
        idle: Duration::from_millis(record.idle_milliseconds),
        deadline: label(DEADLINE).and_then(|seconds| seconds.parse().ok()),
        network,
        secrets,
        private_hosts: Vec::new(),
        token: label(TOKEN)?.to_owned(),
        agent: label(AGENT)?.to_owned(),
        runtime: record.runtime,
    })
}

/// What a sandbox's container is called. The daemon keeps names apart, so two sandboxes cannot have one id.
pub fn container_name(id: &SandboxId) -> String {
    format!("sandpen-{id}")
}

/// What holds its files while it is stopped.
pub fn kept_volume_name(id: &SandboxId) -> String {
    format!("{KEPT_VOLUME}{id}")
}

/// Whose a volume of such a name is.
pub fn sandbox_of_volume(name: &str) -> Option<SandboxId> {
    name.strip_prefix(KEPT_VOLUME)?.parse().ok()
}

fn word(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::Ephemeral => "ephemeral",
        Persistence::Persistent => "persistent",
    }
}

fn persistence(word: &str) -> Option<Persistence> {
    match word {
        "ephemeral" => Some(Persistence::Ephemeral),
        "persistent" => Some(Persistence::Persistent),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn description() -> Description {
        Description {
            id: "sb-23456789abcdefgh".parse().unwrap(),
            owner: "ada@example.org".parse().unwrap(),
            name: Some("lab".parse().unwrap()),
            persistence: Persistence::Persistent,
            limits: Limits::default(),
            environment: None,
            work_directory: GuestPath::workspace(),
            places: vec!["/home/sandbox".parse().unwrap(), GuestPath::workspace()],
            storage: Storage::Memory,
            user: User::SANDBOX,
            image: "sha256:00".to_owned(),
            attachments: Vec::new(),
            idle: Duration::from_secs(600),
            deadline: Some(2_000_000_000),
            network: Network::None,
            secrets: BTreeSet::new(),
            private_hosts: Vec::new(),
            token: "secret".to_owned(),
            agent: "hash".to_owned(),
            runtime: None,
        }
    }

    const MAKER: Maker<'static> = Maker { installation: "one", instance: "in-23456789abcdefgh" };

    #[test]
    fn what_was_written_is_read() {
        let mut wanted = description();
        assert_eq!(read(&labels(MAKER, &wanted)), Some(wanted.clone()));
        (wanted.name, wanted.persistence, wanted.deadline) = (None, Persistence::Ephemeral, None);
        assert_eq!(read(&labels(MAKER, &wanted)), Some(wanted.clone()));
        wanted.network = "api.example.com,192.0.2.1:*".parse().unwrap();
        wanted.secrets = ["SOME_TOKEN".parse().unwrap()].into();
        assert_eq!(read(&labels(MAKER, &wanted)), Some(wanted.clone()));
        wanted.storage = Storage::Layer;
        wanted.runtime = Some("runsc".to_owned());
        assert_eq!(read(&labels(MAKER, &wanted)), Some(wanted));
    }

    #[test]
    fn a_layer_outlives_a_stop_and_memory_beside_it_does_not() {
        let root = User { id: 0, group: 0 };
        let layered = Description { storage: Storage::Layer, places: Vec::new(), user: root, ..description() };
        assert!(layered.keeps_files() && !layered.has_kept_volume() && layered.trees().is_empty());
        let with_volume = Description { places: vec!["/data".parse().unwrap()], ..layered.clone() };
        assert!(!with_volume.keeps_files());
        assert_eq!(with_volume.trees(), ["/data".parse().unwrap()]);
        assert!(!Description { user: root, ..description() }.keeps_files());
        assert!(description().has_kept_volume());
    }

    #[test]
    fn the_environment_is_not_in_the_labels() {
        let mut environment = Environment::default();
        environment.insert("TOKEN", "some-value").unwrap();
        let wanted = Description { environment: Some(environment), ..description() };
        let labels = labels(MAKER, &wanted);
        assert!(labels.values().all(|value| !value.contains("some-value") && !value.contains("TOKEN")), "{labels:?}");
        assert_eq!(read(&labels), Some(description()));
    }

    #[test]
    fn trees_are_not_below_each_other() {
        let mut wanted = description();
        wanted.places.extend(["/tmp/here".parse().unwrap(), "/workspace".parse().unwrap(), "/tmpfs".parse().unwrap()]);
        let trees: Vec<String> = wanted.trees().iter().map(|tree| tree.to_string_lossy().into_owned()).collect();
        assert_eq!(trees, ["/home/sandbox", "/tmp", "/tmpfs", "/workspace"]);
    }

    #[test]
    fn labels_that_make_no_sense_are_nobodys() {
        let whole = labels(MAKER, &description());
        for (label, value) in [(ID, "sb-1"), (OWNER, ""), (PERSISTENCE, "often"), (RECORD, "{}"), (NAME, "A B")] {
            let mut broken = whole.clone();
            broken.insert(label.to_owned(), value.to_owned());
            assert_eq!(read(&broken), None, "{label}");
            broken.remove(label);
            assert_eq!(read(&broken).is_none(), label != NAME, "without {label}");
        }
    }
}
