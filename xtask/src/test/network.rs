//! The stages of what sandboxes reach. Their program is root even when the checks are not: only root can make the world
//! around them.

use std::path::Path;
use std::process::Command;

use super::daemons::{self, Engine};
use super::{MINUTE, Outcome, PRODUCT, Place, is_built};
use crate::prepare::{Delegated, TestUser};
use crate::process::{is_installed, is_root};
use crate::programs;
use crate::root;
use crate::stage::{Counting, Tally, run};

pub fn as_root() -> Outcome {
    on_program(|program| run(&mut Command::new(program), Counting::ResultLines, 10 * MINUTE))
}

/// On sandboxes of a daemon, with the same assertions.
pub fn on_daemon(engine: Engine) -> Outcome {
    let mut tally = Outcome::Skipped("the daemon was not asked for anything".to_owned());
    let around = daemons::on_daemon(engine, |daemon| {
        tally =
            on_program(|program| run(daemon.named_to(&mut Command::new(program)), Counting::ResultLines, 30 * MINUTE));
        Tally::default()
    });
    match (around, tally) {
        (Outcome::Ran(mut sum), Outcome::Ran(checks)) => {
            sum.add(checks);
            Outcome::Ran(sum)
        }
        (Outcome::Ran(_), skipped) | (skipped, _) => skipped,
    }
}

pub fn as_ordinary_user(user: &Result<TestUser, String>) -> Outcome {
    let user = match user {
        Ok(user) => user,
        Err(why) => return Outcome::Skipped(why.clone()),
    };
    on_program(|program| {
        let product = root().join("target/debug/sandpen");
        let place = match Place::new(user, &[program, &product]) {
            Ok(place) => place,
            Err(error) => {
                println!("the test program cannot be copied: {error}");
                return Tally::FAILED;
            }
        };
        let groups = Delegated::to(user);
        let names: Vec<String> = groups.directories.iter().map(|group| group.display().to_string()).collect();
        let mut command = Command::new(place.program(program));
        command
            .current_dir(&place.directory)
            .env("TMPDIR", &place.directory)
            .env("SANDPEN_TEST_USER", format!("{}:{}", user.uid, user.gid))
            .env("SANDPEN_TEST_GROUPS", names.join(" "))
            .env("SANDPEN_TEST_PRODUCT", place.program(&product));
        if groups.directories.is_empty() {
            command.env("SANDPEN_TEST_ALLOW_MISSING", "memory-limit,process-limit,cpu-limit");
        }
        run(&mut command, Counting::ResultLines, 10 * MINUTE)
    })
}

/// Builds the product as it is, and then the program with walls that can be taken away: never both at once.
fn on_program(then: impl FnOnce(&Path) -> Tally) -> Outcome {
    if !is_root() {
        return Outcome::Skipped("only root can make the network that the checks need".to_owned());
    }
    if let Some(missing) = ["cc", "ip", "nsenter", "unshare", "setpriv"].iter().find(|name| !is_installed(name)) {
        return Outcome::Skipped(format!("{missing} is not installed"));
    }
    if !is_built(PRODUCT) {
        return Outcome::Ran(Tally::FAILED);
    }
    Outcome::Ran(programs::removable("reach").map_or(Tally::FAILED, |program| then(&program.path)))
}
