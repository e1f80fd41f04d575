//! Sandboxes that become images, and sandboxes from those.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use engine_native::NativeEngine;
use images::RunConfig;
use sandbox::{
    Checkpoints, Engine, ErrorKind, ExecRequest, ExecStatus, Image, Owner, Persistence, Result, SandboxId, SandboxSpec,
    SavedImage, SavedName, Snapshots,
};

use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, is_root};
use crate::tests;

tests!(
    what_is_saved_is_there_again,
    an_image_s_own_words_stay,
    layers_lie_upon_each_other,
    what_was_removed_stays_removed,
    files_can_be_changed_again,
    a_name_means_the_last_one_saved,
    saved_images_are_their_owner_s,
    a_persistent_sandbox_is_saved_by_another_process,
    a_sandbox_is_saved_while_it_works,
    nothing_of_the_machine_is_saved,
    names_that_would_remove_something_are_left_out,
    more_than_a_disk_is_not_saved,
    a_save_that_is_given_up_leaves_nothing,
    a_sandbox_from_a_directory_is_not_saved,
    what_does_not_fit_is_told,
    checkpoints_are_saved_with_what_came_after,
    forks_are_saved_with_what_they_had,
);

fn name(text: &str) -> SavedName {
    text.parse().unwrap()
}

async fn save(sandbox: &Sandbox, text: &str) -> SavedImage {
    sandbox.engine.save(&sandbox.id, &name(text)).await.unwrap()
}

async fn from(engine: &Arc<NativeEngine>, image: &str) -> Sandbox {
    create(engine.clone(), image, Persistence::Ephemeral).await.unwrap()
}

async fn of(engine: &Arc<NativeEngine>, owner: &str, image: &str) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(owner.parse()?);
    spec.image = image.parse::<Image>()?;
    let id = SandboxId::random()?;
    engine.create(&id, &spec).await?;
    Ok(Sandbox { engine: engine.clone(), id })
}

async fn what_is_saved_is_there_again(place: Place) {
    place.image("plain", vec![system()], RunConfig::default());
    let engine = place.engine().await;
    for (image, saved) in [("host", "lab-host"), ("plain", "lab-plain")] {
        let first = from(&engine, image).await;
        let script = "mkdir -p deep/er; echo one >deep/er/file; ln -s deep/er/file link; echo s >secret; \
                      chmod 600 secret; chmod 750 deep .; echo h >~/home-file; echo t >/tmp/temporary; mkdir empty";
        first.says(script).await;
        first.says("ln deep/er/file hard").await;
        let before = save(&first, saved).await;
        assert!(before.bytes > 0 && before.left_out == 0, "{before:?}");
        assert_eq!(engine.saved(&Owner::local()).await.unwrap().last(), Some(&before));
        first.destroy().await;
        let again = from(&engine, &format!("saved:{saved}")).await;
        assert_eq!(again.says("cat link secret ~/home-file /tmp/temporary").await, "one\ns\nh\nt\n", "{image}");
        let modes = "stat -c '%a %u %h' secret deep deep/er/file hard empty; stat -c '%a %u' . ~ /tmp";
        let expected = "600 1000 1\n750 1000 3\n644 1000 2\n644 1000 2\n755 1000 2\n750 1000\n755 1000\n1777 0\n";
        assert_eq!(again.says(modes).await, expected, "{image}");
        again.says("id >/dev/null; touch new ~/new /tmp/new").await;
        again.destroy().await;
    }
}

async fn an_image_s_own_words_stay(place: Place) {
    let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:4242:77:app:/srv/app:/bin/sh\n";
    let files = Layer::new()
        .file("etc/passwd", 0o644, passwd)
        .file("workspace/from-image", 0o644, "image\n")
        .owner(4242, 77)
        .directory("srv/app", 0o755);
    let run = RunConfig {
        user: "app".to_owned(),
        env: vec!["GREETING=hello".to_owned()],
        cmd: vec!["/bin/tool".to_owned()],
        ..RunConfig::default()
    };
    place.image("app", vec![system(), files.finish()], run.clone());
    let engine = place.engine().await;
    let first = from(&engine, "app").await;
    assert_eq!(first.says("cat from-image").await, "image\n", "what the image has in the work directory is seen");
    first.says("echo mine >mine").await;
    let saved = save(&first, "lab").await;
    first.destroy().await;
    let again = from(&engine, "saved:lab").await;
    assert_eq!(
        again.says("id -u; echo $GREETING; cat from-image mine; echo more >>mine").await,
        "4242\nhello\nimage\nmine\n"
    );
    again.destroy().await;
    let named =
        place.store.names().unwrap().into_iter().find(|named| saved.digest == named.manifest.digest.qualified());
    let (manifest, config) = place.store.describe(&named.unwrap().manifest).unwrap();
    assert_eq!((manifest.layers.len(), &config.config.cmd, &config.config.user), (3, &run.cmd, &run.user));
}

async fn layers_lie_upon_each_other(place: Place) {
    let engine = place.engine().await;
    let mut sandbox = from(&engine, "host").await;
    for round in 0..4 {
        sandbox.says(&format!("echo {round} >>all; echo {round} >file-{round}; echo {round} >last")).await;
        let saved = save(&sandbox, "lab").await;
        assert!(saved.bytes < 64 << 10, "{saved:?}");
        sandbox.destroy().await;
        sandbox = from(&engine, "saved:lab").await;
    }
    assert_eq!(sandbox.says("cat all last file-0 file-3").await, "0\n1\n2\n3\n3\n0\n3\n");
    sandbox.destroy().await;
    let named = place.store.names().unwrap();
    let (manifest, _) = place.store.describe(&named.last().unwrap().manifest).unwrap();
    assert_eq!(manifest.layers.len(), if is_root() { 4 } else { 1 }, "as an ordinary user there is one for all");
}

async fn what_was_removed_stays_removed(place: Place) {
    let files = Layer::new().file("workspace/a", 0o644, "a").file("workspace/d/b", 0o644, "b").finish();
    place.image("plain", vec![system(), files], RunConfig::default());
    let engine = place.engine().await;
    let first = from(&engine, "plain").await;
    first.says("echo one >one; mkdir two; echo x >two/x; rm a").await;
    save(&first, "lab").await;
    first.destroy().await;
    let second = from(&engine, "saved:lab").await;
    assert_eq!(second.says("ls").await, "d\none\ntwo\n");
    second.says("rm one; rm -r two; mkdir two; echo y >two/y").await;
    save(&second, "lab").await;
    second.destroy().await;
    let third = from(&engine, "saved:lab").await;
    assert_eq!(third.says("ls . two").await, ".:\nd\ntwo\n\ntwo:\ny\n");
    third.destroy().await;
}

async fn files_can_be_changed_again(place: Place) {
    let engine = place.engine().await;
    let first = from(&engine, "host").await;
    first.says("umask 077; mkdir d; echo one >d/file").await;
    save(&first, "lab").await;
    let second = from(&engine, "saved:lab").await;
    second.says("echo two >>d/file; mv d e; chmod 700 e/file; rm -f nothing").await;
    assert_eq!(second.says("cat e/file").await, "one\ntwo\n");
    assert_eq!(first.says("cat d/file").await, "one\n");
    let third = from(&engine, "saved:lab").await;
    assert_eq!(third.says("cat d/file").await, "one\n");
    for sandbox in [first, second, third] {
        sandbox.destroy().await;
    }
}

async fn a_name_means_the_last_one_saved(place: Place) {
    let engine = place.engine().await;
    let sandbox = from(&engine, "host").await;
    sandbox.says("echo one >file").await;
    let first = save(&sandbox, "lab").await;
    let old = from(&engine, "saved:lab").await;
    sandbox.says("echo two >file").await;
    let second = save(&sandbox, "lab").await;
    assert_ne!(first.digest, second.digest);
    assert_eq!(engine.saved(&Owner::local()).await.unwrap(), [second]);
    assert!(engine.forget(&Owner::local(), &name("lab")).await.unwrap());
    assert!(!engine.forget(&Owner::local(), &name("lab")).await.unwrap());
    assert_eq!(old.says("cat file").await, "one\n");
    let missing = create(engine.clone(), "saved:lab", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for sandbox in [sandbox, old] {
        sandbox.destroy().await;
    }
    place.store.collect().unwrap();
    assert_eq!(place.store.size().unwrap(), 0, "nothing is left of what nobody uses");
}

async fn saved_images_are_their_owner_s(place: Place) {
    let engine = place.engine().await;
    let ann = of(&engine, "ann", "host").await.unwrap();
    ann.says("echo secret >file").await;
    let saved = save(&ann, "lab").await;
    let bob: Owner = "bob".parse().unwrap();
    assert_eq!(engine.saved(&bob).await.unwrap(), []);
    assert!(!engine.forget(&bob, &name("lab")).await.unwrap());
    let full = place.store.names().unwrap().pop().unwrap().reference.to_string();
    let by_digest = format!("{}@{}", full.trim_end_matches(":latest"), saved.digest);
    for image in ["saved:lab", &full, &by_digest] {
        let refused = of(&engine, "bob", image).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{image}");
    }
    let again = of(&engine, "ann", "saved:lab").await.unwrap();
    assert_eq!(again.says("cat file").await, "secret\n");
    for sandbox in [ann, again] {
        sandbox.destroy().await;
    }
}

async fn a_persistent_sandbox_is_saved_by_another_process(place: Place) {
    place.image("plain", vec![system()], RunConfig::default());
    let made = create(place.engine().await, "plain", Persistence::Persistent).await.unwrap();
    made.says("echo kept >file").await;
    let id = made.id.clone();
    // With its launcher; what is left is process 1.
    drop(made);
    let again = Sandbox { engine: place.engine().await, id };
    save(&again, "lab").await;
    let other = from(&again.engine, "saved:lab").await;
    assert_eq!(other.says("cat file").await, "kept\n");
    other.destroy().await;
    again.destroy().await;
}

async fn a_sandbox_is_saved_while_it_works(place: Place) {
    let engine = place.engine().await;
    let sandbox = from(&engine, "host").await;
    sandbox.says("echo still >still").await;
    let script = "while :; do for i in 1 2 3 4 5 6 7 8; do echo $i >t$i; mkdir d$i; done; rm -rf t? d?; done";
    let request = ExecRequest::shell(script, Duration::from_secs(60)).unwrap();
    let busy = engine.start(&sandbox.id, &request).await.unwrap();
    let mut saved = 0;
    for _ in 0..20 {
        match engine.save(&sandbox.id, &name("lab")).await {
            Ok(_) => saved += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WrongState, "{error:?}"),
        }
    }
    assert!(saved > 0, "a file was in the act of being written each time");
    drop(busy);
    let again = from(&engine, "saved:lab").await;
    assert_eq!(again.says("cat still").await, "still\n");
    for sandbox in [sandbox, again] {
        sandbox.destroy().await;
    }
}

/// All entries of what was saved last.
fn entries(place: &Place) -> Vec<String> {
    let named = place.store.names().unwrap().pop().unwrap();
    let (manifest, _) = place.store.describe(&named.manifest).unwrap();
    let blob = place.store.open_blob(manifest.layers.last().unwrap().digest).unwrap();
    let mut archive = tar::Archive::new(blob);
    let paths = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
    paths.collect()
}

async fn nothing_of_the_machine_is_saved(place: Place) {
    place.image("plain", vec![system()], RunConfig::default());
    let engine = place.engine().await;
    for image in ["host", "plain"] {
        let sandbox = from(&engine, image).await;
        sandbox.says("echo x >file; echo x >/dev/shm/x").await;
        let mut logged = ExecRequest::shell("echo logged", Duration::from_secs(30)).unwrap();
        logged.output = sandbox::OutputTarget::Log;
        logged.on_disconnect = sandbox::OnDisconnect::Continue;
        engine.start(&sandbox.id, &logged).await.unwrap().control.wait().await.unwrap();
        save(&sandbox, "lab").await;
        let expected = ["home/", "home/sandbox/", "tmp/", "workspace/", "workspace/file"];
        assert_eq!(entries(&place), expected, "{image}");
        sandbox.destroy().await;
    }
}

/// Names, and things that no image can hold.
async fn names_that_would_remove_something_are_left_out(place: Place) {
    let files = Layer::new().file("workspace/precious", 0o644, "kept\n").finish();
    place.image("plain", vec![system(), files], RunConfig::default());
    let engine = place.engine().await;
    let sandbox = from(&engine, "plain").await;
    sandbox.says("touch .wh.precious .wh..wh..opq .wh.; mkdir d; touch d/.wh..wh..opq; echo x >x").await;
    let host = from(&engine, "host").await;
    let script =
        "mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' || mkfifo two";
    host.says(script).await;
    assert_eq!(save(&sandbox, "hostile").await.left_out, 4);
    assert_eq!(save(&host, "special").await.left_out, 2);
    assert_eq!(engine.saved(&Owner::local()).await.unwrap()[1].left_out, 2);
    let again = from(&engine, "saved:hostile").await;
    assert_eq!(again.says("cat precious x; ls -A").await, "kept\nx\nd\nprecious\nx\n");
    for sandbox in [sandbox, host, again] {
        sandbox.destroy().await;
    }
}

async fn more_than_a_disk_is_not_saved(place: Place) {
    let engine = place.engine().await;
    let sandbox = from(&engine, "host").await;
    sandbox.says("truncate -s 4T huge").await;
    let refused = engine.save(&sandbox.id, &name("lab")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused:?}");
    let deep = "rm huge; i=0; while [ $i -lt 300 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done";
    sandbox.says(deep).await;
    let refused = engine.save(&sandbox.id, &name("lab")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused:?}");
    assert_eq!(engine.saved(&Owner::local()).await.unwrap(), []);
    sandbox.says("rm -r d; truncate -s 10M holes; echo end >>holes").await;
    save(&sandbox, "lab").await;
    let again = from(&engine, "saved:lab").await;
    assert_eq!(again.says("tail -c 4 holes; stat -c %s holes").await, "end\n10485764\n");
    for sandbox in [sandbox, again] {
        sandbox.destroy().await;
    }
}

async fn a_save_that_is_given_up_leaves_nothing(place: Place) {
    let engine = place.engine().await;
    let sandbox = from(&engine, "host").await;
    sandbox.says("head -c 200M /dev/urandom >large").await;
    for milliseconds in [1, 20, 100] {
        let lab = name("lab");
        let saving = engine.save(&sandbox.id, &lab);
        assert!(tokio::time::timeout(Duration::from_millis(milliseconds), saving).await.is_err());
    }
    assert_eq!(engine.saved(&Owner::local()).await.unwrap(), []);
    // What was under way ends by itself.
    let mut left = place.store.size().unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let postponed = place.store.collect().unwrap().postponed;
        left = place.store.size().unwrap();
        if left == 0 && !postponed {
            break;
        }
    }
    assert_eq!(left, 0);
    assert_eq!(sandbox.says("stat -c %s large").await, "209715200\n");
    sandbox.destroy().await;
}

async fn a_sandbox_from_a_directory_is_not_saved(place: Place) {
    let root = place.path("root");
    std::fs::create_dir(&root).unwrap();
    images::unpack(
        &system()[..],
        &images::Directory::open(&root).unwrap(),
        &images::Limits::default(),
        images::Links::Any,
    )
    .unwrap();
    let engine = place.engine().await;
    let sandbox = from(&engine, &format!("dir:{}", root.display())).await;
    let refused = engine.save(&sandbox.id, &name("lab")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    sandbox.destroy().await;
}

async fn what_does_not_fit_is_told(place: Place) {
    let engine = place.engine().await;
    let sandbox = from(&engine, "host").await;
    sandbox.says("head -c 20M /dev/zero >large").await;
    save(&sandbox, "lab").await;
    sandbox.destroy().await;
    let mut spec = SandboxSpec::new(Owner::local());
    spec.image = "saved:lab".parse().unwrap();
    spec.limits.disk = sandbox::ByteSize::mebibytes(8);
    let id = SandboxId::random().unwrap();
    let made = engine.create(&id, &spec).await;
    match is_root() {
        // It is shared, not copied.
        true => {
            made.unwrap();
            let small = Sandbox { engine, id };
            let (_, status) = small.run(&["sh", "-c", "echo x >>large"]).await.unwrap();
            assert_ne!(status, ExecStatus::Exited(0), "a copy of it does not fit");
            small.destroy().await;
        }
        false => assert_eq!(made.unwrap_err().kind(), ErrorKind::LimitExceeded),
    }
}

async fn checkpoints_are_saved_with_what_came_after(place: Place) {
    let engine = place.engine().await;
    let mut sandbox = from(&engine, "host").await;
    // The second time it is one that was made from a saved image.
    for round in ["one", "two"] {
        sandbox
            .says(&format!("umask 077; echo {round} >{round}; mkdir d; echo x >d/x; echo 1 >both; echo x >gone"))
            .await;
        if let Err(error) = engine.checkpoint(&sandbox.id).await {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            _ = writeln!(std::io::stdout(), "SKIPPED: {error}");
            return sandbox.destroy().await;
        }
        sandbox.says("rm -r d gone; mkdir d; echo y >d/y; echo 2 >>both").await;
        engine.checkpoint(&sandbox.id).await.unwrap();
        sandbox.says("echo 3 >>both").await;
        save(&sandbox, "lab").await;
        sandbox.destroy().await;
        sandbox = from(&engine, "saved:lab").await;
        assert_eq!(sandbox.says(&format!("cat {round} both d/y; ls d")).await, format!("{round}\n1\n2\n3\ny\ny\n"));
        sandbox.says("[ ! -e gone ]; echo more >>both; rm -r d both").await;
    }
    assert_eq!(sandbox.says("cat one two; ls").await, "one\ntwo\none\ntwo\n");
    sandbox.destroy().await;
}

async fn forks_are_saved_with_what_they_had(place: Place) {
    let engine = place.engine().await;
    let source = from(&engine, "host").await;
    source.says("umask 077; echo one >file").await;
    let new = SandboxId::random().unwrap();
    if let Err(error) = engine.fork(&source.id, &new, &SandboxSpec::new(Owner::local())).await {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        _ = writeln!(std::io::stdout(), "SKIPPED: {error}");
        return source.destroy().await;
    }
    let fork = Sandbox { engine: engine.clone(), id: new };
    source.destroy().await;
    fork.says("echo two >>file").await;
    save(&fork, "lab").await;
    fork.destroy().await;
    let again = from(&engine, "saved:lab").await;
    assert_eq!(again.says("cat file; stat -c '%a %u' file; echo three >>file").await, "one\ntwo\n600 1000\n");
    again.destroy().await;
}
