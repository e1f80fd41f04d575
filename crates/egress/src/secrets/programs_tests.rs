//! Programs as people use them trust the authority by what a sandbox gets, and would not without.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::process::Command;

use super::stand_in::{Sandbox, StandIn};

const VALUE: &str = "sk-canary-value";

const PYTHON: &str = "
import os, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={'X-Key': os.environ['KEY']})
print(urllib.request.urlopen(request).read().decode())
";

const NODE: &str = "
fetch(process.argv[1], { headers: { 'X-Key': process.env.KEY } })
    .then(async (response) => console.log(await response.text()))
    .catch((error) => { console.error(error); process.exit(1); });
";

const JAVA: &str = "
public class Main {
    public static void main(String[] arguments) throws Exception {
        var request = java.net.http.HttpRequest.newBuilder(java.net.URI.create(arguments[0]))
            .header(\"X-Key\", System.getenv(\"KEY\")).build();
        var client = java.net.http.HttpClient.newHttpClient();
        System.out.println(client.send(request, java.net.http.HttpResponse.BodyHandlers.ofString()).body());
    }
}
";

/// A sandbox's files in a directory of this machine, its variables leading there, and its connections at a port.
struct Inside {
    directory: tempfile::TempDir,
    sandbox: Sandbox,
    host: StandIn,
    port: u16,
}

impl Inside {
    async fn new() -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = StandIn::new(&["127.0.0.1"]).await;
        let sandbox = Sandbox::new(&host, &[("KEY", VALUE, &format!("127.0.0.1:{port}"), None)]);
        let directory = tempfile::tempdir().unwrap();
        for file in &sandbox.prepared.files {
            let name = Path::new(std::str::from_utf8(file.path.as_bytes()).unwrap()).file_name().unwrap();
            std::fs::write(directory.path().join(name), &file.contents).unwrap();
        }
        std::fs::write(directory.path().join("Main.java"), JAVA).unwrap();
        let inside = Arc::new(Self { directory, sandbox, host, port });
        tokio::spawn({
            let inside = Arc::clone(&inside);
            async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let (mut end, _) = inside.sandbox.connect("127.0.0.1", port);
                    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut end).await });
                }
            }
        });
        inside
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}/mirror", self.port)
    }

    /// `None` when there is no such program here.
    async fn run(&self, line: &[&str], variables: bool) -> Option<Output> {
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(self.directory.path()).env_clear().stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.directory.path());
        command.env("KEY", self.sandbox.placeholder("KEY"));
        if variables {
            let here = self.directory.path().to_str().unwrap();
            for (name, value) in self.sandbox.prepared.environment.iter() {
                command.env(name, value.replace("/home/sandbox/.sandpen", here));
            }
        }
        match command.output().await {
            Ok(output) => Some(output),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: there is no {} here", line[0]);
                None
            }
            Err(error) => panic!("{line:?}: {error}"),
        }
    }
}

async fn check(line: &[&str]) {
    let inside = Inside::new().await;
    let url = inside.url();
    let header = format!("X-Key: {}", inside.sandbox.placeholder("KEY"));
    let line: Vec<&str> = line
        .iter()
        .map(|word| match *word {
            "URL" => &url,
            "HEADER" => &header,
            word => word,
        })
        .collect();
    let Some(output) = inside.run(&line, true).await else {
        return;
    };
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert_eq!(inside.host.last().headers["x-key"], VALUE);
    assert!(text.contains(&inside.sandbox.placeholder("KEY")) && !text.contains("canary"), "{text}");
    inside.host.got.lock().unwrap().clear();
    let output = inside.run(&line, false).await.unwrap();
    assert!(!output.status.success(), "it would trust anybody");
    assert!(inside.host.got.lock().unwrap().is_empty());
}

#[tokio::test]
async fn curl_trusts_it() {
    check(&["curl", "--silent", "--show-error", "--fail", "--header", "HEADER", "URL"]).await;
}

#[tokio::test]
async fn python_trusts_it() {
    check(&["python3", "-c", PYTHON, "URL"]).await;
}

#[tokio::test]
async fn node_trusts_it() {
    check(&["node", "-e", NODE, "URL"]).await;
}

#[tokio::test]
async fn java_trusts_it() {
    check(&["java", "Main.java", "URL"]).await;
}

#[tokio::test]
async fn git_trusts_it() {
    let inside = Inside::new().await;
    let line = ["git", "ls-remote", &inside.url()];
    let Some(output) = inside.run(&line, true).await else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("not found"), "{text}");
    assert_eq!(inside.host.last().uri, "/mirror/info/refs?service=git-upload-pack");
    inside.host.got.lock().unwrap().clear();
    inside.run(&line, false).await.unwrap();
    assert!(inside.host.got.lock().unwrap().is_empty(), "it would trust anybody");
}

/// Nobody would notice a file that is not one, as long as only its end is looked at.
#[tokio::test]
async fn java_knows_the_roots_of_the_host_too() {
    let inside = Inside::new().await;
    let line = ["keytool", "-list", "-keystore", "ca.jks", "-noprompt", "-J-Duser.language=en"];
    let Some(output) = inside.run(&line, false).await else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bundle = std::fs::read_to_string(inside.directory.path().join("ca-bundle.pem")).unwrap();
    let count = bundle.matches("BEGIN CERTIFICATE").count();
    assert!(text.contains(&format!("Your keystore contains {count} entr")), "{count} {text}");
}
