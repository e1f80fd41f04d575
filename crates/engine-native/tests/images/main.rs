//! Sandboxes from images that are made here, layer by layer, from programs of the host, with whatever rights it is run.
//!
//! As an ordinary user the files of an image are nobody's inside, except those of its own user, and except in builders; what
//! a test says of owners is then that.

mod apart;
mod builder;
mod kept;
mod killed;
mod layer;
mod life;
mod place;
mod root;
mod runs;
mod saved;
mod trees;
mod work;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use place::Place;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    runtime().expect("a runtime").block_on(killed::main_if_asked());
    let groups = [
        trees::tests(),
        runs::tests(),
        life::tests(),
        builder::tests(),
        root::tests(),
        apart::tests(),
        kept::tests(),
        saved::tests(),
        killed::tests(),
        work::tests(),
    ];
    let trials = groups.into_iter().flatten().map(|(name, test)| {
        let run = move || {
            runtime()?.block_on(test(Place::new()?));
            Ok(())
        };
        let lacks_debian = name.starts_with("debian_") && std::env::var_os("SANDPEN_TEST_DEBIAN").is_none();
        Trial::test(name, run).with_ignored_flag(lacks_debian)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
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
