//! Whom programs are in a sandbox, and what that changes of its root, its environment and its report.
//!
//! A builder's programs are root of the sandbox, because that is who package managers expect to be, and so are those of a guest
//! on an image that names nobody else, where somebody wants that. What they can reach is what any guest can reach: the root of a
//! user namespace whose ids are nobody's on the host.

use sandbox::{Account, Error, Image, Layer, Persistence, Result, Role, SandboxSpec};

use crate::engine::Shared;
use crate::ids::{FEWEST_SUBORDINATE, ImageIds, Pool};
use crate::image::{self, Hold, RootTree, User};
use crate::pack::blocking;

/// Ids that a sandbox of root's has.
const IDS: u32 = 0x1_0000;

/// What programs of root may do, as the report says it; `jail/privileges.rs` keeps exactly these.
pub const KEPT: &str = "root of the sandbox keeps CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETUID, SETGID and KILL, over its own files and \
                        processes; everybody else has none";

/// Variables that every exec starts with, before the image's and the caller's.
pub fn variables(role: Role, search_path: &str) -> Vec<(&str, &str)> {
    match role {
        Role::Guest | Role::ImageUser(_) => {
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
        // The host's own tree names nobody either.
        Role::ImageUser(_) if !tree.binds.is_empty() => {
            tree.user = User::ROOT;
            let own = [("USER", "root"), ("HOME", "/root")].map(|(name, value)| (name.to_owned(), value.to_owned()));
            tree.environment.extend(own);
            tree
        }
        Role::ImageUser(_) => tree,
        // What a build changes becomes an image: no line of ours may be in the tables that it adds users to.
        Role::Builder => {
            tree.files.retain(|file| image::is_of_this_machine(&file.path));
            tree.user = User::ROOT;
            tree.environment.drain(..image::environment().len());
            tree.environment.retain(|(name, _)| name != "HOME" && name != "USER");
            tree
        }
    }
}

impl Shared {
    /// As whom files of an image are seen where the engine cannot say so by a mount: only where programs are root and have to
    /// change them, and are these ids.
    pub(crate) fn image_ids(&self, role: Role) -> Option<ImageIds> {
        match role {
            Role::Guest => None,
            Role::ImageUser(_) | Role::Builder => self.host.image_ids(),
        }
    }

    /// Whether a sandbox gets copies of its user's files, because it could not see them as such.
    pub(crate) fn copies_belongings(&self, role: Role) -> bool {
        match role {
            Role::Guest => matches!(self.host.pool, Some(Pool::Subordinate { .. })),
            Role::ImageUser(_) | Role::Builder => false,
        }
    }

    /// The role that is in force on an image, which was looked up if it is one of the store. Only whoever is to be root has to
    /// be: a guest is any other user that an image names already.
    pub(crate) async fn role_on(&self, spec: &SandboxSpec, hold: Option<&Hold>) -> Result<Role> {
        match spec.role {
            Role::Guest | Role::Builder => return Ok(spec.role),
            Role::ImageUser(_) => {}
        }
        let is_roots = match hold.cloned() {
            Some(hold) => blocking(move || image::names_root(&hold)).await?,
            None => true,
        };
        if is_roots { spec.role.settled(|| self.check_root(&spec.image)) } else { Ok(Role::Guest) }
    }

    /// Programs that are root change files of all owners, so they need ids for those. And they can be as many users as there
    /// are ids, each of which the kernel would let have as many processes: only a control group holds them all.
    pub(crate) fn check_root(&self, image: &Image) -> Result<()> {
        let walls = self.walls()?;
        let apart = [Layer::UserNamespace, Layer::UidRange].iter().all(|layer| walls.contains(layer));
        let has_ids = match (self.host.pool, image) {
            (Some(Pool::System), _) => true,
            // Nobody can change the host's own files; there is nothing else to have.
            (Some(Pool::Subordinate { .. }), Image::Host) => true,
            (Some(Pool::Subordinate { .. }), Image::Named(_) | Image::Saved(_)) => self.host.image_ids().is_some(),
            (Some(Pool::Subordinate { .. }), Image::Directory(_) | Image::Archive(_)) | (None, _) => false,
        };
        if !apart || !has_ids {
            return Err(Error::unsupported(
                "programs can be root of their sandbox only where it has ids for the owners of the image's files",
            )
            .with_hint(format!(
                "run sandpen as root, or give its user at least {FEWEST_SUBORDINATE} ids by `usermod --add-subuids` and \
                 `--add-subgids` and use an image of the store; or leave them the sandbox's own user by --container-user sandbox"
            )));
        }
        let is_accepted = self.config.allow_missing.contains(&Layer::ProcessLimit);
        if !self.host.has_process_groups() && !is_accepted {
            return Err(Error::unsupported(
                "programs can be root of their sandbox only where a control group bounds its processes",
            )
            .with_hint(
                "let the user have the pids controller (systemd: Delegate=yes), accept that nothing bounds them by \
                 --allow-missing process-limit, or leave programs the sandbox's own user by --container-user sandbox",
            ));
        }
        Ok(())
    }

    /// A builder changes files of all owners, so it needs ids for them, and a tree that is its own.
    pub(crate) fn check_role(&self, spec: &SandboxSpec) -> Result<()> {
        if spec.role.is_guest() {
            return Ok(());
        }
        let walls = self.walls()?;
        let apart = [Layer::UserNamespace, Layer::UidRange].iter().all(|layer| walls.contains(layer));
        let has_ids = self.host.pool == Some(Pool::System) || self.host.image_ids().is_some();
        if !apart || !has_ids {
            return Err(Error::unsupported(
                "images can only be built by root and by users with subordinate ids, which their files' owners become",
            )
            .with_hint(format!(
                "run the build as root, or give the user at least {FEWEST_SUBORDINATE} ids by `usermod --add-subuids` and `--add-subgids`"
            )));
        }
        if self.host.image_ids().is_some() && matches!(spec.image, Image::Directory(_) | Image::Archive(_)) {
            return Err(Error::unsupported("an ordinary user builds on images, and this is a tree of the host")
                .with_hint("make it an image by `sandpen image import`"));
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

/// Whether somebody else may be asked for in a sandbox of this role, which has these ids or those of root's sandboxes.
pub fn check_account(role: Role, account: Account, ids: Option<ImageIds>) -> Result<()> {
    let has = |id: u32| ids.map_or(id < IDS, |ids| ids.has(id));
    match role {
        Role::Guest | Role::ImageUser(_) => {
            Err(Error::denied("programs in this sandbox run as its own user and nobody else"))
        }
        Role::Builder if has(account.user) && has(account.group) => Ok(()),
        Role::Builder => {
            let last = ids.map_or(IDS - 1, ImageIds::last);
            Err(Error::invalid_input(format!("there is no user {}:{} in a sandbox", account.user, account.group))
                .with_hint(format!("ids go from 0 to {last}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox::ErrorKind;

    use super::*;

    #[test]
    fn only_a_builder_runs_programs_as_somebody_else() {
        let account = |user, group| Account { user, group };
        assert_eq!(check_account(Role::Guest, account(1000, 1000), None).unwrap_err().kind(), ErrorKind::Denied);
        assert!(check_account(Role::Builder, account(65535, 0), None).is_ok());
        for beyond in [account(65536, 0), account(0, u32::MAX)] {
            assert_eq!(check_account(Role::Builder, beyond, None).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let few = Some(ImageIds { first_user: 1, first_group: 1, count: 2048 });
        assert!(check_account(Role::Builder, account(1000, 65534), few).is_ok());
        let beyond = check_account(Role::Builder, account(2047, 0), few).unwrap_err();
        assert_eq!((beyond.kind(), beyond.hint()), (ErrorKind::InvalidInput, Some("ids go from 0 to 2046")));
    }
}
