//! What the next process must know of a persistent sandbox: one small file for each.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbox::{ByteSize, Environment, GuestPath, Insistence, Limits, Network, Persistence, Role, SandboxId};
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::history::History;
use crate::live::Description;
use crate::skeleton::RootLayout;

const VERSION: u32 = 1;

static WRITTEN: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    id: String,
    owner: String,
    name: Option<String>,
    cpu_millis: u32,
    memory: u64,
    processes: u32,
    disk: u64,
    inodes: u64,
    open_files: u64,
    walls: Vec<String>,
    environment: Vec<(String, String)>,
    work_directory: String,
    groups: Vec<PathBuf>,
    socket: PathBuf,
    /// `None` for a plain guest, as in records of versions that knew no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    programs: Option<ProgramsRecord>,
    /// `None` for one without a network, and in records of versions that knew no networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<NetworkRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<Base>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree: Option<TreeRecord>,
    /// One that is about to take its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    successor: Option<SuccessorRecord>,
}

/// Whom programs are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProgramsRecord {
    ImageUser,
}

/// What it takes to build it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TreeRecord {
    idle_milliseconds: u64,
    #[serde(default)]
    holds: usize,
    root: RootLayout,
    history: History,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuccessorRecord {
    socket: PathBuf,
    history: History,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkRecord {
    reaches: String,
    secrets: Vec<String>,
    keepsake: Option<String>,
}

/// Written before the sandbox is made, so that whatever dies afterwards, the next process finds its traces.
pub fn write(directory: &Path, description: &Description) -> io::Result<()> {
    write_with(directory, description, None)
}

/// While one is there and another is about to take its place.
pub fn write_both(directory: &Path, description: &Description, successor: &Description) -> io::Result<()> {
    let (socket, history) = (successor.socket.clone().unwrap_or_default(), successor.history.clone());
    write_with(directory, description, Some(SuccessorRecord { socket, history }))
}

fn write_with(directory: &Path, description: &Description, successor: Option<SuccessorRecord>) -> io::Result<()> {
    let limits = &description.limits;
    let record = Record {
        version: VERSION,
        id: description.id.to_string(),
        owner: description.owner.to_string(),
        name: description.name.as_ref().map(ToString::to_string),
        cpu_millis: limits.cpu_millis,
        memory: limits.memory.bytes(),
        processes: limits.processes,
        disk: limits.disk.bytes(),
        inodes: limits.inodes,
        open_files: limits.open_files,
        walls: description.walls.iter().map(ToString::to_string).collect(),
        environment: description.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        work_directory: description.work_directory.to_string_lossy().into_owned(),
        groups: description.groups.clone(),
        socket: description.socket.clone().unwrap_or_default(),
        programs: match description.role {
            // A builder is never recorded.
            Role::Guest | Role::Builder => None,
            Role::ImageUser(_) => Some(ProgramsRecord::ImageUser),
        },
        network: (!description.network.is_none()).then(|| NetworkRecord {
            reaches: description.network.to_string(),
            secrets: description.secrets.iter().map(ToString::to_string).collect(),
            keepsake: description.keepsake.clone(),
        }),
        base: description.base.clone(),
        tree: description.root.clone().map(|root| TreeRecord {
            idle_milliseconds: description.idle.as_millis() as u64,
            holds: description.holds,
            root,
            history: description.history.clone(),
        }),
        successor,
    };
    let target = path(directory, &description.id);
    // Two processes may write the same record at once, each a whole one.
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = target.with_extension(format!("{}-{number}.new", std::process::id()));
    // What the gateway keeps there is for nobody else.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&serde_json::to_vec_pretty(&record).map_err(io::Error::other)?)?;
    file.sync_all()?;
    fs::rename(&unfinished, &target)?;
    fs::File::open(directory)?.sync_all()
}

pub fn read(directory: &Path, id: &SandboxId) -> io::Result<Option<Description>> {
    Ok(read_both(directory, id)?.map(|(description, _)| description))
}

/// And the one that was about to take its place, if there was one.
pub fn read_both(directory: &Path, id: &SandboxId) -> io::Result<Option<(Description, Option<Description>)>> {
    match fs::read(path(directory, id)) {
        Ok(bytes) => parse(&bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn parse(bytes: &[u8]) -> io::Result<(Description, Option<Description>)> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let record: Record = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    if record.version != VERSION {
        return Err(wrong(format!("record version {}", record.version)));
    }
    let domain = |error: sandbox::Error| wrong(error.to_string());
    let mut environment = Environment::default();
    for (name, value) in record.environment {
        environment.insert(name, value).map_err(domain)?;
    }
    let (network, secrets, keepsake) = match record.network {
        None => (Network::None, BTreeSet::new(), None),
        Some(given) => (
            given.reaches.parse().map_err(domain)?,
            given.secrets.iter().map(|name| name.parse()).collect::<sandbox::Result<_>>().map_err(domain)?,
            given.keepsake,
        ),
    };
    let (idle, holds, root, history) = match record.tree {
        None => Default::default(),
        Some(tree) => (Duration::from_millis(tree.idle_milliseconds), tree.holds, Some(tree.root), tree.history),
    };
    let description = Description {
        id: record.id.parse().map_err(domain)?,
        owner: record.owner.parse().map_err(domain)?,
        name: record.name.map(|name| name.parse()).transpose().map_err(domain)?,
        persistence: Persistence::Persistent,
        role: match record.programs {
            None => Role::Guest,
            Some(ProgramsRecord::ImageUser) => Role::ImageUser(Insistence::Must),
        },
        limits: Limits {
            cpu_millis: record.cpu_millis,
            memory: ByteSize::new(record.memory),
            processes: record.processes,
            disk: ByteSize::new(record.disk),
            inodes: record.inodes,
            open_files: record.open_files,
        },
        walls: record
            .walls
            .iter()
            .map(|name| name.parse())
            .collect::<sandbox::Result<BTreeSet<_>>>()
            .map_err(domain)?,
        environment,
        work_directory: GuestPath::resolve(&GuestPath::root(), record.work_directory.as_bytes()).map_err(domain)?,
        groups: record.groups,
        socket: Some(record.socket),
        network,
        secrets,
        private_hosts: Vec::new(),
        keepsake,
        base: record.base,
        idle,
        holds,
        root,
        history,
    };
    let successor = record.successor.map(|successor| Description {
        socket: Some(successor.socket),
        history: successor.history,
        ..description.clone()
    });
    Ok((description, successor))
}

/// The ids of all records.
pub fn all(directory: &Path) -> io::Result<Vec<SandboxId>> {
    let names = fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
}

pub fn remove(directory: &Path, id: &SandboxId) -> io::Result<()> {
    let begun = format!("{id}.");
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&begun) && name.ends_with(".new")) {
            let _ = fs::remove_file(entry.path());
        }
    }
    match fs::remove_file(path(directory, id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path(directory: &Path, id: &SandboxId) -> PathBuf {
    directory.join(format!("{id}.json"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn description(network: &str) -> Description {
        Description {
            id: "sb-23456789abcdefgh".parse().unwrap(),
            owner: sandbox::Owner::local(),
            name: None,
            persistence: Persistence::Persistent,
            role: Role::Guest,
            limits: Limits::default(),
            walls: BTreeSet::new(),
            environment: Environment::default(),
            work_directory: GuestPath::workspace(),
            groups: Vec::new(),
            socket: Some(PathBuf::from("/run/sandpen/sockets/sb-23456789abcdefgh")),
            network: network.parse().unwrap(),
            secrets: BTreeSet::from(["TOKEN".parse().unwrap()]),
            private_hosts: Vec::new(),
            keepsake: Some("kept".to_owned()),
            base: None,
            idle: Duration::from_secs(60),
            holds: 0,
            root: None,
            history: History::default(),
        }
    }

    fn written(description: &Description) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), description).unwrap();
        let file = path(directory.path(), &description.id);
        (directory, file)
    }

    #[test]
    fn the_next_process_learns_of_the_network() {
        let description = description("*.example.org:8443,api.example.com");
        let (directory, file) = written(&description);
        let found = read(directory.path(), &description.id).unwrap().unwrap();
        assert_eq!((found.network, found.secrets), (description.network, description.secrets));
        assert_eq!(found.keepsake, description.keepsake);
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "what the gateway keeps is for nobody else");
    }

    #[test]
    fn a_record_without_a_network_is_one_that_older_versions_wrote() {
        let description = description("none");
        let (directory, file) = written(&description);
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains("network") && !text.contains("kept"), "{text}");
        assert_eq!(read(directory.path(), &description.id).unwrap().unwrap().network, Network::None);
    }

    #[test]
    fn the_next_process_learns_whom_programs_are() {
        for role in [Role::Guest, Role::ImageUser(Insistence::Must)] {
            let description = Description { role, ..description("none") };
            let (directory, file) = written(&description);
            assert_eq!(read(directory.path(), &description.id).unwrap().unwrap().role, role);
            let is_new = fs::read_to_string(file).unwrap().contains("programs");
            assert_eq!(is_new, role != Role::Guest, "a guest's is one that older versions wrote");
        }
    }

    #[test]
    fn the_next_process_learns_what_it_was_made_from() {
        let manifest = images::Descriptor::new(images::manifest::OCI_MANIFEST, images::Digest::of(b"x"), 7).into();
        for base in [None, Some(Base::Host), Some(Base::Tree), Some(Base::Image { manifest, in_upper: 1, saved: true })]
        {
            let description = Description { base, ..description("none") };
            let (directory, _) = written(&description);
            assert_eq!(read(directory.path(), &description.id).unwrap().unwrap().base, description.base);
        }
    }

    #[test]
    fn garbage_is_an_error_and_not_a_panic() {
        for bytes in [b"".as_slice(), b"{}", b"\xff", b"{\"version\": 99}"] {
            assert!(parse(bytes).is_err());
        }
    }
}
