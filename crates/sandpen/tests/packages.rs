//! Packages, from an index of our own to code that imports them.

mod support;

use serde_json::{Value, json};
use support::client::Client;
use support::image::{Root, has_npm, has_pip};
use support::index::PrivateIndex;
use support::shop::{Shop, in_its_image, sells_python};
use support::{Done, World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() || !sells_python() {
            return;
        }
    };
}

const SMALL: &str = "import small, inner; print(small.version, inner.word, small.__file__)";

#[test]
fn the_first_use_installs_and_the_second_needs_no_index() {
    needs_sandboxes!();
    let mut shop = Shop::open();
    shop.python(SMALL, "small").expect(0, "2.0 inside /packages/python/small.py\n");
    let first = shop.index.asked();
    assert!(first > 0);
    shop.index.switch_off();
    shop.python(SMALL, "small").expect(0, "2.0 inside /packages/python/small.py\n");
    let done = shop.run(&["run", "python", SMALL, "--package", "small", "--json"]);
    assert_eq!(done.json()["packages"], json!(["inner==0.5", "small==2.0"]));
    // Another request has no answer now, which shows that the one before had it from here.
    let done = shop.python(SMALL, "small==1.0");
    assert_eq!(done.code, Some(125), "{}", done.stdout);
    done.says("does not answer");
}

#[test]
fn what_is_kept_is_listed_and_removed() {
    needs_sandboxes!();
    let shop = Shop::open();
    shop.python(SMALL, "small==1.0").expect(0, "1.0 inside /packages/python/small.py\n");
    // Another request with the same answer is the same tree.
    shop.python(SMALL, "small<2,inner").expect(0, "1.0 inside /packages/python/small.py\n");
    let sets = shop.run(&["package", "ls", "--json"]).json()["sets"].clone();
    assert_eq!(sets.as_array().unwrap().len(), 1, "{sets}");
    assert_eq!(sets[0]["requests"].as_array().unwrap().len(), 2, "{sets}");
    assert!(sets[0]["bytes"].as_u64().unwrap() > 0);
    let before = shop.index.fetched("small-1.0");
    let digest = sets[0]["digest"].as_str().unwrap();
    shop.run(&["package", "rm", &digest[..12]]).expect(0, &format!("{}\n", &digest[..12]));
    assert_eq!(shop.run(&["package", "ls", "--json"]).json()["sets"], json!([]));
    shop.python(SMALL, "small==1.0").expect(0, "1.0 inside /packages/python/small.py\n");
    assert_eq!(shop.index.fetched("small-1.0"), before + 1);
}

#[test]
fn two_at_once_install_once() {
    needs_sandboxes!();
    let shop = Shop::open();
    let arguments = ["run", "python", SMALL, "--package", "small==2.0"];
    let running: Vec<_> = (0..2).map(|_| shop.command(&arguments).spawn().unwrap()).collect();
    for child in running {
        Done::from(child.wait_with_output().unwrap()).expect(0, "2.0 inside /packages/python/small.py\n");
    }
    assert_eq!(shop.index.fetched("small-2.0"), 1);
}

#[test]
fn a_failure_says_which_package_and_why() {
    needs_sandboxes!();
    let shop = Shop::open();
    for (packages, message) in [
        ("nosuch", "there is no package nosuch in the index"),
        ("small==9", "no version matches small==9"),
        ("small==9", "there are 1.0, 2.0"),
        ("clashing", "no version matches inner>1"),
        ("small==1.0,small==2.0", "do not go together"),
        ("failing", "failing could not be built: the compiler is missing"),
    ] {
        let done = shop.python("print(1)", packages);
        assert_eq!((done.code, done.stdout.as_str()), (Some(125), ""), "{}", done.stderr);
        done.says(message);
    }
    let done = shop.python("print(1)", "small @ http://evil.example/small.whl");
    done.says("addresses and paths are not taken");
}

#[test]
fn a_package_that_is_built_reaches_nothing_else_and_spoils_nothing() {
    needs_sandboxes!();
    let shop = Shop::open();
    let done = shop.python("import hostile; print(hostile.evidence)", "hostile");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let evidence: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(evidence, json!({ "connected": [], "read": [], "index": 200 }));
    // It brought an `inner` of its own, for those alone who asked for it.
    shop.python("import inner; print(inner.word)", "inner").expect(0, "inside\n");
}

#[test]
fn javascript_has_its_packages_too() {
    needs_sandboxes!();
    let mut shop = Shop::open();
    if !has_npm() {
        return;
    }
    let code = "console.log(require('small')); import('small').then((m) => console.log(m.default))";
    let run = ["run", "javascript", code, "--package", "small@^1"];
    shop.run(&run).expect(0, "inside 1.0.0\ninside 1.0.0\n");
    for (package, message) in [("nosuch", "there is no package nosuch"), ("small@9", "there are 1.0.0, 2.0.0")] {
        let done = shop.run(&["run", "javascript", "1", "--package", package]);
        assert_eq!(done.code, Some(125), "{}", done.stdout);
        done.says(message);
    }
    shop.index.switch_off();
    shop.run(&run).expect(0, "inside 1.0.0\ninside 1.0.0\n");
}

#[test]
fn a_login_is_in_no_reach_of_install_scripts() {
    needs_sandboxes!();
    let shop = Shop::open();
    if !has_npm() {
        return;
    }
    let login = "@own:registry=https://npm.example.invalid/\n//npm.example.invalid/:_authToken=canary-token-0123\n";
    shop.world.write(".npmrc", login);
    let code = "console.log(JSON.stringify(require('hostile')))";
    let done = shop.run(&["run", "javascript", code, "--package", "hostile"]);
    // The placeholder is there, so the login was in use; its value is not.
    done.expect(0, "{\"found\":false,\"login\":true,\"connected\":false}\n");
}

#[test]
fn a_login_is_used_and_not_seen() {
    needs_sandboxes!();
    let shop = Shop::open();
    let Some(index) = PrivateIndex::start(&shop.world.work().join("private"), "me:canary-password") else {
        crate::support::skip("no certificates can be made: an index with a login is not tested");
        return;
    };
    let run = |login: &str, code: &str, package: &str| {
        let url = format!("https://{login}localhost:{}/simple", index.port);
        let mut command = shop.command(&["run", "python", code, "--package", package]);
        Done::from(command.env("PIP_INDEX_URL", url).env("SSL_CERT_FILE", &index.authority).output().unwrap())
    };
    run("me:canary-password@", SMALL, "small").expect(0, "2.0 inside /packages/python/small.py\n");
    let evidence = "{\"connected\": [], \"read\": [], \"index\": 200}\n";
    run("me:canary-password@", "import hostile; print(hostile.evidence)", "hostile").expect(0, evidence);
    let done = run("me:another-password@", SMALL, "small==1.0").says("wants a login");
    assert!(!done.stderr.contains("password"), "{}", done.stderr);
}

#[test]
fn an_image_has_packages_of_its_own() {
    needs_sandboxes!();
    let shop = Shop::open();
    if !has_pip() {
        return;
    }
    let image = Root::new(&shop.world).with_python().with_programs(&["sh"]).import("python:test");
    let run = ["run", "--image", &image, "python", SMALL, "--package", "small"];
    shop.run(&run).expect(0, "2.0 inside /packages/python/small.py\n");
    shop.run(&run).expect(0, "2.0 inside /packages/python/small.py\n");
    assert_eq!(shop.index.fetched("small-2.0"), 1);
    // The host's are not the image's.
    shop.python(SMALL, "small").expect(0, "2.0 inside /packages/python/small.py\n");
    assert_eq!(shop.index.fetched("small-2.0"), 2);
}

#[test]
fn a_sandbox_that_stays_keeps_them() {
    needs_sandboxes!();
    let shop = Shop::open();
    let done = shop.run(&["create", "--package", "small==1.0"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let id = done.stdout.trim();
    shop.run(&["exec", id, "--", "python3", "-c", SMALL]).expect(0, "1.0 inside /packages/python/small.py\n");
    shop.run(&["exec", id, "--", "touch", "/packages/python/x"]).says("Read-only file system");
    let saved = shop.run(&["save", id, "kept"]);
    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    let saved = saved.says("packages are not part of the image");
    let (_, asked) = saved.stderr.split_once("--package ").unwrap();
    assert_eq!(asked.trim(), "inner==0.5,small==1.0");
}

#[test]
fn a_model_has_them_where_the_operator_allows_it() {
    needs_sandboxes!();
    let shop = Shop::open();
    let call = |packages: &str| {
        json!({ "name": "run_code", "arguments": {
        "language": "python", "code": SMALL, "packages": [packages] } })
    };
    let mut client = Client::hello_with(&shop.world, &[], "2025-11-25", |command| shop.set_up(command));
    let answer = call_tool(&mut client, call("small"));
    assert_eq!(answer["result"]["isError"], true);
    assert!(answer.to_string().contains("--allow-packages"), "{answer}");
    drop(client);

    let mut client =
        Client::hello_with(&shop.world, &["--allow-packages"], "2025-11-25", |command| shop.set_up(command));
    let mut params = call("small==1.0");
    params["_meta"] = json!({ "progressToken": "watch" });
    let answer = call_tool(&mut client, params);
    let result = &answer["result"]["structuredContent"];
    assert_eq!(result["stdout"], "1.0 inside /packages/python/small.py\n", "{answer}");
    assert_eq!(result["packages"], json!(["inner==0.5", "small==1.0"]));
    let told = client.notifications.iter().any(|note| note.to_string().contains("packages: installing 2 packages"));
    assert!(told, "{:?}", client.notifications);
    let made = call_tool(&mut client, json!({ "name": "create_sandbox", "arguments": { "packages": ["small"] } }));
    let id = made["result"]["structuredContent"]["sandbox_id"].clone();
    assert_eq!(made["result"]["structuredContent"]["packages"], json!(["inner==0.5", "small==2.0"]));
    let mut params = call("small");
    params["arguments"]["sandbox_id"] = id;
    let answer = call_tool(&mut client, params);
    assert!(answer.to_string().contains("when it is made"), "{answer}");
}

/// What runs by itself when Python starts, wherever it finds it, and calls the index.
fn plant(shop: &Shop) -> String {
    let planted = format!(
        "import urllib.request\ntry: urllib.request.urlopen('{}/stolen-words/', timeout=9)\nexcept Exception: pass\n",
        shop.index.python()
    );
    format!(
        "import os, site\n\
         for place in [site.getusersitepackages(), '/workspace']:\n    \
             os.makedirs(place, exist_ok=True)\n    \
             for name in ['usercustomize', 'pip', 'json']:\n        \
                 open(f'{{place}}/{{name}}.py', 'w').write({planted:?})\n"
    )
}

#[test]
fn what_lies_in_a_saved_image_is_no_code_where_packages_are_installed() {
    needs_sandboxes!();
    let shop = Shop::open();
    let id = shop.run(&["create"]).stdout.trim().to_owned();
    shop.run(&["exec", &id, "--", "python3", "-I", "-c", &plant(&shop)]).expect(0, "");
    let saved = shop.run(&["save", &id, "trap"]);
    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    let run = ["run", "--image", "saved:trap", "python", "import sys; sys.path.pop(0); print(1)", "--package", "small"];
    let done = shop.run(&run);
    assert!(shop.index.fetched("small-2.0") > 0, "{}", done.stderr);
    assert_eq!(shop.index.fetched("stolen-words"), 0, "{:?}", shop.index.paths);
    // A login is for no image that anybody could have prepared.
    let mut command = shop.command(&["run", "--image", "saved:trap", "python", "1", "--package", "inner"]);
    let done = Done::from(command.env("PIP_INDEX_URL", "https://me:word@localhost:1/simple").output().unwrap());
    done.says("has a login, which no saved image may use");
}

#[test]
fn a_model_has_nothing_installed_for_what_it_saved_beyond_its_own_reach() {
    needs_sandboxes!();
    let shop = Shop::open();
    let try_out = |flags: &[&str]| {
        let mut client = Client::hello_with(&shop.world, flags, "2025-11-25", |command| shop.set_up(command));
        let made = call_tool(&mut client, json!({ "name": "create_sandbox", "arguments": {} }));
        let id = &made["result"]["structuredContent"]["sandbox_id"];
        let saved = json!({ "name": "save_sandbox", "arguments": { "sandbox_id": id, "name": "own" } });
        let answer = call_tool(&mut client, saved);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        let run = json!({ "name": "run_code", "arguments": {
            "language": "python", "code": SMALL, "packages": ["small"], "image": "saved:own" } });
        call_tool(&mut client, run)
    };
    let answer = try_out(&["--allow-packages"]);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(answer.to_string().contains("--max-network 127.0.0.1"), "{answer}");
    assert_eq!(shop.index.asked(), 0);
    let answer = try_out(&["--allow-packages", "--max-network", &format!("127.0.0.1:{}", shop.index.port)]);
    assert_eq!(answer["result"]["structuredContent"]["packages"], json!(["inner==0.5", "small==2.0"]), "{answer}");
}

#[test]
fn a_caller_that_goes_away_does_not_spoil_it_for_the_next() {
    needs_sandboxes!();
    let shop = Shop::open();
    let mut client =
        Client::hello_with(&shop.world, &["--allow-packages"], "2025-11-25", |command| shop.set_up(command));
    let call = json!({ "name": "run_code", "arguments": {
        "language": "python", "code": SMALL, "packages": ["small==2.0"] } });
    let id = client.begin("tools/call", call.clone());
    wait_until("the index is asked", || shop.index.asked() > 0);
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
    let answer = call_tool(&mut client, call);
    let result = &answer["result"]["structuredContent"];
    assert_eq!(result["stdout"], "2.0 inside /packages/python/small.py\n", "{answer}");
    assert_eq!(shop.index.fetched("small-2.0"), 1);
}

fn call_tool(client: &mut Client, params: Value) -> Value {
    let id = client.begin("tools/call", params);
    client.answer(&id)
}

/// The real thing, through whatever index this machine is set up for.
#[test]
fn numpy_and_pandas_work_where_there_is_an_index() {
    needs_sandboxes!();
    let world = World::new();
    let code = "import numpy, pandas; print(pandas.DataFrame({'a': numpy.arange(3)}).a.sum())";
    let run = ["run", "python", code, "--package", "numpy,pandas", "--memory", "1G", "--timeout", "2m"];
    let install = || {
        let mut command = world.command(&run);
        in_its_image(&mut command);
        Done::from(command.output().unwrap())
    };
    let done = install();
    if done.code == Some(125) && (done.stderr.contains("does not answer") || done.stderr.contains("neither uv nor pip"))
    {
        crate::support::skip(&format!("numpy and pandas were not installed: {}", done.stderr));
        return;
    }
    done.expect(0, "3\n");
    install().expect(0, "3\n");
}
