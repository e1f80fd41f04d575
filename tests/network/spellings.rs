//! Requests to the proxy that mean something else to whoever checks than to whoever connects.

use async_trait::async_trait;
use egress::Rule;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding};

use crate::check::{Check, Control};
use crate::scene::{HELLO, Scene, arrivals};
use crate::world::visits::VisitKind;
use crate::world::{CANARY_PORT, name};

pub const CHECKS: &[&dyn Check] = &[&Spellings, &Fronts];

/// 127.0.0.1, 10.20.0.5 and 169.254.169.254, as some programs read them.
const SPELLINGS: &[&str] = &[
    "10.20.0.5",
    "2130706433",
    "169082885",
    "2852039166",
    "0x7f000001",
    "0x0a140005",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "017700000001",
    "0177.0.0.1",
    "012.024.0.05",
    "127.1",
    "127.0.1",
    "10.20.5",
    "10.1310725",
    "127.0.0.1.",
    "10.20.0.5.",
    "00000127.0.0.1",
    "127.0.0.01",
    "localhost",
    "LocalHost.",
    "localhost.localdomain",
    "ip6-localhost",
    "0",
    "0.0.0.0",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:10.20.0.5]",
    "[::ffff:0:10.20.0.5]",
    "[::10.20.0.5]",
    "[64:ff9b::10.20.0.5]",
    "[64:ff9b::a14:5]",
    "[2002:a14:5::1]",
    "[fe80::1%25cable1]",
    "[fe80::1%cable1]",
    "::1",
    "ten.example.com.",
    "TEN.EXAMPLE.COM",
    "ten.example.com..",
    "alias.example.com",
    "mapped.example.com",
    "127.0.0.1%00.public.example.com",
    "127.0.0.1%2epublic.example.com",
    "public.example.com@127.0.0.1",
    "public.example.com:80@10.20.0.5",
    "10.20.0.5#@public.example.com",
    "10.20.0.5?@public.example.com",
    "10.20.0.5\\@public.example.com",
    "１２７.０.０.１",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "10.20.0.5\t",
    "10.20.0.5 ",
];

/// Every spelling of an address that nobody may reach.
struct Spellings;

#[async_trait]
impl Check for Spellings {
    fn about(&self) -> About {
        About {
            id: "NW-04-spellings",
            tries: "decimal, hexadecimal, octal, short, mapped, translated, dotted, encoded and full-width spellings of forbidden addresses, with user information, as CONNECT and in absolute form",
            stopped_by: "one spelling for each host; rules for addresses",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Addresses])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox("internet").await?;
        let mut breaches = Vec::new();
        for spelling in SPELLINGS {
            for port in [80, CANARY_PORT] {
                let public = name("public");
                for asked in [
                    format!("CONNECT {spelling}:{port} HTTP/1.1\r\nHost: {spelling}:{port}\r\n\r\n{HELLO}"),
                    format!("GET http://{spelling}:{port}/ HTTP/1.1\r\nHost: {public}\r\nConnection: close\r\n\r\n"),
                ] {
                    scene.ask_proxy(&sandbox, &asked).await?;
                }
            }
            let came = scene.oracle.visits()?;
            breaches.extend(
                arrivals(&came, |visit| scene.is_public(visit)).iter().map(|what| format!("{spelling}: {what}")),
            );
        }
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, format!("{} spellings, four ways each", SPELLINGS.len())))
    }
}

/// Requests with two meanings, from a sandbox that may reach one name only.
struct Fronts;

#[async_trait]
impl Check for Fronts {
    fn about(&self) -> About {
        About {
            id: "NW-07-requests",
            tries: "requests with another Host header, a second request on the same connection, two lengths, garbage before and after, and methods that make no sense",
            stopped_by: "one meaning for each request: what the target says goes, the rest is refused",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Names])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox(&name("public")).await?;
        let (allowed, other) = (name("public"), name("other"));
        let requests = [
            format!("GET http://{other}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}/ HTTP/1.1\r\nHost: {other}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nHost: {other}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}@{other}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}:80@{other}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{other}\\@{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}%2f@{other}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: {other}\r\nConnection: close\r\n\r\n"),
            format!("GET //{other}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n"),
            format!("GET ftp://{other}/ HTTP/1.1\r\nHost: {allowed}\r\n\r\n"),
            format!(
                "GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\n\r\nGET http://{other}/ HTTP/1.1\r\nHost: {other}\r\n\r\n"
            ),
            format!(
                "POST http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://{other}/ HTTP/1.1\r\nHost: {other}\r\n\r\n"
            ),
            format!(
                "POST http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nContent-Length: 0\r\nContent-Length: 90\r\n\r\nGET http://{other}/ HTTP/1.1\r\nHost: {other}\r\n\r\n"
            ),
            format!("GET http://{allowed}/\u{0}http://{other}/ HTTP/1.1\r\nHost: {allowed}\r\n\r\n"),
            format!("CONNECT {allowed}:443@{other}:443 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {other}:80#{allowed}:443 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {allowed}:443:80 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {allowed} HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {allowed}:0 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {allowed}:65616 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {allowed}:+80 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {other}:80 HTTP/1.1\r\nHost: {allowed}:80\r\n\r\n{HELLO}"),
            format!("CONNECT http://{other}:80 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT * HTTP/1.1\r\nHost: {other}\r\n\r\n{HELLO}"),
            format!("OPTIONS * HTTP/1.1\r\nHost: {other}\r\n\r\n"),
            format!("connect {other}:80 http/1.1\r\n\r\n"),
            format!(" CONNECT {other}:80 HTTP/1.1\r\n\r\n"),
            format!("\r\n\r\nCONNECT {other}:80 HTTP/1.1\r\n\r\n{HELLO}"),
            format!("CONNECT {other}:80 HTTP/0.9\r\n\r\n{HELLO}"),
            format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{other}"),
            format!("\u{4}\u{1}\u{0}P\u{cb}\u{0}q\u{b}\u{0}{other}"),
            format!(
                "GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nProxy-Authorization: Basic eDp5\r\nX: {}\r\n\r\n",
                "x".repeat(60_000)
            ),
            "\u{0}\u{1}\u{2}\u{3}".repeat(64),
            "A".repeat(50_000),
        ];
        let mut breaches = Vec::new();
        let mut reached = 0;
        for asked in &requests {
            let told = scene.ask_proxy(&sandbox, asked).await?;
            let came = scene.oracle.visits()?;
            let first = asked.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let shown: String = first.chars().take(70).collect();
            breaches
                .extend(arrivals(&came, |visit| visit.place == "public").iter().map(|what| format!("{shown}: {what}")));
            for visit in came.iter().filter(|visit| visit.kind == VisitKind::Request) {
                reached += 1;
                if visit.text.contains(&other) || visit.text.to_ascii_lowercase().contains("proxy-authorization") {
                    breaches.push(format!("{shown}: the allowed host was told {:?}", visit.text));
                }
            }
            if told.is_empty() {
                return Err(format!("the proxy is gone after {shown}").into());
            }
        }
        let again = format!("GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n");
        let told = scene.ask_proxy(&sandbox, &again).await?;
        sandbox.end().await?;
        if !told.contains("\"public\"") && !told.contains("200") {
            breaches.push(format!("after all that, an ordinary request is answered {told:?}"));
        }
        Ok(Finding::from_breaches(
            &breaches,
            format!("{} requests, {reached} of them let through to the allowed host", requests.len()),
        ))
    }
}
