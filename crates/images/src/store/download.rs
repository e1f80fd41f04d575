//! A blob on its way into the store: written bit by bit, perhaps by several processes one after the other, and seen by
//! nobody until it is whole and its digest is right.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::Store;
use crate::confined::Name;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::trees::constant;

/// How long somebody may take to go on with a download.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Debug)]
pub struct Download {
    file: File,
    digest: Digest,
    size: u64,
    received: u64,
    hasher: Hasher,
}

/// What there is to do about a blob that is wanted.
#[derive(Debug)]
pub enum Begun {
    /// Nothing: it is there.
    Finished,
    /// Somebody else is at it.
    Busy,
    Download(Box<Download>),
}

impl Download {
    /// How much of it is there.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// What is still to come.
    pub fn missing(&self) -> u64 {
        self.size - self.received
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.missing() {
            return Err(Error::Refused(format!("more than the announced {} bytes came", self.size)));
        }
        self.file.write_all(bytes).map_err(Error::io(format!("writing {}", self.digest)))?;
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what has come so far.
    pub fn restart(&mut self) -> Result<()> {
        let doing = || Error::io(format!("writing {}", self.digest));
        self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0))).map_err(doing())?;
        (self.received, self.hasher) = (0, Hasher::default());
        Ok(())
    }
}

impl Store {
    /// Goes on with a blob of which something may be there already.
    pub(super) fn begin_download(&self, descriptor: &Descriptor) -> Result<Begun> {
        let name = descriptor.digest.to_string();
        let doing = || Error::io(format!("beginning {name}"));
        if self.has_blob(descriptor.digest)? {
            return Ok(Begun::Finished);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.downloads, &*name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|error| doing()(error.into()))?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Begun::Busy),
            Err(error) => return Err(doing()(error.into())),
        }
        // Whoever held the lock before may have finished the file, or given it up.
        let there = self.downloads.stat(constant(&name)).map_err(doing())?;
        if there.is_none_or(|there| there.st_ino != file.metadata().map_or(0, |own| own.ino())) {
            return Ok(Begun::Busy);
        }
        let mut hasher = Hasher::default();
        let mut received = 0;
        let mut buffer = vec![0; 128 * 1024];
        loop {
            match file.read(&mut buffer).map_err(doing())? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            }
            received = file.stream_position().map_err(doing())?;
        }
        let mut download = Download { file, digest: descriptor.digest, size: descriptor.size, received, hasher };
        if download.received > download.size {
            download.restart()?;
        }
        Ok(Begun::Download(Box::new(download)))
    }

    /// Makes a download visible as a blob, if it is what was announced. If it is not, nothing of it is kept.
    pub(super) fn finish_download(&self, download: Download) -> Result<()> {
        let Download { file, digest, size, received, hasher } = download;
        let name = digest.to_string();
        let doing = || Error::io(format!("finishing {name}"));
        if received != size || hasher.finish() != digest {
            let _ = self.downloads.remove_file(constant(&name));
            return Err(Error::Refused(format!("what came for {} is something else", digest.qualified())));
        }
        file.sync_all().map_err(doing())?;
        rustix::fs::renameat(&self.downloads, &*name, &self.blobs, &*name).map_err(|error| doing()(error.into()))?;
        rustix::fs::fsync(&self.blobs).map_err(|error| doing()(error.into()))
    }

    /// Removes what has come, because nobody can go on with it.
    pub(super) fn abandon_download(&self, download: Download) {
        // What cannot be removed is swept in a week.
        let _ = self.downloads.remove_file(constant(&download.digest.to_string()));
    }

    pub(super) fn sweep_downloads(&self) -> Result<()> {
        let oldest = SystemTime::now().checked_sub(KEPT).unwrap_or(SystemTime::UNIX_EPOCH);
        for bytes in self.downloads.names().map_err(Error::io("listing downloads"))? {
            let Some(name) = Name::new(&bytes) else { continue };
            let Ok(file) = self.downloads.open_file(name) else { continue };
            let is_old = file.metadata().and_then(|found| found.modified()).is_ok_and(|modified| modified < oldest);
            if is_old && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                self.downloads.remove_file(name).map_err(Error::io("removing an old download"))?;
            }
        }
        Ok(())
    }
}
