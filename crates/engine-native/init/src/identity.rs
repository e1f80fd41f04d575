//! Who init is, and who the programs are that it starts.

use std::sync::OnceLock;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Whom programs run as and what they may do, told once at start.
static PROGRAMS: OnceLock<(u32, u32, Role)> = OnceLock::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Programs have no right beyond their user's.
    Guest,
    /// Programs are root of the sandbox and keep what we have.
    Root,
    /// The same, and others can be asked for.
    Builder,
}

const NOTHING: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Give up what was only needed to get here through exec, and close our memory to everybody inside.
pub fn settle(user: u32, group: u32, role: Role) -> rustix::io::Result<()> {
    PROGRAMS.get_or_init(|| (user, group, role));
    close_memory()?;
    match role {
        Role::Guest => {
            clear_ambient()?;
            let held = rustix::thread::capabilities(None)?;
            rustix::thread::set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..held })
        }
        // The ambient set is how root's programs get through exec what we have; nobody can add to it any more.
        Role::Root | Role::Builder => Ok(()),
    }
}

/// What passes exec without being asked for. A kernel that does not know of such a set (gVisor) has nothing in it.
pub fn clear_ambient() -> rustix::io::Result<()> {
    match rustix::thread::clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Without a word, nobody has more than nothing.
pub fn role() -> Role {
    PROGRAMS.get().map_or(Role::Guest, |&(_, _, role)| role)
}

/// Become a user for good: the sandbox's own, or another one in a builder. With no capability in any set, but for root where
/// programs may be root.
pub fn become_user(account: Option<(u32, u32)>) -> rustix::io::Result<()> {
    if crate::weaken::is_asked(crate::weaken::KEEP_CAPABILITIES) {
        return Ok(());
    }
    let (user, group) = ids(account)?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    close_memory()?;
    let became = [rustix::process::getuid(), rustix::process::geteuid()] == [user; 2]
        && [rustix::process::getgid(), rustix::process::getegid()] == [group; 2];
    if !became {
        return Err(Errno::PERM);
    }
    match role() {
        Role::Root | Role::Builder if user.is_root() => Ok(()),
        // Lowering these lowers the ambient set with them.
        Role::Guest | Role::Root | Role::Builder => rustix::thread::set_capabilities(None, NOTHING),
    }
}

/// Do something as that user and come back. A terminal belongs to whoever opened it.
pub fn as_user<T>(account: Option<(u32, u32)>, work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let own = rustix::process::geteuid();
    rustix::thread::set_thread_res_uid(None, ids(account)?.0, None)?;
    close_memory()?;
    let result = work();
    rustix::thread::set_thread_res_uid(None, own, None)?;
    close_memory()?;
    result
}

/// A change of user opens it where the host lets such processes be dumped (`fs.suid_dumpable`), and until its exec a command
/// has the memory of its supervisor. The exec opens the program's own.
fn close_memory() -> rustix::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Without a word nobody becomes anybody, and a guest never anybody else.
fn ids(account: Option<(u32, u32)>) -> rustix::io::Result<(Uid, Gid)> {
    let &(user, group, role) = PROGRAMS.get().ok_or(Errno::PERM)?;
    let (user, group) = match (role, account) {
        (Role::Guest | Role::Root | Role::Builder, None) => (user, group),
        (Role::Builder, Some(account)) => account,
        (Role::Guest | Role::Root, Some(_)) => return Err(Errno::PERM),
    };
    somebody(user, group)
}

/// The largest number is nobody: to the kernel it says that nothing is to change.
pub fn somebody(user: u32, group: u32) -> rustix::io::Result<(Uid, Gid)> {
    if user == u32::MAX || group == u32::MAX {
        return Err(Errno::INVAL);
    }
    Ok((Uid::from_raw(user), Gid::from_raw(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_becomes_the_number_that_changes_nothing() {
        for (user, group) in [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX)] {
            assert_eq!(somebody(user, group), Err(Errno::INVAL), "{user}:{group}");
        }
        assert_eq!(somebody(33, 34), Ok((Uid::from_raw(33), Gid::from_raw(34))));
    }
}
