//! `sandpen bench` and `sandpen doctor` on the machine that runs the tests, and a language that it is told of.

mod support;

use support::{World, sandboxes_work};

#[test]
fn rows_are_measured_and_compared() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let arguments =
        ["bench", "--json", "--runs", "2", "--only", "bare-true", "--only", "sandbox-true", "--only", "exec-true"];
    let object = world.run(&arguments).json();
    let names: Vec<_> = object["rows"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["bare-true", "sandbox-true", "exec-true"]);
    assert_eq!(object["rows"][0]["times_bare"], 1.0);
    assert!(object["rows"][1]["median_ms"].as_f64().unwrap() > 0.0);

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
    assert_eq!(object["layers"].as_array().unwrap().len(), sandbox::Layer::ALL.len());
    assert!(object["layers"][0]["available"].as_bool().unwrap());
    assert!(object["network"]["available"].is_boolean(), "{}", object["network"]);
    assert_eq!(object["engines"][0]["engine"], "native");
    assert_eq!(object["engines"][0]["state"], "works");
    assert!(object["languages"].as_array().unwrap().iter().any(|language| language["language"] == "python"));
    let text = world.run(&["doctor"]).stdout;
    assert!(text.contains("\nIsolation\n  ✓ user-namespace "), "{text}");
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
