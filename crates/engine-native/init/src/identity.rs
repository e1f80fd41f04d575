//! Who init is, and who the programs are that it starts.

use std::sync::OnceLock;

use rustix::fs::{Gid, Uid};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Whom programs run as, told once at start.
static USER: OnceLock<(u32, u32)> = OnceLock::new();

const NOTHING: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Give up what was only needed to get here through exec, and close our memory to the sandbox's user.
pub fn settle(user: u32, group: u32) -> rustix::io::Result<()> {
    USER.get_or_init(|| (user, group));
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::clear_ambient_capability_set()?;
    let held = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..held })
}

/// Become the sandbox's user for good, with no capability in any set.
pub fn become_user() -> rustix::io::Result<()> {
    if crate::weaken::is_asked(crate::weaken::KEEP_CAPABILITIES) {
        return Ok(());
    }
    let (user, group) = user()?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    rustix::thread::set_capabilities(None, NOTHING)
}

/// Do something as the sandbox's user and come back. A terminal belongs to whoever opened it.
pub fn as_user<T>(work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let own = rustix::process::geteuid();
    rustix::thread::set_thread_res_uid(None, user()?.0, None)?;
    let result = work();
    rustix::thread::set_thread_res_uid(None, own, None)?;
    result
}

/// Without a word nobody becomes anybody.
fn user() -> rustix::io::Result<(Uid, Gid)> {
    let &(user, group) = USER.get().ok_or(rustix::io::Errno::PERM)?;
    Ok((Uid::from_raw(user), Gid::from_raw(group)))
}
