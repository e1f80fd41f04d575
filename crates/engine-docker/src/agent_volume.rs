//! Process 1's program, brought to where the daemon is: a volume that is filled once and mounted read-only by every container.

use std::io;

use bytes::Bytes;
use sandbox::{Error, Result};

use crate::carrier::Carrier;
use crate::client::Daemon;
use crate::random;
use crate::record::Maker;
use crate::translate::{AGENT_DIRECTORY, AGENT_PROGRAM};

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
        let short: String = hash.chars().take(16).collect();
        Self { name: format!("sandpen-agent-{short}"), program, filling: tokio::sync::Mutex::default() }
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
        carrier.end().await
    }
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
}
