//! Which system calls a sandbox may make: the policy in `seccomp/default.json`, compiled to one filter.
//!
//! Every call that Linux has is named in the policy exactly once, with the reason for its answer; what is not named,
//! because it is younger than the policy, does not exist for the sandbox (`ENOSYS`), and neither do the calls of a
//! foreign architecture. Installing the filter is the jail's work, not this module's.
//!
//! The compiler is our own instead of seccompiler 0.5: that one knows a single answer for all that it refuses, where
//! we need three; it kills the process on a foreign architecture; and it compares the number with each call in turn,
//! five instructions per call. The kernel translates a filter anew for every sandbox, at 0.5 to 2.5 µs an instruction, so
//! 1,600 instructions instead of 143 would cost more than all namespaces together.

#[cfg(test)]
mod compile;
#[cfg(test)]
mod hosted;
#[cfg(test)]
mod interpret;
mod policy;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

pub use policy::{Answer, Architecture, Check, Condition, Policy, PolicyError, Rule};

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    Policy::built_in(Architecture::NATIVE).expect("the built-in policy is checked by the tests of this module")
});

/// The filter for this machine as an array of `struct sock_filter`, ready for seccomp(2), compiled by the build script.
pub fn program() -> &'static [u8] {
    include_bytes!(env!("SANDPEN_FILTER"))
}

/// What [`program`] was compiled from.
pub fn policy() -> &'static Policy {
    &POLICY
}
