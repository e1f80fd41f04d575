//! The sandbox's own trees as one stream, and back.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::stream::{self, About, Entry, Moment};

enum Visit {
    Enter(PathBuf),
    Leave { path: PathBuf, about: About, was_closed: bool },
}

/// Write all that is in these directories, and in others of the sandbox that may be mounted below them. What its user cannot
/// read, although it is theirs, is made readable for that moment. Programs may change what is read meanwhile; a file then is
/// as it was found at some moment of that.
pub fn pack(places: &[PathBuf], below: &[PathBuf], output: &mut impl Write) -> io::Result<()> {
    stream::begin(output)?;
    let ours = places.iter().chain(below);
    let devices: Vec<u64> = ours.filter_map(|place| Some(fs::symlink_metadata(place).ok()?.dev())).collect();
    let own = rustix::process::geteuid().as_raw();
    let mut linked: HashMap<(u64, u64), PathBuf> = HashMap::new();
    // What is behind a link has a name of its own.
    let is_there = |place: &&PathBuf| fs::symlink_metadata(place).is_ok_and(|found| found.is_dir());
    let places = places.iter().rev().filter(is_there);
    let mut pending: Vec<Visit> = places.map(|place| Visit::Enter(place.clone())).collect();
    while let Some(visit) = pending.pop() {
        let path = match visit {
            Visit::Leave { path, about, was_closed } => {
                if was_closed {
                    fs::set_permissions(&path, Permissions::from_mode(about.mode))?;
                }
                stream::put(output, &Entry::Left { path: bytes_of(&path), about })?;
                continue;
            }
            Visit::Enter(path) => path,
        };
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let (about, kind) = (about(&found), found.file_type());
        if kind.is_dir() {
            // Something that was mounted there is not the sandbox's.
            if !devices.contains(&found.dev()) {
                continue;
            }
            let Some((entries, was_closed)) = readable(&path, about.mode | 0o700, || fs::read_dir(&path))? else {
                continue;
            };
            stream::put(output, &Entry::Directory { path: bytes_of(&path), about })?;
            // A place that is somebody else's is there as it is.
            if found.uid() == own {
                pending.push(Visit::Leave { path, about, was_closed });
            }
            let mut below = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
            below.sort_by(|one, other| other.cmp(one));
            pending.extend(below.into_iter().map(Visit::Enter));
        } else if kind.is_symlink() {
            let Ok(target) = fs::read_link(&path) else { continue };
            let target = target.into_os_string().into_vec();
            stream::put(output, &Entry::Link { path: bytes_of(&path), target, about })?;
        } else if kind.is_file() {
            let name = (found.dev(), found.ino());
            if let Some(first) = linked.get(&name) {
                stream::put(output, &Entry::Again { path: bytes_of(&path), first: bytes_of(first) })?;
                continue;
            }
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
            let open = || OpenOptions::new().read(true).custom_flags(flags).open(&path);
            let Some((mut file, was_closed)) = readable(&path, about.mode | 0o400, open)? else { continue };
            if was_closed {
                file.set_permissions(Permissions::from_mode(about.mode))?;
            }
            let is_linked = found.nlink() > 1;
            stream::put(output, &Entry::File { path: bytes_of(&path), bytes: found.size(), is_linked, about })?;
            put_pieces(output, &mut file, found.size())?;
            stream::put(output, &Entry::Left { path: bytes_of(&path), about })?;
            if is_linked {
                linked.insert(name, path);
            }
        } else if kind.is_fifo() {
            stream::put(output, &Entry::Fifo { path: bytes_of(&path), about })?;
        } else {
            stream::put(output, &Entry::Other { path: bytes_of(&path) })?;
        }
    }
    stream::put(output, &Entry::End)
}

/// Remove all that is in these directories.
pub fn clear(places: &[PathBuf]) -> io::Result<()> {
    places.iter().try_for_each(|place| clear_directory(place))
}

fn clear_directory(directory: &Path) -> io::Result<()> {
    let Some((entries, _)) = readable(directory, 0o700, || fs::read_dir(directory))? else { return Ok(()) };
    let mut is_open = false;
    for entry in entries {
        let entry = entry?;
        if !is_open {
            // To take something out of it needs more than to read it.
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
            is_open = true;
        }
        if !entry.file_type()?.is_dir() {
            fs::remove_file(entry.path())?;
            continue;
        }
        clear_directory(&entry.path())?;
        match fs::remove_dir(entry.path()) {
            // Another place is mounted there.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Make everything that the stream has, where it was.
pub fn unpack(input: &mut impl Read) -> io::Result<()> {
    stream::check_beginning(input)?;
    let mut written: Option<File> = None;
    // Closed only in the end: a file in one of them may get a second name elsewhere.
    let mut closed = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream::get(input)? {
            Entry::Directory { path, .. } => match DirBuilder::new().mode(0o700).create(as_path(&path)) {
                // The places themselves are there.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            },
            Entry::File { path, bytes, .. } => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(as_path(&path))?;
                file.set_len(bytes)?;
                written = Some(file);
            }
            Entry::Piece { offset, bytes } => {
                let file = written.as_mut().ok_or(Errno::INVAL)?;
                file.seek(SeekFrom::Start(offset))?;
                copy(input, file, bytes, &mut buffer)?;
            }
            Entry::Left { path, about } => match written.take() {
                None if about.mode & 0o700 != 0o700 => closed.push((path, about)),
                Some(_) | None => leave(as_path(&path), about)?,
            },
            Entry::Again { path, first } => fs::hard_link(as_path(&first), as_path(&path))?,
            Entry::Link { path, target, about } => {
                std::os::unix::fs::symlink(as_path(&target), as_path(&path))?;
                set_time(as_path(&path), about.modified)?;
            }
            Entry::Fifo { path, about } => {
                rustix::fs::mknodat(CWD, as_path(&path), FileType::Fifo, Mode::from_raw_mode(about.mode), 0)?;
            }
            // A socket is nothing without whoever listens on it.
            Entry::Other { .. } => {}
            Entry::End => break,
        }
    }
    // Deeper ones come first, as they were left.
    closed.into_iter().try_for_each(|(path, about)| leave(as_path(&path), about))
}

/// The standard library would let the kernel copy out of a pipe, and take it for the end when that finds none there for a
/// moment, as gVisor's does.
fn copy(input: &mut impl Read, file: &mut File, bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match input.read(&mut buffer[..most]) {
            Ok(0) => return Err(Errno::IO.into()),
            Ok(count) => {
                file.write_all(&buffer[..count])?;
                left -= count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn about(found: &fs::Metadata) -> About {
    About {
        mode: found.mode() & 0o7777,
        modified: Moment { seconds: found.mtime(), nanoseconds: found.mtime_nsec() },
        changed: Moment { seconds: found.ctime(), nanoseconds: found.ctime_nsec() },
    }
}

fn leave(path: &Path, about: About) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(about.mode))?;
    set_time(path, about.modified)
}

fn set_time(path: &Path, modified: Moment) -> io::Result<()> {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// What `open` gives, and whether it needed another mode for that. `None` for what is gone, or somebody else's and closed.
fn readable<T>(path: &Path, mode: u32, open: impl Fn() -> io::Result<T>) -> io::Result<Option<(T, bool)>> {
    match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if fs::set_permissions(path, Permissions::from_mode(mode)).is_err() {
                return Ok(None);
            }
            open().map(|opened| Some((opened, true)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(|opened| Some((opened, false))),
    }
}

/// What a file has besides holes.
fn put_pieces(output: &mut impl Write, file: &mut File, bytes: u64) -> io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let offset = match rustix::fs::seek(&*file, rustix::fs::SeekFrom::Data(at)) {
            Ok(offset) => offset,
            Err(Errno::NXIO) => return Ok(()),
            // A kernel that does not tell of holes.
            Err(Errno::INVAL) => return put_what_is_not_zero(output, file, bytes),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&*file, rustix::fs::SeekFrom::Hole(offset))?.min(bytes);
        stream::put(output, &Entry::Piece { offset, bytes: end - offset })?;
        file.seek(SeekFrom::Start(offset))?;
        let copied = io::copy(&mut Read::by_ref(file).take(end - offset), output)?;
        // One that became shorter meanwhile.
        io::copy(&mut io::repeat(0).take(end - offset - copied), output)?;
        at = end;
    }
    Ok(())
}

fn put_what_is_not_zero(output: &mut impl Write, file: &mut File, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    file.rewind()?;
    while at < bytes {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let count = count.min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        if buffer[..count].iter().any(|byte| *byte != 0) {
            stream::put(output, &Entry::Piece { offset: at, bytes: count as u64 })?;
            output.write_all(&buffer[..count])?;
        }
        at += count as u64;
    }
    Ok(())
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ended with all that it holds, when it is dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sandpen-kept-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::set_permissions(self.0.join("closed"), Permissions::from_mode(0o700));
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_packed_is_there_again() {
        let place = Place::new("all");
        let at = |name: &str| place.0.join(name);
        fs::create_dir(at("closed")).unwrap();
        fs::write(at("closed/file"), "text").unwrap();
        fs::hard_link(at("closed/file"), at("again")).unwrap();
        fs::set_permissions(at("closed/file"), Permissions::from_mode(0o444)).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let sparse = File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_at(&sparse, b"middle", 1 << 20).unwrap();
        set_time(&at("sparse"), Moment { seconds: 1_000_000, nanoseconds: 7 }).unwrap();
        fs::set_permissions(at("closed"), Permissions::from_mode(0o000)).unwrap();

        let mut packed = Vec::new();
        pack(std::slice::from_ref(&place.0), &[], &mut packed).unwrap();
        assert!(packed.len() < 1 << 20, "holes take no room: {}", packed.len());
        fs::set_permissions(at("closed"), Permissions::from_mode(0o700)).unwrap();
        for entry in fs::read_dir(&place.0).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }

        unpack(&mut packed.as_slice()).unwrap();
        assert_eq!(fs::metadata(at("closed")).unwrap().mode() & 0o777, 0o000);
        fs::set_permissions(at("closed"), Permissions::from_mode(0o700)).unwrap();
        let file = fs::metadata(at("closed/file")).unwrap();
        assert_eq!((file.mode() & 0o777, file.nlink()), (0o444, 2));
        assert_eq!(fs::read_to_string(at("again")).unwrap(), "text");
        assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("nowhere"));
        assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
        let sparse = fs::metadata(at("sparse")).unwrap();
        assert_eq!((sparse.size(), sparse.mtime(), sparse.mtime_nsec()), (1 << 30, 1_000_000, 7));
        assert!(sparse.blocks() * 512 < 1 << 20);
        let mut middle = [0; 6];
        std::os::unix::fs::FileExt::read_at(&File::open(at("sparse")).unwrap(), &mut middle, 1 << 20).unwrap();
        assert_eq!(&middle, b"middle");
    }

    #[test]
    fn half_a_stream_is_an_error() {
        let place = Place::new("half");
        fs::write(place.0.join("file"), "text").unwrap();
        let mut packed = Vec::new();
        pack(std::slice::from_ref(&place.0), &[], &mut packed).unwrap();
        for length in [0, 8, 12, packed.len() / 2, packed.len() - 1] {
            let _ = fs::remove_file(place.0.join("file"));
            assert!(unpack(&mut &packed[..length]).is_err(), "{length} of {}", packed.len());
        }
    }
}
