//! What was seen inside of images. A digest always means the same files, so it is looked for once and then kept on disk:
//! to look takes the daemon a container, and a command lives for less time than that.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox::GuestPath;
use sandbox::user::UserIds;
use serde::{Deserialize, Serialize};

use crate::random;

/// Of the files. What another version has written is looked for again.
const VERSION: u32 = 3;

/// Images that are remembered; with one more, all are looked at anew.
const MOST_IMAGES: usize = 256;

/// One image. That it is there at all says that it leaves alone what is not its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    version: u32,
    user: u32,
    group: u32,
    /// Whether it has something there.
    places: BTreeMap<String, bool>,
    /// Whether no link is on the way there.
    direct: BTreeMap<String, bool>,
}

#[derive(Debug)]
pub struct Seen {
    directory: PathBuf,
    images: Mutex<BTreeMap<String, Image>>,
}

impl Seen {
    pub fn new(state: &Path) -> Self {
        Self { directory: state.join("docker").join("seen"), images: Mutex::default() }
    }

    /// Whom the image's own programs run as.
    pub fn user(&self, digest: &str) -> Option<UserIds> {
        self.image(digest).map(|image| UserIds { id: image.user, group: image.group })
    }

    pub fn keep_user(&self, digest: &str, user: UserIds) {
        let (places, direct) = self.image(digest).map(|image| (image.places, image.direct)).unwrap_or_default();
        self.keep(digest, Image { version: VERSION, user: user.id, group: user.group, places, direct });
    }

    pub fn place(&self, digest: &str, place: &GuestPath) -> Option<bool> {
        self.image(digest)?.places.get(std::str::from_utf8(place.as_bytes()).ok()?).copied()
    }

    pub fn keep_place(&self, digest: &str, place: &GuestPath, is_there: bool) {
        let (Some(mut image), Ok(place)) = (self.image(digest), std::str::from_utf8(place.as_bytes())) else { return };
        if image.places.len() < MOST_IMAGES {
            image.places.insert(place.to_owned(), is_there);
            self.keep(digest, image);
        }
    }

    pub fn is_direct(&self, digest: &str, place: &GuestPath) -> Option<bool> {
        self.image(digest)?.direct.get(std::str::from_utf8(place.as_bytes()).ok()?).copied()
    }

    pub fn keep_direct(&self, digest: &str, place: &GuestPath, is_direct: bool) {
        let (Some(mut image), Ok(place)) = (self.image(digest), std::str::from_utf8(place.as_bytes())) else { return };
        if image.direct.len() < MOST_IMAGES {
            image.direct.insert(place.to_owned(), is_direct);
            self.keep(digest, image);
        }
    }

    fn images(&self) -> MutexGuard<'_, BTreeMap<String, Image>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self, digest: &str) -> Option<Image> {
        if let Some(image) = self.images().get(digest) {
            return Some(image.clone());
        }
        let text = fs::read_to_string(self.path(digest)?).ok()?;
        let image = serde_json::from_str::<Image>(&text).ok().filter(|image| image.version == VERSION)?;
        self.images().insert(digest.to_owned(), image.clone());
        Some(image)
    }

    fn keep(&self, digest: &str, image: Image) {
        if let Err(error) = self.write(digest, &image) {
            tracing::debug!(%error, "what was seen of an image is forgotten at the end");
        }
        let mut images = self.images();
        if images.len() >= MOST_IMAGES {
            images.clear();
        }
        images.insert(digest.to_owned(), image);
    }

    /// Under another name first: several processes may do so at once, and others read meanwhile.
    fn write(&self, digest: &str, image: &Image) -> io::Result<()> {
        let Some(path) = self.path(digest) else { return Ok(()) };
        fs::create_dir_all(&self.directory)?;
        if fs::read_dir(&self.directory)?.count() > MOST_IMAGES {
            fs::remove_dir_all(&self.directory)?;
            fs::create_dir_all(&self.directory)?;
        }
        let name = random::text(8).map_err(io::Error::other)?;
        let draft = self.directory.join(format!("draft-{name}"));
        fs::write(&draft, serde_json::to_string(image)?)?;
        fs::rename(&draft, path)
    }

    /// `None` for what is no digest and so no name of a file.
    fn path(&self, digest: &str) -> Option<PathBuf> {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| self.directory.join(hex))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    #[test]
    fn what_one_process_saw_the_next_one_knows() {
        let state = tempfile::tempdir().unwrap();
        let (user, place) = (UserIds { id: 33, group: 34 }, GuestPath::workspace());
        let first = Seen::new(state.path());
        first.keep_user(&digest("a"), user);
        first.keep_place(&digest("a"), &place, true);
        first.keep_direct(&digest("a"), &place, false);
        first.keep_place(&digest("b"), &place, true);
        let second = Seen::new(state.path());
        assert_eq!((second.user(&digest("a")), second.place(&digest("a"), &place)), (Some(user), Some(true)));
        assert_eq!(second.is_direct(&digest("a"), &place), Some(false));
        assert_eq!(second.place(&digest("a"), &"/home".parse().unwrap()), None);
        assert_eq!(second.place(&digest("b"), &place), None, "an image that nobody has looked into");
    }

    #[test]
    fn what_another_version_wrote_is_looked_for_again() {
        let state = tempfile::tempdir().unwrap();
        let seen = Seen::new(state.path());
        seen.keep_user(&digest("a"), UserIds { id: 1, group: 1 });
        let path = seen.path(&digest("a")).unwrap();
        let newer = fs::read_to_string(&path).unwrap().replace("\"version\":3", "\"version\":4");
        fs::write(&path, newer).unwrap();
        assert_eq!(Seen::new(state.path()).user(&digest("a")), None);
    }

    #[test]
    fn what_is_no_digest_is_no_file() {
        let state = tempfile::tempdir().unwrap();
        let seen = Seen::new(state.path());
        seen.keep_user("sha256:../../installation", UserIds { id: 0, group: 0 });
        assert_eq!(Seen::new(state.path()).user("sha256:../../installation"), None);
        assert!(!state.path().join("docker").exists());
    }
}
