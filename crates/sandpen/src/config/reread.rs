//! Reading the file of settings once more, while a server runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sandbox::Result;

use super::places::usual_files;
use super::{Config, Key, Origin, Written, env, file, variable};

/// Settings as they are from now on.
#[derive(Clone, Debug)]
pub struct Reread {
    pub config: Config,
    /// What was changed in the file and holds after a restart only.
    pub later: BTreeSet<Key>,
}

impl Key {
    /// Whether a server follows while it runs: what owners may have, what calls get and may ask for, and who may sign in.
    fn is_followed(self) -> bool {
        matches!(
            self,
            Self::OwnerSandboxes
                | Self::OwnerCpus
                | Self::OwnerMemory
                | Self::OwnerDisk
                | Self::OwnerSavedImages
                | Self::OwnerRuns
                | Self::OwnerRequests
                | Self::OwnerLimit
                | Self::OwnerNetworkConnections
                | Self::OwnerNetworkBytes
                | Self::OwnerNetworkRate
                | Self::MaxMemory
                | Self::MaxCpus
                | Self::MaxProcesses
                | Self::MaxDisk
                | Self::MaxNetwork
                | Self::AllowImage
                | Self::AllowPath
                | Self::Image
                | Self::Memory
                | Self::Cpus
                | Self::Processes
                | Self::Disk
                | Self::Inodes
                | Self::OpenFiles
                | Self::Idle
                | Self::Lifetime
                | Self::Timeout
                | Self::Network
                | Self::OidcAllow
                | Self::OidcScope
        )
    }
}

impl Config {
    /// The same file, variables and flags. A file that makes no sense changes nothing.
    pub fn reread(&self) -> Result<Reread> {
        let told = self.named_file.clone().or_else(|| variable("SANDPEN_CONFIG").map(PathBuf::from));
        let now = file::read(told.as_deref(), &usual_files(variable))?;
        self.with_file(now, env::read(variable)?)
    }

    fn with_file(&self, now: Option<Written>, variables: Written) -> Result<Reread> {
        let flags = self.places.iter().find(|written| written.origin == Origin::Flags).cloned();
        let resolve =
            |file: Option<Written>| Self::resolve(file.into_iter().chain([variables.clone()]).chain(flags.clone()));
        // As a whole, also what has to wait: it would not start with it.
        resolve(now.clone())?;
        let before = self.places.iter().find(|written| matches!(written.origin, Origin::File(_)));
        let (followed, waiting) = parts(now.as_ref());
        let (_, kept) = parts(before);
        let changed = |key: &Key| values(&kept, *key).ne(values(&waiting, *key));
        let later = kept.iter().chain(&waiting).map(|(key, _)| *key).filter(changed).collect();
        let origin = now.as_ref().or(before).map(|written| written.origin.clone());
        let merged = origin.map(|origin| Written { origin, values: [kept.clone(), followed].concat() });
        let mut config = resolve(merged)?;
        config.state_dir.clone_from(&self.state_dir);
        config.named_file.clone_from(&self.named_file);
        Ok(Reread { config: config.serving()?, later })
    }
}

type Values = Vec<(Key, String)>;

/// What is followed, and the rest.
fn parts(written: Option<&Written>) -> (Values, Values) {
    let values = written.map(|written| written.values.clone()).unwrap_or_default();
    values.into_iter().partition(|(key, _)| key.is_followed())
}

fn values(values: &[(Key, String)], key: Key) -> impl Iterator<Item = &String> {
    values.iter().filter(move |(known, _)| *known == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(values: &[(Key, &str)]) -> Option<Written> {
        let mut written = Written::new(Origin::File("sandpen.toml".into()));
        values.iter().for_each(|(key, value)| written.push(*key, *value));
        Some(written)
    }

    fn nothing() -> Written {
        Written::new(Origin::Variables)
    }

    #[test]
    fn what_is_followed_changes_and_the_rest_is_named() {
        let mut flags = Written::new(Origin::Flags);
        flags.push(Key::MaxCpus, "3");
        let before = file(&[(Key::OwnerSandboxes, "1"), (Key::Listen, "8228"), (Key::Log, "info")]);
        let config = Config::resolve(before.into_iter().chain([nothing(), flags])).unwrap();
        let now = file(&[(Key::OwnerSandboxes, "2"), (Key::MaxCpus, "9"), (Key::Listen, "1"), (Key::NoAuth, "true")]);
        let Reread { config: after, later } = config.with_file(now, nothing()).unwrap();
        assert_eq!((after.quota.sandboxes, after.server.ceiling.cpu_millis), (2, 3000), "a flag counts more");
        assert_eq!((after.http.listen.port(), after.http.no_auth), (8228, false));
        assert_eq!(later, [Key::Log, Key::Listen, Key::NoAuth].into());
        let Reread { config: again, later } = after.with_file(file(&[]), nothing()).unwrap();
        assert_eq!(again.quota.sandboxes, 1000, "what is taken out is as if it had never been there");
        assert_eq!((again.http.listen.port(), later), (8228, [Key::Log, Key::Listen].into()));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_as_a_whole() {
        let config = Config::resolve(file(&[(Key::OwnerSandboxes, "1")]).into_iter().chain([nothing()])).unwrap();
        for wrong in [(Key::OwnerSandboxes, "many"), (Key::Listen, "nowhere")] {
            assert!(config.with_file(file(&[(Key::OwnerCpus, "1"), wrong]), nothing()).is_err(), "{wrong:?}");
        }
    }
}
