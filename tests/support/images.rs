//! What the images are made from: Debian with interpreters, and a program that needs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Result;
use crate::daemon::Daemon;
use crate::program::run;

/// Part of the name of the file, so that another recipe makes another file.
const PACKAGES: &str = "python3,nodejs";

/// For programs that people use on networks.
const NETWORK_PACKAGES: &str = "ca-certificates,curl,git,nodejs,python3";

/// Which of those programs there are then.
pub const NETWORK_PROGRAMS: &[&str] = &["bash", "curl", "git", "node", "python3"];

/// What installs packages of Python, and what most compiled ones want.
const PIP_PACKAGES: &str = "libstdc++6,python3-pip";

/// What people draw and compile with.
const WORK_PACKAGES: &str = "gcc,libc6-dev,python3-matplotlib";

/// Debian with interpreters.
pub const DEBIAN: &str = "debian:test";
/// A static program and nothing else.
pub const SCRATCH: &str = "scratch:test";
/// The tree that it is made from, in the place of the daemon.
pub const SCRATCH_TREE: &str = "scratch.tar";
/// The same Debian, whose programs run as a user of its own, in a directory of its own.
pub const OTHER_USER: &str = "other-user:test";

/// Everything above, in a daemon that has none of it.
pub fn load(daemon: &Daemon) -> Result<()> {
    daemon.run(&["import", &debian()?.to_string_lossy(), DEBIAN])?;
    let program = program(daemon.place())?;
    let archive = daemon.place().join(SCRATCH_TREE);
    let mut tar = tar::Builder::new(fs::File::create(&archive)?);
    tar.append_path_with_name(&program, "program")?;
    tar.finish()?;
    let entry = r#"ENTRYPOINT ["/program"]"#;
    daemon.run(&["import", "--change", entry, &archive.to_string_lossy(), SCRATCH])?;
    let id = daemon.run(&["create", "--network", "none", DEBIAN, "nothing"])?;
    let changes = ["USER 2000:3000", "WORKDIR /srv/app", "ENV GREETING=hello"];
    let changes = changes.iter().flat_map(|change| ["--change", change]);
    let words: Vec<&str> = ["commit"].into_iter().chain(changes).chain([id.trim(), OTHER_USER]).collect();
    daemon.run(&words)?;
    daemon.run(&["rm", id.trim()])?;
    Ok(())
}

/// A root tree of Debian as an archive, made once and kept with what was built.
pub fn debian() -> Result<PathBuf> {
    debian_with(PACKAGES)
}

/// The same with [`NETWORK_PROGRAMS`].
pub fn debian_for_networks() -> Result<PathBuf> {
    debian_with(NETWORK_PACKAGES)
}

/// The same with pip, and without other interpreters than its own.
pub fn debian_with_pip() -> Result<PathBuf> {
    debian_with(PIP_PACKAGES)
}

/// The same with a compiler and matplotlib.
pub fn debian_for_work() -> Result<PathBuf> {
    debian_with(WORK_PACKAGES)
}

fn debian_with(packages: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let kept = &here.ancestors().nth(3).ok_or("this program lies nowhere")?.join("images");
    let archive = kept.join(format!("debian-{}.tar", packages.replace(',', "-")));
    if archive.is_file() {
        return Ok(archive);
    }
    fs::create_dir_all(kept)?;
    let system = fs::read_to_string("/etc/os-release")?;
    let suite = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let started = Instant::now();
    let unfinished = tempfile::Builder::new().suffix(".tar").tempfile_in(kept)?;
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--quiet", "--mode=root", "--variant=essential", "--skip=output/dev"])
        .arg(format!("--include={packages}"))
        .args(["doc", "locale", "man"].map(|what| format!("--dpkgopt=path-exclude=/usr/share/{what}/*")))
        .arg(suite.ok_or("this system does not name its release")?)
        .arg(unfinished.path())
        .args(sources()?);
    run(&mut command, kept, Duration::from_secs(600))?.succeeded()?;
    unfinished.persist(&archive).map_err(|error| error.error)?;
    println!("made {} in {:.1} s", archive.display(), started.elapsed().as_secs_f64());
    Ok(archive)
}

/// Where this machine has its own packages from.
fn sources() -> Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from("/etc/apt/sources.list")];
    for entry in fs::read_dir("/etc/apt/sources.list.d")? {
        found.push(entry?.path());
    }
    found.retain(|path| {
        path.is_file() && path.extension().is_some_and(|ending| ending == "list" || ending == "sources")
    });
    Ok(found)
}

/// What there is in an image without a shell.
const PROGRAM: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int copy(const char *path) {
    char buffer[65536];
    size_t count;
    FILE *file = fopen(path, "r");
    if (!file) { perror(path); return 1; }
    while ((count = fread(buffer, 1, sizeof buffer, file)) > 0) fwrite(buffer, 1, count, stdout);
    return ferror(file) || fclose(file) || fflush(stdout);
}

static int rest(const char *seconds) {
    return (int)sleep((unsigned)atoi(seconds));
}

/* A child that has left the session and the group of its parent, and its own child. */
static int multiply(const char *seconds) {
    if (fork() == 0) {
        setsid();
        fork();
    }
    return rest(seconds);
}

static int talk(void) {
    struct winsize size;
    char line[256];
    if (!isatty(0) || !isatty(1) || ioctl(0, TIOCGWINSZ, &size)) return 1;
    printf("%d %d\n", size.ws_row, size.ws_col);
    fflush(stdout);
    return !fgets(line, sizeof line, stdin) || printf("got %s", line) < 0;
}

static int write_to(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file) { perror(path); return 1; }
    return fputs(text, file) < 0 || fclose(file);
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "talk")) return talk();
    if (count > 2 && !strcmp(words[1], "cat")) return copy(words[2]);
    if (count > 2 && !strcmp(words[1], "sleep")) return rest(words[2]);
    if (count > 2 && !strcmp(words[1], "fork")) return multiply(words[2]);
    if (count > 2) return write_to(words[1], words[2]);
    return puts("hello") < 0;
}
"#;

/// A static program that says `hello`, and writes to the file that it is given. It also does what shells and coreutils are
/// there for elsewhere: `cat FILE`, `sleep SECONDS`, `fork SECONDS` into three that sleep, and `talk` at a terminal.
pub fn program(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("program.c"), directory.join("program"));
    fs::write(&source, PROGRAM)?;
    run(Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source), directory, Duration::from_secs(60))?
        .succeeded()?;
    Ok(program)
}
