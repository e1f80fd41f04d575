//! The tools as a client calls them, on a fake host that keeps the engine's contract.

mod automata;
mod catalog;
mod cloudflare;
mod code_runner;
mod files;
mod generated;
mod images;
mod network;
mod owners;
mod pages;
mod philschmid;
mod profiles;
mod reading;
mod runs;
mod sandbox_server;
mod snapshots;
mod support;
