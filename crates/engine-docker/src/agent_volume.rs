//! Process 1's program, brought to where the daemon is: a volume that is filled once and mounted read-only by every container.

use std::io;
use std::time::SystemTime;

use bollard::models::Volume;
use bytes::Bytes;
use sandbox::{Error, Result};

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

/// One version of process 1.
#[derive(Debug)]
pub struct AgentVolume {
    pub name: String,
    program: &'static [u8],
    /// Many may miss it at once, and one brings it.
    filling: tokio::sync::Mutex<()>,
}

impl AgentVolume {
    pub fn new(program: &'static [u8], hash: &str) -> Self {
        let short: String = hash.chars().take(HASH_CHARACTERS).collect();
        Self { name: format!("{ANY}{short}"), program, filling: tokio::sync::Mutex::default() }
    }

    /// Make sure that it is there. Any image will do, because nothing of it is used.
    pub async fn fill(&self, daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<()> {
        let _turn = self.filling.lock().await;
        let carrier = Carrier::make_with_volume(daemon, maker, image, &self.name).await?;
        let whole = Some(self.program.len() as u64);
        if daemon.file_size(&carrier.id, AGENT_PROGRAM).await? != whole {
            let archive = archive(self.program, &format!("program-{}", random::text(4)?));
            let archive = archive.map_err(|cause| Error::internal("process 1 cannot be packed").with_cause(cause))?;
            daemon.upload(&carrier.id, AGENT_DIRECTORY, archive).await?;
            if daemon.file_size(&carrier.id, AGENT_PROGRAM).await? != whole {
                return Err(Error::unavailable("process 1 could not be brought to the daemon"));
            }
        }
        carrier.end().await?;
        self.remove_old(daemon).await;
        Ok(())
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

/// First under a name of its own and then, by a link, under its name: whoever sees that name sees all of it.
fn archive(program: &[u8], draft: &str) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::with_capacity(program.len() + 4096));
    let header = |kind: tar::EntryType, bytes: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header
    };
    archive.append_data(&mut header(tar::EntryType::Regular, program.len()), draft, program)?;
    archive.append_link(&mut header(tar::EntryType::Link, 0), "init", draft)?;
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
        assert_eq!(names, [std::path::Path::new("draft"), std::path::Path::new("init")]);
        assert_eq!(entries[1].link_name().unwrap().unwrap(), std::path::Path::new("draft"));
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
