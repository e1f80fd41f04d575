//! Dying on purpose at a named step, for tests of what is left behind. Does nothing in the product.

/// Where to die: the name of a step of the launcher or of the jail.
pub const VARIABLE: &str = "SANDPEN_TEST_CRASH_AT";

#[cfg(not(feature = "weaken"))]
pub fn here(_step: &str) {}

#[cfg(feature = "weaken")]
pub fn here(step: &str) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == step) {
        // Not by a signal: process 1 of a namespace does not get those that it sends to itself.
        crate::syscall::exit_now(137);
    }
}
