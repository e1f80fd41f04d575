//! The crate from outside: hostile images, and the real tools and registries that ours must agree with.

mod agreement;
mod archive;
mod bombs;
mod digests;
mod encrypted;
mod exports;
mod fake;
mod flaky;
mod imports;
mod large;
mod layers;
mod logins;
mod naive;
mod overlays;
mod packs;
mod place;
mod registries;
mod server;
mod tools;
mod traversal;
