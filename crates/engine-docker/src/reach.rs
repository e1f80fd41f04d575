//! What to type to reach a sandbox with the daemon's own tools.

use sandbox::{Persistence, Reach};

use crate::Flavour;
use crate::record::{self, Description};

/// Where one usually is.
pub const SHELL: &str = "/bin/sh";

/// What is there to enter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    There,
    /// Whoever made the image knows what it has instead.
    Absent,
}

/// `None` for one that ends with us: there is nothing about it that somebody else would have to do. `arguments` are for the client.
pub fn reach(flavour: Flavour, arguments: &[String], description: &Description, shell: Shell) -> Option<Reach> {
    match description.persistence {
        Persistence::Ephemeral => return None,
        Persistence::Persistent => {}
    }
    let (client, name) = (client(flavour, arguments), record::container_name(&description.id));
    let user = description.user;
    let directory = quoted(&description.work_directory.to_string_lossy());
    let program = match shell {
        Shell::There => "sh",
        Shell::Absent => "PROGRAM",
    };
    let rests = description.keeps_files();
    let remove = format!("{client} rm --force {name}");
    let volume = record::kept_volume_name(&description.id);
    Some(Reach {
        enter: format!("{client} exec -it --user {}:{} --workdir {directory} {name} {program}", user.id, user.group),
        stop: rests.then(|| format!("{client} stop {name}")),
        start: rests.then(|| format!("{client} start {name}")),
        remove: if rests { format!("{remove} && {client} volume rm {volume}") } else { remove },
    })
}

/// The daemon's own client as a shell is to start it, for our daemon.
pub fn client(flavour: Flavour, arguments: &[String]) -> String {
    arguments.iter().fold(flavour.as_str().to_owned(), |words, argument| format!("{words} {}", quoted(argument)))
}

fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%,:".contains(&byte);
    if text.bytes().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::User;
    use crate::record::tests::description;

    #[test]
    fn commands_name_the_container_its_user_and_its_volume() {
        let told = reach(Flavour::Podman, &[], &description(), Shell::There).unwrap();
        assert_eq!(told.enter, "podman exec -it --user 1000:1000 --workdir /workspace sandpen-sb-23456789abcdefgh sh");
        assert_eq!(told.stop.as_deref(), Some("podman stop sandpen-sb-23456789abcdefgh"));
        assert_eq!(
            told.remove,
            "podman rm --force sandpen-sb-23456789abcdefgh && podman volume rm sandpen-kept-sb-23456789abcdefgh"
        );
        let of_root = Description { user: User { id: 0, group: 0 }, ..description() };
        let told = reach(Flavour::Docker, &[], &of_root, Shell::There).unwrap();
        assert_eq!((told.stop, told.remove), (None, "docker rm --force sandpen-sb-23456789abcdefgh".to_owned()));
        let ephemeral = Description { persistence: Persistence::Ephemeral, ..description() };
        assert_eq!(reach(Flavour::Docker, &[], &ephemeral, Shell::There), None);
    }

    #[test]
    fn a_directory_is_one_word_of_a_shell() {
        assert_eq!(quoted("/it's here"), r"'/it'\''s here'");
    }

    #[test]
    fn nobody_is_sent_to_a_shell_that_is_not_there() {
        let told = reach(Flavour::Docker, &[], &description(), Shell::Absent).unwrap();
        assert!(told.enter.ends_with(" sandpen-sb-23456789abcdefgh PROGRAM"), "{}", told.enter);
    }

    #[test]
    fn every_command_is_for_the_same_daemon() {
        let arguments = ["--host", "unix:///my files/d"].map(str::to_owned);
        let client = "docker --host 'unix:///my files/d' ";
        let told = reach(Flavour::Docker, &arguments, &description(), Shell::There).unwrap();
        for command in [told.enter, told.stop.unwrap(), told.start.unwrap()] {
            assert!(command.starts_with(client), "{command}");
        }
        assert_eq!(told.remove.matches(client).count(), 2, "{}", told.remove);
    }
}
