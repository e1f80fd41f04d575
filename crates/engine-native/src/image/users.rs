//! The users of an image: who programs run as, and what its user table lacks.

use std::io;

use sandbox::user::{UserIds, UserTables};
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

/// Tables with what they lacked; `None` for one that lacks nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    pub users: Option<String>,
    pub groups: Option<String>,
}

/// The tables of an image, as it has them.
pub fn tables(layers: &Layers) -> io::Result<UserTables> {
    let read = |path: &str| -> io::Result<String> {
        let bytes = layers.read(path, LARGEST_TABLE)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(UserTables { users: read("/etc/passwd")?, groups: read("/etc/group")? })
}

/// Tables with a line for this user and one for its group.
pub fn completed(tables: &UserTables, User { id, group }: User, shell: &str) -> Completed {
    let user = format!("{USER_NAME}:x:{id}:{group}:{USER_NAME}:{HOME}:{shell}\n");
    Completed {
        users: tables.account(id).is_none().then(|| joined(&tables.users, &user)),
        groups: (!tables.has_group(group)).then(|| joined(&tables.groups, &format!("{USER_NAME}:x:{group}:\n"))),
    }
}

/// Programs run as whom the image names, but never as root: its root is the one of process 1. Nor as somebody whose number
/// no sandbox has.
pub fn runs_as(UserIds { id, group }: UserIds) -> User {
    if id == 0 || id >= IDS || group >= IDS { User::SANDBOX } else { User { id, group } }
}

fn joined(table: &str, line: &str) -> String {
    let end = if table.is_empty() || table.ends_with('\n') { "" } else { "\n" };
    format!("{table}{end}{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> UserTables {
        UserTables {
            users: "root:x:0:0:root:/root:/bin/sh\n\nodd\nweb:x:33:34:web:/var/www:/bin/false\n+::::::\n".to_owned(),
            groups: "root:x:0:\nweb:x:34:\nstaff:x:50:web".to_owned(),
        }
    }

    #[test]
    fn programs_never_run_as_root_or_as_nobody_known() {
        assert_eq!(runs_as(UserIds { id: 33, group: 0 }), User { id: 33, group: 0 });
        for (id, group) in [(0, 0), (0, 33), (IDS, 0), (1000, u32::MAX)] {
            assert_eq!(runs_as(UserIds { id, group }), User::SANDBOX);
        }
    }

    #[test]
    fn only_gaps_are_filled() {
        let tables = tables();
        let nothing = Completed { users: None, groups: None };
        assert_eq!(completed(&tables, User { id: 33, group: 34 }, "/bin/sh"), nothing);
        let Completed { users, groups } = completed(&tables, User::SANDBOX, "/bin/sh");
        let expected = format!("{}sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n", tables.users);
        assert_eq!(users.unwrap(), expected);
        assert_eq!(groups.unwrap(), "root:x:0:\nweb:x:34:\nstaff:x:50:web\nsandbox:x:1000:\n");
    }
}
