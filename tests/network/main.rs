//! What a sandbox reaches and what it does not, in a world of our own: every wall tried from inside, judged by who came.
//!
//! `README.md` lists the checks. Arguments pick some of them: `cargo test … --test reach -- NW-04`. The process that
//! begins is the outside and must be root; the checks run in another that lives as the host, as root or as the user that
//! `SANDPEN_TEST_USER` names. `backend` says whose sandboxes they are.

mod backend;
mod check;
mod greeting;
mod host;
mod inbound;
mod index;
mod names;
mod older;
mod product;
mod scene;
mod secrets;
mod served;
mod spellings;
mod stand;
mod tools;
mod walls;
mod world;

use std::process::ExitCode;

use sandpen_tests::is_root;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((word, rest)) if word == host::ARGUMENT => runtime.block_on(host::run(rest)),
        Some((word, rest)) if word == index::ARGUMENT => index::judge(rest),
        Some(_) | None if !is_root() => {
            println!("SKIPPED: only root can make the network namespaces of the world");
            println!("sum: 0 passed, 0 failed, 1 skipped, 0 void");
            return ExitCode::SUCCESS;
        }
        Some(_) | None => runtime.block_on(async {
            let world = world::World::start()?;
            if let Some(daemon) = backend::daemon()? {
                backend::load_image(&daemon, &world.directory.path().join("certificates"))?;
            }
            let in_our_world = stand::as_host(&world, &arguments)?;
            drop(world);
            let in_the_world = stand::on_this_machine(&arguments)?;
            Ok(if in_our_world == ExitCode::SUCCESS { in_the_world } else { in_our_world })
        }),
    };
    match done {
        Ok(code) => code,
        Err(trouble) => {
            println!("the checks could not run: {trouble}");
            ExitCode::FAILURE
        }
    }
}
