//! Whom programs are in a sandbox, and what that changes of its root, its environment and its report.
//!
//! A builder's programs are root of the sandbox, because that is who package managers expect to be. What they can reach is
//! what a guest can reach: the root of a user namespace whose ids are nobody's on the host.

use sandbox::{Account, Error, Image, Layer, Persistence, Result, Role, SandboxSpec};

use crate::engine::Shared;
use crate::ids::Pool;
use crate::image::{RootTree, User};

/// Ids that a sandbox of root's has.
const IDS: u32 = 0x1_0000;

/// What a builder's programs may do, as the report says it; `jail/privileges.rs` keeps exactly these.
pub const KEPT: &str = "root of the sandbox keeps CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETUID, SETGID and KILL, over its own files and \
                        processes; everybody else has none";

/// Variables that every exec starts with, before the image's and the caller's.
pub fn variables(role: Role, search_path: &str) -> Vec<(&str, &str)> {
    match role {
        Role::Guest => {
            vec![("HOME", "/home/sandbox"), ("LANG", "C.UTF-8"), ("PATH", search_path), ("USER", "sandbox")]
        }
        // What a build finds elsewhere too, so that it makes the same.
        Role::Builder => vec![("HOME", "/root"), ("PATH", search_path)],
    }
}

/// The root as this role sees it.
pub fn apply(role: Role, mut tree: RootTree) -> RootTree {
    match role {
        Role::Guest => tree,
        // What a build changes becomes an image: no line of ours may be in the tables that it adds users to.
        Role::Builder => {
            tree.files.retain(|file| crate::image::is_of_this_machine(&file.path));
            tree.user = User { id: 0, group: 0 };
            tree.environment.drain(..crate::image::environment().len());
            tree.environment.retain(|(name, _)| name != "HOME" && name != "USER");
            tree
        }
    }
}

impl Shared {
    /// A builder changes files of all owners, so it needs ids for them, and a tree that is its own.
    pub(crate) fn check_role(&self, spec: &SandboxSpec) -> Result<()> {
        match spec.role {
            Role::Guest => return Ok(()),
            Role::Builder => {}
        }
        let walls = self.walls()?;
        let apart = [Layer::UserNamespace, Layer::UidRange].iter().all(|layer| walls.contains(layer));
        if !apart || self.host.pool != Some(Pool::System) {
            return Err(Error::unsupported(
                "images can only be built by root: their files have many owners, and an ordinary user has few ids",
            )
            .with_hint("run the build as root, or build the image elsewhere and import it"));
        }
        if spec.image == Image::Host {
            return Err(Error::invalid_input("a build starts from an image, and the host's own tree is none"));
        }
        if spec.persistence == Persistence::Persistent {
            return Err(Error::invalid_input("a sandbox that builds does not outlive its build"));
        }
        Ok(())
    }
}

/// Whether somebody else may be asked for in a sandbox of this role.
pub fn check_account(role: Role, account: Account) -> Result<()> {
    match role {
        Role::Guest => Err(Error::denied("programs in this sandbox run as its own user and nobody else")),
        Role::Builder if account.user >= IDS || account.group >= IDS => {
            Err(Error::invalid_input(format!("there is no user {}:{} in a sandbox", account.user, account.group))
                .with_hint(format!("ids go from 0 to {}", IDS - 1)))
        }
        Role::Builder => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sandbox::ErrorKind;

    use super::*;

    #[test]
    fn only_a_builder_runs_programs_as_somebody_else() {
        let account = |user, group| Account { user, group };
        assert_eq!(check_account(Role::Guest, account(1000, 1000)).unwrap_err().kind(), ErrorKind::Denied);
        assert!(check_account(Role::Builder, account(65535, 0)).is_ok());
        for beyond in [account(65536, 0), account(0, u32::MAX)] {
            assert_eq!(check_account(Role::Builder, beyond).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
