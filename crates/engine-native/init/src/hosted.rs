//! Process 1 of a sandbox that somebody else's daemon has built.
//!
//! The daemon made namespaces, root, mounts and limits, and starts us as root with few rights. What it does not do is done
//! here, before the first program: places that belong to the programs' user, an empty bounding set, no groups. A step that
//! fails ends the sandbox, with its name for the daemon's log.

use std::fmt::Display;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::bridge::first;
use crate::filter;
use crate::gate::{self, Gate, TokenDigest};
use crate::identity::{self, Role};
use crate::kept::{self, Beginning};
use crate::messages::{KEPT_DIRECTORY, KeptExit, PROGRAM_DIRECTORY};
use crate::network::Network;
use crate::rights::ROOT;
use crate::serve::{self, Around, End, Mode as Life, Tenure};
use crate::{log, syscall, wire};

/// To start programs as their user and to end them, where they are not root.
const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// The embedded engine's policy, as a filter that leaves old programs to [`filter`].
const POLICY: &[u8] = include_bytes!(env!("SANDPEN_POLICY"));

/// The highest capability number that any kernel so far could have; unknown ones are skipped.
const MOST_CAPABILITIES: u32 = 63;

/// As the daemon tells them: the user and the group of programs; `guest`, or `root` for programs that keep rights; `ephemeral`,
/// `persistent`, or for one that is persistent and has its files after a stop `kept` or `lasting`; the milliseconds after which
/// one that nobody uses ends; how many files a program may have open, and how large one may be, or 0 where its file system says
/// that; the port to which all connections go, or 0 where there is no network; the digest of the token that lets bridges in; then
/// the places that are the programs' own.
struct Settings {
    user: u32,
    group: u32,
    role: Role,
    life: Life,
    rest: Rest,
    open_files: u64,
    largest_file: u64,
    network_port: u16,
    places: Vec<PathBuf>,
    token: TokenDigest,
}

/// What a stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The end.
    None,
    /// Its files are written down before.
    Kept,
    /// Its files are on a disk, and stay there.
    Lasting,
}

/// A step, and what was wrong with it.
type Failure = (&'static str, String);

fn at<E: Display>(step: &'static str) -> impl Fn(E) -> Failure {
    move |error| (step, error.to_string())
}

/// What the streams are for that the daemon has started us with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    Nothing,
    /// Whoever had us made is at their other ends.
    Bridge,
}

pub fn main(streams: Streams, arguments: impl Iterator<Item = String>) -> i32 {
    // Before anything that somebody else could look at.
    let closed = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("memory"));
    let ended = closed.and_then(|()| Settings::read(arguments)).and_then(|settings| serve(settings, streams));
    match ended {
        Ok(code) => code,
        Err((step, error)) => {
            complain(step, &error);
            3
        }
    }
}

/// Nobody may be there to read it.
fn complain(step: &str, error: &str) {
    let _ = writeln!(std::io::stderr(), "sandpen: {step}: {error}");
}

impl Settings {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let missing = || ("settings", "the daemon did not pass all of them".to_owned());
        let mut next = || arguments.next().ok_or_else(missing);
        let number = |text: String| text.parse::<u64>().map_err(at("settings"));
        let id = |text: String| text.parse::<u32>().map_err(at("settings"));
        let (user, group) = (id(next()?)?, id(next()?)?);
        identity::somebody(user, group).map_err(at("settings"))?;
        let role = match (next()?.as_str(), user) {
            ("guest", _) => Role::Guest,
            ("root", 0) => Role::Root,
            (other, _) => return Err(("settings", format!("user {user} cannot be {other:?}"))),
        };
        let (tenure, rest) = match next()?.as_str() {
            "ephemeral" => (Tenure::WithFirst, Rest::None),
            "persistent" => (Tenure::Own, Rest::None),
            "kept" => (Tenure::Own, Rest::Kept),
            "lasting" => (Tenure::Own, Rest::Lasting),
            other => return Err(("settings", format!("{other:?} is no way to live"))),
        };
        let idle = Duration::from_millis(number(next()?)?);
        let (open_files, largest_file) = (number(next()?)?, number(next()?)?);
        let network_port = next()?.parse().map_err(at("settings"))?;
        let token = TokenDigest::read(&next()?).ok_or(("settings", "there is no digest of a token".to_owned()))?;
        let life = Life::Listening { idle, tenure };
        let places = arguments.map(PathBuf::from).collect();
        Ok(Self { user, group, role, life, rest, open_files, largest_file, network_port, places, token })
    }
}

/// Our exit code, in the end.
fn serve(settings: Settings, streams: Streams) -> Result<i32, Failure> {
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        // What has another process 1 would not end with us.
        return Err(("process", "it is not the first of its namespace".to_owned()));
    }
    // Whoever had us made has looked too, but Podman does not show a link that leads nowhere.
    if !std::fs::symlink_metadata(PROGRAM_DIRECTORY).map_err(at("program"))?.is_dir() {
        return Err(("program", "the image has something of its own where it is".to_owned()));
    }
    syscall::close_on_exec_from(wire::INIT_CHANNEL).map_err(at("descriptors"))?;
    for place in settings.places.iter().filter(|place| !leads_away(place)) {
        let has_another = settings.places.iter().any(|other| other != place && other.starts_with(place));
        if has_another {
            open_the_way(place).map_err(|error| ("place", format!("{}: {error}", place.display())))?;
        }
        give(place, settings.user, settings.group, settings.role)
            .map_err(|error| ("place", format!("{}: {error}", place.display())))?;
    }
    if settings.rest == Rest::Kept {
        keep(KEPT_DIRECTORY, 0o700).map_err(at("files"))?;
    }
    keep("/run", 0o755).map_err(at("run"))?;
    log::prepare().map_err(at("logs"))?;
    keep("/run/log", 0o700).map_err(at("logs"))?;
    let socket = gate::bound().map_err(at("socket"))?;
    let network = match settings.network_port {
        0 => Network::None,
        // One that the kernel does not take is told to whoever asks for it; there is no way out without it either.
        port => Network::open(port),
    };
    let scratch = scratch(&settings.places);
    rustix::thread::set_thread_groups(&[]).map_err(at("groups"))?;
    drop_rights(settings.role).map_err(at("capabilities"))?;
    filter::restrict().map_err(at("system-calls"))?;
    syscall::install_seccomp(POLICY).map_err(at("system-calls"))?;
    identity::settle(settings.user, settings.group, settings.role).map_err(at("identity"))?;
    let mut resumed_at = None;
    if settings.rest != Rest::None {
        // A stop that comes meanwhile waits until there is somebody to hear it.
        syscall::signal_descriptor(&[libc::SIGTERM]).map_err(at("signals"))?;
    }
    if settings.rest == Rest::Kept {
        match kept::bring_back(Path::new(KEPT_DIRECTORY)) {
            Ok(Beginning::First) => {}
            Ok(Beginning::Continued) => resumed_at = Some(Instant::now()),
            Ok(Beginning::Lost) => {
                complain("files", "it was ended before it could keep them");
                return Ok(KeptExit::LOST);
            }
            Err(error) => {
                complain("files", &format!("those that were kept cannot be brought back: {error}"));
                return Ok(KeptExit::NOT_BROUGHT_BACK);
            }
        }
    }
    let bridge = match streams {
        Streams::Nothing => None,
        Streams::Bridge => Some(first::start().map_err(at("bridge"))?),
    };
    // Not before: a bridge holds descriptors of every command and connection.
    lower_limits(settings.open_files, settings.largest_file).map_err(at("limits"))?;
    let around = Around { gate: Some(Gate::new(settings.token)), network, resumed_at, bridge };
    let end = serve::serve(socket, settings.life, scratch, around).map_err(at("serve"))?;
    Ok(match (settings.rest, end) {
        (Rest::None, End::Over | End::Stopped) => 0,
        (Rest::Kept | Rest::Lasting, End::Over) => KeptExit::ENDED,
        (Rest::Lasting, End::Stopped) => KeptExit::STOPPED,
        (Rest::Kept, End::Stopped) => match kept::keep(Path::new(KEPT_DIRECTORY), &settings.places) {
            Ok(()) => KeptExit::STOPPED,
            Err(error) => {
                complain("files", &format!("they cannot be kept: {error}"));
                KeptExit::NOT_KEPT
            }
        },
    })
}

/// Whether an image has a link there, to what is ours or the kernel's.
fn leads_away(place: &Path) -> bool {
    let taken = ["/proc", "/sys", "/dev", "/run", PROGRAM_DIRECTORY, KEPT_DIRECTORY];
    place.canonicalize().is_ok_and(|real| real != place && taken.iter().any(|taken| real.starts_with(taken)))
}

/// Have a directory that is nobody else's be one that we get through, to places that are mounted below. Runtimes give a mount
/// the mode of the directory beneath, and its owner can be the programs' user already.
fn open_the_way(place: &Path) -> std::io::Result<()> {
    const SEARCH: u32 = 0o011;
    let Ok(found) = std::fs::metadata(place) else { return Ok(()) };
    let mode = found.mode() & 0o7777;
    if mode & SEARCH != SEARCH {
        // Only whoever owns it may do so, and we may take it.
        std::os::unix::fs::chown(place, Some(rustix::process::geteuid().as_raw()), None)?;
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode | SEARCH))?;
    }
    Ok(())
}

/// Have a directory belong to programs; its contents stay whose they are. What an image has is left to itself by root, whom
/// nothing keeps out.
fn give(place: &Path, user: u32, group: u32, role: Role) -> std::io::Result<()> {
    if !place.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    }
    let found = std::fs::metadata(place)?;
    if role == Role::Guest && (found.uid(), found.gid()) != (user, group) {
        std::os::unix::fs::chown(place, Some(user), Some(group))?;
    }
    Ok(())
}

/// Have a directory to ourselves, as the daemon was asked for it. An image that asks for a volume where it has a link to there
/// has another one mounted over it, to which everybody could write.
fn keep(place: &str, mode: u32) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(place)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::other(format!("{place} is somebody else's")));
    }
    if found.mode() & 0o7777 & !mode != 0 {
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The file systems in memory (by the number that `statfs` has for them) that programs write to, each once. How full others are is not the sandbox's doing.
fn scratch(places: &[PathBuf]) -> Vec<OwnedFd> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for place in places {
        let open = |flags: OFlags| rustix::fs::open(place, flags | OFlags::CLOEXEC, Mode::empty());
        // One that an image keeps from others can be looked at and not into.
        let Ok(directory) = open(OFlags::RDONLY).or_else(|_| open(OFlags::PATH)) else { continue };
        let Ok(stat) = rustix::fs::fstat(&directory) else { continue };
        let is_memory = rustix::fs::fstatfs(&directory).is_ok_and(|system| system.f_type == 0x0102_1994);
        if is_memory && !seen.contains(&stat.st_dev) {
            seen.push(stat.st_dev);
            found.push(directory);
        }
    }
    found
}

fn lower_limits(open_files: u64, largest_file: u64) -> rustix::io::Result<()> {
    let lower = |resource, most: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
    };
    if largest_file > 0 {
        // Whoever of us writes too much for somebody is to hear of it, not to die of it; programs begin without this.
        syscall::ignore_signal(libc::SIGXFSZ);
        lower(Resource::Fsize, largest_file)?;
    }
    lower(Resource::Nofile, open_files)?;
    lower(Resource::Core, 0)
}

/// Nobody gains a right any more, and we keep three; or those of root's programs, which get them from us by the ambient set.
fn drop_rights(role: Role) -> rustix::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    identity::clear_ambient()?;
    let (kept, inheritable) = match role {
        Role::Guest => (KEPT, CapabilitySet::empty()),
        Role::Root | Role::Builder => {
            let root = ROOT.iter().fold(CapabilitySet::empty(), |all, one| all | *one);
            (root, root)
        }
    };
    let held = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..held })?;
    for right in ROOT.iter().filter(|right| inheritable.contains(**right)) {
        rustix::thread::configure_capability_in_ambient_set(*right, true)?;
    }
    // Only now: nothing outside of the bounding set can become inheritable.
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
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })
}
