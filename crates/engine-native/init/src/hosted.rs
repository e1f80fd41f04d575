//! Process 1 of a sandbox that somebody else's daemon has built.
//!
//! The daemon made namespaces, root, mounts and limits, and starts us as root with few rights. What it does not do is done
//! here, before the first program: places that belong to the programs' user, an empty bounding set, no groups. A step that
//! fails ends the sandbox, with its name for the daemon's log.

use std::fmt::Display;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::gate::{self, Gate};
use crate::identity::{self, Role};
use crate::serve::{self, Around, Mode as Life, Tenure};
use crate::{log, network, syscall, wire};

/// To start programs as their user and to end them.
const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// The highest capability number that any kernel so far could have; unknown ones are skipped.
const MOST_CAPABILITIES: u32 = 63;

/// As the daemon tells them: the user and the group of programs; `ephemeral` or `persistent`; the milliseconds after which
/// one that nobody uses ends; how many files a program may have open; the port to which all connections go, or 0 where there
/// is no network; then the places that are the programs' own.
struct Settings {
    user: u32,
    group: u32,
    life: Life,
    open_files: u64,
    network_port: u16,
    places: Vec<PathBuf>,
    token: String,
}

/// A step, and what was wrong with it.
type Failure = (&'static str, String);

fn at<E: Display>(step: &'static str) -> impl Fn(E) -> Failure {
    move |error| (step, error.to_string())
}

pub fn main(arguments: impl Iterator<Item = String>) -> i32 {
    // Before anything that somebody else could look at.
    let closed = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("memory"));
    let ended = closed.and_then(|()| Settings::read(arguments)).and_then(serve);
    match ended {
        Ok(()) => 0,
        Err((step, error)) => {
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "sandpen: {step}: {error}");
            3
        }
    }
}

impl Settings {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let missing = || ("settings", "the daemon did not pass all of them".to_owned());
        let mut next = || arguments.next().ok_or_else(missing);
        let number = |text: String| text.parse::<u64>().map_err(at("settings"));
        let id = |text: String| text.parse::<u32>().map_err(at("settings"));
        let (user, group) = (id(next()?)?, id(next()?)?);
        identity::somebody(user, group).map_err(at("settings"))?;
        let tenure = match next()?.as_str() {
            "ephemeral" => Tenure::WithFirst,
            "persistent" => Tenure::Own,
            other => return Err(("settings", format!("{other:?} is no way to live"))),
        };
        let idle = Duration::from_millis(number(next()?)?);
        let open_files = number(next()?)?;
        let network_port = next()?.parse().map_err(at("settings"))?;
        let token = gate::take_token().map_err(at("token"))?;
        let life = Life::Listening { idle, tenure };
        Ok(Self { user, group, life, open_files, network_port, places: arguments.map(PathBuf::from).collect(), token })
    }
}

fn serve(settings: Settings) -> Result<(), Failure> {
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        // What has another process 1 would not end with us.
        return Err(("process", "it is not the first of its namespace".to_owned()));
    }
    syscall::close_on_exec_from(wire::INIT_CHANNEL).map_err(at("descriptors"))?;
    for place in &settings.places {
        give(place, settings.user, settings.group)
            .map_err(|error| ("place", format!("{}: {error}", place.display())))?;
    }
    log::prepare().map_err(at("logs"))?;
    let socket = gate::bound().map_err(at("socket"))?;
    let network = match settings.network_port {
        0 => None,
        port => Some(network::open(port).map_err(|(step, error)| ("network", format!("{step}: {error}")))?),
    };
    let scratch = scratch(&settings.places);
    lower_limits(settings.open_files).map_err(at("limits"))?;
    rustix::thread::set_thread_groups(&[]).map_err(at("groups"))?;
    drop_rights().map_err(at("capabilities"))?;
    identity::settle(settings.user, settings.group, Role::Guest).map_err(at("identity"))?;
    serve::serve(socket, settings.life, scratch, Around { gate: Some(Gate::new(settings.token)), network })
        .map_err(at("serve"))
}

/// Have a directory belong to programs; its contents stay whose they are.
fn give(place: &Path, user: u32, group: u32) -> std::io::Result<()> {
    if !place.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    }
    let found = std::fs::metadata(place)?;
    if (found.uid(), found.gid()) != (user, group) {
        std::os::unix::fs::chown(place, Some(user), Some(group))?;
    }
    Ok(())
}

/// The file systems in memory (by the number that `statfs` has for them) that programs write to, each once. How full others are is not the sandbox's doing.
fn scratch(places: &[PathBuf]) -> Vec<OwnedFd> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for place in places {
        let Ok(directory) = rustix::fs::open(place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { continue };
        let Ok(stat) = rustix::fs::fstat(&directory) else { continue };
        let is_memory = rustix::fs::fstatfs(&directory).is_ok_and(|system| system.f_type == 0x0102_1994);
        if is_memory && !seen.contains(&stat.st_dev) {
            seen.push(stat.st_dev);
            found.push(directory);
        }
    }
    found
}

fn lower_limits(open_files: u64) -> rustix::io::Result<()> {
    let lower = |resource, most: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
    };
    lower(Resource::Nofile, open_files)?;
    lower(Resource::Core, 0)
}

/// Nobody gains a right any more, and we keep three.
fn drop_rights() -> rustix::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    identity::clear_ambient()?;
    for number in 0..=MOST_CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
        // Whatever a kernel that does not know it meant by that: it must not be there.
        if rustix::thread::capability_is_in_bounding_set(capability) == Ok(true) {
            return Err(Errno::PERM);
        }
    }
    // A second lock: with an empty bounding set and no new privileges root is nobody already. gVisor does not have it.
    match rustix::thread::set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    ) {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let kept = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, kept)
}
