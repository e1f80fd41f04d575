//! What is asked of an engine when it makes a sandbox. Values are checked when they are made, so engines need not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::exec::Prelude;
use crate::id::{Owner, SandboxName};
use crate::image::Image;
use crate::network::{HostRule, Network};
use crate::path::GuestPath;
use crate::secret::SecretName;
use crate::tree::Attachment;

/// Everything an engine must know to make one sandbox.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct SandboxSpec {
    pub owner: Owner,
    pub image: Image,
    /// Whose saved image it is, if not the owner's. For installing packages; no caller can ask for it.
    pub image_owner: Option<Owner>,
    pub limits: Limits,
    pub network: Network,
    /// Hosts of that network which may be reached although their addresses are private, besides those that the operator
    /// opened to all. For installing packages from the operator's own index; no caller can ask for it.
    pub private_hosts: Vec<HostRule>,
    /// Secrets whose hosts it may use them with; it sees a placeholder for each in its environment, never a value.
    pub secrets: BTreeSet<SecretName>,
    pub lifetime: Lifetime,
    pub persistence: Persistence,
    pub name: Option<SandboxName>,
    /// Every exec starts from these; the engine adds only what a program cannot do without (`PATH`, `HOME`…).
    pub environment: Environment,
    /// Where programs start. `None`: where its image says, and [`GuestPath::workspace`] where that says nothing.
    pub work_directory: Option<GuestPath>,
    pub attachments: Vec<Attachment>,
    pub role: Role,
    /// What will be started in it first, as far as that is known. Nothing but time may depend on it.
    pub expected: Option<Expected>,
}

impl SandboxSpec {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            image: Image::Host,
            image_owner: None,
            limits: Limits::default(),
            network: Network::None,
            private_hosts: Vec::new(),
            secrets: BTreeSet::new(),
            lifetime: Lifetime::default(),
            persistence: Persistence::Ephemeral,
            name: None,
            environment: Environment::default(),
            work_directory: None,
            attachments: Vec::new(),
            role: Role::Guest,
            expected: None,
        }
    }

    /// To whom the name of a saved image means this one.
    pub fn image_owner(&self) -> &Owner {
        self.image_owner.as_ref().unwrap_or(&self.owner)
    }
}

/// A command that an engine may have begun before it is asked for, in a sandbox that is nobody's yet.
///
/// It must be one that does nothing which anybody could notice before it reads its script, and reads that once, from its
/// beginning to its end: until the script is known there is a pipe in its place. Whatever is asked for then is served as if
/// it had not been expected; what differs in any way from this is started anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expected {
    /// Its last argument, the path of the script, is not among these.
    pub argv: Vec<String>,
    /// The name of the script in the work directory.
    pub script: String,
    /// What the request will add to the sandbox's own. No word of an owner may be in it.
    pub environment: Environment,
    /// What the request will have. Of its script it may say no more than which of a list of ours it begins with.
    pub prelude: Option<Prelude>,
}

/// Whom programs are in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// The image's user, or the sandbox's own where that is root or nobody, without any right beyond that.
    #[default]
    Guest,
    /// A guest whose programs are the image's own user, and root of the sandbox where it names none. That root has rights over
    /// the sandbox's own files and processes at most, and is nobody outside of it.
    ImageUser(Insistence),
    /// Root of the sandbox, with the rights over its files that installing programs takes and no others. The image is all
    /// there is: no home or work directory of ours. For builds; no caller can ask for it.
    Builder,
}

/// What becomes of a wish that an engine cannot fulfil on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insistence {
    /// It is refused.
    Must,
    /// It is not there, and the isolation report says so.
    IfPossible,
}

impl Role {
    /// Whether it has the directories, the life and the trees that guests have.
    pub fn is_guest(self) -> bool {
        match self {
            Self::Guest | Self::ImageUser(_) => true,
            Self::Builder => false,
        }
    }

    /// The role that is in force where programs can be root of their sandbox, or cannot for this reason.
    pub fn settled(self, root: impl FnOnce() -> Result<()>) -> Result<Self> {
        match self {
            Self::Guest | Self::Builder => Ok(self),
            Self::ImageUser(Insistence::Must) => root().map(|()| self),
            Self::ImageUser(Insistence::IfPossible) => Ok(match root() {
                Ok(()) => Self::ImageUser(Insistence::Must),
                Err(_) => Self::Guest,
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Persistence {
    /// Gone when it is stopped, when it expires, or when the process that made it ends, however it ends.
    #[default]
    Ephemeral,
    /// Outlives the process that made it and can be reached by the next one; still expires.
    Persistent,
}

/// How long a sandbox lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// Without a running exec or a call for this long, it is stopped.
    pub idle: Duration,
    /// Whatever happens, it is stopped after this.
    pub total: Option<Duration>,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self { idle: Duration::from_secs(600), total: None }
    }
}

/// Bounds on what a sandbox may use. Every one of them is in force, or named as missing in the isolation report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Thousandths of one processor.
    pub cpu_millis: u32,
    pub memory: ByteSize,
    pub processes: u32,
    /// All places it can write to, together.
    pub disk: ByteSize,
    /// Files, directories and links it can make.
    pub inodes: u64,
    pub open_files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_millis: 1000,
            memory: ByteSize::mebibytes(512),
            processes: 128,
            disk: ByteSize::mebibytes(1024),
            inodes: 200_000,
            open_files: 1024,
        }
    }
}

impl Limits {
    /// Below these a sandbox cannot even start its first program.
    pub fn check(self) -> Result<Self> {
        let at_least = |what: &str, value: u64, least: u64| {
            if value >= least {
                return Ok(());
            }
            Err(Error::invalid_input(format!("a {what} limit of {value} is too small"))
                .with_hint(format!("the smallest that works is {least}")))
        };
        at_least("cpu (in thousandths)", self.cpu_millis.into(), 10)?;
        at_least("memory (in bytes)", self.memory.bytes(), 8 << 20)?;
        at_least("process", self.processes.into(), 4)?;
        at_least("disk (in bytes)", self.disk.bytes(), 1 << 20)?;
        at_least("inode", self.inodes, 64)?;
        at_least("open file", self.open_files, 16)?;
        Ok(self)
    }
}

/// A number of bytes that people write as `512M` or `1.5GiB` and read back the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid_input(format!("{text:?} is not a size"))
                .with_hint("write for example 512M, 1.5GiB or 1048576")
        };
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(wrong()),
        };
        if let Ok(count) = digits.parse::<u64>() {
            return count.checked_mul(unit).map(Self).ok_or_else(wrong);
        }
        let count = digits.parse::<f64>().map_err(|_| wrong())?;
        let bytes = count * unit as f64;
        if !bytes.is_finite() || bytes < 0.0 || bytes >= u64::MAX as f64 {
            return Err(wrong());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit {
                return if self.0.is_multiple_of(unit) {
                    write!(f, "{} {name}", self.0 / unit)
                } else {
                    write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Environment variables, checked: a name is a shell identifier, a value holds no NUL, the whole is bounded. Values may be secrets,
/// and are not printed.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    pub const MAX_BYTES: usize = 64 * 1024;

    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
        let (name, value) = (name.into(), value.into());
        let mut bytes = name.bytes();
        let starts_well = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !starts_well || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(Error::invalid_input(format!("{name:?} cannot be the name of an environment variable"))
                .with_hint("use letters, digits and _, not starting with a digit"));
        }
        if value.contains('\0') {
            return Err(Error::invalid_input(format!("the value of {name} contains a NUL byte")));
        }
        self.0.insert(name, value);
        if self.bytes() > Self::MAX_BYTES {
            return Err(Error::limit_exceeded(format!("the environment is larger than {} bytes", Self::MAX_BYTES))
                .with_hint("put large values in a file"));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 2).sum()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// `other` wins where both have a name.
    #[must_use]
    pub fn overlaid_by(mut self, other: &Environment) -> Self {
        self.0.extend(other.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [("512M", 512 << 20), ("1.5GiB", 3 << 29), ("7", 7), ("2k", 2048), ("1Gb", 1 << 30)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().bytes(), bytes, "{text}");
        }
        for text in ["", "M", "-1", "1X", "99999999999T", "nan", "infG"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(ByteSize::new(512 << 20).to_string(), "512 MiB");
        assert_eq!(ByteSize::new(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(ByteSize::new(7).to_string(), "7 B");
    }

    #[test]
    fn a_wish_is_dropped_and_a_demand_is_refused() {
        let no = || Err(Error::unsupported("not here"));
        let (must, wish) = (Role::ImageUser(Insistence::Must), Role::ImageUser(Insistence::IfPossible));
        assert_eq!((must.settled(|| Ok(())).unwrap(), wish.settled(|| Ok(())).unwrap()), (must, must));
        assert_eq!(wish.settled(no).unwrap(), Role::Guest);
        assert_eq!(must.settled(no).unwrap_err().message(), "not here");
        for role in [Role::Guest, Role::Builder] {
            assert_eq!(role.settled(no).unwrap(), role, "nobody asked for it");
        }
    }

    #[test]
    fn environment_names_are_identifiers() {
        let mut environment = Environment::default();
        assert!(environment.insert("A_1", "x").is_ok());
        for name in ["", "1A", "A=B", "A B", "Ä", "A\0"] {
            assert!(environment.insert(name, "x").is_err(), "{name:?} was taken");
        }
        assert!(environment.insert("A", "x\0y").is_err());
        assert!(environment.insert("B", "x".repeat(Environment::MAX_BYTES)).is_err());
    }

    #[test]
    fn limits_that_cannot_work_are_refused() {
        assert!(Limits::default().check().is_ok());
        assert!(Limits { memory: ByteSize::new(1), ..Limits::default() }.check().is_err());
        assert!(Limits { processes: 1, ..Limits::default() }.check().is_err());
    }
}
