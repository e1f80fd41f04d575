use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{Lifetime, Network, Owner};
use serde_json::{Value, json};
use tools::profile::{Automata, Cloudflare, CodeImage, CodeRunner, Philschmid, SandboxServer};
use tools::{Catalog, Ceiling, Offers, Policy, Profile, ProfileName, ProfileOptions, Selection};

use crate::code_runner::Memory;
use crate::support::{World, text};

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
                    "title": tool.title,
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
        let Offers { resources: has_resources, prompts: has_prompts } = profile.offers();
        let offers = json!({ "resources": has_resources, "prompts": has_prompts });
        let seen = json!({
            "server": server,
            "instructions": profile.instructions(&Policy::default()),
            "offers": offers,
            "tools": tools,
            "templates": templates,
            "resources": resources,
        });
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

/// The operator changes them with `--idle`.
#[test]
fn times_that_tools_tell_are_those_of_the_policy() {
    let lifetime = Lifetime { idle: Duration::from_secs(2 * 60 * 60), ..Lifetime::default() };
    let policy = Policy { lifetime, ..Policy::default() };
    for (name, profile) in profiles() {
        let catalog = Catalog::of_profile(Arc::clone(&profile), &policy, &Selection::default()).unwrap();
        let told: String = catalog.tools().iter().map(|tool| tool.description.as_str()).collect();
        let tells = matches!(name, ProfileName::Cloudflare | ProfileName::Automata);
        assert_eq!(told.contains(" 2 h"), tells, "{name}: {told}");
        let first = profile.instructions(&policy).unwrap_or_default();
        assert_eq!(first.contains(" 2 h"), name == ProfileName::Cloudflare, "{name}: {first}");
    }
}

/// Whoever may use a daemon sees containers there that are nobody's here: their ids lead nowhere, nor do parts of ours.
#[tokio::test]
async fn an_id_of_another_container_is_not_found() {
    let profile: Arc<dyn Profile> = Arc::new(Automata::new(ProfileOptions::default()));
    let world = World::speaking_as(profile, Policy::default()).await;
    let created = text(&world.call("sandbox_initialize", json!({})).await);
    let own = created.strip_prefix("container_id: ").unwrap();
    let ours = world.service.list(&Owner::local()).await.unwrap().remove(0).id.to_string();
    let foreign = "4f".repeat(32);
    for id in [foreign.as_str(), &foreign[..12], &ours, &own[..11], "", "*", &format!("{own}0")] {
        let told = text(&world.call("sandbox_stop", json!({ "container_id": id })).await);
        assert!(told.contains("there is no container") || id.is_empty(), "{id}: {told}");
    }
    assert_eq!(world.service.list(&Owner::local()).await.unwrap().len(), 1);
    let stopped = text(&world.call("sandbox_stop", json!({ "container_id": own[..12] })).await);
    assert!(stopped.starts_with("Successfully stopped"), "{stopped}");
}

/// The policy has what the profile asked for, as far as the operator allows it.
#[tokio::test]
async fn containers_reach_what_the_policy_says() {
    for reached in [Network::Internet, "example.com".parse().unwrap(), Network::None] {
        for (name, profile) in profiles() {
            let (tool, arguments) = match name {
                ProfileName::Cloudflare => ("container_initialize", json!({})),
                ProfileName::SandboxServer => {
                    ("create_container_environment", json!({ "image": "host", "persist": false }))
                }
                ProfileName::Automata => ("sandbox_initialize", json!({})),
                // Their sandboxes end with the call.
                ProfileName::CodeRunner | ProfileName::Philschmid => continue,
            };
            let ceiling = Ceiling { network: reached.clone(), ..Ceiling::default() };
            let policy = Policy { network: reached.clone(), ceiling, ..Policy::default() };
            let world = World::speaking_as(profile, policy).await;
            let output = world.call(tool, arguments).await;
            let made = world.service.list(&Owner::local()).await.unwrap();
            assert_eq!(made.len(), 1, "{name}: {output:?}");
            assert_eq!(made[0].network, reached, "{name}");
        }
    }
}
