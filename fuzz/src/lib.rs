//! Fuzz targets: each takes bytes and panics when a promise is broken.
//!
//! They are plain functions so that cargo-fuzz can drive them with coverage and the smoke run without.

mod archive;
mod bytes;
mod frames;
mod gateway;
mod ledger;
mod path;
mod plan;
mod seccomp;
mod secret;
mod wire;

pub use archive::archive;
pub use frames::frames;
pub use gateway::gateway;
pub use ledger::ledger;
pub use path::guest_path;
pub use plan::plan;
pub use seccomp::seccomp;
pub use secret::secret;
pub use wire::wire;

/// One target with inputs to start from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: &'static [&'static [u8]],
}

pub const TARGETS: &[Target] = &[
    Target { name: "guest_path", run: guest_path, seeds: path::SEEDS },
    Target { name: "plan", run: plan, seeds: plan::SEEDS },
    Target { name: "ledger", run: ledger, seeds: ledger::SEEDS },
    Target { name: "seccomp", run: seccomp, seeds: seccomp::SEEDS },
    Target { name: "archive", run: archive, seeds: archive::SEEDS },
    Target { name: "wire", run: wire, seeds: wire::SEEDS },
    Target { name: "frames", run: frames, seeds: frames::SEEDS },
    Target { name: "gateway", run: gateway, seeds: gateway::SEEDS },
    Target { name: "secret", run: secret, seeds: secret::SEEDS },
];
