//! A daemon to try things on by hand: `cargo run --package sandpen-tests --example daemon -- docker|podman [--with-images]`
//!
//! Prints what to set, and ends with all that it holds when its standard input does.

use std::process::ExitCode;

use sandpen_tests::daemon::{Daemon, Flavour};
use sandpen_tests::{Result, Trouble, images};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flavour = arguments.first().and_then(|name| Flavour::named(name));
    let with_images = match arguments.get(1..) {
        Some([flag]) if flag == "--with-images" => true,
        Some([]) | None => false,
        Some(_) => return usage(),
    };
    let Some(flavour) = flavour else { return usage() };
    match hold(flavour, with_images) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble(why)) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: daemon docker|podman [--with-images]");
    ExitCode::from(2)
}

fn hold(flavour: Flavour, with_images: bool) -> Result<()> {
    if let Some(why) = flavour.missing() {
        return Err(why.into());
    }
    let daemon = Daemon::start(flavour)?;
    if with_images {
        images::load(&daemon)?;
    }
    let variable = match flavour {
        Flavour::Docker => "DOCKER_HOST",
        Flavour::Podman => "CONTAINER_HOST",
    };
    println!("export {variable}={}", daemon.host());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    let left = daemon.end();
    if left.is_empty() { Ok(()) } else { Err(left.join("\n").into()) }
}
