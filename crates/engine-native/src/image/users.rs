//! The users of an image: who programs run as, and what its user table lacks.

use std::io;

use sandbox::{Error, Result};
use serde::{Deserialize, Serialize};

use super::layers::Layers;
use super::{HOME, USER_ID, USER_NAME};

/// A larger table is not read, and so has nobody in it.
const LARGEST_TABLE: u64 = 1 << 20;

/// Ids that every sandbox has. Beyond them there is nobody behind a number.
pub const IDS: u32 = 0x1_0000;

/// The ids that programs run with, inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct User {
    pub id: u32,
    pub group: u32,
}

impl User {
    /// The user of sandboxes whose image has no word about it.
    pub const SANDBOX: Self = Self { id: USER_ID, group: USER_ID };
}

impl Default for User {
    fn default() -> Self {
        Self::SANDBOX
    }
}

/// An image's `/etc/passwd` and `/etc/group`. Lines that make no sense are passed over, as the C library does.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub users: String,
    pub groups: String,
}

/// A line of the user table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account<'a> {
    pub name: &'a str,
    pub user: User,
    pub home: &'a str,
}

/// Tables with what they lacked; `None` for one that lacks nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    pub users: Option<String>,
    pub groups: Option<String>,
}

impl Tables {
    pub fn of(layers: &Layers) -> io::Result<Self> {
        let read = |path: &str| -> io::Result<String> {
            let bytes = layers.read(path, LARGEST_TABLE)?.unwrap_or_default();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Self { users: read("/etc/passwd")?, groups: read("/etc/group")? })
    }

    fn accounts(&self) -> impl Iterator<Item = Account<'_>> {
        self.users.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, id, group, _, home, ..] = fields[..] else { return None };
            Some(Account { name, user: User { id: id.parse().ok()?, group: group.parse().ok()? }, home })
        })
    }

    pub fn account(&self, id: u32) -> Option<Account<'_>> {
        self.accounts().find(|account| account.user.id == id)
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        })
    }

    /// Whom the image's word `USER[:GROUP]` means, by names or numbers. Nothing is root, and so is a number without a line
    /// in the table as far as its group goes.
    pub fn find(&self, word: &str) -> Result<User> {
        let (user, group) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
        let unknown = |what: &str, name: &str| {
            let shown: String = name.chars().take(64).collect();
            Error::invalid_input(format!("the image wants to run as {what} {shown:?}, which it does not have"))
        };
        let mut found = match (user, user.parse()) {
            ("", _) => User { id: 0, group: 0 },
            (_, Ok(id)) => self.account(id).map_or(User { id, group: 0 }, |account| account.user),
            (name, Err(_)) => {
                let account = self.accounts().find(|account| account.name == name);
                account.ok_or_else(|| unknown("the user", name))?.user
            }
        };
        if let Some(name) = group.filter(|name| !name.is_empty()) {
            let number = name.parse().ok().or_else(|| self.group(name));
            found.group = number.ok_or_else(|| unknown("the group", name))?;
        }
        Ok(found)
    }

    /// With a line for this user and one for its group.
    pub fn completed(&self, User { id, group }: User, shell: &str) -> Completed {
        let has_group = |line: &str| line.split(':').nth(2).is_some_and(|id| id.parse() == Ok(group));
        let user = format!("{USER_NAME}:x:{id}:{group}:{USER_NAME}:{HOME}:{shell}\n");
        Completed {
            users: self.account(id).is_none().then(|| joined(&self.users, &user)),
            groups: (!self.groups.lines().any(has_group))
                .then(|| joined(&self.groups, &format!("{USER_NAME}:x:{group}:\n"))),
        }
    }
}

/// Programs run as whom the image names, but never as root: its root is the one of process 1. Nor as somebody whose number
/// no sandbox has.
pub fn runs_as(wanted: User) -> User {
    if wanted.id == 0 || wanted.id >= IDS || wanted.group >= IDS { User::SANDBOX } else { wanted }
}

fn joined(table: &str, line: &str) -> String {
    let end = if table.is_empty() || table.ends_with('\n') { "" } else { "\n" };
    format!("{table}{end}{line}")
}

#[cfg(test)]
mod tests {
    use sandbox::ErrorKind;

    use super::*;

    fn tables() -> Tables {
        Tables {
            users: "root:x:0:0:root:/root:/bin/sh\n\nodd\nweb:x:33:34:web:/var/www:/bin/false\n+::::::\n".to_owned(),
            groups: "root:x:0:\nweb:x:34:\nstaff:x:50:web".to_owned(),
        }
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let tables = tables();
        for (word, id, group) in [
            ("", 0, 0),
            ("root", 0, 0),
            ("web", 33, 34),
            ("33", 33, 34),
            ("33:0", 33, 0),
            ("web:staff", 33, 50),
            ("4242", 4242, 0),
            ("4242:4343", 4242, 4343),
            (":staff", 0, 50),
        ] {
            assert_eq!(tables.find(word).unwrap(), User { id, group }, "{word:?}");
        }
        for word in ["nobody-here", "web:nobody-here", "-1"] {
            assert_eq!(tables.find(word).unwrap_err().kind(), ErrorKind::InvalidInput, "{word:?}");
        }
    }

    #[test]
    fn programs_never_run_as_root_or_as_nobody_known() {
        let web = User { id: 33, group: 0 };
        assert_eq!(runs_as(web), web);
        for (id, group) in [(0, 0), (0, 33), (IDS, 0), (1000, u32::MAX)] {
            assert_eq!(runs_as(User { id, group }), User::SANDBOX);
        }
    }

    #[test]
    fn only_gaps_are_filled() {
        let tables = tables();
        let nothing = Completed { users: None, groups: None };
        assert_eq!(tables.completed(User { id: 33, group: 34 }, "/bin/sh"), nothing);
        let Completed { users, groups } = tables.completed(User::SANDBOX, "/bin/sh");
        let expected = format!("{}sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n", tables.users);
        assert_eq!(users.unwrap(), expected);
        assert_eq!(groups.unwrap(), "root:x:0:\nweb:x:34:\nstaff:x:50:web\nsandbox:x:1000:\n");
    }
}
