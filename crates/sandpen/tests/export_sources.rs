//! Exports of sandboxes that came about in every other way than by one command after another: with packages, through a
//! client, from a saved image, as a branch.

mod support;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use support::World;
use support::client::Client;
use support::exported::{
    build, builds_the_same, builds_work, checks_work, commands_are_done_again, create, differences, export, shell,
    tool, unpack,
};
use support::image::{Root, has_npm, has_pip};
use support::shop::Shop;

/// Builds it with a network that has the shop and nothing else.
#[track_caller]
fn builds_the_same_from(shop: &Shop, sandbox: &str) {
    let place = format!("127.0.0.1:{}", shop.index.port);
    builds_the_same(&shop.world, sandbox, &["--network", &place, "--allow-private-host", &place]);
}

/// An image whose package manager is set up for the shop, by a file of its own. What is on this machine's loopback is reached
/// through the proxy, because inside it is another loopback.
fn import(shop: &Shop, root: Root<'_>, settings: (&str, String), name: &str) {
    root.with_file(settings.0, &settings.1, 0o644).import("plain:test");
    shop.world.write("base/Dockerfile", "FROM plain:test\nENV NO_PROXY=\"\" no_proxy=\"\"\n");
    shop.run(&["image", "build", "-t", name, "base"]).succeeds();
}

#[test]
fn packages_of_python_are_installed_again() {
    if !builds_work() || !has_pip() {
        return;
    }
    let shop = Shop::open();
    let settings = ("etc/pip.conf", format!("[global]\nindex-url = {}\n", shop.index.python()));
    import(&shop, tool(&shop.world).with_python(), settings, "python:test");
    shop.run(&["create", "--name", "lab", "--image", "python:test", "--package", "small==1.0"]).succeeds();
    let code = "import small, inner; open('found', 'w').write(small.version + inner.word)";
    shop.run(&["exec", "lab", "--", "python3", "-c", code]).succeeds();
    let (_, text) = export(&shop.world, "lab");
    assert!(text.contains("\nENV PATH=\"/packages/python/bin:$PATH\"\n"), "{text}");
    assert!(text.contains("\"inner==0.5\",\"small==1.0\"]\n"), "{text}");
    assert!(!shop.world.work().join("out/packages").exists(), "the check's own copy was left");
    builds_the_same_from(&shop, "lab");
    let done = shop.run(&["run", "--image", "built:1", "python", "import small; print(small.__file__)"]);
    done.expect(0, "/packages/python/small.py\n");
}

#[test]
fn packages_of_javascript_are_installed_again() {
    if !builds_work() || !has_npm() {
        return;
    }
    let shop = Shop::open();
    let settings = ("usr/etc/npmrc", format!("registry={}\n", shop.index.npm()));
    import(&shop, tool(&shop.world).with_npm(), settings, "node:test");
    shop.run(&["create", "--name", "lab", "--image", "node:test", "--package", "npm:small@^1"]).succeeds();
    let code = "require('fs').writeFileSync('found', require('small'))";
    shop.run(&["exec", "lab", "--", "node", "-e", code]).succeeds();
    let (_, text) = export(&shop.world, "lab");
    assert!(text.contains("\"small@1.0.0\"]\n"), "{text}");
    builds_the_same_from(&shop, "lab");
    let done = shop.run(&["run", "--image", "built:1", "javascript", "console.log(require('small'))"]);
    done.expect(0, "inside 1.0.0\n");
}

/// What a model has: code, commands and files, of a sandbox that only the server knows.
#[test]
fn the_work_of_a_client_is_exported() {
    if !checks_work() || !has_pip() {
        return;
    }
    let world = World::new();
    let image = tool(&world).with_python().import("python:test");
    let mut client = Client::hello(&world, &["--allow-image", &image], "2025-11-25");
    let lab = value(&mut client, "create_sandbox", json!({ "image": image }))["sandbox_id"].clone();
    let file = json!({ "sandbox_id": lab, "path": "a name.txt", "content": "2\n3\n" });
    value(&mut client, "write_file", file);
    let code = "print(sum(map(int, open('a name.txt'))), file=open('sum', 'w'))";
    value(&mut client, "run_code", json!({ "sandbox_id": lab, "language": "python", "code": code }));
    let command = "cat sum > copy && ln -s sum link && chmod 640 copy";
    value(&mut client, "run_command", json!({ "sandbox_id": lab, "command": command }));
    let report = value(&mut client, "export_dockerfile", json!({ "sandbox_id": lab }));
    assert_eq!((&report["result"], &report["builds"]), (&json!("reproduced"), &json!(1)), "{report}");
    let branch = value(&mut client, "fork_sandbox", json!({ "sandbox_id": lab }))["sandbox_ids"][0].clone();
    value(&mut client, "run_command", json!({ "sandbox_id": lab, "command": "echo > only-there" }));
    value(&mut client, "run_command", json!({ "sandbox_id": branch, "command": "echo > only-here" }));

    let report = value(&mut client, "export_dockerfile", json!({ "sandbox_id": branch }));
    assert_eq!(report["result"], "reproduced", "{report}");
    let context = client.ask("resources/read", json!({ "uri": report["context_uri"] }));
    let blob = BASE64_STANDARD.decode(context["contents"][0]["blob"].as_str().unwrap()).unwrap();
    unpack(&world, &blob);
    let text = world.read("out/Dockerfile");
    assert!(!text.contains("only-there"), "{text}");
    let built = if commands_are_done_again() {
        assert!(text.contains("\nRUN echo > only-here\n"), "{text}");
        value(&mut client, "save_sandbox", json!({ "sandbox_id": branch, "name": "now" }));
        world.run(&["image", "tag", "saved:now", "wanted:1"]).succeeds();
        build(&world, &[]);
        assert_eq!(differences(&world, "wanted:1", "built:1"), [] as [String; 0], "{text}");
        "built:1".to_owned()
    } else {
        world.build_image("built:1", "out/Dockerfile", "out")
    };
    let check = "cat sum copy link; cat only-here; test -e only-there || echo alone";
    world.run(&["run", "--image", &built, "bash", check]).expect(0, "5\n5\n5\n\nalone\n");
}

#[test]
fn what_was_saved_between_is_made_again_from_the_image_below() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo one > one; mkdir -m 711 d; ln -s ../one d/link");
    world.run(&["save", "lab", "half"]).succeeds();
    world.run(&["create", "--name", "second", "--image", "saved:half"]).succeeds();
    shell(&world, "second", "cat one > two; rm d/link");
    world.run(&["fork", "second", "--name", "third"]).succeeds();
    shell(&world, "third", "echo three > three");
    let (report, text) = export(&world, "third");
    assert!(text.starts_with("FROM tool:1\n"), "{text}");
    assert!(text.contains("\nRUN echo three > three\n"), "{text}");
    assert_eq!(report["builds"], 1, "{report}");
    builds_the_same(&world, "third", &[]);
}

#[track_caller]
fn value(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let answer = client.call(tool, arguments);
    assert_ne!(answer["isError"], json!(true), "{tool}: {answer}");
    answer["structuredContent"].clone()
}
