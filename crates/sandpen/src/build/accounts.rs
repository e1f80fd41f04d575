//! Whom names mean in an image: its own tables of users and groups.

use std::io::Read;

use images::overlaid::{Leaving, Node, Overlaid};
use images::{Error, Result};

/// A larger table is not read, and so has nobody in it.
const LARGEST_TABLE: u64 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Accounts {
    users: String,
    groups: String,
}

/// A user by number, as programs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub id: u32,
    pub group: u32,
    pub home: String,
}

impl Accounts {
    pub fn of(tree: &Overlaid) -> Result<Self> {
        Ok(Self { users: table(tree, b"etc/passwd")?, groups: table(tree, b"etc/group")? })
    }

    /// Who a program runs as whose image says `USER[:GROUP]`. A number needs no line in the table.
    pub fn user(&self, word: &str) -> Result<User> {
        let (user, group) = split(word);
        let mut found = match (user, number(user)) {
            ("", _) => self.by_number(0).unwrap_or(User { id: 0, group: 0, home: "/root".to_owned() }),
            (_, Some(id)) => {
                let home = if id == 0 { "/root" } else { "/" };
                self.by_number(id).unwrap_or(User { id, group: 0, home: home.to_owned() })
            }
            (name, None) => self.by_name(name)?,
        };
        if let Some(group) = group {
            found.group = self.group(group)?;
        }
        Ok(found)
    }

    /// Whose something becomes by `--chown=USER[:GROUP]`: a number without a group is both.
    pub fn owner(&self, word: &str) -> Result<(u32, u32)> {
        let (user, group) = split(word);
        let (user, own_group) = match number(user) {
            Some(id) => (id, id),
            None if user.is_empty() => (0, 0),
            None => {
                let found = self.by_name(user)?;
                (found.id, found.group)
            }
        };
        Ok((user, group.map_or(Ok(own_group), |group| self.group(group))?))
    }

    fn by_name(&self, name: &str) -> Result<User> {
        if let Some((_, user)) = self.all().find(|(own, _)| *own == name) {
            return Ok(user);
        }
        if name == "root" {
            return Ok(User { id: 0, group: 0, home: "/root".to_owned() });
        }
        Err(Error::Invalid(format!("the image has no user {:?}", short(name))))
    }

    fn by_number(&self, id: u32) -> Option<User> {
        self.all().map(|(_, user)| user).find(|user| user.id == id)
    }

    fn group(&self, word: &str) -> Result<u32> {
        let by_name = || {
            self.groups.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(word)).then(|| fields.nth(1)?.parse().ok()).flatten()
            })
        };
        let root = || (word == "root").then_some(0);
        number(word)
            .or_else(by_name)
            .or_else(root)
            .ok_or_else(|| Error::Invalid(format!("the image has no group {:?}", short(word))))
    }

    /// Lines that make no sense are passed over, as the C library does.
    fn all(&self) -> impl Iterator<Item = (&str, User)> {
        self.users.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, id, group, _, home, ..] = fields[..] else { return None };
            let home = if home.is_empty() { "/" } else { home };
            Some((name, User { id: id.parse().ok()?, group: group.parse().ok()?, home: home.to_owned() }))
        })
    }
}

fn table(tree: &Overlaid, path: &[u8]) -> Result<String> {
    let Ok(place) = tree.follow(path, Leaving::StaysAtRoot) else { return Ok(String::new()) };
    let Some(Node::File(leaf)) = place.node else { return Ok(String::new()) };
    let reading = || Error::io("reading the image's users");
    let file = leaf.open().map_err(reading())?;
    if file.metadata().map_err(reading())?.len() > LARGEST_TABLE {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_TABLE).read_to_end(&mut bytes).map_err(reading())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn split(word: &str) -> (&str, Option<&str>) {
    let (user, group) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
    (user, group.filter(|group| !group.is_empty()))
}

/// The last number of all means nobody to the kernel.
fn number(word: &str) -> Option<u32> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.parse().ok()).flatten().filter(|number| *number != u32::MAX)
}

fn short(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            users: "root:x:0:0:root:/root:/bin/sh\n\nodd\nweb:x:33:34:web:/var/www:/bin/false\n+::::::\n".to_owned(),
            groups: "root:x:0:\nweb:x:34:\nstaff:x:50:web".to_owned(),
        }
    }

    #[test]
    fn users_run_as_the_table_says() {
        for (word, id, group, home) in [
            ("", 0, 0, "/root"),
            ("web", 33, 34, "/var/www"),
            ("33", 33, 34, "/var/www"),
            ("33:0", 33, 0, "/var/www"),
            ("web:staff", 33, 50, "/var/www"),
            ("4242", 4242, 0, "/"),
            ("4242:4343", 4242, 4343, "/"),
        ] {
            assert_eq!(accounts().user(word).unwrap(), User { id, group, home: home.to_owned() }, "{word:?}");
        }
        assert_eq!(Accounts::default().user("root").unwrap().id, 0);
        for word in ["ghost", "web:ghost", "-1", "4294967295"] {
            assert!(matches!(accounts().user(word), Err(Error::Invalid(_))), "{word:?}");
        }
    }

    #[test]
    fn a_number_owns_with_its_group() {
        for (word, owner) in
            [("web", (33, 34)), ("33", (33, 33)), ("33:staff", (33, 50)), ("web:0", (33, 0)), ("7:8", (7, 8))]
        {
            assert_eq!(accounts().owner(word).unwrap(), owner, "{word:?}");
        }
        assert!(accounts().owner("ghost").is_err());
    }
}
