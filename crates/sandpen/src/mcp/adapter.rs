//! The handler that the MCP library calls; where its types end and ours begin.

use std::future::pending;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CompletionInfo, CustomRequest, CustomResult, DiscoverResult, ErrorCode, ErrorData, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, GetTaskParams, GetTaskResult, Implementation, InitializeRequestParams,
    InitializeResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, PromptMessage, PromptsCapability, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, ResourcesCapability, Role, ServerCapabilities, ServerConfig, SubscribeRequestParams,
    SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use sandbox::{Error, Owner, SandboxService};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tools::{
    Call, Catalog, Exporter, HostFiles, Identity, ImageSource, Links, Offers, Policy, Previews, Profile, Silent,
    Toolset, instructions, prompts, resources,
};
use tracing::{Instrument, Span};

use super::answer::{self, Labels};
use super::era::Era;
use super::errors::{protocol_error, rejected};
use super::guard::guarded;
use super::progress::Reporter;
use super::requests;
use super::subscriptions::{self, Subscriptions};
use super::tasks::{Tasks, Working};
use crate::audit::{CallOutcome, CalledTool, Deed, Recorder};
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::drain::Drain;
use crate::trace::{self, OfRequest};

/// A handle; copies are cheap and mean the same session of the same server.
#[derive(Clone)]
pub struct Adapter {
    shared: Arc<Shared>,
    subscriptions: Arc<Subscriptions>,
}

struct Shared {
    /// What a server is made of now: the operator may change it while clients are there.
    parts: RwLock<Arc<Parts>>,
    tasks: Tasks,
    reads: Semaphore,
}

/// Resources that are read at once, by all clients together: each may take many megabytes, several times over.
const MOST_READS: usize = 4;

/// What a server is made of.
pub struct Parts {
    pub service: SandboxService,
    pub catalog: Catalog,
    pub policy: Arc<Policy>,
    pub host_files: Option<Arc<dyn HostFiles>>,
    pub images: Option<Arc<dyn ImageSource>>,
    pub exporter: Option<Arc<dyn Exporter>>,
    pub links: Option<Arc<dyn Links>>,
    pub previews: Option<Arc<dyn Previews>>,
    pub callers: Callers,
    pub recorder: Recorder,
}

/// How the one who asks is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// The person who started this process: stdio.
    Local,
    /// Whoever the HTTP layer found out: a `Principal` among the extensions of the HTTP request.
    OfRequest,
}

impl Parts {
    fn profile(&self) -> Option<&dyn Profile> {
        self.catalog.profile()
    }
}

impl Adapter {
    pub fn new(parts: Parts) -> Self {
        let tasks = Tasks::new(parts.policy.longest_timeout);
        Self {
            shared: Arc::new(Shared { parts: RwLock::new(Arc::new(parts)), tasks, reads: Semaphore::new(MOST_READS) }),
            subscriptions: Arc::default(),
        }
    }

    /// The same server for one more session, which shares nothing with the others but what lasts.
    #[must_use]
    pub fn for_session(&self) -> Self {
        Self { shared: self.shared.clone(), subscriptions: Arc::default() }
    }

    /// What calls have left behind ends. The sandboxes are others' too.
    pub fn end_tasks(&self) {
        self.shared.tasks.shut_down();
    }

    /// From the next request on, in all sessions. What goes on goes on as it began.
    pub fn replace(&self, parts: Parts) {
        *self.shared.parts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parts);
    }

    fn parts(&self) -> Arc<Parts> {
        self.shared.parts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who asks, if they may ask for what needs this.
    fn principal(&self, context: &RequestContext<RoleServer>, needed: Scope) -> Result<Principal, ErrorData> {
        let principal = match self.parts().callers {
            Callers::Local => Principal::local(),
            Callers::OfRequest => of_request::<Principal>(context)
                .cloned()
                .ok_or_else(|| protocol_error(&Error::internal("the caller of a request is not known")))?,
        };
        if principal.scopes.allow(needed) {
            return Ok(principal);
        }
        Err(protocol_error(&Error::denied(format!("the token is not good for this: it lacks the scope {needed}"))))
    }

    fn owner(&self, context: &RequestContext<RoleServer>, needed: Scope) -> Result<Owner, ErrorData> {
        self.principal(context, needed).map(|principal| principal.owner)
    }

    /// What a caller of this tool must be allowed to do.
    pub fn needs(&self, tool: &str) -> Scope {
        match self.parts().catalog.find(tool) {
            Some(tool) if tool.hints.read_only => Scope::Read,
            Some(_) | None => Scope::Run,
        }
    }

    fn call(&self, context: &RequestContext<RoleServer>, needed: Scope) -> Result<Call, ErrorData> {
        let parts = self.parts();
        let Parts { service, policy, host_files, images, exporter, links, previews, .. } = &*parts;
        Ok(Call {
            service: service.clone(),
            owner: self.owner(context, needed)?,
            policy: policy.clone(),
            host_files: host_files.clone(),
            images: images.clone(),
            exporter: exporter.clone(),
            links: links.clone(),
            previews: previews.clone(),
            progress: Arc::new(Silent),
            cancelled: context.ct.clone(),
        })
    }

    /// Those of an older server that offered no others. While nobody can say which they are, all that are known are offered.
    async fn found_languages(&self, context: &RequestContext<RoleServer>) -> Option<Vec<String>> {
        let parts = self.parts();
        let call = self.call(context, Scope::Read).ok()?;
        parts.profile()?.languages(&call).await.unwrap_or_else(|error| {
            tracing::warn!(?error, "the languages that are here are not known");
            None
        })
    }

    /// What answers a call of a tool that is not there.
    fn unknown(&self, name: &str, era: Era) -> Result<CallToolResponse, ErrorData> {
        match self.parts().profile() {
            Some(profile) => {
                profile.unknown_tool(name).map(|output| answer::result(output, era).into()).map_err(rejected)
            }
            None => Err(ErrorData::invalid_params(format!("there is no tool {name:?}"), None)),
        }
    }

    /// Who answers: in every result the same as at the beginning.
    fn implementation(&self) -> Implementation {
        self.parts().profile().map_or_else(implementation, implementation_of)
    }

    /// Methods that older servers did not have.
    fn only_ours(&self, method: &str) -> Result<(), ErrorData> {
        match self.parts().profile() {
            Some(_) => Err(self.in_own_words(method, requests::absent(method))),
            None => Ok(()),
        }
    }

    /// In the words of the one who is spoken for, where it had some.
    fn in_own_words(&self, method: &str, error: ErrorData) -> ErrorData {
        match self.parts().profile().and_then(|profile| profile.unknown_method(method)) {
            Some(message) if error.code == ErrorCode::METHOD_NOT_FOUND => ErrorData::new(error.code, message, None),
            Some(_) | None => error,
        }
    }

    /// A run of a client that knows tasks: it need not wait, and neither does the run have to be given up early.
    async fn call_as_task(
        &self,
        request: CallToolRequestParams,
        call: Call,
        reporter: Option<Reporter>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let adapter = self.clone();
        let owner = call.owner.clone();
        let era = Era::of(context);
        let policy = Arc::new(Policy { wait: call.policy.longest_timeout, ..(*call.policy).clone() });
        let span = Span::current();
        let working = Working::start(|cancelled| async move {
            let call = Call { cancelled, policy, ..call };
            let parts = adapter.parts();
            let Some(tool) = parts.catalog.find(&request.name) else {
                return Err(protocol_error(&Error::internal("a tool is gone")));
            };
            let calling = tool.call(call, request.arguments.unwrap_or_default()).instrument(span);
            let output = calling.await.map_err(rejected)?;
            Ok(answer::result(output, era))
        });
        self.shared.tasks.answer(&owner, working, context, Reporter::finish(reporter)).await
    }

    async fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let era = Era::of(&context);
        let parts = self.parts();
        let Some(tool) = parts.catalog.find(&request.name) else {
            return self.unknown(&request.name, era);
        };
        let reporter = Reporter::start(&context);
        let needed = self.needs(&request.name);
        let call = Call { progress: Reporter::progress(reporter.as_ref()), ..self.call(&context, needed)? };
        let knows_tasks = context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks());
        let mut response =
            if era == Era::Modern && knows_tasks && tool.toolset == Toolset::Run && self.parts().profile().is_none() {
                self.call_as_task(request, call, reporter, &context).await?
            } else {
                let arguments = request.arguments.unwrap_or_default();
                let output = guarded(async { tool.call(call, arguments).await.map_err(rejected) }).await;
                Reporter::finish(reporter).await;
                answer::result(output?, era).into()
            };
        match &mut response {
            CallToolResponse::Complete(result) => result.meta = Labels::passing(era, self.implementation()).meta,
            CallToolResponse::Task(task) => task.meta = Labels::passing(era, self.implementation()).meta,
            _ => {}
        }
        Ok(response)
    }
}

impl ServerHandler for Adapter {
    fn get_info(&self) -> ServerConfig {
        let parts = self.parts();
        if let Some(profile) = parts.profile() {
            let mut capabilities = ServerCapabilities::builder().enable_tools().build();
            let Offers { resources, prompts } = profile.offers();
            capabilities.resources = resources.then(ResourcesCapability::default);
            capabilities.prompts = prompts.then(PromptsCapability::default);
            let info = ServerConfig::new(capabilities).with_server_info(implementation_of(profile));
            return match profile.instructions(&parts.policy) {
                Some(text) => info.with_instructions(text),
                None => info,
            };
        }
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(implementation())
            .with_instructions(instructions::text(&parts.policy, &parts.catalog))
    }

    /// What is remembered of the client is the version that was agreed upon, not the one that it asked for.
    async fn initialize(
        &self,
        mut request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let agreed = self.negotiate_initialize(&request)?;
        request.protocol_version = agreed.protocol_version.clone();
        context.peer.set_peer_info(request);
        Ok(agreed)
    }

    async fn discover(&self, _context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let versions = self.supported_protocol_versions().into_owned();
        let found = DiscoverResult::from_server_info(versions, self.get_info());
        Ok(found.with_ttl_ms(answer::STABLE_MS).with_cache_scope(CacheScope::Public))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        requests::first_page(request.as_ref())?;
        let era = Era::of(&context);
        let parts = self.parts();
        let Parts { service, catalog, .. } = &*parts;
        // Before there is anything to hold on to while the answer comes.
        let found = self.found_languages(&context).await;
        let may_change = found.is_some() || service.has_changing_runners();
        let languages = match found {
            None if may_change => current_languages(service).await,
            found => found,
        };
        let mut tools: Vec<Tool> = catalog.tools().iter().map(|tool| answer::tool(tool, era)).collect();
        if let Some((name, schema)) = languages.and_then(|names| catalog.with_languages(names))
            && let Some(tool) = tools.iter_mut().find(|tool| tool.name == name)
        {
            tool.input_schema = Arc::new(schema);
        }
        let Labels { meta, ttl_ms, cache_scope } = match may_change {
            true => Labels::current(era, self.implementation()),
            false => Labels::stable(era, self.implementation()),
        };
        Ok(ListToolsResult { meta, ttl_ms, cache_scope, ..ListToolsResult::with_all_items(tools) })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.parts().catalog.find(name).map(|tool| answer::tool(tool, Era::Modern))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let started = Instant::now();
        let owner = self.owner(&context, Scope::Read);
        let tool = match self.parts().catalog.find(&request.name) {
            Some(tool) => CalledTool::Known(tool.name),
            None => CalledTool::Unknown(request.name.to_string()),
        };
        let named = request.arguments.as_ref().and_then(|arguments| arguments.get("sandbox_id")?.as_str());
        let sandbox = named.and_then(|id| id.parse().ok());
        let span = trace::of_call(tool.known(), context.meta.get_traceparent(), of_request::<OfRequest>(&context));
        let answer = self.answer_call(request, context).instrument(span.clone()).await;
        let outcome = match &answer {
            Ok(CallToolResponse::Complete(result)) if result.is_error == Some(true) => CallOutcome::Failed,
            Ok(CallToolResponse::Task(_)) => CallOutcome::Begun,
            Ok(_) => CallOutcome::Done,
            Err(_) => CallOutcome::Refused,
        };
        span.record("sandpen.outcome", outcome.as_str());
        if matches!(outcome, CallOutcome::Failed | CallOutcome::Refused) {
            span.record("otel.error", outcome.as_str());
        }
        if let Ok(owner) = owner {
            self.parts().recorder.record(Deed::Called { owner, tool, sandbox, outcome, took: started.elapsed() });
        }
        answer
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self.shared.tasks.get(&self.owner(&context, Scope::Read)?, &request.task_id)?;
        let mut result = GetTaskResult::new(task);
        result.meta = Labels::passing(Era::of(&context), self.implementation()).meta;
        Ok(result)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.update(&self.owner(&context, Scope::Run)?, &request.task_id)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.cancel(&self.owner(&context, Scope::Run)?, &request.task_id)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        requests::first_page(request.as_ref())?;
        let call = self.call(&context, Scope::Read)?;
        let listing = async {
            match self.parts().profile() {
                Some(profile) => Ok(profile.resources()),
                None => resources::list(&call).await.map_err(|error| protocol_error(&error)),
            }
        };
        let found = guarded(listing).await?;
        let Labels { meta, ttl_ms, cache_scope } = Labels::private(Era::of(&context), self.implementation());
        let found = ListResourcesResult::with_all_items(found.into_iter().map(answer::resource).collect());
        Ok(ListResourcesResult { meta, ttl_ms, cache_scope, ..found })
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        requests::first_page(request.as_ref())?;
        let Labels { meta, ttl_ms, cache_scope } = Labels::stable(Era::of(&context), self.implementation());
        let parts = self.parts();
        let templates = parts.profile().map_or(resources::TEMPLATES, |profile| profile.templates());
        let templates = templates.iter().map(answer::template).collect();
        let templates = ListResourceTemplatesResult::with_all_items(templates);
        Ok(ListResourceTemplatesResult { meta, ttl_ms, cache_scope, ..templates })
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let call = self.call(&context, Scope::Read)?;
        // Closed by nobody; and one that was given up while it waited has nobody to be read for.
        let reading = context.ct.run_until_cancelled(self.shared.reads.acquire()).await;
        let Some(Ok(_reading)) = reading else {
            return Err(ErrorData::internal_error("the request was given up", None));
        };
        let unread = |error| ErrorData { data: Some(json!({ "uri": request.uri })), ..protocol_error(&error) };
        let reading = async {
            match self.parts().profile() {
                Some(profile) => profile.read(&call, &request.uri).await.map_err(rejected),
                None => resources::read(&call, &request.uri).await.map_err(unread),
            }
        };
        let contents = guarded(reading).await?;
        let mut result = ReadResourceResult::new(vec![answer::contents(contents, &request.uri)]);
        Labels { meta: result.meta, ttl_ms: result.ttl_ms, cache_scope: result.cache_scope } =
            Labels::private(Era::of(&context), self.implementation());
        Ok(result.into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.only_ours("resources/subscribe")?;
        let call = self.call(&context, Scope::Read)?;
        guarded(self.subscriptions.add(&call, request.uri, context.peer)).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscriptions.remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // Older servers told nobody of changes.
        self.parts().profile().is_none().then(|| requested.clone())
    }

    async fn listen(&self, listener: SubscriptionContext) -> Result<(), ErrorData> {
        let call = self.call(listener.request_context(), Scope::Read)?;
        let drain = of_request::<Drain>(listener.request_context()).cloned();
        let drained = async {
            match drain {
                Some(drain) => drain.begun().await,
                None => pending().await,
            }
        };
        guarded(async {
            tokio::select! {
                () = subscriptions::listen(&call, listener) => {}
                () = drained => {}
            }
            Ok(())
        })
        .await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        requests::first_page(request.as_ref())?;
        let Labels { meta, ttl_ms, cache_scope } = Labels::stable(Era::of(&context), self.implementation());
        let prompts = if self.parts().profile().is_some() { &[] } else { prompts::ALL };
        let prompts = ListPromptsResult::with_all_items(prompts.iter().map(answer::prompt).collect());
        Ok(ListPromptsResult { meta, ttl_ms, cache_scope, ..prompts })
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.only_ours("prompts/get")?;
        let told = |error: Error| protocol_error(&error);
        let prompt = prompts::find(&request.name).map_err(told)?;
        let arguments = request.arguments.unwrap_or_default().into_iter();
        let arguments = arguments.map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        });
        let text = prompt.text(&arguments.collect()).map_err(told)?;
        let messages = vec![PromptMessage::new_text(Role::User, text)];
        let mut result = GetPromptResult::new(messages).with_description(prompt.description);
        result.meta = Labels::passing(Era::of(&context), self.implementation()).meta;
        Ok(result.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.only_ours("completion/complete")?;
        let call = self.call(&context, Scope::Read)?;
        let values =
            guarded(async { requests::complete(&call, request).await.map_err(|error| protocol_error(&error)) }).await?;
        let completion = CompletionInfo::with_all_values(values)
            .map_err(|_| protocol_error(&Error::internal("there are too many completions")))?;
        let mut result = CompleteResult::new(completion);
        result.meta = Labels::passing(Era::of(&context), self.implementation()).meta;
        Ok(result)
    }

    /// Also where a method that we know arrives when its parameters are not as they must be.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let error = requests::unknown(&request.method, Era::of(&context));
        Err(self.in_own_words(&request.method, error))
    }
}

/// Images that say what they run come and go while a server runs. While nobody can say which there are, the list of tools is
/// that of the start: a client without tools could not even be told what is wrong.
async fn current_languages(service: &SandboxService) -> Option<Vec<String>> {
    match service.current_runners().await {
        Ok(runners) => Some(runners.iter().map(|runner| runner.name.clone()).collect()),
        Err(error) => {
            tracing::warn!(?error, "the languages of images are not known");
            None
        }
    }
}

/// What the HTTP layer said of a request.
fn of_request<T: Clone + Send + Sync + 'static>(context: &RequestContext<RoleServer>) -> Option<&T> {
    context.extensions.get::<http::request::Parts>()?.extensions.get::<T>()
}

/// Who answers.
pub fn implementation() -> Implementation {
    Implementation::new("sandpen", env!("CARGO_PKG_VERSION")).with_title("Sandpen")
}

/// Who is spoken for.
fn implementation_of(profile: &dyn Profile) -> Implementation {
    let Identity { name, version } = profile.identity();
    Implementation::new(name, version)
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").field("callers", &self.parts().callers).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("callers", &self.callers).finish_non_exhaustive()
    }
}
