//! Process 1 of every sandbox, as a program to carry along.

pub mod messages;

/// Process 1: a static program for Linux, which an image needs nothing for.
pub static PROGRAM: &[u8] = include_bytes!(env!("SANDPEN_INIT"));

/// One for each build of [`PROGRAM`], so that two versions can use one directory.
pub const PROGRAM_HASH: &str = env!("SANDPEN_INIT_HASH");
