//! Which walls a sandbox stands behind: one value, shown to everybody and compared with reality by a test.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::spec::Limits;
use crate::user::UserIds;

macro_rules! layers {
    ($($variant:ident, $name:literal, $what:literal;)*) => {
        /// One wall. The order is the order of reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Layer {
            $(#[doc = $what] $variant,)*
        }

        impl Layer {
            pub const ALL: &'static [Layer] = &[$(Layer::$variant,)*];

            /// The word that `--allow-missing`, reports and `--json` use.
            pub fn as_str(self) -> &'static str {
                match self { $(Layer::$variant => $name,)* }
            }

            pub fn description(self) -> &'static str {
                match self { $(Layer::$variant => $what,)* }
            }
        }
    };
}

layers! {
    UserNamespace, "user-namespace", "root inside is nobody outside";
    PidNamespace, "pid-namespace", "sees and signals only its own processes";
    MountNamespace, "mount-namespace", "a mount table of its own";
    NetworkNamespace, "network-namespace", "a network of its own, with no route out of it";
    IpcNamespace, "ipc-namespace", "shared memory and queues of its own";
    UtsNamespace, "uts-namespace", "a host name of its own";
    CgroupNamespace, "cgroup-namespace", "sees no resource groups but its own";
    UidRange, "uid-range", "user ids that no other sandbox and no person has";
    PivotedRoot, "pivoted-root", "the host's tree is not reachable";
    MaskedPaths, "masked-paths", "kernel files are hidden or read-only";
    NoCapabilities, "no-capabilities", "all five capability sets are empty";
    NoNewPrivileges, "no-new-privileges", "set-id programs give nothing";
    Seccomp, "seccomp", "only system calls from a list";
    Landlock, "landlock", "a second fence around files, signals and abstract sockets";
    Rlimits, "rlimits", "open files and core dumps are bounded";
    MemoryLimit, "memory-limit", "memory is bounded, without swap";
    ProcessLimit, "process-limit", "processes and threads are bounded";
    CpuLimit, "cpu-limit", "processor time is bounded";
    DiskLimit, "disk-limit", "bytes and files it can write are bounded";
    Descriptors, "descriptors", "only stdin, stdout and stderr are open";
}

impl FromStr for Layer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|layer| layer.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|layer| layer.as_str()).collect();
            Error::invalid_input(format!("{text:?} is not an isolation layer"))
                .with_hint(format!("the layers are {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    On,
    Off,
    /// The engine cannot tell, for example because a daemon does not say.
    Unknown,
}

impl LayerState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Unknown => "unknown",
        }
    }
}

/// What stands between one sandbox and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationReport {
    pub tier: &'static str,
    /// What a daemon started it with, by the name that the daemon knows.
    pub runtime: Option<String>,
    /// Every layer once, in the order of [`Layer::ALL`].
    pub layers: Vec<LayerReport>,
    /// As enforced, which may be tighter than what was asked.
    pub limits: Limits,
    /// Whom programs are, by the numbers that they have inside. Root of a sandbox is root of nothing else, as far as the layers
    /// go that are on.
    pub user: UserIds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerReport {
    pub layer: Layer,
    pub state: LayerState,
    /// How it is enforced, or why it is not.
    pub detail: String,
}

impl IsolationReport {
    pub fn state(&self, layer: Layer) -> LayerState {
        self.layers.iter().find(|report| report.layer == layer).map_or(LayerState::Unknown, |report| report.state)
    }

    /// The layers that are not known to be on; every result of a sandbox names them.
    pub fn missing(&self) -> Vec<Layer> {
        Layer::ALL.iter().copied().filter(|&layer| self.state(layer) != LayerState::On).collect()
    }
}
