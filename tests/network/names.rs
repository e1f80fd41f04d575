//! Names: what may be asked for, and that an answer cannot change between the check and the connection.

use async_trait::async_trait;
use egress::Rule;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding};
use sandpen_tests::random::unique;

use crate::check::{Check, Control};
use crate::scene::{HELLO, Scene, arrivals};
use crate::world::name;
use crate::world::oracle::Oracle;

pub const CHECKS: &[&dyn Check] = &[&Rebinding, &Questions, &Lists];

/// Names that are public when they are checked and private when they are dialled.
struct Rebinding;

const REBINDINGS: usize = 6;

#[async_trait]
impl Check for Rebinding {
    fn about(&self) -> About {
        About {
            id: "NW-07",
            tries: "names that answer with a public address first and a private one second, with and without the proxy",
            stopped_by: "dialling the very address that was checked",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::CheckedDial])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let mut breaches = Vec::new();
        let mut reached = 0;
        for network in ["internet".to_owned(), format!("*.{}", "example.com")] {
            let sandbox = scene.sandbox(&network).await?;
            for _ in 0..REBINDINGS {
                // The resolver counts by name, so each one begins as public.
                let host = name(&unique("rebind"));
                scene.fetch(&sandbox, &[(host.clone(), 80)], HELLO).await?;
                let host = name(&unique("rebind"));
                for _ in 0..2 {
                    let asked = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                    scene.ask_proxy(&sandbox, &asked).await?;
                }
            }
            sandbox.end().await?;
            let came = scene.oracle.visits()?;
            reached += came.iter().filter(|visit| visit.place == "old").count();
            breaches.extend(arrivals(&came, |visit| scene.is_public(visit)));
        }
        if reached == 0 && breaches.is_empty() {
            return Err("no name was reached even at its public address".into());
        }
        Ok(Finding::from_breaches(&breaches, format!("{} names, {reached} public visits", 4 * REBINDINGS)))
    }
}

/// Lets something be told to the owner of a resolver by asking for it.
struct Questions;

#[async_trait]
impl Check for Questions {
    fn about(&self) -> About {
        About {
            id: "NW-07-questions",
            tries: "asks for random names below a domain whose resolver writes them down, without a network and beside the list",
            stopped_by: "answers for allowed names only, and no question to the host's resolver before a connection",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Names])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let mut breaches = Vec::new();
        for network in ["none".to_owned(), name("public"), format!("*.deep.{}", "example.com")] {
            let sandbox = scene.sandbox(&network).await?;
            let canary = unique("leak");
            let host = name(&canary);
            let longer = format!("{canary}.public.example.com");
            scene
                .fetch(&sandbox, &[(host.clone(), 80), (longer.clone(), 443), (format!("{host}."), 80)], HELLO)
                .await?;
            if network != "none" {
                for host in [&host, &longer] {
                    let asked = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
                    scene.ask_proxy(&sandbox, &asked).await?;
                    let asked = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                    scene.ask_proxy(&sandbox, &asked).await?;
                }
            }
            sandbox.end().await?;
            let came = scene.oracle.visits()?;
            let leaked = Oracle::questions(&came).into_iter().filter(|question| question.contains(&canary));
            breaches.extend(leaked.map(|question| format!("{network}: the resolver was asked for {question}")));
        }
        Ok(Finding::from_breaches(&breaches, "no question left"))
    }
}

/// A list lets through what it names, by every way in.
struct Lists;

#[async_trait]
impl Check for Lists {
    fn about(&self) -> About {
        About {
            id: "NW-07-lists",
            tries: "other names, ports, addresses and sub-names than those in the list, by its resolver, by address and by the proxy",
            stopped_by: "rules for names and ports",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Names])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox(&format!("{}:80", name("public"))).await?;
        let allowed = scene.fetch(&sandbox, &[(name("public"), 80)], HELLO).await?;
        if !scene.oracle.visits()?.iter().any(|visit| visit.place == "public" && visit.port == 80) {
            return Err(format!("what the list names is not reached: {:?}", allowed.0).into());
        }
        let mut targets = vec![
            (name("public"), 443),
            (name("public"), 8080),
            (name("other"), 80),
            (name("api"), 443),
            ("example.com".to_owned(), 80),
            ("203.0.113.10".to_owned(), 80),
            ("203.0.113.11".to_owned(), 80),
            ("2001:db8:10::11".to_owned(), 80),
            ("198.18.7.7".to_owned(), 80),
        ];
        scene.fetch(&sandbox, &targets, HELLO).await?;
        for (host, port) in targets.drain(..) {
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let asked =
                format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
            scene.ask_proxy(&sandbox, &asked).await?;
            let asked = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n{HELLO}");
            scene.ask_proxy(&sandbox, &asked).await?;
        }
        sandbox.end().await?;
        let breaches = arrivals(&scene.oracle.visits()?, |_| false);
        Ok(Finding::from_breaches(&breaches, "one port of one name, and nothing beside it"))
    }
}
