//! A host that goes down without a word.

use sandpen_tests::Result;

use crate::scene::Scene;

/// One that was stopped goes on, and one that ran is left as it is until its operator goes on with what it kept last.
pub(crate) fn lost(scene: &mut Scene) -> Result<()> {
    let (stopped, running) = (made(scene)?, made(scene)?);
    scene.run(&["exec", &running, "--", "sh", "-c", "echo later > later"])?;
    scene.daemon.run(&["stop", &container(&stopped)])?;
    scene.daemon.lose_power()?;
    for _ in 0..2 {
        let listed = scene.run(&["ps"])?;
        let is_shown = |id: &str, word: &str| listed.lines().any(|line| line.contains(id) && line.contains(word));
        if !is_shown(&stopped, "stopped") || !is_shown(&running, "interrupted") {
            return Err(format!("{stopped} was stopped and {running} ran: {listed}").into());
        }
    }
    scene.expect(&["exec", &stopped, "--", "cat", "file"], "kept\n")?;
    let refused = scene.ran(&["exec", &running, "--", "true"])?;
    if refused.status.success() || !refused.stderr.contains("interrupted") {
        return Err(refused.told("one that ran"));
    }
    scene.daemon.run(&["start", &container(&running)])?;
    scene.expect(&["exec", &running, "--", "sh", "-c", "cat file; ls"], "kept\nfile\n")?;
    [stopped, running].iter().try_for_each(|id| scene.run(&["stop", id]).map(drop))
}

/// A sandbox that was stopped once, with a file, and runs.
fn made(scene: &Scene) -> Result<String> {
    let id = scene.run(&["create"])?.trim().to_owned();
    scene.run(&["exec", &id, "--", "sh", "-c", "echo kept > file"])?;
    scene.daemon.run(&["stop", &container(&id)])?;
    scene.expect(&["exec", &id, "--", "cat", "file"], "kept\n")?;
    Ok(id)
}

fn container(id: &str) -> String {
    format!("sandpen-{id}")
}
