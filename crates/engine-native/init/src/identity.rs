//! Who init is, and who the programs are that it starts.

use rustix::fs::{Gid, Uid};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The sandbox's user.
const USER: u32 = 1000;
const GROUP: u32 = 1000;

const NOTHING: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Give up what was only needed to get here through exec, and close our memory to the sandbox's user.
pub fn settle() -> rustix::io::Result<()> {
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
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(GROUP));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    rustix::thread::set_capabilities(None, NOTHING)
}

/// Do something as the sandbox's user and come back. A terminal belongs to whoever opened it.
pub fn as_user<T>(work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let own = rustix::process::geteuid();
    rustix::thread::set_thread_res_uid(None, Uid::from_raw(USER), None)?;
    let result = work();
    rustix::thread::set_thread_res_uid(None, own, None)?;
    result
}
