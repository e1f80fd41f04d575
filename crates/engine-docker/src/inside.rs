//! What only the files of an image tell, and not what it says of itself.

use sandbox::user::{UserIds, UserTables};
use sandbox::{Error, GuestPath, Result};

use crate::carrier::Carrier;
use crate::client::Daemon;
use crate::record::Maker;
use crate::seen::Seen;
use crate::translate;

/// A larger table of users is not read, and so has nobody in it.
const LARGEST_TABLE: u64 = 1 << 20;

/// What is to be known of one.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Whom its programs run as, in its own word.
    pub user: &'a str,
    pub work_directory: Option<&'a GuestPath>,
    pub volumes: &'a [GuestPath],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    pub user: UserIds,
    pub has_work_directory: bool,
    /// Those where a mount is there and nowhere else.
    pub volumes: Vec<GuestPath>,
}

/// `None` for what nobody has looked for yet.
pub fn seen(seen: &Seen, image: &str, question: &Question<'_>) -> Option<Inside> {
    let user = seen.user(image)?;
    let has_work_directory = question.work_directory.map_or(Some(true), |place| seen.place(image, place))?;
    let mut volumes = Vec::new();
    for place in question.volumes {
        if seen.is_direct(image, place)? {
            volumes.push(place.clone());
        }
    }
    Some(Inside { user, has_work_directory, volumes })
}

pub fn keep(seen: &Seen, image: &str, question: &Question<'_>, inside: &Inside) {
    seen.keep_user(image, inside.user);
    if let Some(place) = question.work_directory {
        seen.keep_place(image, place, inside.has_work_directory);
    }
    for place in question.volumes {
        seen.keep_direct(image, place, inside.volumes.contains(place));
    }
}

/// Places that are not an image's own. With a link at the first, the image would say what process 1 is; the second is made by
/// the daemon's runtime, and some (runc 1.1 with Podman) follow a link there and write to where it leads on the host.
const NOT_ITS_OWN: [&str; 2] = [translate::AGENT_DIRECTORY, "/dev"];

/// Of an image that leaves places alone which are not its own. Seen without the volume of that program, into which Podman would look.
pub async fn look(daemon: &Daemon, maker: Maker<'_>, image: &str, question: &Question<'_>) -> Result<Inside> {
    let carrier = Carrier::make_as_root(daemon, maker, image).await?;
    let mut taken = None;
    for place in NOT_ITS_OWN {
        if !daemon.is_free_for_a_mount(&carrier.id, place).await? {
            taken = Some(place);
        }
    }
    let is_free = taken.is_none();
    let text = async |path: &str| -> Result<String> {
        let bytes = daemon.small_file(&carrier.id, path, LARGEST_TABLE).await?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let tables = if !question.user.is_empty() && is_free {
        UserTables { users: text("/etc/passwd").await?, groups: text("/etc/group").await? }
    } else {
        UserTables::default()
    };
    let has_work_directory = match question.work_directory {
        Some(place) => daemon.file_size(&carrier.id, &place.to_string_lossy()).await?.is_some(),
        None => true,
    };
    let mut volumes = Vec::new();
    for place in question.volumes {
        if is_free && is_direct(daemon, &carrier.id, &place.to_string_lossy()).await? {
            volumes.push(place.clone());
        }
    }
    carrier.end().await?;
    match taken {
        None => Ok(Inside { user: tables.find(question.user)?, has_work_directory, volumes }),
        Some(place) => Err(Error::denied(format!(
            "the image has something else than a directory at {place}, which is not its own"
        ))
        .with_hint("use an image without it")),
    }
}

/// Whether all on the way to a place are directories, as far as they are there.
async fn is_direct(daemon: &Daemon, container: &str, place: &str) -> Result<bool> {
    let ends = place.match_indices('/').map(|(end, _)| end).filter(|end| *end > 0);
    for end in ends.chain([place.len()]) {
        let part = &place[..end];
        if !daemon.is_free_for_a_mount(container, part).await? {
            return Ok(false);
        }
        if daemon.file_size(container, part).await?.is_none() {
            return Ok(true);
        }
    }
    Ok(true)
}
