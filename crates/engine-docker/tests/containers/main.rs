//! What only containers have: labels, images with words of their own, somebody else who removes things, and a process 1 that
//! programs can see.

#[path = "../support/mod.rs"]
mod support;

mod behind;
mod images;
mod walls;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use support::Place;
use world::World;

type Case = (&'static str, fn(World) -> world::Done);

fn main() -> ExitCode {
    let Some(place) = Place::of_environment() else { return support::skipped("containers") };
    let cases = [behind::CASES, images::CASES, walls::CASES].concat();
    let trials = cases.into_iter().map(|(name, case): Case| {
        let place = place.clone();
        Trial::test(name, move || -> Result<(), Failed> {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { case(World::new(place).await).await });
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
