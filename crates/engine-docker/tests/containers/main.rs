//! What only containers have: labels, images with words of their own, somebody else who removes things, and a process 1 that
//! programs can see.

#[path = "../support/mod.rs"]
mod support;

mod behind;
mod builds;
mod door;
mod given;
mod hangs;
mod images;
mod large;
mod network;
mod odd;
mod outside;
mod roots;
mod seen;
mod stops;
mod trees;
mod volumes;
mod walls;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sandbox::engine::testsuite::Outside;
use support::Place;
use world::World;

type Case = (&'static str, fn(World) -> world::Done);

fn main() -> ExitCode {
    let Some(place) = Place::of_environment() else { return support::skipped("containers") };
    let cases = [
        behind::CASES,
        builds::CASES,
        given::CASES,
        hangs::CASES,
        images::CASES,
        large::CASES,
        network::REFUSALS,
        odd::CASES,
        outside::CASES,
        roots::GUESTS,
        stops::CASES,
        trees::CASES,
        volumes::CASES,
        walls::CASES,
    ]
    .concat();
    let trial = |(name, case): Case, impossible: Option<&'static str>| {
        let place = place.clone();
        Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
            if let Some(why) = impossible {
                return Ok(Completion::ignored_with(why));
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { case(World::new(place).await).await });
            Ok(Completion::Completed)
        })
    };
    let nobody_outside = || Outside::own_name().is_none().then_some("the hosts file has no name for this machine");
    let no_network = place.is_gvisor().then_some("sandboxes of gVisor have no network").or_else(nobody_outside);
    let no_root = place.is_gvisor().then_some("root of gVisor's sandboxes cannot change their image");
    let trials = cases.into_iter().map(|case| trial(case, None));
    let trials = trials.chain(network::CASES.iter().map(|case| trial(*case, no_network)));
    let trials = trials.chain(roots::CASES.iter().map(|case| trial(*case, no_root)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
