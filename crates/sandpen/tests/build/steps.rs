//! What a build is made of: configuration, history, the cache, names.

use serde_json::{Value, json};

use crate::place::Place;

#[test]
fn every_word_is_in_the_configuration() {
    let place = Place::new();
    place.build_with(
        "ARG GLOBAL=g\nFROM scratch\nARG GLOBAL\nARG GIVEN=default\nARG TARGETARCH\nENV A=1 B=\"two words\"\nENV A=$A-$GLOBAL-$GIVEN\n\
         LABEL version=1 \"a b\"=c\nWORKDIR /srv\nUSER 1000:7\nEXPOSE 80 53/udp\nVOLUME /data [\"/x\"]\nSHELL [\"/bin/bash\", \"-c\"]\n\
         STOPSIGNAL SIGINT\nHEALTHCHECK --interval=1m30s --retries=2 CMD test -e /ok\nMAINTAINER somebody\nENTRYPOINT [\"/run\", \"$A\"]\nCMD serve --all\n",
        &["--build-arg", "GIVEN=mine"],
    );
    let config = place.config("made:1");
    let run = &config["config"];
    assert_eq!(
        run["Env"],
        json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "A=1-g-mine", "B=two words"])
    );
    assert_eq!(run["Labels"], json!({"version": "1", "a b": "c"}));
    assert_eq!((&run["WorkingDir"], &run["User"]), (&json!("/srv"), &json!("1000:7")));
    assert_eq!(run["ExposedPorts"], json!({"80/tcp": {}, "53/udp": {}}));
    assert_eq!(run["StopSignal"], "SIGINT");
    let check = json!({"Test": ["CMD-SHELL", "test -e /ok"], "Interval": 90_000_000_000u64, "Retries": 2});
    assert_eq!((&run["Healthcheck"], &config["author"]), (&check, &json!("somebody")));
    assert_eq!(run["Entrypoint"], json!(["/run", "$A"]));
    assert_eq!(run["Cmd"], json!(["/bin/bash", "-c", "serve --all"]));
    let history = config["history"].as_array().unwrap();
    assert_eq!(history.len(), 16, "one for each step");
    let layers = history.iter().filter(|entry| entry["empty_layer"] != Value::Bool(true)).count();
    assert_eq!(layers, config["rootfs"]["diff_ids"].as_array().unwrap().len());
}

#[test]
fn steps_that_nothing_changed_for_are_not_done_again() {
    let place = Place::new();
    place.file("one", "1").file("two", "2");
    let dockerfile = "FROM scratch\nCOPY one /a/\nLABEL x=1\nCOPY two /b/\nWORKDIR /a\n";
    let first = place.build(dockerfile);
    assert_eq!(Place::made(&first), ["layer", "metadata", "layer", "no_change"]);
    let second = place.build(dockerfile);
    assert_eq!(Place::made(&second), ["cached", "metadata", "cached", "no_change"]);
    assert_eq!(first["digest"], second["digest"], "the same image again");

    // New times are no change; a new mode or new contents are.
    std::fs::write(place.context().join("one"), "1").unwrap();
    assert_eq!(place.build(dockerfile)["digest"], first["digest"]);
    place.mode("one", 0o700);
    assert_eq!(Place::made(&place.build(dockerfile)), ["layer", "metadata", "cached", "no_change"]);
    place.file("two", "3");
    assert_eq!(Place::made(&place.build(dockerfile)), ["cached", "metadata", "layer", "no_change"]);
    let anew = place.build_with(dockerfile, &["--no-cache"]);
    assert_eq!(Place::made(&anew), ["layer", "metadata", "layer", "no_change"]);

    let pruned = place.0.run(&["--json", "image", "prune"]).json();
    assert!(pruned["removed_steps"].as_u64().unwrap() >= 4, "{pruned}");
    assert_eq!(place.tree("made:1").len(), 4, "an image stays whole without the steps");
    assert_eq!(Place::made(&place.build(dockerfile)), ["layer", "metadata", "layer", "no_change"]);
}

#[test]
fn the_date_can_be_fixed() {
    let place = Place::new();
    place.file("file", "x");
    place.0.write("Dockerfile", "FROM scratch\nCOPY file /a/b\nLABEL a=b\n");
    let mut digests = Vec::new();
    for more in [&[][..], &["--no-cache"]] {
        let arguments =
            [&["--json", "image", "build", "-t", "made:1", "-f", "Dockerfile"], more, &["context"]].concat();
        let output = place.0.command(&arguments).env("SOURCE_DATE_EPOCH", "86400").output().unwrap();
        let built: Value = serde_json::from_slice(&output.stdout).unwrap();
        digests.push(built["digest"].clone());
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    assert_eq!(digests[0], digests[1]);
    let config = place.config("made:1");
    assert!(config["created"].as_str().unwrap().starts_with("1970-01-02T00:00:00"), "{config}");
}

#[test]
fn images_get_names_and_kept_steps_are_not_shown() {
    let place = Place::new();
    place.file("file", "x");
    let built = place.build_with(
        "FROM scratch AS one\nCOPY file /a\nFROM one\nLABEL last=yes\n",
        &["-t", "other:2", "--target", "one"],
    );
    let names: Vec<&str> =
        built["images"].as_array().unwrap().iter().filter_map(|image| image["image"].as_str()).collect();
    assert_eq!(names, ["made:1", "other:2"]);
    assert!(place.config("other:2")["config"]["Labels"].is_null());
    assert_eq!(place.0.run(&["image", "ls", "-q"]).stdout, "made:1\nother:2\n");
    let done = place.0.run(&["image", "build", "-f", "Dockerfile", "context"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.starts_with("built sha256:"), "{}", done.stdout);
    done.says("has no name").says("[1/2]");
}

#[test]
fn what_fails_gives_no_image() {
    let place = Place::new();
    place.file("file", "x");
    place.fails("FROM scratch\nCOPY file /a\nCOPY missing /b\n", "not_found", "missing");
    assert_eq!(place.0.run(&["image", "ls", "-q"]).stdout, "");
    let again = place.build("FROM scratch\nCOPY file /a\nCOPY file /b\n");
    assert_eq!(Place::made(&again), ["cached", "layer"], "what was finished is kept");
}

#[test]
fn two_builds_at_once_do_not_mind_each_other() {
    let place = Place::new();
    for number in 0..50 {
        place.file(&format!("dir/{number}"), &"x".repeat(1000 + number));
    }
    place.0.write("Dockerfile", "FROM scratch\nCOPY dir /a\nCOPY dir /b\nWORKDIR /c\n");
    let build = |name: &str| {
        place.0.command(&["--json", "image", "build", "-t", name, "-f", "Dockerfile", "context"]).spawn().unwrap()
    };
    let both = [build("x:1"), build("x:2")].map(|child| child.wait_with_output().unwrap());
    for output in &both {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(place.tree("x:1"), place.tree("x:2"));
    assert_eq!(place.tree("x:1").len(), 103);
}
