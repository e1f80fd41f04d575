//! Secrets of the server: this program runs with some in its environment.

use async_trait::async_trait;
use sandbox::ExecRequest;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, PATIENCE, Sandbox};
use sandpen_tests::processes::companions;

pub const CHECKS: &[&dyn Check] = &[&Environment];

const COUNT: usize = 30;
const SECRET: &str = "canary-of-the-server";

/// Names that programs look for, and made-up ones.
pub fn planted() -> Vec<(String, String)> {
    let known =
        ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY", "DATABASE_URL", "SSH_AUTH_SOCK", "KUBECONFIG"];
    let made_up = (known.len()..COUNT).map(|index| format!("SANDPEN_CANARY_{index}"));
    known.iter().map(|name| (*name).to_owned()).chain(made_up).map(|name| (name, SECRET.to_owned())).collect()
}

pub fn are_planted() -> bool {
    planted().iter().all(|(name, value)| std::env::var(name).is_ok_and(|present| present == *value))
}

/// Reads the environment of everything that it can see.
struct Environment;

impl Environment {
    async fn look(sandbox: &Sandbox, request: ExecRequest) -> Result<Vec<String>> {
        let ran = sandbox.run(request, "").await?.complete()?;
        let mut breaches: Vec<String> = ran
            .findings
            .0
            .iter()
            .filter(|(_, text)| text.contains(SECRET))
            .map(|(pid, _)| format!("process {pid}"))
            .collect();
        let held = sandbox.hold(0, 0).await?;
        for process in companions(&held.process) {
            for file in ["environ", "cmdline"] {
                if process.text(file).contains(SECRET) {
                    breaches.push(format!("{file} of {process}, seen from the host"));
                }
            }
        }
        held.release().await?;
        Ok(breaches)
    }
}

#[async_trait]
impl Check for Environment {
    fn about(&self) -> About {
        About {
            id: "SE-01",
            tries: "reads the environment and arguments of all processes while the server has 30 secrets in its own",
            stopped_by: "an environment that is built from nothing",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let request = ExecRequest::new([sandbox.probe, "environment"], PATIENCE)?;
        let breaches = Self::look(&sandbox, request).await?;
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, format!("{COUNT} secrets, none inside")))
    }

    /// A secret that is handed in on purpose is seen.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let mut request = ExecRequest::new([sandbox.probe, "environment"], PATIENCE)?;
        request.environment.insert("HANDED_IN", SECRET)?;
        let breaches = Self::look(&sandbox, request).await?;
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "not seen"))
    }
}
