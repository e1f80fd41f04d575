//! Nothing is left of the daemons themselves, or every other test would slowly fill the machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sandpen_tests::daemon::{Daemon, Flavour, remains};
use sandpen_tests::{Result, Trouble};

use crate::Stage;

/// Set for the process that is killed with a daemon in its hands.
const HOLD: &str = "SANDPEN_TEST_HOLD_DAEMON";

/// Nothing is left of a daemon that has run something, and what would be left is seen.
pub(crate) fn nothing(stage: &Stage) -> Result<()> {
    let daemon = Daemon::start(Flavour::Docker)?;
    let context = daemon.place().join("context");
    fs::create_dir(&context)?;
    fs::copy(&stage.program, context.join("program"))?;
    fs::write(context.join("Dockerfile"), "FROM scratch\nCOPY program /program\nRUN [\"/program\"]\n")?;
    daemon.run(&["build", "--quiet", "--network", "none", "--tag", "left", &context.to_string_lossy()])?;
    daemon.run(&["run", "--network", "none", "left", "/program"])?;
    if daemon.remains().len() < 3 {
        return Err(format!("a daemon that runs is not seen: {:?}", daemon.remains()).into());
    }
    let left = daemon.end();
    if left.is_empty() { Ok(()) } else { Err(left.join("\n").into()) }
}

/// A test that dies with a container running takes all of it along.
pub(crate) fn nothing_after_a_kill(_: &Stage) -> Result<()> {
    let mut held =
        Command::new(std::env::current_exe()?).env(HOLD, "1").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut mark = String::new();
    let stdout = held.stdout.take().ok_or("its output is not there")?;
    let read = BufReader::new(stdout).read_line(&mut mark);
    let seen = remains(mark.trim()).len();
    held.kill()?;
    held.wait()?;
    read?;
    if mark.trim().is_empty() || seen < 3 {
        return Err(format!("no daemon was held: {mark:?}, {seen} things of it").into());
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while !remains(mark.trim()).is_empty() {
        if Instant::now() > deadline {
            return Err(remains(mark.trim()).join("\n").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The other half of the test above.
pub(crate) fn hold() -> Option<ExitCode> {
    std::env::var_os(HOLD)?;
    match Daemon::start(Flavour::Docker) {
        Ok(daemon) => {
            println!("{}", daemon.mark());
            std::thread::sleep(Duration::from_secs(600));
            Some(ExitCode::SUCCESS)
        }
        Err(Trouble(why)) => {
            eprintln!("{why}");
            Some(ExitCode::FAILURE)
        }
    }
}
