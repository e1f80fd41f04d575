//! A service on a fake host with all tools, and short words for calling them.

use std::sync::{Arc, Mutex};

use sandbox::engine::fake::FakeHost;
use sandbox::{ImageRunners, InstanceId, Owner, SandboxService, ServiceSettings};
use serde_json::{Map, Value};
use tempfile::TempDir;
use tools::{Call, Catalog, Content, Output, Policy, Profile, Progress, Selection, Silent};

pub struct World {
    pub service: SandboxService,
    pub catalog: Arc<Catalog>,
    pub policy: Arc<Policy>,
    pub host: FakeHost,
    state: Arc<TempDir>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Policy::default()).await
    }

    pub async fn with(policy: Policy) -> Self {
        let catalog = Catalog::new(&policy, &Selection::default()).unwrap();
        Self::of(catalog, policy).await
    }

    /// With the tools of an older server.
    pub async fn speaking_as(profile: Arc<dyn Profile>, policy: Policy) -> Self {
        let catalog = Catalog::of_profile(profile, &policy, &Selection::default()).unwrap();
        Self::of(catalog, policy).await
    }

    async fn of(catalog: Catalog, policy: Policy) -> Self {
        let (host, state) = (FakeHost::new(), Arc::new(TempDir::new().unwrap()));
        let engine = host.engine();
        let mut settings = ServiceSettings::new(state.path(), InstanceId::random().unwrap());
        settings.powers = engine.powers();
        let service = SandboxService::start(engine, settings).await.unwrap();
        Self { service, catalog: Arc::new(catalog), policy: Arc::new(policy), host, state }
    }

    /// Another server that runs at the same time, on the same host and with the same state directory.
    pub async fn beside(&self) -> Self {
        let engine = self.host.engine();
        let mut settings = ServiceSettings::new(self.state.path(), InstanceId::random().unwrap());
        settings.powers = engine.powers();
        let service = SandboxService::start(engine, settings).await.unwrap();
        let (catalog, policy, host) = (Arc::clone(&self.catalog), Arc::clone(&self.policy), self.host.clone());
        Self { service, catalog, policy, host, state: Arc::clone(&self.state) }
    }

    /// The same after the server has ended and was started again.
    pub async fn restarted(self) -> Self {
        self.restarted_with(None).await
    }

    /// The same where images bring languages along.
    pub async fn restarted_with(mut self, runners: Option<Arc<dyn ImageRunners>>) -> Self {
        self.service.shutdown().await.unwrap();
        let engine = self.host.engine();
        let mut settings = ServiceSettings::new(self.state.path(), InstanceId::random().unwrap());
        settings.powers = engine.powers();
        settings.image_runners = runners;
        self.service = SandboxService::start(engine, settings).await.unwrap();
        self
    }

    pub fn caller(&self) -> Call {
        self.caller_as(Owner::local())
    }

    pub fn caller_as(&self, owner: Owner) -> Call {
        Call {
            service: self.service.clone(),
            owner,
            policy: Arc::clone(&self.policy),
            host_files: None,
            images: None,
            exporter: None,
            links: None,
            previews: None,
            progress: Arc::new(Silent),
            cancelled: tokio_util::sync::CancellationToken::new(),
        }
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Output {
        self.call_as(self.caller(), tool, arguments).await
    }

    pub async fn call_as(&self, call: Call, tool: &str, arguments: Value) -> Output {
        self.catalog.find(tool).unwrap().call(call, object(arguments)).await.unwrap()
    }

    /// The structured part of an answer that is not a refusal.
    pub async fn value(&self, tool: &str, arguments: Value) -> Value {
        let output = self.call(tool, arguments).await;
        assert!(!output.is_error, "{}", text(&output));
        Value::Object(output.structured.unwrap())
    }

    /// What a refusal says.
    pub async fn refusal(&self, tool: &str, arguments: Value) -> String {
        let output = self.call(tool, arguments).await;
        assert!(output.is_error, "{}", text(&output));
        assert_eq!(output.structured, None);
        text(&output)
    }

    pub async fn sandbox(&self) -> String {
        self.value("create_sandbox", Value::Object(Map::new())).await["sandbox_id"].as_str().unwrap().to_owned()
    }
}

pub fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => panic!("arguments are an object"),
    }
}

pub fn text(output: &Output) -> String {
    let texts = output.content.iter().filter_map(|content| match content {
        Content::Text(text) => Some(text.as_str()),
        Content::Image { .. } | Content::Link(_) | Content::Embedded(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Keeps all that is reported.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<String>>);

impl Progress for Heard {
    fn is_wanted(&self) -> bool {
        true
    }

    fn report(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}
