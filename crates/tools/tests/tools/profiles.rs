use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tools::profile::{Automata, Cloudflare, CodeImage, CodeRunner, Philschmid, SandboxServer};
use tools::{Catalog, Policy, Profile, ProfileName, ProfileOptions, Selection};

use crate::code_runner::Memory;

/// All that is there to be spoken for.
fn profiles() -> Vec<(ProfileName, Arc<dyn Profile>)> {
    let options = ProfileOptions::default;
    let python = CodeImage::python(None, None).unwrap();
    let javascript = CodeImage::javascript(None, None).unwrap();
    vec![
        (ProfileName::Cloudflare, Arc::new(Cloudflare::new(options()))),
        (ProfileName::SandboxServer, Arc::new(SandboxServer::new(options()))),
        (ProfileName::CodeRunner, Arc::new(CodeRunner::new(options(), Arc::new(Memory::default())))),
        (ProfileName::Automata, Arc::new(Automata::new(options()))),
        (ProfileName::Philschmid, Arc::new(Philschmid::new(options(), python, javascript))),
    ]
}

/// Clients were made for these names and shapes: every change is a change of a file, for a reviewer to look at.
#[test]
fn what_clients_of_older_servers_see_is_as_it_was() {
    for (name, profile) in profiles() {
        let catalog = Catalog::of_profile(Arc::clone(&profile), &Policy::default(), &Selection::default()).unwrap();
        let tools: Vec<Value> = catalog
            .tools()
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    "hints": [tool.hints.read_only, tool.hints.destructive, tool.hints.idempotent, tool.hints.open_world],
                    "input": tool.input_schema,
                    "output": tool.output_schema,
                })
            })
            .collect();
        let templates: Vec<Value> = profile
            .templates()
            .iter()
            .map(|template| json!({ "uri": template.uri_template, "name": template.name, "mime": template.mime_type }))
            .collect();
        let resources: Vec<Value> = profile
            .resources()
            .iter()
            .map(|resource| json!({ "uri": resource.uri, "name": resource.name, "mime": resource.mime_type }))
            .collect();
        let identity = profile.identity();
        let server = [identity.name, identity.version];
        let seen = json!({ "server": server, "tools": tools, "templates": templates, "resources": resources });
        let seen = serde_json::to_string_pretty(&seen).unwrap() + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("snapshots/{name}/tools.json"));
        if std::env::var_os("SANDPEN_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &seen).unwrap();
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            seen == known,
            "the tools of {name} have changed: look at the difference after SANDPEN_BLESS=1 cargo test -p sandpen-tools"
        );
    }
}
