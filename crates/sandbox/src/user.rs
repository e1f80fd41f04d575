//! Whom an image's word `USER[:GROUP]` means.

use crate::error::{Error, Result};

/// To the kernel this is nobody: whoever becomes it stays who they are, which is root.
const NOBODY: u32 = u32::MAX;

/// The ids that an image's word means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIds {
    pub id: u32,
    pub group: u32,
}

/// An image's `/etc/passwd` and `/etc/group`. Lines that make no sense are passed over, as the C library does.
#[derive(Clone, Debug, Default)]
pub struct UserTables {
    pub users: String,
    pub groups: String,
}

/// A line of the user table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account<'a> {
    pub name: &'a str,
    pub ids: UserIds,
    pub home: &'a str,
}

impl UserTables {
    /// By names or numbers. Nothing is root, and so is a number without a line in the table as far as its group goes.
    pub fn find(&self, word: &str) -> Result<UserIds> {
        let (user, group) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
        let unknown = |what: &str, name: &str| {
            let shown: String = name.chars().take(64).collect();
            Error::invalid_input(format!("the image wants to run as {what} {shown:?}, which it does not have"))
        };
        let mut found = match (user, user.parse()) {
            ("", _) => UserIds { id: 0, group: 0 },
            (_, Ok(id)) => self.account(id).map_or(UserIds { id, group: 0 }, |account| account.ids),
            (name, Err(_)) => {
                let account = self.accounts().find(|account| account.name == name);
                account.ok_or_else(|| unknown("the user", name))?.ids
            }
        };
        if let Some(name) = group.filter(|name| !name.is_empty()) {
            let number = name.parse().ok().or_else(|| self.group(name));
            found.group = number.ok_or_else(|| unknown("the group", name))?;
        }
        if found.id == NOBODY || found.group == NOBODY {
            return Err(Error::invalid_input(format!("the image wants to run as {NOBODY}, which is no user or group")));
        }
        Ok(found)
    }

    #[must_use]
    pub fn account(&self, id: u32) -> Option<Account<'_>> {
        self.accounts().find(|account| account.ids.id == id)
    }

    #[must_use]
    pub fn has_group(&self, id: u32) -> bool {
        self.groups.lines().any(|line| line.split(':').nth(2).is_some_and(|found| found.parse() == Ok(id)))
    }

    fn accounts(&self) -> impl Iterator<Item = Account<'_>> {
        self.users.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, id, group, _, home, ..] = fields[..] else { return None };
            Some(Account { name, ids: UserIds { id: id.parse().ok()?, group: group.parse().ok()? }, home })
        })
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let tables = UserTables {
            users: "root:x:0:0:root:/root:/bin/sh\n\nodd\nweb:x:33:34:web:/var/www:/bin/false\n+::::::\n".to_owned(),
            groups: "root:x:0:\nweb:x:34:\nstaff:x:50:web".to_owned(),
        };
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
            assert_eq!(tables.find(word).unwrap(), UserIds { id, group }, "{word:?}");
        }
        for word in ["nobody-here", "web:nobody-here", "-1"] {
            assert_eq!(tables.find(word).unwrap_err().kind(), ErrorKind::InvalidInput, "{word:?}");
        }
    }

    #[test]
    fn the_number_that_changes_nothing_is_nobody() {
        let tables = UserTables {
            users: "odd:x:4294967295:0::/:\nstray:x:7:4294967295::/:".to_owned(),
            groups: "odd:x:4294967295:".to_owned(),
        };
        for word in ["4294967295", "7", "33:4294967295", ":4294967295", "odd", "stray", "33:odd", "+4294967295"] {
            assert_eq!(tables.find(word).unwrap_err().kind(), ErrorKind::InvalidInput, "{word:?}");
        }
        assert_eq!(tables.find("4294967294").unwrap().id, 4_294_967_294);
    }
}
