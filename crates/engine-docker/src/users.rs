//! Whom an image's word `USER[:GROUP]` means.

use sandbox::{Error, Result};

use crate::record::User;

/// To the kernel this is nobody: whoever becomes it stays who they are, which is root.
const NOBODY: u32 = u32::MAX;

/// An image's `/etc/passwd` and `/etc/group`. Lines that make no sense are passed over, as the C library does.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub users: String,
    pub groups: String,
}

impl Tables {
    /// Nothing means root, and so needs no table.
    pub fn is_needed(word: &str) -> bool {
        !word.is_empty()
    }

    /// By names or numbers. Nothing is root, and so is a number without a line in the table as far as its group goes.
    pub fn find(&self, word: &str) -> Result<User> {
        let (user, group) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
        let unknown = |what: &str, name: &str| {
            let shown: String = name.chars().take(64).collect();
            Error::invalid_input(format!("the image wants to run as {what} {shown:?}, which it does not have"))
        };
        let mut found = match (user, user.parse()) {
            ("", _) => User { id: 0, group: 0 },
            (_, Ok(id)) => self.account(|account| account.1.id == id).unwrap_or(User { id, group: 0 }),
            (name, Err(_)) => self.account(|account| account.0 == name).ok_or_else(|| unknown("the user", name))?,
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

    fn account(&self, wanted: impl Fn(&(&str, User)) -> bool) -> Option<User> {
        let accounts = self.users.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, id, group, ..] = fields[..] else { return None };
            Some((name, User { id: id.parse().ok()?, group: group.parse().ok()? }))
        });
        accounts.into_iter().find(|account| wanted(account)).map(|(_, user)| user)
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
    use sandbox::ErrorKind;

    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let tables = Tables {
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
            assert_eq!(tables.find(word).unwrap(), User { id, group }, "{word:?}");
        }
        for word in ["nobody-here", "web:nobody-here", "-1"] {
            assert_eq!(tables.find(word).unwrap_err().kind(), ErrorKind::InvalidInput, "{word:?}");
        }
    }
    #[test]
    fn the_number_that_changes_nothing_is_nobody() {
        let tables = Tables {
            users: "odd:x:4294967295:0::/:\nstray:x:7:4294967295::/:".to_owned(),
            groups: "odd:x:4294967295:".to_owned(),
        };
        for word in ["4294967295", "7", "33:4294967295", ":4294967295", "odd", "stray", "33:odd", "+4294967295"] {
            assert_eq!(tables.find(word).unwrap_err().kind(), ErrorKind::InvalidInput, "{word:?}");
        }
        assert_eq!(tables.find("4294967294").unwrap().id, 4_294_967_294);
    }
}
