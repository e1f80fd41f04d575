//! The record of one persistent sandbox on disk, and its one conversion to the domain's types.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::RecordName;
use crate::error::{Error, Result};
use crate::id::{InstanceId, SandboxId};
use crate::image::{Image, ImageProgram};
use crate::path::GuestPath;
use crate::service::clock::{Clock, Moment};
use crate::service::expiry::Expiry;
use crate::spec::{ByteSize, Environment, Insistence, Lifetime, Limits, Persistence, Role, SandboxSpec};
use crate::tree::Attachment;

const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub id: SandboxId,
    /// Which engine has it; others leave it alone.
    pub engine: String,
    /// Which process made it.
    pub instance: InstanceId,
    pub state: RecordState,
    pub spec: SandboxSpec,
    pub program: ImageProgram,
    pub created_at: SystemTime,
    /// The boot in which `created` and `total_until` were measured.
    pub boot: String,
    pub created: Moment,
    pub total_until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordState {
    Creating,
    Live,
    Stopping,
}

impl Record {
    pub fn name(&self) -> RecordName {
        RecordName::new(&self.spec.owner, &self.id)
    }

    pub fn expiry(&self, clock: &Clock, last_used: Option<Moment>) -> Expiry {
        let now = clock.now();
        let lifetime = self.spec.lifetime;
        if self.boot == clock.boot() {
            return Expiry { lifetime, last_used: last_used.unwrap_or(self.created), total_until: self.total_until };
        }
        // After a reboot only the wall clock can tell the age; the idle time starts anew.
        let age = SystemTime::now().duration_since(self.created_at).unwrap_or_default();
        let total_until = lifetime.total.map(|total| now.after(total.saturating_sub(age)));
        Expiry { lifetime, last_used: now, total_until }
    }
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Kept apart from the domain's types, so that renaming a field there cannot orphan what is on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    id: String,
    engine: String,
    instance: String,
    state: RecordState,
    created_at_ms: u64,
    boot: String,
    created_monotonic_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    total_until_monotonic_ms: Option<u64>,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    name: Option<String>,
    image: String,
    /// As a person would write it.
    network: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    secrets: Vec<String>,
    idle_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    total_ms: Option<u64>,
    limits: WrittenLimits,
    environment: BTreeMap<String, String>,
    /// Known once the sandbox is made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    work_directory: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    entry_point: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    command: Vec<String>,
    /// Where, and the name of the tree that is there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    attachments: BTreeMap<String, String>,
    /// Nothing for a plain guest, as in records of versions that knew no others.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    programs: Option<WrittenRole>,
}

/// Whom programs are.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenRole {
    ImageUser,
    ImageUserIfPossible,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    cpu_millis: u32,
    memory: u64,
    processes: u32,
    disk: u64,
    inodes: u64,
    open_files: u64,
}

pub(super) fn encode(record: &Record) -> Result<Vec<u8>> {
    let spec = &record.spec;
    let text = |path: &GuestPath| match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Error::invalid_input("the work directory of a persistent sandbox must be UTF-8")),
    };
    let image = match &spec.image {
        Image::Host => "host".to_owned(),
        Image::Directory(path) => format!("dir:{}", utf8(path)?),
        Image::Archive(path) => format!("tar:{}", utf8(path)?),
        Image::Named(_) | Image::Saved(_) => spec.image.to_string(),
    };
    let written = Written {
        version: VERSION,
        id: record.id.to_string(),
        engine: record.engine.clone(),
        instance: record.instance.to_string(),
        state: record.state,
        created_at_ms: millis(record.created_at.duration_since(UNIX_EPOCH).unwrap_or_default()),
        boot: record.boot.clone(),
        created_monotonic_ms: record.created.0,
        total_until_monotonic_ms: record.total_until.map(|until| until.0),
        owner: spec.owner.to_string(),
        name: spec.name.as_ref().map(ToString::to_string),
        image,
        network: spec.network.to_string(),
        secrets: spec.secrets.iter().map(ToString::to_string).collect(),
        idle_ms: millis(spec.lifetime.idle),
        total_ms: spec.lifetime.total.map(millis),
        limits: WrittenLimits {
            cpu_millis: spec.limits.cpu_millis,
            memory: spec.limits.memory.bytes(),
            processes: spec.limits.processes,
            disk: spec.limits.disk.bytes(),
            inodes: spec.limits.inodes,
            open_files: spec.limits.open_files,
        },
        environment: spec.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        work_directory: spec.work_directory.as_ref().map(text).transpose()?,
        entry_point: record.program.entry_point().to_vec(),
        command: record.program.command().to_vec(),
        attachments: spec
            .attachments
            .iter()
            .map(|one| (one.at.to_string_lossy().into_owned(), one.tree.to_string()))
            .collect(),
        programs: match spec.role {
            // A builder does not outlive its build.
            Role::Guest | Role::Builder => None,
            Role::ImageUser(Insistence::Must) => Some(WrittenRole::ImageUser),
            Role::ImageUser(Insistence::IfPossible) => Some(WrittenRole::ImageUserIfPossible),
        },
    };
    serde_json::to_vec_pretty(&written)
        .map_err(|cause| Error::internal("the record cannot be written down").with_cause(cause))
}

/// `None` for one that a later version wrote; the reason when it is garbage.
pub(super) fn decode(bytes: &[u8], name: &RecordName) -> Result<Option<Record>, String> {
    if bytes.len() as u64 > super::MAX_RECORD_BYTES {
        return Err("it is too large".to_owned());
    }
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if versioned.version > VERSION {
        return Ok(None);
    }
    if versioned.version != VERSION {
        return Err(format!("there is no version {}", versioned.version));
    }
    let written: Written = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let record = written.into_record().map_err(|error| error.to_string())?;
    if record.name() != *name {
        return Err(format!("it is the record of {}, of another owner perhaps", record.id));
    }
    Ok(Some(record))
}

impl Written {
    fn into_record(self) -> Result<Record> {
        let mut environment = Environment::default();
        for (name, value) in self.environment {
            environment.insert(name, value)?;
        }
        let limits = Limits {
            cpu_millis: self.limits.cpu_millis,
            memory: ByteSize::new(self.limits.memory),
            processes: self.limits.processes,
            disk: ByteSize::new(self.limits.disk),
            inodes: self.limits.inodes,
            open_files: self.limits.open_files,
        };
        let created_at = UNIX_EPOCH
            .checked_add(Duration::from_millis(self.created_at_ms))
            .ok_or_else(|| Error::invalid_input("the time of creation is out of range"))?;
        Ok(Record {
            id: self.id.parse()?,
            engine: self.engine,
            instance: self.instance.parse()?,
            state: self.state,
            created_at,
            boot: self.boot,
            created: Moment(self.created_monotonic_ms),
            total_until: self.total_until_monotonic_ms.map(Moment),
            program: ImageProgram::new(self.entry_point, self.command),
            spec: SandboxSpec {
                owner: self.owner.parse()?,
                image: self.image.parse()?,
                image_owner: None,
                limits: limits.check()?,
                network: self.network.parse()?,
                private_hosts: Vec::new(),
                secrets: self.secrets.iter().map(|name| name.parse()).collect::<Result<_>>()?,
                lifetime: Lifetime {
                    idle: Duration::from_millis(self.idle_ms),
                    total: self.total_ms.map(Duration::from_millis),
                },
                persistence: Persistence::Persistent,
                name: self.name.map(|name| name.parse()).transpose()?,
                environment,
                work_directory: self
                    .work_directory
                    .map(|path| GuestPath::resolve(&GuestPath::root(), path.as_bytes()))
                    .transpose()?,
                attachments: self
                    .attachments
                    .into_iter()
                    .map(|(at, tree)| Ok(Attachment { tree: tree.parse()?, at: at.parse()? }))
                    .collect::<Result<_>>()?,
                role: match self.programs {
                    None => Role::Guest,
                    Some(WrittenRole::ImageUser) => Role::ImageUser(Insistence::Must),
                    Some(WrittenRole::ImageUserIfPossible) => Role::ImageUser(Insistence::IfPossible),
                },
                expected: None,
            },
        })
    }
}

fn utf8(path: &std::path::Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::invalid_input("the image of a persistent sandbox must have a path in UTF-8"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
