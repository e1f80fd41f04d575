//! What a later process must know of a sandbox that outlives its maker, and nobody else.
//!
//! It is kept where nobody else reads, and not in the labels of a container: those are shown to whoever looks, are told by
//! the daemon with everything that happens, and pass on to images.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sandbox::{Environment, Error, Result, SandboxId};
use serde::{Deserialize, Serialize};

/// How the name of one ends that is not whole yet.
const DRAFT: &str = ".new";

#[derive(Debug)]
pub struct Keepsakes {
    directory: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keepsake {
    /// What every program of the sandbox is given.
    pub environment: Environment,
    /// What the gateway must have again to serve it: the key of the authority that the sandbox trusts.
    pub gateway: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    environment: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
}

impl Keepsakes {
    /// In a directory that is closed to others.
    pub fn prepare(state: &Path) -> io::Result<Self> {
        let directory = state.join("keepsakes");
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// To be called when its container is there: one without a container is taken for left behind.
    pub fn write(&self, id: &SandboxId, keepsake: &Keepsake) -> Result<()> {
        let unwritable = |cause: io::Error| {
            Error::unavailable("what programs of the sandbox are given cannot be kept")
                .with_hint("choose another directory by --state-dir")
                .with_cause(cause)
        };
        let variables = keepsake.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let written = Written { environment: variables.collect(), gateway: keepsake.gateway.clone() };
        let draft = self.draft(id);
        let write = || -> io::Result<()> {
            let mut file = private(&draft)?;
            file.write_all(&serde_json::to_vec(&written)?)?;
            file.sync_all()?;
            fs::rename(&draft, self.path(id))
        };
        write().map_err(unwritable)
    }

    pub fn read(&self, id: &SandboxId) -> Result<Option<Keepsake>> {
        let unreadable =
            |cause| Error::unavailable("what programs of the sandbox are given cannot be read").with_cause(cause);
        let written: Written = match fs::read(self.path(id)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|cause| unreadable(cause.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let mut environment = Environment::default();
        for (name, value) in written.environment {
            environment.insert(name, value)?;
        }
        Ok(Some(Keepsake { environment, gateway: written.gateway }))
    }

    pub fn forget(&self, id: &SandboxId) {
        // Those that end with their maker have none. One that stays is forgotten at the next look around.
        let _ = fs::remove_file(self.path(id));
        let _ = fs::remove_file(self.draft(id));
    }

    /// With those that were being written when their process was killed: they hold the same.
    pub fn all(&self) -> Vec<SandboxId> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let id = |name: &str| name.strip_suffix(DRAFT).unwrap_or(name).parse::<SandboxId>().ok();
        let ids: BTreeSet<SandboxId> = entries.filter_map(|entry| id(entry.file_name().to_str()?)).collect();
        ids.into_iter().collect()
    }

    fn draft(&self, id: &SandboxId) -> PathBuf {
        self.directory.join(format!("{id}{DRAFT}"))
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.directory.join(id.as_str())
    }
}

fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_until_it_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let keepsakes = Keepsakes::prepare(place.path()).unwrap();
        let (id, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        let mut keepsake = Keepsake::default();
        keepsakes.write(&id, &keepsake).unwrap();
        assert_eq!(keepsakes.read(&id).unwrap(), Some(keepsake.clone()));
        keepsake.environment.insert("TOKEN", "some \"value\"\n").unwrap();
        keepsake.gateway = Some("key".to_owned());
        keepsakes.write(&id, &keepsake).unwrap();
        assert_eq!(keepsakes.read(&id).unwrap(), Some(keepsake));
        assert_eq!(keepsakes.read(&other).unwrap(), None);
        assert_eq!(keepsakes.all(), std::slice::from_ref(&id));
        keepsakes.forget(&id);
        keepsakes.forget(&other);
        assert_eq!(keepsakes.all(), []);
    }

    #[test]
    fn one_that_was_half_written_is_found_and_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let keepsakes = Keepsakes::prepare(place.path()).unwrap();
        let (id, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        fs::write(keepsakes.draft(&id), "{\"gateway\":\"a private ke").unwrap();
        assert_eq!(keepsakes.read(&id).unwrap(), None);
        assert_eq!(keepsakes.all(), std::slice::from_ref(&id));
        keepsakes.write(&other, &Keepsake::default()).unwrap();
        fs::write(keepsakes.draft(&other), "").unwrap();
        assert_eq!(keepsakes.all().len(), 2, "each once");
        keepsakes.forget(&id);
        keepsakes.forget(&other);
        assert_eq!(fs::read_dir(&keepsakes.directory).unwrap().count(), 0);
    }

    #[test]
    #[cfg(unix)]
    fn nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let keepsakes = Keepsakes::prepare(place.path()).unwrap();
        let id = SandboxId::random().unwrap();
        keepsakes.write(&id, &Keepsake::default()).unwrap();
        assert_eq!(fs::metadata(keepsakes.path(&id)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
