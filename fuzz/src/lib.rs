//! Fuzz targets: each takes bytes and panics when a promise is broken.
//!
//! They are plain functions so that cargo-fuzz can drive them with coverage and the smoke run without.

mod path;

pub use path::guest_path;

/// One target with inputs to start from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: &'static [&'static [u8]],
}

pub const TARGETS: &[Target] = &[Target { name: "guest_path", run: guest_path, seeds: path::SEEDS }];
