//! In the place of commands of the embedded engine, on systems that do not have it.

use std::ffi::OsString;

use clap::Args;
use sandbox::Result;

use crate::config::Config;
use crate::embedded;
use crate::exit::Exit;

/// Only on Linux
///
/// This command belongs to the native engine. It is named here so that you need not look for it.
#[derive(Args, Debug)]
pub struct Arguments {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn run(_: Arguments, _: Config) -> Result<Exit> {
    Err(embedded::not_here())
}
