use std::sync::Arc;
use std::time::Duration;

use sandbox::engine::fake::Operation;
use sandbox::{ErrorKind, Network, Owner, WriteOptions};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tools::profile::Cloudflare;
use tools::{Body, Call, Ceiling, Content, Embedded, Output, Policy, ProfileOption, ProfileOptions};

use crate::support::{World, text};

async fn world_with(options: &[ProfileOption], policy: Policy) -> World {
    let mut chosen = ProfileOptions::default();
    options.iter().for_each(|option| chosen.add(*option));
    World::speaking_as(Arc::new(Cloudflare::new(chosen)), policy).await
}

/// With a container that runs.
async fn world(options: &[ProfileOption]) -> World {
    let world = world_with(options, Policy::default()).await;
    initialize(&world, world.caller()).await;
    world
}

async fn initialize(world: &World, call: Call) {
    let output = world.call_as(call, "container_initialize", json!({})).await;
    assert_eq!((output.is_error, text(&output).as_str()), (false, "Created new container"));
}

async fn exec_as(world: &World, call: Call, command: &str) -> Output {
    world.call_as(call, "container_exec", json!({ "args": { "args": command } })).await
}

async fn exec(world: &World, command: &str) -> Output {
    exec_as(world, world.caller(), command).await
}

/// The text of the one resource of an answer, and what stands behind it.
async fn read(world: &World, path: &str) -> (String, String, String) {
    let output = world.call("container_file_read", json!({ "args": { "path": path } })).await;
    let Some(Content::Embedded(Embedded { mime_type, body: Body::Text(body), .. })) = output.content.first() else {
        panic!("{output:?}");
    };
    (mime_type.clone(), body.clone(), text(&output))
}

#[tokio::test]
async fn each_user_has_one_container_for_all_sessions() {
    let world = world_with(&[], Policy::default()).await;
    let stranger = || world.caller_as("stranger".parse().unwrap());
    for call in [world.caller(), world.caller(), stranger()] {
        initialize(&world, call).await;
    }
    exec(&world, "echo mine > note").await;
    assert_eq!(text(&exec(&world, "cat note").await), "mine\nProcess exited with code: 0", "in another session");
    let theirs = text(&exec_as(&world, stranger(), "cat note").await);
    assert!(!theirs.contains("mine") && theirs.ends_with("Process exited with code: 1"), "{theirs}");
    initialize(&world, world.caller()).await;
    assert_eq!(text(&exec(&world, "cat note").await), "mine\nProcess exited with code: 0", "it was made anew");
    for owner in [Owner::local(), "stranger".parse().unwrap()] {
        assert_eq!(world.service.list(&owner).await.unwrap().len(), 1, "{owner}");
    }
}

#[tokio::test]
async fn a_container_outlives_its_server_unless_the_operator_wants_it_to_end() {
    for (options, is_kept) in [(&[][..], true), (&[ProfileOption::EndContainers], false)] {
        let world = world(options).await;
        exec(&world, "echo one > note").await;
        let made = world.service.list(&Owner::local()).await.unwrap().pop().unwrap();
        assert_eq!(made.lifetime.total.is_some(), is_kept, "a program in it could keep it for ever");
        let world = world.restarted().await;
        let found = exec(&world, "cat note").await;
        assert_eq!(found.is_error, !is_kept, "{found:?}");
        assert_eq!(text(&found).starts_with("one\n"), is_kept, "{found:?}");
    }
}

/// Both begin at the same moment, and the engine takes its time.
#[tokio::test]
async fn two_servers_of_one_user_have_one_container() {
    let first = world_with(&[], Policy::default()).await;
    let second = first.beside().await;
    first.host.delay(Operation::Create, Duration::from_millis(300));
    let file = |name: &str| json!({ "args": { "path": name, "text": name } });
    tokio::join!(
        async {
            initialize(&first, first.caller()).await;
            assert_eq!(text(&first.call("container_file_write", file("a")).await), "Wrote file: a");
        },
        async {
            initialize(&second, second.caller()).await;
            assert_eq!(text(&second.call("container_file_write", file("b")).await), "Wrote file: b");
        }
    );
    for world in [&first, &second] {
        assert_eq!(text(&exec(world, "cat a b").await), "abProcess exited with code: 0");
        assert_eq!(text(&world.call("container_ping", json!({})).await), "pong!");
    }
    assert_eq!(first.host.existing().len(), 1);
    // It is neither's: the end of one is not the end of it.
    let first = first.restarted().await;
    assert_eq!(text(&exec(&second, "cat a").await), "aProcess exited with code: 0");
    assert_eq!(text(&exec(&first, "cat b").await), "bProcess exited with code: 0");
}

#[tokio::test]
async fn a_container_that_died_is_not_alive_and_is_made_anew() {
    let world = world(&[]).await;
    let beside = world.beside().await;
    exec(&beside, "echo x > note").await;
    world.host.kill(&world.host.existing()[0]);
    for world in [&world, &beside] {
        let ping = world.call("container_ping", json!({})).await;
        assert!(ping.is_error && text(&ping).contains("call container_initialize first"), "{ping:?}");
    }
    for world in [&world, &beside] {
        initialize(world, world.caller()).await;
        let found = text(&exec(world, "cat note").await);
        assert!(found.ends_with("Process exited with code: 1"), "it is another one, without its files: {found}");
    }
    assert_eq!(world.host.existing().len(), 1);
}

#[tokio::test]
async fn an_image_that_is_not_there_is_told_at_once() {
    let world = world_with(&[], Policy { image: "nobody/has-it:1".parse().unwrap(), ..Policy::default() }).await;
    world.host.fail(Operation::Create, usize::MAX, ErrorKind::NotFound);
    let refused = world.call("container_initialize", json!({})).await;
    assert!(refused.is_error && text(&refused).starts_with("Failed to start container: "), "{refused:?}");
    assert_eq!(world.host.calls(Operation::Create), 1);
}

#[tokio::test]
async fn before_it_is_started_there_is_no_container() {
    let world = world_with(&[], Policy::default()).await;
    let output = exec(&world, "true").await;
    assert!(output.is_error && text(&output).contains("call container_initialize first"), "{output:?}");
}

#[tokio::test]
async fn failures_are_flagged_only_where_the_operator_wants_it() {
    for (options, flagged) in [(&[][..], false), (&[ProfileOption::FlagFailures], true)] {
        let world = world(options).await;
        let failed = exec(&world, "exit 3").await;
        assert_eq!((failed.is_error, text(&failed).as_str()), (flagged, "Process exited with code: 3"));
        assert!(!exec(&world, "true").await.is_error);
    }
}

#[tokio::test]
async fn files_are_listed_as_they_were_or_as_they_can_be_read() {
    for (options, listed) in [(&[][..], "file:///../../../../a.txt"), (&[ProfileOption::PlainUris], "file:///a.txt")] {
        let world = world(options).await;
        exec(&world, "echo hello > a.txt").await;
        assert_eq!(read(&world, "").await, ("text/directory".to_owned(), listed.to_owned(), String::new()));
        assert_eq!(read(&world, listed).await.1, "hello\n");
    }
}

/// The first of the rows are the older server's own; with the others, bytes come as bytes.
#[tokio::test]
async fn files_are_text_or_bytes_by_their_names() {
    const OFFICE: &str = "application/vnd.openxmlformats-officedocument";
    let world = world(&[]).await;
    for (names, kind, is_text) in [
        (&["a.txt", "a.log"][..], "text/plain", true),
        (&["a.md"], "text/markdown", true),
        (&["a.csv"], "text/csv", true),
        (&["a.html"], "text/html", true),
        (&["a.css"], "text/css", true),
        (&["a.js"], "text/javascript", true),
        (&["a.yaml"], "text/yaml", true),
        (&["a.c"], "text/x-c", true),
        (&["a.py", "a.go", "a.ipynb", "a.tsx", "Makefile"], "text/plain; charset=UTF-8", true),
        (&["a.json"], "application/json", false),
        (&["a.ts"], "video/mp2t", false),
        (&["a.sh"], "application/x-sh", false),
        (&["a.toml"], "application/toml", false),
        (&["a.xml"], "application/xml", false),
        (&["a.svg"], "image/svg+xml", false),
        (&["a.png", "B.PNG"], "image/png", false),
        (&["a.xlsx"], &format!("{OFFICE}.spreadsheetml.sheet"), false),
        (&["a.docx"], &format!("{OFFICE}.wordprocessingml.document"), false),
        (&["a.pptx"], &format!("{OFFICE}.presentationml.presentation"), false),
        (&["a.7z"], "application/x-7z-compressed", false),
        (&["a.bz2"], "application/x-bzip2", false),
        (&["a.tif", "a.tiff"], "image/tiff", false),
        (&["a.mov"], "video/quicktime", false),
        (&["a.ttf"], "font/ttf", false),
        (&["a.jar"], "application/java-archive", false),
    ] {
        for name in names {
            exec(&world, &format!("printf 'plain é' > {name}")).await;
            let resource = resource(&world, name).await;
            let body = if is_text { json!("plain é") } else { json!("plain é".as_bytes()) };
            assert_eq!(resource, (kind.to_owned(), body), "{name}");
        }
    }
    let owner = Owner::local();
    let files = world.service.files(&owner, &world.service.list(&owner).await.unwrap()[0].id).unwrap();
    for name in ["model.pkl", "data"] {
        let path = format!("/workspace/{name}").parse().unwrap();
        let mut file = files.write(&path, WriteOptions::default()).await.unwrap();
        file.write_all(&[0x80, 4, 0xff]).await.unwrap();
        file.commit().await.unwrap();
        let bytes = ("application/octet-stream".to_owned(), json!([0x80, 4, 0xff]));
        assert_eq!(resource(&world, name).await, bytes, "what is no text is not made to be any: {name}");
    }
}

/// The type of a file, and its text or its bytes.
async fn resource(world: &World, path: &str) -> (String, Value) {
    let output = world.call("container_file_read", json!({ "args": { "path": path } })).await;
    match output.content.first() {
        Some(Content::Embedded(Embedded { mime_type, body: Body::Text(text), .. })) => (mime_type.clone(), json!(text)),
        Some(Content::Embedded(Embedded { mime_type, body: Body::Bytes(bytes), .. })) => {
            (mime_type.clone(), json!(bytes))
        }
        _ => panic!("{output:?}"),
    }
}

#[tokio::test]
async fn a_link_is_what_it_leads_to() {
    let world = world(&[ProfileOption::PlainUris]).await;
    exec(&world, "mkdir sub; echo hello > sub/a.txt; ln -s sub there; ln -s sub/a.txt file.txt; ln -s gone lost").await;
    assert_eq!(read(&world, "there").await.1, "file:///there/a.txt");
    assert_eq!(read(&world, "file.txt").await.1, "hello\n");
    let lost = world.call("container_file_read", json!({ "args": { "path": "lost" } })).await;
    assert_eq!((lost.is_error, text(&lost).as_str()), (true, "Request to container failed: 404 Not Found"));
}

#[tokio::test]
async fn a_list_that_is_cut_says_so() {
    let world = world(&[]).await;
    let names = |count: usize| (0..count).map(|number| format!(" {number}")).collect::<String>();
    exec(&world, &format!("touch{}", names(10_000))).await;
    let (_, whole, besides) = read(&world, "").await;
    assert_eq!((whole.lines().count(), besides.as_str()), (10_000, ""));
    exec(&world, "touch more").await;
    let (_, cut, besides) = read(&world, "").await;
    assert_eq!((cut.lines().count(), besides.as_str()), (10_000, "[there are more: only 10000 are listed]"));
}

#[tokio::test]
async fn a_written_file_is_told_by_its_path() {
    let world = world(&[]).await;
    for (path, told) in [("a.txt", "a.txt"), ("file://b.txt", "b.txt"), ("file:///c.txt", "/c.txt")] {
        let output = world.call("container_file_write", json!({ "args": { "path": path, "text": "x" } })).await;
        assert_eq!(text(&output), format!("Wrote file: {told}"));
    }
}

/// Made through another server of the same user, which allows more.
#[tokio::test]
async fn a_container_that_reaches_more_than_is_allowed_here_is_not_used() {
    let open = Ceiling { network: Network::Internet, ..Ceiling::default() };
    let world = world_with(&[], Policy { network: Network::Internet, ceiling: open, ..Policy::default() }).await;
    initialize(&world, world.caller()).await;
    let narrow = Arc::new(Policy::default());
    for (tool, arguments) in [
        ("container_initialize", Value::Object(serde_json::Map::new())),
        ("container_ping", json!({})),
        ("container_exec", json!({ "args": { "args": "true" } })),
        ("container_file_read", json!({ "args": { "path": "" } })),
    ] {
        let call = Call { policy: Arc::clone(&narrow), ..world.caller() };
        let output = world.call_as(call, tool, arguments).await;
        assert!(output.is_error && text(&output).contains("denied"), "{tool}: {output:?}");
    }
    assert!(!exec(&world, "true").await.is_error);
}

/// By a relative path and by its address, in whichever form that is listed.
#[tokio::test]
async fn a_directory_that_is_called_like_the_work_directory_is_reached() {
    for options in [&[][..], &[ProfileOption::PlainUris]] {
        let world = world(options).await;
        exec(&world, "mkdir workspace; echo above > a; echo below > workspace/a").await;
        let (_, listed, _) = read(&world, "").await;
        let address = listed.lines().find(|line| line.ends_with("workspace")).unwrap();
        let (_, below, _) = read(&world, address).await;
        assert_eq!(read(&world, &below).await.1, "below\n", "{below}");
        let path = json!({ "args": { "path": "workspace/a" } });
        assert_eq!(text(&world.call("container_file_delete", path).await), "File deleted: true.");
        assert_eq!(read(&world, address).await.1, "");
        assert_eq!(read(&world, "/workspace/a").await.1, "above\n");
        let path = json!({ "args": { "path": address } });
        assert_eq!(text(&world.call("container_file_delete", path).await), "File deleted: true.");
        assert!(read(&world, "").await.1.ends_with("/a"), "{address} is still there");
    }
}
