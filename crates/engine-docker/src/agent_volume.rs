//! Process 1's program, brought to where the daemon is: a volume that is filled once and mounted read-only by every container.
//! Beside it lies the hosts file of containers whose daemon would otherwise give them that of its own host.

use std::io;
use std::time::SystemTime;

use bollard::models::Volume;
use bytes::Bytes;
use sandbox::{Error, Result};
use tokio::sync::OnceCell;

use crate::Flavour;
use crate::carrier::Carrier;
use crate::client::Daemon;
use crate::random;
use crate::record::Maker;
use crate::translate::{AGENT_DIRECTORY, AGENT_PROGRAM};

/// How the names of all versions begin.
const ANY: &str = "sandpen-agent-";
const HASH_CHARACTERS: usize = 16;

/// Days after which a version that nobody uses is taken for an old one. Two that are used in turns then do not remove each
/// other's every time.
const OLD: i64 = 2;

/// What the embedded engine has in its place.
const HOSTS: &[u8] = b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n";
/// Beside the program.
const HOSTS_NAME: &str = "hosts";

/// One version of process 1.
#[derive(Debug)]
pub struct AgentVolume {
    pub name: String,
    program: &'static [u8],
    /// Where the daemon's host has the hosts file, once that was asked.
    hosts: OnceCell<String>,
    /// Many may miss it at once, and one brings it.
    filling: tokio::sync::Mutex<()>,
}

impl AgentVolume {
    pub fn new(program: &'static [u8], hash: &str) -> Self {
        let short: String = hash.chars().take(HASH_CHARACTERS).collect();
        Self { name: format!("{ANY}{short}"), program, hosts: OnceCell::new(), filling: tokio::sync::Mutex::default() }
    }

    /// Where the daemon's host has the hosts file that a container must be given, if there is one that must be. Podman copies
    /// the names that its own host knows into every container, and adds the host's address; what is mounted there keeps it out.
    pub async fn hosts(&self, daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<Option<&str>> {
        match daemon.flavour() {
            Flavour::Docker => Ok(None),
            Flavour::Podman => {
                let asking = async {
                    let place = match self.place(daemon).await? {
                        Some(place) => Some(place),
                        None => {
                            self.fill(daemon, maker, image).await?;
                            self.place(daemon).await?
                        }
                    };
                    let place =
                        place.ok_or_else(|| Error::unavailable("the daemon does not say where its volumes are"))?;
                    Ok::<_, Error>(format!("{place}/{HOSTS_NAME}"))
                };
                self.hosts.get_or_try_init(|| asking).await.map(|place| Some(place.as_str()))
            }
        }
    }

    async fn place(&self, daemon: &Daemon) -> Result<Option<String>> {
        Ok(daemon.volume(&self.name).await?.map(|volume| volume.mountpoint))
    }

    /// Whether a daemon says that something of it is not there.
    pub fn is_missed_by(&self, said: &str) -> bool {
        let hosts = self.hosts.get().map(String::as_str);
        said.contains("no such file")
            && [Some(AGENT_PROGRAM), hosts].into_iter().flatten().any(|file| said.contains(file))
    }

    /// Make sure that it is there. Any image will do, because nothing of it is used.
    pub async fn fill(&self, daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<()> {
        let _turn = self.filling.lock().await;
        let carrier = Carrier::make_with_volume(daemon, maker, image, &self.name).await?;
        if !self.is_whole(daemon, &carrier).await? {
            let archive = archive(self.program, &random::text(4)?);
            let archive = archive.map_err(|cause| Error::internal("process 1 cannot be packed").with_cause(cause))?;
            daemon.upload(&carrier.id, AGENT_DIRECTORY, archive).await?;
            if !self.is_whole(daemon, &carrier).await? {
                return Err(Error::unavailable("process 1 could not be brought to the daemon"));
            }
        }
        carrier.end().await?;
        self.remove_old(daemon).await;
        Ok(())
    }

    async fn is_whole(&self, daemon: &Daemon, carrier: &Carrier) -> Result<bool> {
        let hosts = format!("{AGENT_DIRECTORY}/{HOSTS_NAME}");
        Ok(daemon.file_size(&carrier.id, AGENT_PROGRAM).await? == Some(self.program.len() as u64)
            && daemon.file_size(&carrier.id, &hosts).await? == Some(HOSTS.len() as u64))
    }

    /// Another version is there now, so earlier ones may be needed no more. The daemon keeps those that a container uses,
    /// and a server that misses its own brings it again.
    async fn remove_old(&self, daemon: &Daemon) {
        let volumes = daemon.volumes_named(ANY).await.unwrap_or_default();
        for volume in volumes.iter().filter(|volume| self.is_old(volume, today())) {
            let removal = daemon.remove_volume(&volume.name).await;
            tracing::debug!(?removal, volume.name, "an earlier version of process 1 may go");
        }
    }

    fn is_old(&self, volume: &Volume, today: i64) -> bool {
        let hash = volume.name.strip_prefix(ANY).unwrap_or_default();
        let is_version = hash.len() == HASH_CHARACTERS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let age = volume.created_at.as_deref().and_then(day_of).map(|day| today - day);
        is_version && volume.name != self.name && age.is_some_and(|days| days > OLD)
    }
}

fn today() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs() / (24 * 60 * 60)).unwrap_or(0)
}

/// The day of a time as daemons write it, counted from 1970. Which time zone it is in makes no difference for days.
fn day_of(time: &str) -> Option<i64> {
    let mut numbers = time.get(..10)?.split('-').map(|text| text.parse::<i64>().ok());
    let (year, month, day) = (numbers.next()??, numbers.next()??, numbers.next()??);
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leap_days + (month * 153 + 2) / 5 + day - 719_469)
}

/// Each first under a name of its own and then, by a link, under its name: whoever sees that name sees all of it. The program
/// comes last, because whoever sees it starts.
fn archive(program: &[u8], draft: &str) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::with_capacity(program.len() + 8192));
    let header = |kind: tar::EntryType, bytes: usize, mode: u32| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes as u64);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header
    };
    for (name, mode, contents) in [(HOSTS_NAME, 0o644, HOSTS), ("init", 0o755, program)] {
        let draft = format!("{name}-{draft}");
        archive.append_data(&mut header(tar::EntryType::Regular, contents.len(), mode), &draft, contents)?;
        archive.append_link(&mut header(tar::EntryType::Link, 0, mode), name, &draft)?;
    }
    archive.into_inner().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_comes_after_the_program() {
        let bytes = archive(b"ELF", "draft").unwrap();
        let mut archive = tar::Archive::new(bytes.as_ref());
        let entries: Vec<_> = archive.entries().unwrap().map(|entry| entry.unwrap()).collect();
        let names: Vec<_> = entries.iter().map(|entry| entry.path().unwrap().into_owned()).collect();
        assert_eq!(names, ["hosts-draft", "hosts", "init-draft", "init"].map(std::path::PathBuf::from));
        assert_eq!(entries[3].link_name().unwrap().unwrap(), std::path::Path::new("init-draft"));
    }

    #[test]
    fn what_is_missed_is_told_from_what_else_is_not_there() {
        let volume = AgentVolume::new(b"", "0123456789abcdef0123");
        assert!(volume.is_missed_by("exec: \"/.sandpen/init\": stat /.sandpen/init: no such file or directory"));
        assert!(!volume.is_missed_by("statfs /volumes/agent/_data/hosts: no such file or directory"));
        volume.hosts.set("/volumes/agent/_data/hosts".to_owned()).unwrap();
        assert!(volume.is_missed_by("statfs /volumes/agent/_data/hosts: no such file or directory"));
        assert!(!volume.is_missed_by("statfs /volumes/other/_data: no such file or directory"));
    }

    #[test]
    fn days_are_counted() {
        assert_eq!(day_of("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(day_of("2000-02-29T12:00:00+01:00"), Some(11016));
        assert_eq!(day_of("2026-11-16T13:46:07.123456789Z"), Some(20773));
        assert_eq!(day_of("yesterday"), None);
    }

    #[test]
    fn only_earlier_versions_are_old() {
        let ours = AgentVolume::new(b"", "0123456789abcdef0123");
        let old = |name: &str, made_at: Option<&str>| {
            ours.is_old(
                &Volume { name: name.to_owned(), created_at: made_at.map(str::to_owned), ..Volume::default() },
                20773,
            )
        };
        let before = Some("2026-11-01T00:00:00Z");
        assert!(old("sandpen-agent-fedcba9876543210", before));
        assert!(!old("sandpen-agent-fedcba9876543210", Some("2026-11-15T00:00:00Z")));
        assert!(!old("sandpen-agent-fedcba9876543210", None));
        for other in ["sandpen-agent-0123456789abcdef", "sandpen-agent-notes", "sandpen-agent-of-somebody-e", "x"] {
            assert!(!old(other, before), "{other}");
        }
    }
}
