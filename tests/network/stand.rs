//! Starts this program again, where the world says that the host is.

use std::process::{Command, ExitCode};

use sandpen_tests::{Result, Trouble};

use crate::host;
use crate::world::World;

/// The resolver's settings and the trusted certificates are put over the host's own, seen by what is started here only.
/// Groups are joined while it still may; then it becomes the user that it was told to be.
const SCRIPT: &str = r#"set -e
directory=$1 network=$2 user=$3 groups=$4; shift 4
mount --bind "$directory/resolv.conf" /etc/resolv.conf
mount --bind "$directory/certificates" /etc/ssl/certs
for group in $groups; do echo $$ >"$group/cgroup.procs"; done
if [ -n "$user" ]; then
    exec nsenter --net="$network" -- setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups -- "$@"
fi
exec nsenter --net="$network" -- "$@""#;

pub fn as_host(world: &World, wanted: &[String]) -> Result<ExitCode> {
    let mut command = Command::new("setpriv");
    // Whatever becomes of us, nothing of it stays.
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private", "--"]);
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(world.directory.path()).arg(world.host.path());
    command.arg(setting("SANDPEN_TEST_USER")).arg(setting("SANDPEN_TEST_GROUPS"));
    command.arg(std::env::current_exe()?).arg(host::ARGUMENT).arg(world.directory.path()).args(wanted);
    let status = command.status().map_err(|error| Trouble(format!("setpriv does not start: {error}")))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn setting(variable: &str) -> String {
    std::env::var(variable).unwrap_or_default()
}
