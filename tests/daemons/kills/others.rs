//! What of a daemon's is other people's.

use sandpen_tests::{Result, images};

use crate::scene::Scene;

/// Somebody else's work on the same daemon.
pub(super) struct Others {
    containers: Vec<String>,
    before: Vec<String>,
}

const VOLUME: &str = "somebody-elses-volume";
const IMAGE: &str = "somebody-elses-image:1";
/// One that looks like ours at first sight.
const NAMES: [&str; 3] = ["somebody-elses", "sandpen-somebody-elses", "sandpen-carrier-somebody-elses"];

impl Others {
    /// One that runs, one that was never started, one that has ended, an image and a volume with a file in it.
    pub fn arrive(scene: &Scene) -> Result<Self> {
        let run = |arguments: &[&str]| scene.daemon.run(arguments).map(|said| said.trim().to_owned());
        run(&["tag", images::DEBIAN, IMAGE])?;
        run(&["volume", "create", VOLUME])?;
        let mount = format!("{VOLUME}:/kept");
        let label = "org.sandpen.installation=0123456789abcdef";
        let containers = vec![
            run(&["run", "--detach", "--network", "none", "--name", NAMES[0], IMAGE, "sleep", "86400"])?,
            run(&["create", "--network", "none", "--name", NAMES[1], "--label", label, IMAGE, "true"])?,
            run(&[
                "create",
                "--network",
                "none",
                "--name",
                NAMES[2],
                "--volume",
                &mount,
                IMAGE,
                "sh",
                "-c",
                "echo theirs >/kept/file",
            ])?,
        ];
        run(&["start", "--attach", NAMES[2]])?;
        let mut others = Self { containers, before: Vec::new() };
        others.before = others.seen(scene)?;
        Ok(others)
    }

    fn seen(&self, scene: &Scene) -> Result<Vec<String>> {
        let format = "{{.Id}} {{.State.Status}} {{.State.StartedAt}} {{.State.FinishedAt}}";
        let mut seen = Vec::new();
        for container in &self.containers {
            seen.push(scene.daemon.run(&["inspect", "--format", format, container])?);
        }
        seen.push(scene.daemon.run(&["image", "inspect", "--format", "{{.Id}}", IMAGE])?);
        seen.push(scene.daemon.run(&["volume", "inspect", "--format", "{{.Name}} {{.CreatedAt}}", VOLUME])?);
        Ok(seen)
    }

    pub fn are_untouched(&self, scene: &Scene) -> Result<()> {
        let now = self.seen(scene)?;
        if now != self.before {
            return Err(format!("what is somebody else's was {:?} and is {now:?}", self.before).into());
        }
        let mount = format!("{VOLUME}:/kept:ro");
        let said =
            scene.daemon.run(&["run", "--rm", "--network", "none", "--volume", &mount, IMAGE, "cat", "/kept/file"])?;
        if said == "theirs\n" { Ok(()) } else { Err(format!("somebody else's file says {said:?}").into()) }
    }

    pub fn leave(self, scene: &Scene) -> Result<()> {
        let words: Vec<&str> =
            ["rm", "--force"].into_iter().chain(self.containers.iter().map(String::as_str)).collect();
        scene.daemon.run(&words)?;
        scene.daemon.run(&["volume", "rm", VOLUME])?;
        scene.daemon.run(&["rmi", IMAGE]).map(drop)
    }
}
