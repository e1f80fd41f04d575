//! TLS as the gateway sees it when it does not terminate it: the name in a client's greeting.

use std::sync::Arc;

use async_trait::async_trait;
use egress::Rule;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sandpen_tests::check::{About, Finding};
use sandpen_tests::{Result, Trouble};

use crate::check::{Check, Control};
use crate::scene::Scene;
use crate::world::name;
use crate::world::visits::VisitKind;

pub const CHECKS: &[&dyn Check] = &[&ServerNames];

/// Greets one host with the name of another: the front and the real goal may share an address.
struct ServerNames;

#[async_trait]
impl Check for ServerNames {
    fn about(&self) -> About {
        About {
            id: "NW-07-greetings",
            tries: "greets an allowed host by TLS with the name of another, through the proxy and without it",
            stopped_by: "rules for the name in a greeting",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::ServerName])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox(&name("public")).await?;
        let allowed = name("public");
        for (said, is_allowed) in [(name("public"), true), (name("other"), false)] {
            let greeting = greeting(&said)?;
            let place = tempfile::tempdir()?;
            std::fs::write(place.path().join("greeting"), &greeting)?;
            sandbox.write("/tmp/greeting", &greeting, 0o644).await?;
            let connect = format!("CONNECT {allowed}:443 HTTP/1.1\\r\\nHost: {allowed}:443\\r\\n\\r\\n");
            // The probe sends what it reads; a shell puts the request and the greeting together.
            let script = format!(
                "/tmp/probe fetch {allowed} 443 </tmp/greeting; (printf '{connect}'; cat /tmp/greeting) | /tmp/probe fetch 127.0.0.1 3128"
            );
            sandbox.run_program("/bin/sh", &["-c", &script], "").await?.complete()?;
            let came = scene.oracle.visits()?;
            let heard = came.iter().filter(|visit| visit.kind == VisitKind::Greeting && visit.text == said).count();
            match (is_allowed, heard) {
                (true, 0..3) => return Err(format!("only {heard} of three rightful greetings arrived").into()),
                (false, 1..) => {
                    sandbox.end().await?;
                    return Ok(Finding::Breach(format!("{heard} greetings for {said} arrived at {allowed}")));
                }
                (true, _) | (false, 0) => {}
            }
        }
        sandbox.end().await?;
        Ok(Finding::Holds("rightful greetings arrive, others do not".to_owned()))
    }
}

/// The first bytes that a client of TLS sends to a server of this name.
fn greeting(server: &str) -> Result<Vec<u8>> {
    let trouble = |error: &dyn std::fmt::Display| Trouble(format!("no greeting can be made: {error}"));
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| trouble(&error))?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let server = server.to_owned().try_into().map_err(|_| Trouble(format!("{server} is not a name")))?;
    let mut client = ClientConnection::new(Arc::new(config), server).map_err(|error| trouble(&error))?;
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes)?;
    Ok(bytes)
}
