//! What to type to reach a sandbox with the daemon's own tools.

use sandbox::{GuestPath, Persistence, Reach};

use crate::Flavour;
use crate::record::{self, Description};

/// `None` for one that ends with us: there is nothing about it that somebody else would have to do.
pub fn reach(flavour: Flavour, description: &Description) -> Option<Reach> {
    match description.persistence {
        Persistence::Ephemeral => return None,
        Persistence::Persistent => {}
    }
    let (program, name) = (flavour.as_str(), record::container_name(&description.id));
    let user = description.user;
    let directory = quoted(&description.work_directory);
    let rests = description.keeps_files();
    let remove = format!("{program} rm --force {name}");
    let volume = record::kept_volume_name(&description.id);
    Some(Reach {
        enter: format!("{program} exec -it --user {}:{} --workdir {directory} {name} sh", user.id, user.group),
        stop: rests.then(|| format!("{program} stop {name}")),
        start: rests.then(|| format!("{program} start {name}")),
        remove: if rests { format!("{remove} && {program} volume rm {volume}") } else { remove },
    })
}

fn quoted(path: &GuestPath) -> String {
    let text = path.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%,:".contains(&byte);
    if text.bytes().all(is_plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::User;
    use crate::record::tests::description;

    #[test]
    fn commands_name_the_container_its_user_and_its_volume() {
        let told = reach(Flavour::Podman, &description()).unwrap();
        assert_eq!(told.enter, "podman exec -it --user 1000:1000 --workdir /workspace sandpen-sb-23456789abcdefgh sh");
        assert_eq!(told.stop.as_deref(), Some("podman stop sandpen-sb-23456789abcdefgh"));
        assert_eq!(
            told.remove,
            "podman rm --force sandpen-sb-23456789abcdefgh && podman volume rm sandpen-kept-sb-23456789abcdefgh"
        );
        let of_root = Description { user: User { id: 0, group: 0 }, ..description() };
        let told = reach(Flavour::Docker, &of_root).unwrap();
        assert_eq!((told.stop, told.remove), (None, "docker rm --force sandpen-sb-23456789abcdefgh".to_owned()));
        let ephemeral = Description { persistence: Persistence::Ephemeral, ..description() };
        assert_eq!(reach(Flavour::Docker, &ephemeral), None);
    }

    #[test]
    fn a_directory_is_one_word_of_a_shell() {
        assert_eq!(quoted(&"/it's here".parse().unwrap()), r"'/it'\''s here'");
    }
}
