//! Rights that process 1 starts with, and files that nobody in the sandbox may change.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use super::StepError;
use crate::plan::{Landlock, Rights};
use crate::rights::ROOT;

/// The newest interface whose rules are understood here. Older kernels get the part that they know.
const INTERFACE: ABI = ABI::V6;

/// What process 1 needs to start programs as the sandbox's user and to end them.
const INIT: [CapabilitySet; 3] = [CapabilitySet::SETUID, CapabilitySet::SETGID, CapabilitySet::KILL];

/// The highest capability number that any kernel so far could have; unknown ones are skipped.
const MOST_CAPABILITIES: u32 = 63;

/// Let a few capabilities pass the next exec, by the ambient set, and make sure that no later exec gains any: the
/// bounding set is empty, and being user 0 no longer gives anything.
pub(super) fn keep_few(rights: Rights) -> Result<(), StepError> {
    let few: &[CapabilitySet] = match rights {
        Rights::Nothing => &INIT,
        Rights::Root | Rights::Installing => &ROOT,
    };
    let kept = few.iter().fold(CapabilitySet::empty(), |all, one| all | *one);
    let held = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: kept, ..held })?;
    for capability in few {
        rustix::thread::configure_capability_in_ambient_set(*capability, true)?;
    }
    // Only now: nothing outside of the bounding set can become inheritable.
    for number in 0..=MOST_CAPABILITIES {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(StepError::about(format!("capability {number}"))(error)),
        }
    }
    rustix::thread::set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    )?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    Ok(())
}

/// Everything may be read as far as its own permissions go; only the named directories may be written to. Signals and
/// abstract sockets do not leave the sandbox either, should a namespace ever fail to hold them. Process 1's own program
/// lies outside of the sandbox's tree and may be executed nevertheless.
pub(super) fn restrict_files(landlock: &Landlock, init: Option<BorrowedFd<'_>>) -> Result<(), StepError> {
    let status = ruleset(landlock, init).map_err(|error| io::Error::other(error.to_string()))?;
    if status == RulesetStatus::NotEnforced {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP).into());
    }
    Ok(())
}

fn ruleset(landlock: &Landlock, init: Option<BorrowedFd<'_>>) -> Result<RulesetStatus, landlock::RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(INTERFACE))?
        .scope(Scope::from_all(INTERFACE))?
        .create()?
        .no_new_privs(false);
    if let Ok(root) = PathFd::new("/") {
        ruleset = ruleset.add_rule(PathBeneath::new(root, AccessFs::from_read(INTERFACE)))?;
    }
    if let Some(init) = init {
        ruleset = ruleset.add_rule(PathBeneath::new(init, AccessFs::Execute | AccessFs::ReadFile))?;
    }
    for path in &landlock.writable {
        if let Ok(directory) = PathFd::new(path) {
            ruleset = ruleset.add_rule(PathBeneath::new(directory, AccessFs::from_all(INTERFACE)))?;
        }
    }
    Ok(ruleset.restrict_self()?.ruleset)
}
