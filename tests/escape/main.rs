//! The escape table: every wall of a sandbox, tried from inside and judged from the host.
//!
//! `README.md` lists the checks. Arguments pick some of them: `cargo test … --test escape -- FS-01 PN`. The environment says
//! whose sandboxes they are about: `sandpen_tests::daemon::Given`.

mod backend;
mod canary;
mod filesystem;
mod kernel;
mod lifecycle;
mod links;
mod network;
mod posture;
mod process;
mod resources;
mod roots;
mod secrets;
mod storms;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use sandpen_tests::census::{Census, adopt_orphans, reap};
use sandpen_tests::check::{Check, builder_cannot, judge, shortened};
use sandpen_tests::daemon::{Given, engine_name};
use sandpen_tests::lab::{Lab, missing};
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::{Result, is_root};

fn checks() -> Vec<&'static dyn Check> {
    [
        filesystem::CHECKS,
        links::CHECKS,
        process::CHECKS,
        kernel::CHECKS,
        resources::CHECKS,
        storms::CHECKS,
        network::CHECKS,
        secrets::CHECKS,
        lifecycle::CHECKS,
        backend::CHECKS,
        roots::CHECKS,
    ]
    .concat()
}

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    if let Some(code) = sandpen_tests::server::main_if_asked() {
        return code;
    }
    if !secrets::are_planted() {
        // The engine's own process must have them, from its start; a process cannot safely add to its environment later.
        let program = std::env::current_exe().expect("a running program has a path");
        let error = Command::new(program).args(std::env::args_os().skip(1)).envs(secrets::planted()).exec();
        println!("the checks do not start again: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.expect("a runtime starts").block_on(run()) {
        Ok(code) => code,
        Err(trouble) => {
            println!("the checks could not run: {trouble}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |check: &&&dyn Check| wanted.is_empty() || wanted.iter().any(|id| check.about().id.starts_with(id));
    adopt_orphans()?;
    let lab = Lab::start(&[]).await?;
    let daemon = Given::of_environment()?;
    let engine = engine_name()?;
    let mut table = Table::titled(&format!("escape checks, engine {engine}, {}", machine()));
    for layer in missing() {
        table.add(layer.as_str(), Verdict::Skip, &format!("{} it", builder_cannot()), Duration::ZERO);
    }
    // Once to prepare the host image, which stays.
    lab.sandbox().await?.end().await?;
    reap(&[]);
    let before = Census::take(&lab.scope());
    let checks = checks();
    for check in checks.iter().filter(is_wanted) {
        judge(*check, &lab, &mut table).await;
    }
    // A check that gave up in the middle has left its sandbox to us.
    for left in lab.engine.list().await? {
        lab.engine.destroy(&left.id).await?;
    }
    let leaks = match daemon {
        None => leaks_of(&lab, &before).await,
        Some(daemon) => daemon.leftovers()?,
    };
    let verdict = if leaks.is_empty() { Verdict::Pass } else { Verdict::Fail };
    table.add("nothing left", verdict, &shortened(&leaks), Duration::ZERO);
    Ok(table.finish())
}

/// What is left when the kernel has had time to take things down.
async fn leaks_of(lab: &Lab, before: &Census) -> Vec<String> {
    let started = Instant::now();
    loop {
        // Weakened sandboxes without a process 1 leave us their dead.
        reap(&[]);
        let leaks: Vec<String> = before
            .leaks(&Census::take(&lab.scope()))
            .into_iter()
            // The runtime of this program starts threads and opens descriptors as it needs them; prepared roots are kept.
            .filter(|leak| !leak.starts_with("threads") && !leak.starts_with("descriptors:"))
            .filter(|leak| !["/skeletons/", "/images/", "/host/"].iter().any(|kept| leak.contains(kept)))
            .filter(|leak| !leak.ends_with("/images"))
            .collect();
        if leaks.is_empty() || started.elapsed() > Duration::from_secs(5) {
            return leaks;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the results are true of.
fn machine() -> String {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let groups = match sandpen_tests::mounts::of("self").iter().find(|mount| mount.kind == "cgroup") {
        Some(_) => "cgroup v1",
        None => "cgroup v2",
    };
    let modules = line("/sys/kernel/security/lsm");
    let who = if is_root() { "root" } else { "ordinary user" };
    format!("kernel {}, {groups}, security modules {:?}, {who}", line("/proc/sys/kernel/osrelease"), modules)
}
