//! `sandpen image build` from the shell's side, with real builds.

#[path = "../support/mod.rs"]
mod support;

mod copies;
mod hostile;
mod place;
mod runs;
mod steps;
