//! Sandboxes that are branched, remembered and taken back, with whatever rights it is run.

mod branches;
#[path = "../images/layer.rs"]
#[allow(dead_code, reason = "shared with the tests of images, which use all of it")]
mod layer;
mod moments;
#[path = "../images/place.rs"]
#[allow(dead_code, reason = "shared with the tests of images, which use all of it")]
mod place;
mod walls;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use place::Place;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let groups = [branches::tests(), moments::tests(), walls::tests()];
    let trials = groups.into_iter().flatten().map(|(name, test)| {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(test(Place::new()?));
            Ok(())
        };
        Trial::test(name, run)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

type Test = fn(Place) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// The tests of one file, with their names.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub fn tests() -> Vec<(&'static str, crate::Test)> {
            vec![$((stringify!($name), |place| Box::pin($name(place)))),+]
        }
    };
}
use tests;
