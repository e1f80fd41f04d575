//! The users of an image: who programs run as, and what its user table lacks.

use std::io;

use sandbox::Role;
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
    /// Root of a sandbox.
    pub const ROOT: Self = Self { id: 0, group: 0 };
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

/// Programs run as whom the image names, but as root only where that is wanted: a guest's root is the one of process 1. Nor as
/// somebody whose number no sandbox has.
pub fn runs_as(UserIds { id, group }: UserIds, role: Role) -> User {
    match role {
        _ if id >= IDS || group >= IDS => User::SANDBOX,
        Role::Guest | Role::Builder if id == 0 => User::SANDBOX,
        Role::Guest | Role::ImageUser(_) | Role::Builder => User { id, group },
    }
}

fn joined(table: &str, line: &str) -> String {
    let end = if table.is_empty() || table.ends_with('\n') { "" } else { "\n" };
    format!("{table}{end}{line}")
}

#[cfg(test)]
mod tests {
    use sandbox::Insistence;

    use super::*;

    fn tables() -> UserTables {
        UserTables {
            users: "root:x:0:0:root:/root:/bin/sh\n\nodd\nweb:x:33:34:web:/var/www:/bin/false\n+::::::\n".to_owned(),
            groups: "root:x:0:\nweb:x:34:\nstaff:x:50:web".to_owned(),
        }
    }

    #[test]
    fn programs_run_as_root_where_that_is_wanted_and_never_as_nobody_known() {
        let image_user = Role::ImageUser(Insistence::Must);
        for role in [Role::Guest, image_user] {
            assert_eq!(runs_as(UserIds { id: 33, group: 0 }, role), User { id: 33, group: 0 });
            for (id, group) in [(IDS, 0), (1000, u32::MAX), (0, u32::MAX)] {
                assert_eq!(runs_as(UserIds { id, group }, role), User::SANDBOX);
            }
        }
        assert_eq!(runs_as(UserIds { id: 0, group: 33 }, Role::Guest), User::SANDBOX);
        assert_eq!(runs_as(UserIds { id: 0, group: 33 }, image_user), User { id: 0, group: 33 });
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
