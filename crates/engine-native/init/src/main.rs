//! Process 1 of a sandbox: collects the dead, starts what it is asked to start, and ends when nobody needs it any more.
//!
//! It is built as a static program by the build script of `crates/agent`, embedded in the engines and started by
//! descriptor, so an image needs to contain nothing of ours. When it starts, every wall already stands: namespaces, root, limits, seccomp,
//! Landlock. It keeps the rights to change user and to send signals within its own user namespace, and nothing else; the
//! commands that it starts keep nothing at all. In a builder, it and the commands of root keep some more over files.
//!
//! When it ends, for whatever reason, the kernel kills everything in the sandbox with it.

mod exec;
mod files;
mod identity;
mod log;
#[path = "../../../agent/src/messages.rs"]
mod messages;
mod serve;
#[path = "../../src/syscall.rs"]
mod syscall;
mod tree;
mod weaken;
#[path = "../../src/wire.rs"]
mod wire;
mod worker;

use std::time::Duration;

/// Arguments: the user and the group that programs run as; `guest` or `builder`; then `attached`, or `listening` or `on-trial` and the milliseconds after which an unused
/// sandbox ends.
fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse().ok());
    let (Some(user), Some(group)) = (number(), number()) else { std::process::exit(2) };
    let role = match arguments.next().as_deref() {
        Some("guest") => identity::Role::Guest,
        Some("builder") => identity::Role::Builder,
        _ => std::process::exit(2),
    };
    let mode = match (arguments.next().as_deref(), arguments.next().and_then(|text| text.parse().ok())) {
        (Some("attached"), _) => serve::Mode::Attached,
        (Some("listening"), Some(idle)) => {
            serve::Mode::Listening { idle: Duration::from_millis(idle), tenure: serve::Tenure::Own }
        }
        (Some("on-trial"), Some(idle)) => {
            serve::Mode::Listening { idle: Duration::from_millis(idle), tenure: serve::Tenure::OnTrial }
        }
        _ => std::process::exit(2),
    };
    let Some(channel) = syscall::inherited_descriptor(wire::INIT_CHANNEL) else { std::process::exit(2) };
    if syscall::close_on_exec_from(wire::INIT_CHANNEL).is_err() || identity::settle(user, group, role).is_err() {
        std::process::exit(3);
    }
    // Whatever ended it: there is nobody inside to tell, and the server sees the channel close.
    let ended = serve::serve(channel, mode, syscall::inherited_descriptor(wire::INIT_SCRATCH));
    std::process::exit(i32::from(ended.is_err()));
}
