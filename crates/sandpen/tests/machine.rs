//! `sandpen bench` and `sandpen doctor` on the machine that runs the tests, and a language that it is told of.

mod support;

use support::{Engine, World, is_embedded, missing_layers, sandboxes_work};

#[test]
fn rows_are_measured_and_compared() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let measure = |names: &[&str]| {
        let only = names.iter().flat_map(|name| ["--only", name]);
        let arguments: Vec<&str> = ["bench", "--json", "--runs", "2"].into_iter().chain(only).collect();
        let object = world.run(&arguments).json();
        let told: Vec<_> = object["rows"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
        assert_eq!(told, names);
        assert!(object["rows"][1]["median_ms"].as_f64().unwrap() > 0.0);
        object["rows"].clone()
    };
    if !is_embedded("how a sandbox compares with a bare program, layers of images and many sandboxes at once") {
        let rows = measure(&["client-exec", "exec-true"]);
        assert!(rows[1]["times_client"].as_f64().unwrap() > 0.0);
        world.run(&["bench", "--only", "exec-tru"]).expect(1, "").says("did you mean exec-true?");
        return;
    }
    let rows = measure(&["bare-true", "sandbox-true", "exec-true"]);
    assert_eq!(rows[0]["times_bare"], 1.0);

    let layers = world.run(&["bench", "--json", "--runs", "2", "--only", "layers"]).json();
    assert_eq!(layers["trees"]["layers"], 20, "{layers}");
    assert!(layers["trees"]["start_layers_ms"].as_f64().unwrap() > 0.0);
    world.run(&["image", "ls", "--quiet"]).expect(0, "");

    let many = world.run(&["bench", "--markdown", "--alive", "3", "--only", "alive"]);
    assert!(many.stdout.contains("| creation, 3 others alive | "), "{many:?}");
    world.run(&["bench", "--only", "bare-tru"]).expect(1, "").says("did you mean bare-true?");
}

#[test]
fn the_doctor_names_every_layer_language_and_engine() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let object = world.run(&["doctor", "--json"]).json();
    let layers = object["layers"].as_array().unwrap();
    assert_eq!(layers.len(), sandbox::Layer::ALL.len());
    assert!(object["languages"].as_array().unwrap().iter().any(|language| language["language"] == "python"));
    let text = world.run(&["doctor"]).stdout;
    match Engine::of_test() {
        Engine::Embedded => {
            assert!(layers[0]["available"].as_bool().unwrap());
            assert!(object["network"]["available"].is_boolean(), "{}", object["network"]);
            assert_eq!(object["engines"][0]["engine"], "native");
            assert_eq!(object["engines"][0]["state"], "works");
            assert!(text.contains("\nIsolation\n  ✓ user-namespace "), "{text}");
        }
        // What stands is measured on a sandbox, and the engine is the one that was asked for.
        Engine::OfDaemon { name, .. } => {
            let off = layers.iter().filter(|layer| layer["state"] != "on");
            assert_eq!(off.map(|layer| layer["layer"].as_str().unwrap()).collect::<Vec<_>>(), missing_layers());
            assert_eq!((&object["engine"], &object["trial"]["works"]), (&name.into(), &true.into()), "{object}");
            assert!(text.contains("\nIsolation\n  ✗ user-namespace "), "{text}");
        }
    }
}

#[test]
fn an_operator_can_add_a_language() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    world.write(
        "more.toml",
        "[[runner]]\nname = \"shout\"\ntitle = \"Shout\"\nfile = \"main.shout\"\nplace = \"work\"\n\
         run = [[\"tr\", \"a-z\", \"A-Z\"]]\nprobe = [[\"tr\", \"--version\"]]\n",
    );
    world.run_with_stdin(&["run", "--runners", "more.toml", "shout", "unused"], "hello\n").expect(0, "HELLO\n");
}
