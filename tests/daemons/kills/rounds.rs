//! One kill and what comes after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandpen_tests::Result;
use sandpen_tests::daemon::{Flavour, Holdings};
use sandpen_tests::program::Program;
use sandpen_tests::random::Random;
use sandpen_tests::wire::Wire;
use serde_json::{Value, json};

use super::work::{self, Promise};
use crate::scene::Scene;

/// Longer than making a sandbox takes, so that every step of it is among the moments.
const LONGEST: Duration = Duration::from_millis(2500);

/// In which rounds the next server is killed too, and longer than it takes to make its first sandbox.
const EARLY: u64 = 3;
const EARLIEST: Duration = Duration::from_millis(1500);

/// How long the daemon may take to finish what a dead server had asked for last.
const ASKED_LAST: Duration = Duration::from_millis(500);

/// For what is to be cleared away by the next process, and for what it has to wait for.
const CLEARED: Duration = Duration::from_secs(60);

/// What stays through all rounds.
pub(super) struct Kept<'a> {
    pub keeper: &'a str,
    /// One whose programs are root, and whose files are a layer of the daemon's.
    pub root: &'a str,
    pub image: &'a str,
    /// Where packages are installed from.
    pub index: &'a str,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Tally {
    kills: u64,
    /// Of servers that had not answered anything yet.
    early: u64,
    /// Files whose writing was acknowledged.
    pub files: BTreeMap<String, String>,
    /// Images whose saving was acknowledged, with the round in which that was.
    pub saved: BTreeMap<String, u64>,
    ended_alone: usize,
    longest_alone: Duration,
    never_started: usize,
    swept: usize,
    adopted: usize,
    acknowledged: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, early, files, saved, .. } = self;
        let Self { ended_alone, longest_alone, never_started, swept, adopted, acknowledged, .. } = self;
        write!(
            f,
            "{kills} kills, and {early} of the next one as it began; {ended_alone} containers ended by themselves, the last after {:.1} s at most; {never_started} \
             were never started, and removed by the next process ({swept} looks); {adopted} persistent ones were found \
             again; of {acknowledged} acknowledged calls {} are files and {} images",
            longest_alone.as_secs_f64(),
            files.len(),
            saved.len(),
        )
    }
}

pub(super) fn kill_once(
    scene: &Scene,
    random: &mut Random,
    tally: &mut Tally,
    before: &Holdings,
    kept: &Kept<'_>,
    round: u64,
) -> Result<()> {
    let variables = variables(kept);
    let mut server = scene.server_with("state", &variables)?;
    let (name, content) = (format!("round-{round}"), round.to_string());
    for keeper in [kept.keeper, kept.root] {
        server.good("write_file", &json!({"sandbox_id": keeper, "path": name, "content": format!("{content}\n")}))?;
    }
    tally.files.insert(name, content);
    let calls = work::begin(&mut server, random, kept, round)?;
    std::thread::sleep(random.duration_below(LONGEST));
    kill(&mut server)?;
    tally.kills += 1;
    let answers = server.answers_of_the_dead();
    let mut persistent = 0;
    for (call, promise) in calls {
        let was_done = |answer: &Value| answer["result"].is_object() && answer["result"]["isError"] != true;
        if !answers.get(&call).is_some_and(was_done) {
            continue;
        }
        tally.acknowledged += 1;
        match promise {
            Promise::File { name, content } => drop(tally.files.insert(name, content)),
            Promise::Image(name) => drop(tally.saved.insert(name, round)),
            Promise::Persistent => persistent += 1,
            Promise::Nothing => {}
        }
    }
    drop(server);
    if round.is_multiple_of(EARLY) {
        kill_early(scene, random.duration_below(EARLIEST), &variables)?;
        tally.early += 1;
    }
    ends_alone(scene, tally, before)?;
    let found = cleared(scene, tally, before, kept)?;
    if found < persistent {
        return Err(format!("{persistent} persistent sandboxes were acknowledged, and {found} are there").into());
    }
    nothing_but_images(scene, before, kept)
}

fn variables<'a>(kept: &Kept<'a>) -> [(&'static str, &'a str); 3] {
    [("PIP_CONFIG_FILE", "/dev/null"), ("PIP_INDEX_URL", kept.index), ("SANDPEN_MAX_NETWORK", work::REACHED)]
}

fn kill(server: &mut Wire) -> Result<()> {
    kill_at_once(server.pid())?;
    server.end_within(Duration::from_secs(10)).map(drop)
}

fn kill_at_once(process: u32) -> Result<()> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or("the server has no process")?;
    Ok(kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?)
}

/// The next server, while it begins, clears away what the last one left or makes its first sandboxes. What it is asked for waits
/// in its pipe, so that it never waits for us.
fn kill_early(scene: &Scene, after: Duration, variables: &[(&str, &str)]) -> Result<()> {
    let place = tempfile::tempdir_in(scene.path())?;
    let mut command = scene.command("state", &["mcp"]);
    command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut server = Program::start(&mut command, &place.path().join("stderr"))?;
    let mut input = server.child.stdin.take().ok_or("the server has no input")?;
    let asked: String = work::first().iter().map(|message| format!("{message}\n")).collect();
    input.write_all(asked.as_bytes())?;
    std::thread::sleep(after);
    kill_at_once(server.child.id())?;
    server.wait_within(Duration::from_secs(10)).map(drop)
}

/// A container that was not there before.
struct New {
    state: String,
    is_persistent: bool,
}

impl New {
    /// What only another process can clear away, or must not.
    fn stays(&self) -> bool {
        self.state == "created" || self.is_persistent
    }
}

fn new_ones(scene: &Scene, before: &Holdings) -> Result<BTreeMap<String, New>> {
    let format = r#"{{.ID}} {{.State}} {{.Label "org.sandpen.persistence"}}"#;
    let listed = scene.daemon.run(&["ps", "--all", "--no-trunc", "--format", format])?;
    let parsed = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (id, state) = (words.next()?.to_owned(), words.next()?.to_lowercase());
        Some((id, New { state, is_persistent: words.next() == Some("persistent") }))
    });
    Ok(parsed.filter(|(id, _)| !before.containers.contains(id)).collect())
}

/// Nothing of ours runs now: what was started and is not persistent ends because its process 1 does.
fn ends_alone(scene: &Scene, tally: &mut Tally, before: &Holdings) -> Result<()> {
    // Podman may keep the stream of a dead server open; then process 1 misses a sign of it for a minute.
    let limit = match scene.daemon.flavour() {
        Flavour::Docker => Duration::from_secs(45),
        Flavour::Podman => Duration::from_secs(150),
    };
    let killed_at = Instant::now();
    std::thread::sleep(ASKED_LAST);
    let mut seen = BTreeSet::new();
    loop {
        let there = new_ones(scene, before)?;
        let ending: Vec<&String> = there.iter().filter(|(_, new)| !new.stays()).map(|(id, _)| id).collect();
        seen.extend(ending.iter().map(|id| (*id).clone()));
        if ending.is_empty() {
            break;
        }
        if killed_at.elapsed() > limit {
            let all = scene.daemon.run(&["ps", "--all", "--no-trunc"])?;
            return Err(format!("after {} s without any of us {ending:?} are there:\n{all}", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    tally.ended_alone += seen.len();
    if !seen.is_empty() {
        tally.longest_alone = tally.longest_alone.max(killed_at.elapsed());
    }
    Ok(())
}

/// So that they are installed anew in the next round. What was installed by halves is not among them.
fn forget_packages(scene: &Scene) -> Result<()> {
    let listed = scene.run(&["package", "ls", "--json"])?;
    let listed: Value = serde_json::from_str(&listed).map_err(|error| format!("{error}: {listed}"))?;
    for set in listed["sets"].as_array().into_iter().flatten() {
        scene.run(&["package", "rm", set["digest"].as_str().unwrap_or_default()])?;
    }
    Ok(())
}

/// The next process removes what was never started. Persistent sandboxes that it knows are counted and stopped; nothing else
/// is left.
fn cleared(scene: &Scene, tally: &mut Tally, before: &Holdings, kept: &Kept<'_>) -> Result<usize> {
    tally.never_started += new_ones(scene, before)?.values().filter(|new| new.state == "created").count();
    let started = Instant::now();
    let mut found = 0;
    loop {
        let listed = scene.run(&["ps", "--quiet"])?;
        tally.swept += 1;
        for sandbox in listed.lines().filter(|id| ![kept.keeper, kept.root].contains(id)) {
            scene.run(&["stop", sandbox])?;
            found += 1;
        }
        forget_packages(scene)?;
        let there = scene.holdings()?;
        if there.containers == before.containers && there.volumes == before.volumes {
            tally.adopted += found;
            return Ok(found);
        }
        if started.elapsed() > CLEARED {
            let all = scene.daemon.run(&["ps", "--all", "--no-trunc"])?;
            let volumes: Vec<&String> = there.volumes.difference(&before.volumes).collect();
            return Err(format!("after {} s there is\n{all}and of volumes {volumes:?}", CLEARED.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What these stand on: of a sandbox whose programs are root, a save is an image over one that has lost its name.
fn below<'a>(scene: &Scene, images: impl Iterator<Item = &'a String>) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for image in images {
        let mut next = digest(image).to_owned();
        loop {
            next =
                scene.daemon.run(&["inspect", "--type", "image", "--format", "{{.Parent}}", &next])?.trim().to_owned();
            if next.is_empty() || !found.insert(next.clone()) {
                break;
            }
        }
    }
    Ok(found)
}

fn digest(image: &str) -> &str {
    image.split_whitespace().next().unwrap_or_default()
}

/// Images are as before, but for those that were saved or fetched; volumes and networks are as before.
fn nothing_but_images(scene: &Scene, before: &Holdings, kept: &Kept<'_>) -> Result<()> {
    let is_saved = |image: &&String| {
        let name = image.split_whitespace().nth(1).unwrap_or_default();
        name.starts_with("saved.sandpen.invalid/")
            && work::SAVED.iter().any(|saved| name.ends_with(&format!(":{saved}")))
    };
    let started = Instant::now();
    let now = loop {
        // Whether it came is no matter, but the next round is to fetch it again.
        let _ = scene.daemon.run_to_the_end(&["rmi", kept.image])?;
        let now = scene.holdings()?;
        let below = below(scene, now.images.iter().filter(|image| is_saved(image)))?;
        let is_kept = |image: &&String| is_saved(image) || below.contains(digest(image));
        let strange: Vec<&String> = now.images.difference(&before.images).filter(|image| !is_kept(image)).collect();
        let missing: Vec<&String> = before.images.difference(&now.images).collect();
        if strange.is_empty() && missing.is_empty() {
            break now;
        }
        if started.elapsed() > CLEARED {
            // One that has no name says by its labels whose it is.
            let ids = strange.iter().map(|image| digest(image));
            let format = ["inspect", "--format", "{{.Id}} {{.Created}} {{json .Config.Labels}}"];
            let told = scene.daemon.run_to_the_end(&format.into_iter().chain(ids).collect::<Vec<_>>())?.stdout;
            return Err(format!("of images {strange:?} are new and {missing:?} are missing: {told}").into());
        }
        // What a build of the dead server leaves behind may be there only after somebody looked.
        std::thread::sleep(Duration::from_millis(500));
        scene.run(&["ps"])?;
    };
    if now.volumes != before.volumes {
        return Err(format!("the volumes were {:?} and are {:?}", before.volumes, now.volumes).into());
    }
    if now.networks != before.networks {
        return Err(format!("the networks were {:?} and are {:?}", before.networks, now.networks).into());
    }
    Ok(())
}
