//! A sandbox's files through a stop.
//!
//! Everything that programs write is in memory, and is gone when process 1 is. So when it is told to stop it ends all
//! programs and writes the files into a directory that outlives it and that only it can enter; and when it starts again it
//! brings them back before anybody is let in.
//!
//! ```text
//! files        what was kept by the last stop, whole: it appears by a rename
//! files.new    what a stop is writing, or did not finish
//! begun        it has run since: without `files` beside it, what it had is lost
//! ```
//!
//! Reading and writing of the sandbox's trees is done by a child that is the sandbox's user, as all file work is.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit};

use crate::syscall::{self, Forked};
use crate::{identity, tree};

pub mod archive;

const FILES: &str = "files";
const DRAFT: &str = "files.new";
const BEGUN: &str = "begun";

const BUFFER: usize = 256 << 10;

/// Names and modes of files are kept too, and are in no place's size.
const ROOM_FOR_NAMES: u64 = 64 << 20;

/// How a start went on from what was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// There was nothing yet.
    First,
    Continued,
    /// It has run before and was ended without a chance to keep anything.
    Lost,
}

/// Bring back what the last stop has kept. What was kept stays until the next stop replaces it.
pub fn bring_back(directory: &Path) -> io::Result<Beginning> {
    remove_if_there(&directory.join(DRAFT))?;
    let beginning = match reading().open(directory.join(FILES)) {
        Ok(kept) => {
            open_to_everybody(&in_memory()?)?;
            as_user(|| archive::unpack(&mut BufReader::with_capacity(BUFFER, kept)))?;
            Beginning::Continued
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => match directory.join(BEGUN).try_exists()? {
            true => return Ok(Beginning::Lost),
            false => Beginning::First,
        },
        Err(error) => return Err(error),
    };
    writing().open(directory.join(BEGUN))?.sync_all()?;
    File::open(directory)?.sync_all()?;
    Ok(beginning)
}

/// Links of an image would lead elsewhere.
fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW);
    options
}

fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
    options
}

/// End everything that runs and keep the files of these places. What the last stop kept is replaced in one step, or stays.
pub fn keep(directory: &Path, places: &[PathBuf]) -> io::Result<()> {
    tree::kill_all_others();
    let draft = directory.join(DRAFT);
    let all = [places, &in_memory()?].concat();
    let kept = write_draft(&draft, all).and_then(|()| fs::rename(&draft, directory.join(FILES)));
    if let Err(error) = kept {
        // It may be as large as everything, on a disk that is not the sandbox's.
        let _ = remove_if_there(&draft);
        return Err(error);
    }
    remove_if_there(&directory.join(BEGUN))?;
    File::open(directory)?.sync_all()
}

fn write_draft(draft: &Path, all: Vec<PathBuf>) -> io::Result<()> {
    let file = writing().open(draft)?;
    let places = tops(&all);
    let output = file.try_clone()?;
    let most = most_bytes(&places);
    as_user(move || {
        bound_files(most)?;
        let mut output = BufWriter::with_capacity(BUFFER, output);
        archive::pack(&places, &all, &mut output)?;
        output.into_inner().map_err(io::IntoInnerError::into_error).map(drop)
    })?;
    file.sync_all()
}

/// What the places can hold, and room for names. `None` where one of them has no bound: memory bounds it then.
fn most_bytes(places: &[PathBuf]) -> Option<u64> {
    let mut sum = ROOM_FOR_NAMES;
    for place in places {
        let system = rustix::fs::statvfs(place).ok()?;
        let most = system.f_blocks.checked_mul(system.f_frsize).filter(|most| *most > 0)?;
        sum = sum.checked_add(most)?;
    }
    Some(sum)
}

/// A file that would become larger is an error from here on, for this process.
fn bound_files(most: Option<u64>) -> io::Result<()> {
    let Some(most) = most else { return Ok(()) };
    syscall::ignore_signal(libc::SIGXFSZ);
    Ok(rustix::process::setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Where something in memory is mounted that is not ours or the kernel's: what programs can write to.
pub fn in_memory() -> io::Result<Vec<PathBuf>> {
    Ok(mounted_in_memory(&fs::read("/proc/self/mountinfo")?))
}

fn mounted_in_memory(table: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in table.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(end) = fields.iter().position(|field| *field == b"-") else { continue };
        let (Some(place), Some(options), Some(kind)) = (fields.get(4), fields.get(5), fields.get(end + 1)) else {
            continue;
        };
        // One whose name is written in another way could not be opened by it.
        let is_writable = options.split(|byte| *byte == b',').any(|option| option == b"rw");
        if *kind != b"tmpfs" || !is_writable || place.contains(&b'\\') {
            continue;
        }
        let place = Path::new(OsStr::from_bytes(place));
        if !["/proc", "/sys", "/dev", "/run"].iter().any(|taken| place.starts_with(taken)) {
            found.push(place.to_owned());
        }
    }
    found
}

/// Volumes of an image are everybody's at a first start. At later ones runtimes give them the mode of the directory beneath,
/// which they have made themselves meanwhile.
fn open_to_everybody(places: &[PathBuf]) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let is_own = |place: &&PathBuf| fs::symlink_metadata(place).is_ok_and(|found| found.is_dir() && found.uid() == own);
    places.iter().filter(is_own).try_for_each(|place| fs::set_permissions(place, Permissions::from_mode(0o1777)))
}

/// Those that are not below another.
fn tops(places: &[PathBuf]) -> Vec<PathBuf> {
    let is_top = |place: &&PathBuf| !places.iter().any(|other| other != *place && place.starts_with(other));
    let mut tops: Vec<PathBuf> = places.iter().filter(is_top).cloned().collect();
    tops.sort();
    tops.dedup();
    tops
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// In a child that is the sandbox's user. Its exit code is the number of the error.
fn as_user(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match syscall::fork()? {
        Forked::Parent(pid) => {
            // Whoever could stop it was killed before; should one be left, it does not hold us up.
            let status = syscall::reap_unstopped(pid)?.status;
            match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
                (true, 0) => Ok(()),
                (true, code) => Err(io::Error::from_raw_os_error(code)),
                (false, _) => Err(io::Error::other("whoever did it was killed")),
            }
        }
        Forked::Child => {
            rustix::process::umask(rustix::fs::Mode::empty());
            let done = identity::become_user(None).map_err(io::Error::from).and_then(|()| work());
            let code = done.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
            syscall::exit_now(code.clamp(0, 255));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_an_image_are_found_and_nothing_of_ours() {
        let table = b"\
20 19 0:5 / / ro,relatime - overlay overlay rw
21 20 0:6 / /proc rw,nosuid - proc proc rw
22 20 0:7 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k
23 20 0:8 / /run rw,nosuid - tmpfs tmpfs rw
24 20 0:9 / /data rw,nosuid shared:1 master:2 - tmpfs tmpfs rw
25 20 0:10 / /sys/firmware ro - tmpfs tmpfs ro
26 20 0:11 / /closed ro - tmpfs tmpfs ro
27 20 8:1 /v /.sandpen-kept rw - ext4 /dev/sda1 rw
28 20 0:12 / /a\\040b rw - tmpfs tmpfs rw
";
        assert_eq!(mounted_in_memory(table), [PathBuf::from("/data")]);
    }

    #[test]
    fn what_is_kept_is_bounded_by_what_the_places_hold() {
        let place = tempdir("bounded");
        let own = most_bytes(std::slice::from_ref(&place)).expect("a disk has a size");
        assert!(own > ROOM_FOR_NAMES);
        assert_eq!(most_bytes(&[place.clone(), place.clone()]), Some(2 * own - ROOM_FOR_NAMES));
        assert_eq!(most_bytes(&[place.clone(), place.join("none")]), None);
        // In a child, because it is for good.
        let file = place.join("file");
        match syscall::fork().unwrap() {
            Forked::Parent(pid) => {
                let status = syscall::reap(pid).unwrap().status;
                assert!(libc::WIFEXITED(status), "{status:#x}");
                assert_eq!(libc::WEXITSTATUS(status), libc::EFBIG);
            }
            Forked::Child => {
                let written = bound_files(Some(1000)).and_then(|()| fs::write(&file, [0; 2000]));
                syscall::exit_now(written.err().and_then(|error| error.raw_os_error()).unwrap_or(0));
            }
        }
        assert_eq!(fs::metadata(&file).unwrap().len(), 1000);
        fs::remove_dir_all(&place).unwrap();
    }

    fn tempdir(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("sandpen-init-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        place
    }

    #[test]
    fn places_below_others_come_with_them() {
        let places = ["/workspace", "/tmp", "/workspace/sub", "/workspaces", "/tmp"].map(PathBuf::from);
        assert_eq!(tops(&places), ["/tmp", "/workspace", "/workspaces"].map(PathBuf::from));
    }
}
