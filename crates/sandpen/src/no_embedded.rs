//! In the place of the embedded engine, on systems that are not Linux: settings that ask for it are refused before any of
//! this is called.

use std::ffi::OsString;
use std::sync::Arc;

use sandbox::{Error, InstanceId, Recovery, Result, SandboxService};
use tools::{Exporter, Policy};

use crate::config::Config;
use crate::exit::Exit;
use crate::packages;
use crate::wiring::{Built, Outlet};

/// What came of a look for the image of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    GoOn,
    GivenUp(Exit),
}

pub fn launcher_main_if_asked() {}

pub fn start_ahead(_: &[OsString]) {}

/// A daemon fetches its images itself.
pub fn pull_missing(_: &Config) -> Result<Pulled> {
    Ok(Pulled::GoOn)
}

pub(crate) async fn engine(_: &Config, _: &Outlet, _: &InstanceId, _: usize, _: Recovery) -> Result<Built> {
    Err(not_here())
}

/// A server has no exports here.
pub fn exporter(
    _: &SandboxService,
    _: &Config,
    _: &Arc<Policy>,
    _: packages::Images,
) -> Result<Option<Arc<dyn Exporter>>> {
    Ok(None)
}

/// The embedded engine is Linux itself.
pub fn not_here() -> Error {
    Error::unsupported("this needs the native engine, which only Linux has")
        .with_hint("use --engine docker or --engine podman, whose daemons bring a Linux along")
}
