//! What the official conformance suite asks of a server besides what ours has: tools, resources and prompts with fixed
//! names. Only in builds with the feature `conformance`, around the same handler on the same transports.
#![expect(deprecated, reason = "the suite still asks for logging, sampling and resource subscriptions")]

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult, CompletionInfo,
    CustomRequest, CustomResult, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams,
    GetTaskResult, InitializeRequestParams, InitializeResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, Prompt, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Reference, Resource, ResourceTemplate, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
    UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::task_manager::TaskManager;
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use self::inputs::Inputs;
use super::adapter::Adapter;

mod asks;
mod inputs;
mod jobs;

/// The product's handler with the suite's things before it.
#[derive(Clone)]
pub struct Fixtures {
    product: Adapter,
    catalog: Arc<Value>,
    inputs: Arc<Inputs>,
    tasks: TaskManager,
    changes: broadcast::Sender<Change>,
}

/// What subscribers are told of.
#[derive(Clone, Copy, Debug)]
enum Change {
    Tools,
    Prompts,
}

impl Fixtures {
    pub fn new(product: Adapter) -> Self {
        let catalog: Value =
            serde_json::from_str(include_str!("fixtures/catalog.json")).expect("the catalogue is JSON");
        Self {
            product,
            inputs: Arc::new(Inputs::new(&catalog)),
            catalog: Arc::new(catalog),
            tasks: TaskManager::new(),
            changes: broadcast::channel(16).0,
        }
    }

    pub fn for_session(&self) -> Self {
        Self { product: self.product.for_session(), ..self.clone() }
    }

    /// A part of the catalogue in the library's shape.
    fn part<T: DeserializeOwned>(&self, name: &str) -> T {
        parse(self.catalog[name].clone())
    }
}

/// For what this file or the catalogue wrote itself.
fn parse<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the catalogue has the shapes of the protocol")
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.product.get_info();
        let mut capabilities = json!(info.capabilities);
        capabilities["logging"] = json!({});
        capabilities["tools"]["listChanged"] = json!(true);
        capabilities["prompts"]["listChanged"] = json!(true);
        info.capabilities = parse(capabilities);
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        ServerHandler::supported_protocol_versions(&self.product)
    }

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

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.product.list_tools(request, context).await?;
        listed.tools.extend(self.part::<Vec<Tool>>("tools"));
        Ok(listed)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let ours = self.part::<Vec<Tool>>("tools").into_iter().find(|tool| tool.name == name);
        ours.or_else(|| self.product.get_tool(name))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(result) = self.catalog["results"].get(request.name.as_ref()) {
            return Ok(CallToolResponse::Complete(parse(result.clone())));
        }
        if let Some(response) = self.job(&request, &context).await {
            return response;
        }
        if self.inputs.has(&request.name) {
            return self.inputs.tool(&request, &context);
        }
        if let Some(response) = self.ask(&request, &context).await {
            return response;
        }
        self.product.call_tool(request, context).await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut listed = self.product.list_resources(request, context).await?;
        listed.resources.extend(self.part::<Vec<Resource>>("resources"));
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut listed = self.product.list_resource_templates(request, context).await?;
        listed.resource_templates.extend(self.part::<Vec<ResourceTemplate>>("templates"));
        Ok(listed)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let contents = match (self.catalog["contents"].get(uri), id) {
            (Some(contents), _) => contents.clone(),
            (None, Some(id)) => {
                let text = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                json!({ "uri": uri, "mimeType": "application/json", "text": text.to_string() })
            }
            (None, None) => return self.product.read_resource(request, context).await,
        };
        Ok(ReadResourceResult::new(vec![parse(contents)]).into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.catalog["contents"].get(&request.uri) {
            Some(_) => Ok(()),
            None => self.product.subscribe(request, context).await,
        }
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.catalog["contents"].get(&request.uri) {
            Some(_) => Ok(()),
            None => self.product.unsubscribe(request, context).await,
        }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        if context.accepted().resource_subscriptions.is_some() {
            return self.product.listen(context).await;
        }
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // A sink refuses what was not asked for, and that is as it should be.
            let _refused = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(_) => return Ok(()),
            };
        }
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        asks::only_before_2026(&context)
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut listed = self.product.list_prompts(request, context).await?;
        listed.prompts.extend(self.part::<Vec<Prompt>>("prompts"));
        Ok(listed)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if self.inputs.has(&request.name) {
            return self.inputs.prompt(&request, &context);
        }
        let Some(messages) = self.catalog["messages"].get(&request.name) else {
            return self.product.get_prompt(request, context).await;
        };
        let mut text = messages.to_string();
        for (name, value) in request.arguments.unwrap_or_default() {
            text = text.replace(&format!("{{{name}}}"), value.as_str().unwrap_or_default());
        }
        let messages = serde_json::from_str(&text)
            .map_err(|_| ErrorData::invalid_params("an argument does not fit into its place", None))?;
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        match &request.r#ref {
            Reference::Prompt(prompt) if self.catalog["messages"].get(&prompt.name).is_some() => {
                let known = ["paris", "park", "party"].map(str::to_owned).into_iter();
                let fitting = known.filter(|word| word.starts_with(&request.argument.value)).collect();
                let completion = CompletionInfo::with_all_values(fitting)
                    .map_err(|message| ErrorData::internal_error(message, None))?;
                Ok(CompleteResult::new(completion))
            }
            _ => self.product.complete(request, context).await,
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.product.on_custom_request(request, context).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        match self.tasks.get_task(&request.task_id) {
            Ok(task) => Ok(GetTaskResult::new(task)),
            Err(_) => self.product.get_task(request, context).await,
        }
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.tasks.update_task(&request.task_id, request.input_responses.clone()) {
            Ok(()) => Ok(()),
            Err(_) => self.product.update_task(request, context).await,
        }
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.tasks.cancel_task(&request.task_id) {
            Ok(()) => Ok(()),
            Err(_) => self.product.cancel_task(request, context).await,
        }
    }
}

impl std::fmt::Debug for Fixtures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixtures").field("product", &self.product).finish_non_exhaustive()
    }
}
