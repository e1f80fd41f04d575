//! Older servers: their tools, in their own names and shapes, each a thin translation onto the service.
//!
//! What they do is what the service does, under the operator's policy. A profile adds no ability; it only speaks otherwise.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{Error, Result};

use crate::call::Call;
use crate::content::Output;
use crate::policy::Policy;
use crate::resources::{Contents, Resource, Template};
use crate::tool::{Reason, Rejection, Tool};

mod arguments;
mod automata;
mod cloudflare;
pub mod code_runner;
mod containers;
mod fastmcp;
mod philschmid;
mod sandbox_server;
mod work;

pub use automata::Automata;
pub use cloudflare::Cloudflare;
pub use code_runner::CodeRunner;
pub use philschmid::{CodeImage, Philschmid};
pub use sandbox_server::SandboxServer;

/// One older server, as a client that was made for it sees it.
#[async_trait]
pub trait Profile: fmt::Debug + Send + Sync {
    /// Who it says it is.
    fn identity(&self) -> Identity;

    /// What it says that it has besides tools: no more than is served.
    fn offers(&self) -> Offers;

    fn instructions(&self, _policy: &Policy) -> Option<String> {
        None
    }

    /// In the order in which they are listed.
    fn tools(self: Arc<Self>, policy: &Policy) -> Vec<Tool>;

    /// The languages that its tools offer at this moment, where those are not all that are known.
    async fn languages(&self, _call: &Call) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// The answer to a call of a tool that it does not have.
    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection>;

    /// What is said of a method that there is not, where that is not said as everywhere.
    fn unknown_method(&self, _name: &str) -> Option<String> {
        None
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }

    fn templates(&self) -> &'static [Template] {
        &[]
    }

    async fn read(&self, _call: &Call, uri: &str) -> Result<Contents, Rejection> {
        Err(Rejection::new(Reason::Parameters, format!("there is no resource {uri}")))
    }
}

/// What clients ask for only where a server says that it is there. Lists of it may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    pub resources: bool,
    pub prompts: bool,
}

/// What a server calls itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: &'static str,
    pub version: &'static str,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$about:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const NAMES: &'static [&'static str] = &[$($word,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| {
                    Error::invalid_input(format!("{text:?} is not {}", $what))
                        .with_hint(format!("there are {}", Self::NAMES.join(", ")))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(
    /// The older servers that can be spoken for.
    ProfileName,
    "a profile" {
        Cloudflare = "cloudflare",
        SandboxServer = "sandbox-server",
        CodeRunner = "code-runner",
        Automata = "automata",
        Philschmid = "philschmid",
    }
);

words!(
    /// Where an older server's way is a matter of taste. Without these it is kept.
    ProfileOption,
    "an option of profiles" {
        /// `sandbox-server`: commands are lines for a shell, not words.
        Shell = "shell",
        /// All: a command that fails is an answer that is flagged as an error.
        FlagFailures = "flag-failures",
        /// `automata`, `cloudflare`, `sandbox-server`: containers end with the server, also those that would outlive it.
        EndContainers = "end-containers",
        /// `sandbox-server`: containers without `persist` end with the server, as its documents promised.
        EndTemporary = "end-temporary",
        /// `cloudflare`: lists of files name them as they can be read, without `../`.
        PlainUris = "plain-uris",
        /// `code-runner`: new conversations have directories of 16 digits, as its last version made them, not of 64.
        ShortDirectories = "short-directories",
    }
);

/// The options that the operator chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileOptions(BTreeSet<ProfileOption>);

impl ProfileOptions {
    pub fn add(&mut self, option: ProfileOption) {
        self.0.insert(option);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn has(&self, option: ProfileOption) -> bool {
        self.0.contains(&option)
    }
}
