//! The tools as a client calls them, on a fake host that keeps the engine's contract.

mod catalog;
mod files;
mod generated;
mod images;
mod network;
mod owners;
mod reading;
mod runs;
mod snapshots;
mod support;
