//! Who may know whom.

use crate::tree::{Rule, Tree};

/// What each crate of ours may depend upon, of ours and of the libraries that a layer is there to keep out.
const ALLOWED: &[(&str, &[&str])] = &[
    ("sandpen-sandbox", &[]),
    ("sandpen-images", &["hyper", "rustls", "rcgen"]),
    ("sandpen-init", &[]),
    ("sandpen-tools", &["sandpen-sandbox"]),
    ("sandpen-egress", &["sandpen-sandbox", "hyper", "rustls", "rcgen", "hickory-resolver"]),
    ("sandpen-agent", &["sandpen-sandbox"]),
    ("sandpen-engine-native", &["sandpen-sandbox", "sandpen-agent", "sandpen-images", "sandpen-egress"]),
    ("sandpen-engine-docker", &["sandpen-sandbox", "sandpen-agent", "sandpen-egress", "sandpen-tests", "bollard"]),
    ("sandpen-engine-kubernetes", &["sandpen-sandbox", "sandpen-agent", "sandpen-egress", "kube"]),
    (
        "sandpen",
        &[
            "sandpen-sandbox",
            "sandpen-tools",
            "sandpen-images",
            "sandpen-egress",
            "sandpen-engine-native",
            "sandpen-engine-docker",
            "sandpen-engine-kubernetes",
            "clap",
            "rmcp",
            "axum",
            "hyper",
            "rustls",
            "rcgen",
        ],
    ),
    (
        "sandpen-tests",
        &[
            "sandpen-sandbox",
            "sandpen-egress",
            "sandpen-engine-native",
            "sandpen-engine-docker",
            "sandpen-images",
            "sandpen",
            "hyper",
            "rustls",
            "rcgen",
        ],
    ),
    (
        "sandpen-fuzz",
        &[
            "sandpen-sandbox",
            "sandpen-agent",
            "sandpen-egress",
            "sandpen-engine-native",
            "sandpen-images",
            "sandpen-init",
        ],
    ),
    ("xtask", &[]),
];

/// Libraries that only the crates above that list them may use.
const QUARANTINED: &[&str] =
    &["bollard", "kube", "clap", "rmcp", "axum", "hyper", "reqwest", "rustls", "rcgen", "hickory-resolver"];

pub const RULES: &[Rule] = &[
    Rule {
        name: "dependencies point from the edge to the domain",
        check: directions,
        broken_by: &[
            (
                "crates/sandbox/Cargo.toml",
                "[package]\nname = \"sandpen-sandbox\"\n[dependencies]\nengine-native.workspace = true\n",
            ),
            ("crates/tools/Cargo.toml", "[package]\nname = \"sandpen-tools\"\n[dependencies]\nrmcp = \"3\"\n"),
            (
                "crates/sandbox/Cargo.toml",
                "[package]\nname = \"sandpen-sandbox\"\n[target.'cfg(unix)'.dependencies]\nclap = \"4\"\n",
            ),
            ("crates/new/Cargo.toml", "[package]\nname = \"sandpen-new\"\n"),
        ],
        kept_by: &[(
            "crates/sandpen/Cargo.toml",
            "[package]\nname = \"sandpen\"\n[dependencies]\nsandbox.workspace = true\nclap.workspace = true\n",
        )],
    },
    Rule {
        name: "only tests may take a wall away",
        check: |tree| switched_on(tree, "weaken", &["sandpen-tests", "sandpen-fuzz"]),
        broken_by: &[
            (
                "crates/sandpen/Cargo.toml",
                "[package]\nname = \"sandpen\"\n[dependencies]\nengine-native = { workspace = true, features = [\"weaken\"] }\n",
            ),
            (
                "crates/engine-native/Cargo.toml",
                "[package]\nname = \"sandpen-engine-native\"\n[features]\ndefault = [\"weaken\"]\nweaken = []\n",
            ),
        ],
        kept_by: &[(
            "crates/engine-native/Cargo.toml",
            "[package]\nname = \"sandpen-engine-native\"\n[features]\nweaken = []\n",
        )],
    },
    Rule {
        name: "only the conformance suite gets its fixtures",
        check: |tree| switched_on(tree, "conformance", &["sandpen-tests"]),
        broken_by: &[
            (
                "crates/sandpen/Cargo.toml",
                "[package]\nname = \"sandpen\"\n[features]\ndefault = [\"conformance\"]\nconformance = []\n",
            ),
            (
                "crates/other/Cargo.toml",
                "[package]\nname = \"other\"\n[dependencies]\nsandpen = { path = \"../sandpen\", features = [\"conformance\"] }\n",
            ),
        ],
        kept_by: &[(
            "crates/sandpen/Cargo.toml",
            "[package]\nname = \"sandpen\"\n[features]\nconformance = [\"rmcp/elicitation\"]\n",
        )],
    },
    Rule {
        name: "every crate takes the lints of the workspace",
        check: shared_lints,
        broken_by: &[("crates/sandbox/Cargo.toml", "[package]\nname = \"sandpen-sandbox\"\n")],
        kept_by: &[("crates/sandbox/Cargo.toml", "[package]\nname = \"sandpen-sandbox\"\n[lints]\nworkspace = true\n")],
    },
];

fn parse(path: &str, text: &str) -> Result<toml::Table, String> {
    text.parse::<toml::Table>().map_err(|error| format!("{path}: {error}"))
}

fn package_name(manifest: &toml::Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// Aliases of the workspace are named like their directories, packages with the prefix.
fn full_name(dependency: &str, value: &toml::Value) -> String {
    if let Some(package) = value.get("package").and_then(toml::Value::as_str) {
        return package.to_owned();
    }
    let prefixed = format!("sandpen-{dependency}");
    if ALLOWED.iter().any(|(name, _)| *name == prefixed) { prefixed } else { dependency.to_owned() }
}

fn dependency_tables(manifest: &toml::Table) -> impl Iterator<Item = &toml::Table> {
    let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let holders = std::iter::once(manifest).chain(targets.filter_map(toml::Value::as_table));
    holders.flat_map(move |holder| tables.into_iter().filter_map(|table| holder.get(table)?.as_table()))
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    dependency_tables(manifest).flat_map(|table| table.iter().map(|(name, value)| full_name(name, value))).collect()
}

fn directions(tree: &Tree) -> Vec<String> {
    let mut breaches = Vec::new();
    for (path, text) in tree.manifests() {
        let manifest = match parse(path, text) {
            Ok(manifest) => manifest,
            Err(breach) => {
                breaches.push(breach);
                continue;
            }
        };
        let Some(name) = package_name(&manifest) else { continue };
        let Some((_, allowed)) = ALLOWED.iter().find(|(listed, _)| *listed == name) else {
            breaches.push(format!("{path}: {name} has no line in the table of allowed dependencies"));
            continue;
        };
        for dependency in dependencies(&manifest) {
            let ours = ALLOWED.iter().any(|(listed, _)| *listed == dependency);
            let watched = ours || QUARANTINED.contains(&dependency.as_str());
            if watched && dependency != name && !allowed.contains(&dependency.as_str()) {
                breaches.push(format!("{path}: {name} may not depend on {dependency}"));
            }
        }
    }
    breaches
}

/// Who switches a feature on that only these may use. To declare it is nobody's fault.
fn switched_on(tree: &Tree, feature: &str, allowed: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (path, text) in tree.manifests() {
        let Ok(manifest) = parse(path, text) else { continue };
        let name = package_name(&manifest).unwrap_or_default();
        if allowed.contains(&name) {
            continue;
        }
        let asked_for = dependency_tables(&manifest).any(|table| format!("{table:?}").contains(feature));
        let features = manifest.get("features").and_then(toml::Value::as_table);
        let implied = features
            .into_iter()
            .flatten()
            .any(|(declared, implied)| declared != feature && format!("{implied:?}").contains(feature));
        if asked_for || implied {
            breaches.push(format!("{path}: {name} switches on `{feature}`"));
        }
    }
    breaches
}

fn shared_lints(tree: &Tree) -> Vec<String> {
    tree.manifests()
        .filter_map(|(path, text)| Some((path, parse(path, text).ok()?)))
        .filter(|(path, manifest)| manifest.contains_key("package") && !path.starts_with("fuzz/"))
        .filter(|(_, manifest)| {
            manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool) != Some(true)
        })
        .map(|(path, _)| format!("{path}: no `[lints] workspace = true`"))
        .collect()
}
