//! A server that dies in the middle of anything, also of its beginning.
//!
//! What of it ends by itself is looked at first, while no process of ours runs that could help; then the next process clears
//! away the rest; then everything must be as it was, and what had been acknowledged must be there.

mod others;
mod rounds;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandpen_tests::random::Random;
use sandpen_tests::{Result, images, number_from};
use serde_json::json;

use crate::packages::{self, Index};
use crate::scene::Scene;
use others::Others;
use rounds::Tally;

/// The daemon works through what it was asked for last; a machine that does other things takes its time.
const SETTLES: Duration = Duration::from_secs(60);

pub(crate) fn at_random_moments(scene: &mut Scene) -> Result<()> {
    let mut random = Random::announced();
    let rounds = number_from("SANDPEN_TEST_KILLS", 10);
    let others = Others::arrive(scene)?;
    let mut neighbour = scene.server("neighbour")?;
    // All rounds together take longer than a sandbox may be idle that nobody asked otherwise for.
    let theirs = neighbour.good("create_sandbox", &json!({"idle_timeout_s": 4 * 3600}))?["sandbox_id"].take();
    let keeper = scene.run(&["create", "--idle", "4h"])?.trim().to_owned();
    let root = scene.run(&["create", "--idle", "4h", "--container-user", "image"])?.trim().to_owned();
    scene.daemon.run(&["import", &images::debian_with_pip()?.to_string_lossy(), packages::IMAGE])?;
    let index = Index::start(&scene.path().join("index-of-the-killed"))?;
    // Spares are made in the background.
    std::thread::sleep(Duration::from_secs(3));
    let before = scene.holdings()?;
    let image = work::to_be_pulled(scene)?;
    let mut tally = Tally::default();
    for round in 0..rounds {
        let killed = rounds::kill_once(
            scene,
            &mut random,
            &mut tally,
            &before,
            &rounds::Kept { keeper: &keeper, root: &root, image: &image, index: &index.address },
            round,
        );
        killed.map_err(|trouble| format!("in round {round}: {trouble}; so far {tally}"))?;
    }
    println!("{}: {tally}", scene.daemon.flavour().as_str());
    files_are_there(scene, &keeper, &tally.files)?;
    images_are_whole(scene, &tally.saved)?;
    let written = scene.run(&["exec", &root, "--", "sh", "-c", "cat /workspace/round-*"])?;
    let rounds: BTreeSet<String> = (0..rounds).map(|round| round.to_string()).collect();
    if written.lines().map(str::to_owned).collect::<BTreeSet<_>>() != rounds {
        return Err(format!("a sandbox of root's has {written:?}").into());
    }
    let ran = neighbour.good("run_command", &json!({"sandbox_id": theirs, "command": "echo still here"}))?;
    if ran["stdout"] != "still here\n" {
        return Err(format!("a sandbox of another installation says {ran}").into());
    }
    others.are_untouched(scene)?;
    neighbour.close();
    neighbour.end_within(SETTLES)?;
    for keeper in [&keeper, &root] {
        scene.run(&["stop", keeper])?;
    }
    others.leave(scene)?;
    scene.settles_to(&BTreeSet::new(), SETTLES)?;
    scene.daemon.run(&["rmi", packages::IMAGE]).map(drop)
}

/// Every file whose writing was acknowledged, with what was written.
fn files_are_there(scene: &Scene, keeper: &str, files: &BTreeMap<String, String>) -> Result<()> {
    let script =
        "cd /workspace; for file in round-*; do echo \"$file $(cat \"$file\")\"; done; wc -c big-* | grep -v total";
    let said = scene.run(&["exec", keeper, "--", "sh", "-c", script])?;
    let found: BTreeSet<&str> = said.lines().map(str::trim).collect();
    let lost: Vec<&String> = files
        .iter()
        .filter(|(name, content)| !found.contains(format!("{name} {content}").as_str()))
        .map(|(name, _)| name)
        .collect();
    if !lost.is_empty() {
        return Err(format!("of {} files these are lost: {lost:?}; there is\n{said}", files.len()).into());
    }
    let whole = format!("{} big-", work::LARGE);
    let half: Vec<&&str> = found.iter().filter(|line| line.contains(" big-") && !line.contains(&whole)).collect();
    if half.is_empty() { Ok(()) } else { Err(format!("these are neither old nor new: {half:?}").into()) }
}

/// Each image that was acknowledged holds what the sandbox had by then, and can be deleted.
fn images_are_whole(scene: &Scene, saved: &BTreeMap<String, u64>) -> Result<()> {
    let mut server = scene.server("state")?;
    for (name, round) in saved {
        let image = format!("saved:{name}");
        let command = format!("cat /workspace/round-{round}");
        let ran = server.good("run_command", &json!({"image": image, "command": command}))?;
        if ran["stdout"] != format!("{round}\n") {
            return Err(format!("the image {name}, saved in round {round}, says {ran}").into());
        }
    }
    for name in work::SAVED {
        // One that was never saved is not there.
        let asked = server.call("delete_image", &json!({"image": format!("saved:{name}")}))?;
        server.answer(asked)?;
    }
    server.close();
    server.end_within(SETTLES)?;
    scene.run(&["ps"])?;
    let listed = scene.daemon.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
    match listed.lines().find(|line| line.starts_with("saved.sandpen.invalid/")) {
        Some(left) => Err(format!("{left} is left").into()),
        None => Ok(()),
    }
}
