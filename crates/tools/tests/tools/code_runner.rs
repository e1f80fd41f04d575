use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandbox::engine::fake::FakeHost;
use sandbox::{
    ByteRange, ByteSize, Error, FileKind, Files, GuestPath, ImageRunner, ImageRunners, Limits, ListOptions, Network,
    Owner, Result, WriteOptions,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};
use tools::profile::CodeRunner;
use tools::profile::code_runner::{Conversation, Conversations, Directory, FileName, Links, Located};
use tools::{Body, Call, Ceiling, Policy, ProfileOption, ProfileOptions, Reason, Rejection};

use crate::support::{World, object, text};

type Stored = BTreeMap<FileName, Vec<u8>>;

/// Conversations without a host: their files, at the top alone, and one queue for all of them.
#[derive(Debug)]
pub struct Memory {
    kept: Arc<Mutex<BTreeMap<Directory, Stored>>>,
    queue: Arc<Queue<()>>,
    links: Links,
}

impl Default for Memory {
    fn default() -> Self {
        Self { kept: Arc::default(), queue: Arc::default(), links: Links::Resources }
    }
}

struct One {
    kept: Arc<Mutex<BTreeMap<Directory, Stored>>>,
    directory: Directory,
    _turn: OwnedMutexGuard<()>,
}

#[async_trait]
impl Conversations for Memory {
    async fn open(&self, conversation: &[u8], _: Limits) -> Result<Box<dyn Conversation>> {
        let turn = Arc::clone(&self.queue).lock_owned().await;
        let directory = Directory::of(conversation, b"secret");
        self.kept.lock().unwrap().entry(directory.clone()).or_default();
        Ok(Box::new(One { kept: Arc::clone(&self.kept), directory, _turn: turn }))
    }

    async fn read(&self, located: &Located, _: u64) -> Result<Vec<u8>> {
        let kept = self.kept.lock().unwrap();
        let found = kept.get(&located.directory).and_then(|files| files.get(&located.path[0]));
        found.cloned().ok_or_else(|| Error::not_found("no such file"))
    }

    fn links(&self) -> &Links {
        &self.links
    }
}

#[async_trait]
impl Conversation for One {
    fn directory(&self) -> &Directory {
        &self.directory
    }

    async fn files(&self) -> Result<Vec<FileName>> {
        Ok(self.kept.lock().unwrap()[&self.directory].keys().cloned().collect())
    }

    async fn memory(&self) -> Result<ByteSize> {
        Ok(ByteSize::new(self.kept.lock().unwrap()[&self.directory].values().map(|file| file.len() as u64).sum()))
    }

    async fn put(&mut self, name: &FileName, contents: Vec<u8>) -> Result<()> {
        self.kept.lock().unwrap().get_mut(&self.directory).unwrap().insert(name.clone(), contents);
        Ok(())
    }

    async fn lend(&mut self, files: &dyn Files, to: &GuestPath) -> Result<()> {
        let kept = self.kept.lock().unwrap()[&self.directory].clone();
        for (name, contents) in kept {
            let mut file = files.write(&to.join(name.as_bytes())?, WriteOptions::default()).await?;
            file.write_all(&contents).await.unwrap();
            file.commit().await?;
        }
        Ok(())
    }

    async fn take_back(&mut self, files: &dyn Files, from: &GuestPath) -> Result<()> {
        let mut found = Stored::new();
        let listing = files.list(from, ListOptions { recursive: false, max_entries: 100 }).await?;
        for entry in listing.entries.into_iter().filter(|entry| entry.stat.kind == FileKind::Regular) {
            let mut contents = Vec::new();
            files.read(&entry.path, ByteRange::default()).await?.stream.read_to_end(&mut contents).await.unwrap();
            found.insert(FileName::new(entry.path.file_name().unwrap())?, contents);
        }
        self.kept.lock().unwrap().insert(self.directory.clone(), found);
        Ok(())
    }
}

async fn world_with(options: &[ProfileOption], policy: Policy) -> World {
    let mut chosen = ProfileOptions::default();
    options.iter().for_each(|option| chosen.add(*option));
    World::speaking_as(Arc::new(CodeRunner::new(chosen, Arc::new(Memory::default()))), policy).await
}

async fn world() -> World {
    world_with(&[], Policy::default()).await
}

fn told(output: &tools::Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

async fn run_as(world: &World, call: Call, conversation: &str, code: &str) -> Value {
    let arguments = json!({ "conversationId": conversation, "language": "bash", "code": code });
    told(&world.call_as(call, "run_code", arguments).await)
}

async fn run(world: &World, code: &str) -> Value {
    run_as(world, world.caller(), "c", code).await
}

async fn upload(world: &World, name: &str, content: &str) -> Value {
    told(&world.call("upload_file", json!({ "conversationId": "c", "filename": name, "content": content })).await)
}

fn names(ran: &Value) -> Vec<&str> {
    ran["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn files_stay_with_their_conversation_and_nothing_else_does() {
    let world = world().await;
    let uploaded = upload(&world, "in.txt", "aGVsbG8K").await;
    assert_eq!(uploaded["message"], "File 'in.txt' uploaded successfully (6 bytes)");
    let directory = Directory::of(b"c", b"secret");
    assert_eq!(uploaded["file"]["url"], format!("files://{}/in.txt", directory.as_str()));
    let ran = run(&world, "cat in.txt; pwd; echo $FILE_BASE_URL; echo more > out.txt; echo gone > /tmp/x").await;
    assert_eq!(ran["stdout"], format!("hello\n/data\nfiles://{}\n", directory.as_str()));
    assert_eq!(names(&ran), ["in.txt", "out.txt"]);
    let ran = run(&world, "rm in.txt; cat out.txt /tmp/x").await;
    assert_eq!((&ran["success"], &ran["stdout"], names(&ran)), (&json!(false), &json!("more\n"), vec!["out.txt"]));
    assert!(world.service.list(&Owner::local()).await.unwrap().is_empty(), "a sandbox is left");
}

#[tokio::test]
async fn conversations_of_another_owner_are_others() {
    let world = world().await;
    run(&world, "echo mine > secret").await;
    let stranger: Owner = "stranger".parse().unwrap();
    let ran = run_as(&world, world.caller_as(stranger.clone()), "c", "ls; echo theirs > other").await;
    assert_eq!(names(&ran), ["other"]);
    assert_eq!(names(&run(&world, "true").await), ["secret"]);
    assert_eq!(names(&run_as(&world, world.caller_as(stranger), "c", "true").await), ["other"]);
}

/// Whoever chooses the words for a conversation chooses no owner by them.
#[tokio::test]
async fn no_name_of_a_conversation_leads_to_that_of_another_owner() {
    let world = world().await;
    let stranger: Owner = "stranger".parse().unwrap();
    run_as(&world, world.caller_as(stranger), "c", "echo theirs > secret").await;
    for name in ["stranger\0c", "\u{ff}stranger\0c", "\0stranger\0c"] {
        assert_eq!(names(&run_as(&world, world.caller(), name, "true").await), [""; 0], "{name:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_as_it_was() {
    let world = world().await;
    let all = json!({ "conversationId": "c", "language": "bash", "code": "true", "filename": "a", "content": "eA==" });
    for (tool, required) in [
        ("run_code", ["conversationId", "language", "code"]),
        ("upload_file", ["conversationId", "filename", "content"]),
    ] {
        let tool = world.catalog.find(tool).unwrap();
        for name in required {
            for missing in [None, Some(json!("")), Some(Value::Null)] {
                let mut arguments = object(all.clone());
                match missing {
                    Some(value) => arguments.insert(name.to_owned(), value),
                    None => arguments.remove(name),
                };
                let refused = tool.call(world.caller(), arguments).await.unwrap_err();
                assert_eq!(refused, Rejection::new(Reason::Parameters, format!("{name} is required")));
            }
            let mut arguments = object(all.clone());
            arguments.insert(name.to_owned(), json!(7));
            let refused = tool.call(world.caller(), arguments).await.unwrap_err();
            assert_eq!((refused.reason, refused.message.as_str()), (Reason::Parameters, "Invalid arguments"));
            assert_eq!(refused.detail, Some(json!(format!("{name} must be a string"))));
        }
    }
    for wrong in [json!({ "network": "yes" }), json!({ "environment": [] }), json!({ "environment": { "A": 1 } })] {
        // A wrong type is told before what is missing.
        let refused = world.catalog.find("run_code").unwrap().call(world.caller(), object(wrong)).await.unwrap_err();
        assert_eq!(refused.message, "Invalid arguments");
    }
    let refused = world.catalog.profile().unwrap().unknown_tool("nope").unwrap_err();
    assert_eq!(refused, Rejection::new(Reason::Method, "Tool not found: nope"));
}

#[tokio::test]
async fn what_cannot_be_done_is_a_result_without_success() {
    let world = world().await;
    let unknown = json!({ "conversationId": "c", "language": "klingon", "code": "x" });
    let ran = told(&world.call("run_code", unknown).await);
    assert_eq!(
        ran,
        json!({ "success": false, "stdout": "", "stderr": "Unsupported language: klingon",
                "output": "Unsupported language: klingon", "files": [] })
    );
    for (name, content) in [("a", "%"), ("a", "eA"), ("../a", "eA=="), ("a/b", "eA=="), ("..", "eA=="), ("a\0", "eA==")]
    {
        let told = upload(&world, name, content).await;
        assert!(told["success"] == false && told["message"].is_string() && told.get("file").is_none(), "{told}");
    }
    let arguments = json!({ "conversationId": "c", "language": "bash", "code": "true", "environment": { "A=": "x" } });
    assert_eq!(told(&world.call("run_code", arguments).await)["success"], false);
    let arguments = json!({ "conversationId": "c", "language": "bash", "code": "true", "network": true });
    let ran = told(&world.call("run_code", arguments).await);
    assert!(ran["stderr"].as_str().unwrap().starts_with("network access is not allowed"), "{ran}");
    assert_eq!(names(&run(&world, "true").await), [] as [&str; 0]);
}

#[tokio::test]
async fn a_network_is_there_only_when_it_is_asked_for() {
    let ceiling = Ceiling { network: Network::Internet, ..Ceiling::default() };
    let world = world_with(&[], Policy { ceiling, network: Network::Internet, ..Policy::default() }).await;
    let mut events = world.service.subscribe();
    for network in [None, Some(false), Some(true)] {
        let mut arguments = json!({ "conversationId": "c", "language": "bash", "code": "true" });
        if let Some(network) = network {
            arguments["network"] = json!(network);
        }
        world.call("run_code", arguments).await;
        let made = loop {
            if let sandbox::EventKind::Created { network, .. } = events.recv().await.unwrap().kind {
                break network;
            }
        };
        let expected = if network == Some(true) { Network::Internet } else { Network::None };
        assert_eq!(made, expected);
    }
}

#[tokio::test]
async fn variables_are_given_and_the_base_of_addresses_is_ours() {
    let world = world().await;
    let environment = json!({ "GREETING": "hello", "FILE_BASE_URL": "http://evil.example" });
    let code = "echo $GREETING; echo $FILE_BASE_URL";
    let arguments = json!({ "conversationId": "c", "language": "bash", "code": code, "environment": environment });
    let said = told(&world.call("run_code", arguments).await)["stdout"].as_str().unwrap().to_owned();
    assert!(said.starts_with("hello\nfiles://") && !said.contains("evil"), "{said}");
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_ended_and_its_files_are_kept() {
    let world = world_with(&[], Policy { timeout: Duration::from_millis(300), ..Policy::default() }).await;
    let ran = run(&world, "echo 1 > a; echo err >&2; sleep 100").await;
    assert_eq!(ran["success"], false);
    assert_eq!(ran["stderr"], "Execution timed out after 300ms\nerr\n");
    assert_eq!(names(&ran), ["a"]);
}

#[tokio::test]
async fn a_run_that_is_given_up_ends_and_its_files_are_kept() {
    let world = world().await;
    let call = world.caller();
    let cancelled = call.cancelled.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancelled.cancel();
    });
    let ran = run_as(&world, call, "c", "echo 1 > a; sleep 100").await;
    assert!(ran["success"] == false && ran["stderr"].as_str().unwrap().contains("cancelled"), "{ran}");
    assert_eq!(names(&run(&world, "true").await), ["a"]);
    assert!(world.service.list(&Owner::local()).await.unwrap().is_empty(), "a sandbox is left");
}

#[tokio::test]
async fn failures_are_flagged_only_where_the_operator_wants_it() {
    for (options, flagged) in [(&[][..], false), (&[ProfileOption::FlagFailures], true)] {
        let world = world_with(options, Policy::default()).await;
        let failing = json!({ "conversationId": "c", "language": "bash", "code": "exit 1" });
        assert_eq!(world.call("run_code", failing).await.is_error, flagged);
        let fine = json!({ "conversationId": "c", "language": "bash", "code": "true" });
        assert!(!world.call("run_code", fine).await.is_error);
    }
}

#[tokio::test]
async fn files_are_read_by_their_addresses() {
    let world = world().await;
    let text = upload(&world, "a b.txt", "aGVsbG8=").await;
    let bytes = upload(&world, "x.png", "/w==").await;
    let profile = world.catalog.profile().unwrap();
    let read = async |uri: &str| profile.read(&world.caller(), uri).await;
    let found = read(text["file"]["url"].as_str().unwrap()).await.unwrap();
    assert_eq!((found.mime_type, found.body), ("text/plain", Body::Text("hello".to_owned())));
    let found = read(bytes["file"]["url"].as_str().unwrap()).await.unwrap();
    assert_eq!((found.mime_type, found.body), ("image/png", Body::Bytes(vec![0xff])));
    let directory = Directory::of(b"c", b"secret");
    for uri in ["files://", "file:///etc/passwd", &format!("files://{}/../x", directory.as_str()), "files://x/y"] {
        assert_eq!(read(uri).await.unwrap_err().reason, Reason::Parameters, "{uri}");
    }
}

#[tokio::test]
async fn runners_are_the_languages_with_their_images() {
    let world = world().await;
    let listed = told(&world.call("list_runners", json!({})).await);
    let known = world.service.languages(&Owner::local(), &world.policy.image).await.unwrap();
    let (found, missing): (Vec<_>, Vec<_>) = known.iter().partition(|language| language.version.is_some());
    assert!(!found.is_empty() && !missing.is_empty(), "{known:?}");
    let found: Vec<_> = found.iter().map(|found| json!({ "language": found.name, "image": "host" })).collect();
    assert_eq!(listed["languages"], json!(found));
    // Which of them an image has is not known before somebody asks.
    let schema = &world.catalog.find("run_code").unwrap().input_schema;
    let languages: Vec<_> = known.iter().map(|language| language.name.clone()).collect();
    assert_eq!(schema["properties"]["language"]["enum"], json!(languages));
}

#[tokio::test]
async fn a_language_whose_program_is_missing_is_refused_as_one_that_nobody_knows() {
    let world = world().await;
    let missing = json!({ "conversationId": "c", "language": "ruby", "code": "puts 1" });
    let ran = told(&world.call("run_code", missing).await);
    assert_eq!((&ran["success"], &ran["stderr"]), (&json!(false), &json!("Unsupported language: ruby")));
}

/// Images as a daemon tells of them, with what their labels say.
#[derive(Debug)]
struct Labelled(Vec<(&'static str, &'static str)>);

#[async_trait]
impl ImageRunners for Labelled {
    async fn list(&self) -> Result<Vec<ImageRunner>> {
        let label = |name: &str| self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let found = ImageRunner::from_labels(&FakeHost::IMAGE.parse()?, label, vec!["cat".to_owned()])?;
        Ok(found.into_iter().collect())
    }
}

#[tokio::test]
async fn an_image_with_the_labels_of_a_runner_brings_its_language() {
    let labels = vec![("sandbox.runner", "true"), ("sandbox.language", "Shout")];
    let shout = json!({ "conversationId": "c", "language": "shout", "code": "loud" });
    for (labels, is_runner) in [(labels.clone(), true), (labels[1..].to_vec(), false)] {
        let world = world().await.restarted_with(Some(Arc::new(Labelled(labels)))).await;
        let listed = told(&world.call("list_runners", json!({})).await);
        let runner = json!({ "language": "shout", "image": FakeHost::IMAGE });
        assert_eq!(listed["languages"].as_array().unwrap().contains(&runner), is_runner, "{listed}");
        let ran = told(&world.call("run_code", shout.clone()).await);
        match is_runner {
            true => assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!("loud")), "{ran}"),
            false => assert_eq!(ran["stderr"], "Unsupported language: shout"),
        }
    }
}
