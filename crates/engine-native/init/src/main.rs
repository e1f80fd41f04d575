//! Process 1 of a sandbox: collects the dead, starts what it is asked to start, and ends when nobody needs it any more.
//!
//! It is built as a static program by the build script of `crates/agent` and embedded in the engines, so an image needs to
//! contain nothing of ours. The embedded engine starts it by descriptor; then every wall already stands: namespaces, root,
//! limits, seccomp, Landlock. In sandboxes that somebody else's daemon makes (`hosted`) it finishes some of them itself,
//! and the same program serves as a bridge there. It keeps the rights to change user and to send signals within its own user namespace, and nothing else; the
//! commands that it starts keep nothing at all. Where programs may be root of their sandbox, it and they keep some more over files.
//!
//! When it ends, for whatever reason, the kernel kills everything in the sandbox with it.

mod ahead;
mod bridge;
#[path = "../../src/crash.rs"]
#[allow(dead_code, reason = "two programs share this file and each uses its part")]
mod crash;
mod dial;
mod exec;
mod files;
mod filter;
#[path = "../../../agent/src/frame.rs"]
mod frame;
mod gate;
mod hosted;
mod identity;
mod kept;
mod leaving;
mod log;
mod memory;
#[path = "../../../agent/src/messages.rs"]
mod messages;
mod network;
mod probe;
#[path = "../../src/rights.rs"]
mod rights;
mod serve;
mod signs;
#[path = "../../../agent/src/stream.rs"]
mod stream;
#[path = "../../src/syscall.rs"]
mod syscall;
mod tree;
mod weaken;
#[path = "../../src/wire.rs"]
mod wire;
mod worker;

use std::time::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let code = match arguments.peek().map(String::as_str) {
        Some("hosted") => hosted::main(hosted::Streams::Nothing, arguments.skip(1)),
        Some("hosted-with-bridge") => hosted::main(hosted::Streams::Bridge, arguments.skip(1)),
        Some("bridge") => bridge::main(),
        Some("probe") => probe::main(),
        Some(_) | None => embedded(arguments),
    };
    std::process::exit(code);
}

/// In a sandbox of the embedded engine. Arguments: the user and the group that programs run as; `guest`, `root` or
/// `builder`; then `attached`, or `listening` or `on-trial` and the milliseconds after which an unused sandbox ends.
fn embedded(mut arguments: impl Iterator<Item = String>) -> i32 {
    let mut number = || arguments.next().and_then(|text| text.parse().ok());
    let (Some(user), Some(group)) = (number(), number()) else { return 2 };
    let role = match arguments.next().as_deref() {
        Some("guest") => identity::Role::Guest,
        Some("root") => identity::Role::Root,
        Some("builder") => identity::Role::Builder,
        _ => return 2,
    };
    let mode = match (arguments.next().as_deref(), arguments.next().and_then(|text| text.parse().ok())) {
        (Some("attached"), _) => serve::Mode::Attached,
        (Some("listening"), Some(idle)) => {
            serve::Mode::Listening { idle: Duration::from_millis(idle), tenure: serve::Tenure::Own }
        }
        (Some("on-trial"), Some(idle)) => {
            serve::Mode::Listening { idle: Duration::from_millis(idle), tenure: serve::Tenure::OnTrial }
        }
        _ => return 2,
    };
    let Some(channel) = syscall::inherited_descriptor(wire::INIT_CHANNEL) else { return 2 };
    if syscall::close_on_exec_from(wire::INIT_CHANNEL).is_err() || identity::settle(user, group, role).is_err() {
        return 3;
    }
    // Whatever ended it: there is nobody inside to tell, and the server sees the channel close.
    let scratch = syscall::inherited_descriptor(wire::INIT_SCRATCH).into_iter().collect();
    i32::from(serve::serve(channel, mode, scratch, serve::Around::default()).is_err())
}
