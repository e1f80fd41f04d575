//! Where programs start in a root, and what has to be made for that.
//!
//! The image's own word about it is followed through its links, because a directory that was made over one of them would
//! hide what it leads to.

use std::io;
use std::path::PathBuf;

use images::Directory as Tree;
use images::overlaid::{Leaving, Lost, Meta, Node, Overlaid};
use images::unpack::Owners;
use sandbox::{Error, GuestPath, Result};
use serde::{Deserialize, Serialize};

use super::recorded_path;
use super::users::{IDS, User};
use crate::plan::{Directory, DirectoryOwner};

/// What is of the sandbox itself, whatever the image has there.
const COVERED: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];
/// What every guest has, made for its user.
pub const GIVEN: [&str; 3] = ["/tmp", super::HOME, "/workspace"];
/// The number that ids beyond those of a sandbox show as.
const NOBODY: User = User { id: 65534, group: 65534 };

/// Where programs start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkDirectory {
    #[serde(with = "recorded_path")]
    pub path: GuestPath,
    /// What is made for it besides what every guest has, from the top down. Nothing where the image has it.
    pub made: Vec<Directory>,
}

impl Default for WorkDirectory {
    fn default() -> Self {
        Self { path: GuestPath::workspace(), made: Vec::new() }
    }
}

/// The layers of an image, the highest first, and who programs are in it.
#[derive(Debug)]
pub struct Ground {
    pub layers: Vec<PathBuf>,
    pub user: User,
    pub owners: Owners,
}

impl Ground {
    /// What somebody asked for. What is not there is made.
    pub fn asked(&self, path: &GuestPath) -> Result<WorkDirectory> {
        match self.find(path.as_bytes())? {
            Found::Enterable(found) => Ok(found),
            Found::Closed => Err(Error::denied(format!("the image's user may not enter {path}"))),
        }
    }

    /// What the image itself says. Its root is no place to work in; one that its user cannot enter, because the image
    /// runs as root elsewhere, and one that is covered by something of ours, would let no program start.
    pub fn said(&self, word: &str) -> Result<WorkDirectory> {
        let Found::Enterable(found) = self.find(word.as_bytes())? else { return Ok(WorkDirectory::default()) };
        let covered = COVERED.iter().any(|own| own.parse().is_ok_and(|own: GuestPath| own.contains(&found.path)));
        Ok(if covered || found.path.is_root() { WorkDirectory::default() } else { found })
    }

    fn find(&self, word: &[u8]) -> Result<Found> {
        // It is the user's in every sandbox, and so it is in the next one that is made from what is saved of it.
        if word == GuestPath::workspace().as_bytes() {
            return Ok(Found::Enterable(WorkDirectory::default()));
        }
        let unusable = || {
            let shown = String::from_utf8_lossy(word).chars().take(200).collect::<String>();
            Error::invalid_input(format!("the work directory {shown:?} is not a directory of the image"))
        };
        let trees = self.layers.iter().map(|path| Tree::open(path)).collect::<io::Result<_>>().map_err(unreadable)?;
        let image = Overlaid::of_layers(trees);
        let place = image.follow(word, Leaving::StaysAtRoot).map_err(|lost| match lost {
            Lost::Io(cause) => unreadable(cause),
            Lost::Outside | Lost::TooManyLinks | Lost::NoDirectory => unusable(),
        })?;
        let text = std::str::from_utf8(&place.path).map_err(|_| unusable())?;
        let path = GuestPath::resolve(&GuestPath::root(), format!("/{text}").as_bytes())?;
        let (mut made, mut is_again) = (Vec::new(), false);
        let ends = text.match_indices('/').map(|(end, _)| end).chain([text.len()]);
        for end in ends.filter(|end| *end > 0) {
            let Some(node) = image.find(&text.as_bytes()[..end]).map_err(unreadable)? else { break };
            let Node::Directory(directory) = node else { return Err(unusable()) };
            let here = format!("/{}", &text[..end]);
            let meta = directory.meta().map_err(unreadable)?;
            if GIVEN.contains(&&*here) {
                continue;
            }
            if !self.may_enter(&meta) {
                return Ok(Found::Closed);
            }
            let is_last = end == text.len();
            if is_last && self.owners == Owners::Noted && meta.user == self.user.id {
                let mode = meta.mode & 0o1777 | 0o700;
                made.push(Directory { path: here, mode, owner: DirectoryOwner::User });
                is_again = true;
            } else if !is_last {
                made.push(Directory { path: here, mode: meta.mode & 0o1777, owner: self.owner(&meta) });
            }
        }
        match place.node {
            // Those above it need not be made either.
            Some(_) if !is_again => made.clear(),
            Some(_) => {}
            None if GIVEN.contains(&&*path.to_string_lossy()) => made.clear(),
            None => made.push(Directory { path: format!("/{text}"), mode: 0o755, owner: DirectoryOwner::User }),
        }
        Ok(Found::Enterable(WorkDirectory { path, made }))
    }

    fn may_enter(&self, meta: &Meta) -> bool {
        if self.user.id == User::ROOT.id {
            // Root of a sandbox has the right to.
            return true;
        }
        let bits = match self.owners {
            // Nobody inside is their owner, and an overlay reads the marks of directories as a stranger too.
            Owners::Noted => 0o005,
            Owners::Kept | Owners::Mapped | Owners::Known if meta.user == self.user.id => 0o100,
            Owners::Kept | Owners::Mapped | Owners::Known if meta.group == self.user.group => 0o010,
            Owners::Kept | Owners::Mapped | Owners::Known => 0o001,
        };
        meta.mode & bits == bits
    }

    fn owner(&self, meta: &Meta) -> DirectoryOwner {
        match self.owners {
            Owners::Noted if meta.user == self.user.id => DirectoryOwner::User,
            // There is nobody else whose it could be.
            Owners::Noted => DirectoryOwner::Root,
            Owners::Kept | Owners::Mapped | Owners::Known if meta.user >= IDS || meta.group >= IDS => {
                DirectoryOwner::Somebody(NOBODY)
            }
            Owners::Kept | Owners::Mapped | Owners::Known => {
                DirectoryOwner::Somebody(User { id: meta.user, group: meta.group })
            }
        }
    }
}

enum Found {
    Enterable(WorkDirectory),
    /// The user may not go there.
    Closed,
}

fn unreadable(cause: io::Error) -> Error {
    Error::unavailable("the image's tree cannot be read").with_cause(cause)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use sandbox::ErrorKind;

    use super::*;

    /// Nobody who has made anything here.
    const USER: User = User { id: 4242, group: 4242 };

    fn ground(place: &tempfile::TempDir) -> Ground {
        let top = place.path();
        for directory in ["srv/app", "closed", "var", "run/x", "home/sandbox/deep"] {
            fs::create_dir_all(top.join(directory)).unwrap();
        }
        fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(top.join("srv"), fs::Permissions::from_mode(0o711)).unwrap();
        fs::write(top.join("file"), "").unwrap();
        symlink("/srv/app", top.join("app")).unwrap();
        symlink("../run", top.join("var/run")).unwrap();
        symlink("/srv/late", top.join("dangling")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        Ground { layers: vec![top.to_owned()], user: USER, owners: Owners::Kept }
    }

    fn said(ground: &Ground, word: &str) -> (String, Vec<(String, u32, bool)>) {
        let WorkDirectory { path, made } = ground.said(word).unwrap();
        let made = made.into_iter().map(|one| (one.path, one.mode, one.owner == DirectoryOwner::User));
        (path.to_string(), made.collect())
    }

    #[test]
    fn a_directory_of_the_image_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let ground = ground(&place);
        for word in ["/srv/app", "/app", "/app/", "srv/app", "/srv/../app/.", "/srv"] {
            let (path, made) = said(&ground, word);
            assert!(path == "/srv/app" || word == "/srv" && path == "/srv", "{word}: {path}");
            assert_eq!(made, [], "{word}");
        }
        assert_eq!(said(&ground, "/home/sandbox/deep"), ("/home/sandbox/deep".to_owned(), vec![]));
    }

    #[test]
    fn one_that_is_not_there_is_made_for_the_user_below_what_is() {
        let place = tempfile::tempdir().unwrap();
        let ground = ground(&place);
        let made = |path: &str, mode, users| (path.to_owned(), mode, users);
        let expected = vec![made("/srv", 0o711, false), made("/srv/late", 0o755, true)];
        assert_eq!(said(&ground, "/dangling"), ("/srv/late".to_owned(), expected));
        let expected = vec![made("/srv", 0o711, false), made("/srv/a/b", 0o755, true)];
        assert_eq!(said(&ground, "/srv/a/b"), ("/srv/a/b".to_owned(), expected));
        assert_eq!(said(&ground, "/new"), ("/new".to_owned(), vec![made("/new", 0o755, true)]));
        for given in GIVEN {
            assert_eq!(said(&ground, given), (given.to_owned(), vec![]));
        }
    }

    #[test]
    fn what_lets_no_program_start_is_no_word() {
        let place = tempfile::tempdir().unwrap();
        let ground = ground(&place);
        for word in ["", "/", "/..", "/closed", "/closed/x", "/run/x", "/var/run/x", "/proc/self", "/dev", "/sys/fs"] {
            assert_eq!(said(&ground, word), ("/workspace".to_owned(), vec![]), "{word}");
        }
        let asked = ground.asked(&"/closed".parse().unwrap()).unwrap_err();
        assert_eq!(asked.kind(), ErrorKind::Denied, "who asks for it is told");
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let ground = ground(&place);
        for word in ["/file", "/file/below", "/loop"] {
            let error = ground.said(word).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{word}");
            assert!(error.message().contains(word), "{error}");
        }
    }

    /// An ordinary user's sandbox has nobody whose the image's files could be, so what is its user's is made again.
    #[test]
    fn without_owners_the_user_has_its_own_again() {
        let place = tempfile::tempdir().unwrap();
        let mut ground = ground(&place);
        ground.owners = Owners::Noted;
        let app = fs::File::open(place.path().join("srv/app")).unwrap();
        assert_eq!(said(&ground, "/app").0, "/workspace", "what is above it can be read by its owner only");
        fs::set_permissions(place.path().join("srv"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(said(&ground, "/app"), ("/srv/app".to_owned(), vec![]), "it is somebody else's");
        fs::set_permissions(place.path().join("srv/app"), fs::Permissions::from_mode(0o775)).unwrap();
        let noted =
            rustix::fs::fsetxattr(&app, images::unpack::OWNER_ATTRIBUTE, b"4242:4242", rustix::fs::XattrFlags::empty());
        noted.unwrap();
        let expected = vec![("/srv".to_owned(), 0o755, false), ("/srv/app".to_owned(), 0o775, true)];
        assert_eq!(said(&ground, "/app"), ("/srv/app".to_owned(), expected));

        let above = fs::File::open(place.path().join("srv")).unwrap();
        let noted = rustix::fs::fsetxattr(
            &above,
            images::unpack::OWNER_ATTRIBUTE,
            b"4242:4242",
            rustix::fs::XattrFlags::empty(),
        );
        noted.unwrap();
        let expected = vec![("/srv".to_owned(), 0o755, true), ("/srv/app".to_owned(), 0o775, true)];
        assert_eq!(said(&ground, "/app").1, expected, "what is above it is as much the user's");
        rustix::fs::fremovexattr(&app, images::unpack::OWNER_ATTRIBUTE).unwrap();
        assert_eq!(said(&ground, "/app").1, [], "somebody else's below what is the user's");
    }
}
