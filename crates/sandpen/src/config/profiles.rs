//! What an older server gave its containers, as settings: the first place that is read, so that whatever the operator writes
//! anywhere wins over it.

use std::ffi::OsString;

use sandbox::{Limits, Result};
use tools::{Ceiling, ProfileName};

use super::code;
use super::code_runner;
use super::key::Key;
use super::sandboxes::SandboxConfig;
use super::written::{Origin, Written};

/// Programs were whom the image names, which is root for most.
const USER: (Key, &str) = (Key::ContainerUser, "image");

/// There were no bounds, so it asks for more than anybody has: what it gets is the most that the operator lets clients have.
const BOUNDLESS: [(Key, &str); 3] = [(Key::Cpus, "4096"), (Key::Memory, "4096G"), (Key::Processes, "1000000")];

/// They stayed until they were stopped. It is the most that a persistent sandbox may be left alone.
const KEPT: (Key, &str) = (Key::Idle, "720h");

/// They waited for a command for ever. What nobody waits for any more is ended with its call anyway.
const PATIENT: (Key, &str) = (Key::Timeout, "24h");

/// What it asks for. Where it asks for more than the operator lets clients have, it gets that.
pub fn wishes(profile: ProfileName) -> Written {
    let wishes: &[(Key, &str)] = match profile {
        ProfileName::Cloudflare => {
            &[USER, (Key::Network, "internet"), (Key::Timeout, "30m"), BOUNDLESS[0], BOUNDLESS[1], BOUNDLESS[2]]
        }
        ProfileName::SandboxServer => {
            &[USER, (Key::Network, "internet"), PATIENT, KEPT, BOUNDLESS[0], BOUNDLESS[1], BOUNDLESS[2]]
        }
        ProfileName::CodeRunner => &[(Key::Cpus, "0.5"), (Key::Memory, "256M"), (Key::Timeout, "30s")],
        ProfileName::Automata => &[
            USER,
            (Key::Image, "python:3.12-slim-bookworm"),
            (Key::Network, "internet"),
            PATIENT,
            KEPT,
            BOUNDLESS[0],
            BOUNDLESS[1],
            BOUNDLESS[2],
        ],
        ProfileName::Philschmid => {
            &[USER, (Key::Network, "internet"), (Key::Timeout, "30s"), BOUNDLESS[0], BOUNDLESS[1], BOUNDLESS[2]]
        }
    };
    written(profile, wishes)
}

/// What its clients may ask for, when the operator chose it for the whole server. `images_are_open`: somebody else wrote which
/// images clients may name.
pub fn grants(profile: ProfileName, images_are_open: bool) -> Written {
    let grants: &[(Key, &str)] = match profile {
        ProfileName::Cloudflare | ProfileName::Philschmid => &[(Key::MaxNetwork, "internet")],
        // It believed the labels of every image of its daemon. None of its tools names an image, so nobody has one fetched here
        // in order to take over a language, unless the profiles beside it may.
        ProfileName::CodeRunner if !images_are_open => &[(Key::MaxNetwork, "internet"), (Key::RunnerImage, "*")],
        ProfileName::CodeRunner => &[(Key::MaxNetwork, "internet")],
        ProfileName::SandboxServer | ProfileName::Automata => {
            &[(Key::MaxNetwork, "internet"), (Key::AllowImage, "*"), (Key::AllowImage, "host")]
        }
    };
    written(profile, grants)
}

/// What its own variables say. They are read only where the operator chose it for the whole server.
pub fn variables(profile: ProfileName, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Written> {
    let mut written = Written::new(Origin::Profile(profile));
    match profile {
        ProfileName::Cloudflare | ProfileName::SandboxServer | ProfileName::Automata => {}
        ProfileName::CodeRunner => {
            if let Some(address) = code_runner::usual_address(lookup) {
                written.push(Key::Listen, address);
            }
        }
        ProfileName::Philschmid => code::variables(&mut written, lookup)?,
    }
    Ok(written)
}

/// What of its own variables counts more than the file: where somebody told this very server to listen.
pub fn over_the_file(profile: ProfileName, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Written> {
    let mut written = Written::new(Origin::Profile(profile));
    match profile {
        ProfileName::Cloudflare | ProfileName::SandboxServer | ProfileName::Automata | ProfileName::Philschmid => {}
        ProfileName::CodeRunner => {
            if let Some(address) = code_runner::address(lookup)? {
                written.push(Key::Listen, address);
            }
        }
    }
    Ok(written)
}

/// Where it was content with less than we are.
pub fn ease(profile: ProfileName, sandbox: &mut SandboxConfig) {
    match profile {
        ProfileName::Cloudflare | ProfileName::SandboxServer | ProfileName::CodeRunner | ProfileName::Automata => {}
        ProfileName::Philschmid => sandbox.skip_unset = true,
    }
}

fn written(profile: ProfileName, values: &[(Key, &str)]) -> Written {
    let mut written = Written::new(Origin::Profile(profile));
    values.iter().for_each(|(key, value)| written.push(*key, *value));
    written
}

/// Keep what nobody but a profile asked for below what the operator lets clients have.
pub fn bound(sandbox: &mut SandboxConfig, ceiling: &Ceiling, is_wish: impl Fn(Key) -> bool) {
    if is_wish(Key::Network) && ceiling.network.admit(sandbox.network.clone()).is_err() {
        sandbox.network = ceiling.network.clone();
    }
    let Limits { cpu_millis, memory, processes, .. } = &mut sandbox.limits;
    if is_wish(Key::Cpus) {
        *cpu_millis = ceiling.cpu_millis.min(*cpu_millis);
    }
    if is_wish(Key::Memory) {
        *memory = ceiling.memory.min(*memory);
    }
    if is_wish(Key::Processes) {
        *processes = ceiling.processes.min(*processes);
    }
}
