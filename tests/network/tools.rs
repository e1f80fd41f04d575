//! Programs that people use, unchanged, in sandboxes of the real program: with proxy settings and without knowing of any.

use std::time::Instant;

use sandpen_tests::random::unique;
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::{Result, Trouble};

use crate::backend::is_installed;
use crate::product::Product;
use crate::world::oracle::Oracle;
use crate::world::visits::{Visit, VisitKind};

/// One program, as data: what it is told to do, and what must come of it.
struct Use {
    name: &'static str,
    program: &'static str,
    network: &'static str,
    script: &'static str,
    /// What it prints at the end.
    says: &'static str,
    /// Who must have been visited, at which port.
    visits: (&'static str, u16),
}

const USES: &[Use] = &[
    Use {
        name: "curl",
        program: "curl",
        network: "public.example.com",
        script: "curl -sS --fail http://public.example.com/a && curl -sS --fail https://public.example.com/b",
        says: "GET /b",
        visits: ("public", 443),
    },
    Use {
        name: "curl, not using the proxy",
        program: "curl",
        network: "public.example.com",
        script: "curl -sS --fail --noproxy '*' http://public.example.com/a && curl -sS --fail --noproxy '*' https://public.example.com/b",
        says: "GET /b",
        visits: ("public", 443),
    },
    Use {
        name: "curl, IPv6 only",
        program: "curl",
        network: "new.example.com",
        script: "curl -sS --fail --noproxy '*' https://new.example.com/six && curl -sS --fail https://new.example.com/six",
        says: "GET /six",
        visits: ("new", 443),
    },
    Use {
        name: "git clone",
        program: "git",
        network: "public.example.com",
        script: "git clone --quiet https://public.example.com/files/repository.git copy && cat copy/file",
        says: "from the repository",
        visits: ("public", 443),
    },
    Use {
        name: "Python urllib",
        program: "python3",
        network: "*.example.com",
        script: "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://public.example.com/urllib\", timeout=20).read().decode())'",
        says: "GET /urllib",
        visits: ("public", 443),
    },
    Use {
        name: "Python requests",
        program: "python3",
        network: "public.example.com",
        script: "curl -s --fail http://public.example.com/files/python.tar | tar x; export REQUESTS_CA_BUNDLE=${REQUESTS_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}; python3 -c 'import requests; print(requests.get(\"https://public.example.com/requests\", timeout=20).text)'",
        says: "GET /requests",
        visits: ("public", 443),
    },
    Use {
        name: "Python without a proxy",
        program: "python3",
        network: "*.example.com",
        script: "python3 -c 'import http.client as h; c = h.HTTPSConnection(\"public.example.com\", timeout=20); c.request(\"GET\", \"/client\"); print(c.getresponse().read().decode())'",
        says: "GET /client",
        visits: ("public", 443),
    },
    Use {
        name: "Node fetch",
        program: "node",
        network: "public.example.com",
        script: "node -e 'fetch(\"https://public.example.com/fetch\").then(r => r.text()).then(console.log)'",
        says: "GET /fetch",
        visits: ("public", 443),
    },
    Use {
        name: "Java",
        program: "java",
        network: "public.example.com",
        script: "printf 'import java.net.*; class A { public static void main(String[] a) throws Exception { System.out.println(new String(new URL(\"http://public.example.com/java\").openStream().readAllBytes())); } }' >A.java && java -Xmx128m A.java",
        says: "GET /java",
        visits: ("public", 80),
    },
    Use {
        name: "a TCP client without proxy settings",
        program: "bash",
        network: "public.example.com:7000",
        script: "exec 3<>/dev/tcp/public.example.com/7000 && read -r -t 20 line <&3 && echo \"$line\"",
        says: "220 public speaks first",
        visits: ("public", 7000),
    },
    Use {
        name: "a TCP client that knows the address only",
        program: "bash",
        network: "203.0.113.10:7000",
        script: "exec 3<>/dev/tcp/203.0.113.10/7000 && read -r -t 20 line <&3 && echo again >&3 && read -r -t 20 more <&3 && echo \"$line $more\"",
        says: "speaks first",
        visits: ("public", 7000),
    },
    Use {
        name: "curl, 64 MiB",
        program: "curl",
        network: "public.example.com",
        script: "curl -sS --fail --noproxy '*' http://public.example.com/bytes/67108864 | wc -c; curl -sS --fail http://public.example.com/bytes/67108864 | wc -c",
        says: "67108864\n67108864\n",
        visits: ("public", 80),
    },
];

/// A header with a secret, by programs that each find the sandbox's own authority in another place.
const WITH_SECRET: &[(&str, &str, &str)] = &[
    ("curl with a secret", "curl", "curl -sS --fail -H \"X-Key: $API_KEY\" https://api.example.com/"),
    (
        "Git with a secret",
        "git",
        "git -c http.extraHeader=\"X-Key: $API_KEY\" clone --quiet https://api.example.com/files/repository.git copy && cat copy/file",
    ),
    (
        "Python requests with a secret",
        "python3",
        "curl -s --fail https://api.example.com/files/python.tar | tar x; python3 -c 'import os, requests; r = requests.get(\"https://api.example.com/\", headers={\"X-Key\": os.environ[\"API_KEY\"]}, timeout=20); r.raise_for_status()'",
    ),
    (
        "Java with a secret",
        "java",
        "printf 'import java.net.*; class A { public static void main(String[] a) throws Exception { URLConnection c = new URL(\"https://api.example.com/\").openConnection(); c.setRequestProperty(\"X-Key\", System.getenv(\"API_KEY\")); c.getInputStream().readAllBytes(); } }' >A.java && java -Xmx128m A.java",
    ),
    (
        "Node with a secret",
        "node",
        "node -e 'fetch(\"https://api.example.com/\", {headers: {\"X-Key\": process.env.API_KEY}}).then(r => r.text())'",
    ),
];

/// Who is refused, and told so.
const REFUSED: &[(&str, &str, &str)] = &[
    ("a name beside the list", "curl -sS --fail -m 20 http://other.example.com/", "other.example.com"),
    ("an address beside the list", "curl -sS --fail -m 20 --noproxy '*' http://203.0.113.11/", "203.0.113.11"),
    ("a certificate of somebody else", "curl -sS --fail -m 20 https://wrong.example.com/", "certificate"),
    (
        "a redirect to a private place",
        "curl -sS -L --fail -m 20 http://public.example.com/redirect/ten.example.com/",
        "ten.example.com",
    ),
];

pub fn judge(wanted: impl Fn(&str) -> bool, oracle: &Oracle, table: &mut Table) -> Result<()> {
    let product = Product::new()?;
    for one in USES.iter().filter(|one| wanted(one.name)) {
        let started = Instant::now();
        let (verdict, detail) = if !is_installed(one.program) {
            (Verdict::Skip, format!("{} is not installed", one.program))
        } else {
            match works(&product, oracle, one) {
                Ok(()) => (Verdict::Pass, format!("with {}", one.network)),
                Err(trouble) => missing_or_failed(&trouble),
            }
        };
        table.add(one.name, verdict, &detail, started.elapsed());
    }
    let value = unique("value");
    product.keep_secret(&["API_KEY", "--host", "api.example.com"], &value)?;
    for (name, program, script) in WITH_SECRET.iter().filter(|(name, _, _)| wanted(name)) {
        let started = Instant::now();
        let (verdict, detail) = if !is_installed(program) {
            (Verdict::Skip, format!("{program} is not installed"))
        } else {
            match puts_in(&product, oracle, script, &value) {
                Ok(()) => (Verdict::Pass, "the value arrived".to_owned()),
                Err(trouble) => missing_or_failed(&trouble),
            }
        };
        table.add(name, verdict, &detail, started.elapsed());
    }
    for (name, script, told) in REFUSED.iter().filter(|(name, _, _)| wanted(name)) {
        let started = Instant::now();
        match refused(&product, oracle, script, told) {
            Ok(()) => table.add(name, Verdict::Pass, "refused, and told", started.elapsed()),
            Err(trouble) => table.add(name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
    Ok(())
}

fn works(product: &Product, oracle: &Oracle, one: &Use) -> Result<()> {
    let ran = product.script(one.network, &[], one.script)?.succeeded()?;
    if !ran.stdout.contains(one.says) {
        return Err(ran.told(&format!("it does not say {:?}", one.says)));
    }
    let (place, port) = one.visits;
    let came = oracle.visits()?;
    let connected = |visit: &&Visit| visit.kind == VisitKind::Connection && visit.place == place && visit.port == port;
    if came.iter().any(|visit| connected(&visit)) { Ok(()) } else { Err(Trouble(format!("nobody came to {place}"))) }
}

/// A library that is not there is no fault of the network.
fn missing_or_failed(trouble: &Trouble) -> (Verdict, String) {
    match trouble.0.contains("ModuleNotFoundError: No module named 'requests'") {
        true => (Verdict::Skip, "requests could not be installed from an index".to_owned()),
        false => (Verdict::Fail, trouble.to_string()),
    }
}

fn puts_in(product: &Product, oracle: &Oracle, script: &str, value: &str) -> Result<()> {
    let ran = product.script("api.example.com", &["--secret", "API_KEY"], script)?.succeeded()?;
    let came = oracle.visits()?;
    let header = format!("x-key: {value}");
    if ran.stdout.contains(value) || ran.stderr.contains(value) {
        return Err("the value came back".into());
    }
    match came.iter().any(|visit| visit.kind == VisitKind::Request && visit.text.contains(&header)) {
        true => Ok(()),
        false => Err(ran.told(&format!(
            "the value did not arrive: {:?}",
            came.iter().map(|visit| &visit.text).collect::<Vec<_>>()
        ))),
    }
}

fn refused(product: &Product, oracle: &Oracle, script: &str, told: &str) -> Result<()> {
    let network = "public.example.com,wrong.example.com";
    let ran = product.script(network, &[], script)?;
    let came = oracle.visits()?;
    if ran.status.success() {
        return Err(ran.told("it was not refused"));
    }
    if let Some(visit) = came.iter().find(|visit| visit.kind == VisitKind::Request && visit.place != "public") {
        return Err(Trouble(format!("it was refused, and yet there was {visit}")));
    }
    if ran.stderr.contains(told) { Ok(()) } else { Err(ran.told(&format!("it is not told of {told}"))) }
}
