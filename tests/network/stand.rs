//! Starts this program again, where the world says that the host is.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

use sandpen_tests::{Result, Trouble};

use crate::world::World;
use crate::{host, index};

/// The resolver's settings and the trusted certificates are put over the host's own, seen by what is started here only.
/// Groups are joined while it still may; then it becomes the user that it was told to be.
const SCRIPT: &str = r#"set -e
directory=$1 network=$2 user=$3 groups=$4; shift 4
for group in $groups; do echo $$ >"$group/cgroup.procs"; done
if [ -n "$user" ]; then
    set -- setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups -- "$@"
fi
if [ -z "$network" ]; then
    exec "$@"
fi
mount --bind "$directory/resolv.conf" /etc/resolv.conf
mount --bind "$directory/certificates" /etc/ssl/certs
exec nsenter --net="$network" -- "$@""#;

pub fn as_host(world: &World, wanted: &[String]) -> Result<ExitCode> {
    let directory = world.directory.path();
    let arguments: Vec<&OsStr> =
        [OsStr::new(host::ARGUMENT), directory.as_os_str()].into_iter().chain(words(wanted)).collect();
    start(directory, Some(&world.host.path()), &arguments)
}

/// The same as the same user, where there is nothing but the machine itself.
pub fn on_this_machine(wanted: &[String]) -> Result<ExitCode> {
    let arguments: Vec<&OsStr> = [OsStr::new(index::ARGUMENT)].into_iter().chain(words(wanted)).collect();
    start(Path::new("/"), None, &arguments)
}

fn words(wanted: &[String]) -> impl Iterator<Item = &OsStr> {
    wanted.iter().map(OsStr::new)
}

fn start(directory: &Path, network: Option<&Path>, arguments: &[&OsStr]) -> Result<ExitCode> {
    let mut command = Command::new("setpriv");
    // Whatever becomes of us, nothing of it stays.
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private", "--"]);
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(directory).arg(network.unwrap_or(Path::new("")));
    command.arg(setting("SANDPEN_TEST_USER")).arg(setting("SANDPEN_TEST_GROUPS"));
    command.arg(std::env::current_exe()?).args(arguments);
    let status = command.status().map_err(|error| Trouble(format!("setpriv does not start: {error}")))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn setting(variable: &str) -> String {
    std::env::var(variable).unwrap_or_default()
}
