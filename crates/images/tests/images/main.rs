//! The crate from outside: hostile images, and the real tools and registries that ours must agree with.

mod archive;
mod bombs;
mod digests;
mod imports;
mod layers;
mod naive;
mod place;
mod traversal;
