//! Clients that send a person to the server's own pages: a browser signs in and agrees, the client calls a tool, renews its token by
//! itself, and is out when that is revoked.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandpen_tests::Result;
use sandpen_tests::program::run;

use crate::installed::Installed;
use crate::scene::Scene;
use crate::server::Server;
use crate::task::ensure;
use crate::{Need, Plan};

const LIMIT: Duration = Duration::from_secs(240);

pub(crate) fn plans() -> Vec<Plan> {
    let plan = |client: &'static str| {
        let needs = [Need::Node, Need::Browser, Need::Embedded];
        Plan::new(format!("oauth::{client}"), &needs, move |installed| sign_in(installed, client))
    };
    let foreign =
        Plan::new("oauth::mcp-remote with a foreign issuer", &[Need::Node, Need::Browser, Need::Embedded], foreign);
    ["mcp-remote", "inspector"].map(plan).into_iter().chain([foreign]).collect()
}

/// Who signs in at an authorization server of somebody else gets in by the token that it has signed.
fn foreign(installed: &Installed) -> Result<()> {
    let scene = Scene::new(installed)?;
    let issuer = Server::of(&scene, &mut scene.node_script("foreign.mjs")?, "issuer.log")?;
    let url = issuer.url.trim_end_matches("/mcp");
    let flags = ["--listen", "127.0.0.1:0", "--oauth-issuer", url];
    let server = Server::guarded(&scene, &installed.product, &flags)?;
    let mut command = scene.node_script("oauth.mjs")?;
    command.args(["foreign", &server.url]).arg(scene.path()).env("CHROMIUM", Installed::browser());
    server.explain(run(&mut command, scene.path(), LIMIT)?.succeeded())?;
    server.stop()
}

fn sign_in(installed: &Installed, client: &str) -> Result<()> {
    let scene = Scene::new(installed)?;
    account(&mut scene.command(&installed.product), &scene)?;
    // Soon over, so that whoever does not renew is noticed.
    let flags = ["--listen", "127.0.0.1:0", "--oauth", "--oauth-access-lifetime", "5s"];
    let server = Server::guarded(&scene, &installed.product, &flags)?;
    let mut command = scene.node_script("oauth.mjs")?;
    command.args([client, &server.url]).arg(scene.path()).env("CHROMIUM", Installed::browser());
    server.explain(run(&mut command, scene.path(), LIMIT)?.succeeded())?;
    for picture in ["sign-in", "consent"] {
        let picture = scene.path().join(format!("{client}-{picture}.png"));
        ensure(picture.is_file(), || format!("{} was not taken", picture.display()))?;
    }
    server.stop()
}

fn account(command: &mut Command, scene: &Scene<'_>) -> Result<()> {
    command.arg("--state-dir").arg(scene.state()).args(["account", "create", "alice"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    child.stdin.take().ok_or("it has no input")?.write_all(b"correct horse battery\n")?;
    let status = child.wait()?;
    ensure(status.success(), || format!("the account was not made: {status}"))
}
