//! The handler that the MCP library calls; where its types end and ours begin.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    CustomRequest, CustomResult, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, PromptMessage, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    Reference, Role, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use sandbox::{Error, Owner, SandboxService};
use serde_json::Value;
use tools::{Call, Catalog, HostFiles, Policy, Silent, instructions, prompts, resources};

use super::answer;
use super::era::Era;
use super::errors::protocol_error;

/// Lists that are the same for everybody until the server is started anew.
const STABLE_MS: u64 = 60 * 60 * 1000;

/// A handle; copies are cheap and mean the same server.
#[derive(Clone)]
pub struct Adapter {
    shared: Arc<Shared>,
}

pub struct Shared {
    pub service: SandboxService,
    pub catalog: Catalog,
    pub policy: Arc<Policy>,
    pub host_files: Option<Arc<dyn HostFiles>>,
    pub callers: Callers,
}

/// How the one who asks is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// The person who started this process: stdio.
    Local,
    /// Whoever the HTTP layer found out: an `Owner` among the extensions of the HTTP request.
    OfRequest,
}

impl Adapter {
    pub fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    pub fn service(&self) -> &SandboxService {
        &self.shared.service
    }

    fn owner(&self, context: &RequestContext<RoleServer>) -> Result<Owner, ErrorData> {
        match self.shared.callers {
            Callers::Local => Ok(Owner::local()),
            Callers::OfRequest => context
                .extensions
                .get::<http::request::Parts>()
                .and_then(|parts| parts.extensions.get::<Owner>())
                .cloned()
                .ok_or_else(|| protocol_error(&Error::internal("the caller of a request is not known"))),
        }
    }

    fn call(&self, context: &RequestContext<RoleServer>) -> Result<Call, ErrorData> {
        let Shared { service, policy, host_files, .. } = self.shared.as_ref();
        Ok(Call {
            service: service.clone(),
            owner: self.owner(context)?,
            policy: policy.clone(),
            host_files: host_files.clone(),
            progress: Arc::new(Silent),
            cancelled: context.ct.clone(),
        })
    }
}

impl ServerHandler for Adapter {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_prompts()
            .enable_resources()
            .enable_tools()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("sandpen", env!("CARGO_PKG_VERSION")).with_title("Sandpen"))
            .with_instructions(instructions::text(&self.shared.policy, &self.shared.catalog))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let era = Era::of(&context);
        let tools = self.shared.catalog.tools().iter().map(|tool| answer::tool(tool, era)).collect();
        Ok(ListToolsResult::with_all_items(tools).with_ttl_ms(STABLE_MS).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.shared.catalog.find(name).map(|tool| answer::tool(tool, Era::Modern))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = self
            .shared
            .catalog
            .find(&request.name)
            .ok_or_else(|| ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None))?;
        let call = self.call(&context)?;
        let output = tool.call(call, request.arguments.unwrap_or_default()).await;
        Ok(answer::result(output, Era::of(&context)).into())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let found = resources::list(&self.call(&context)?).await.map_err(|error| protocol_error(&error))?;
        Ok(ListResourcesResult::with_all_items(found.into_iter().map(answer::resource).collect()))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = resources::TEMPLATES.iter().map(answer::template).collect();
        Ok(ListResourceTemplatesResult::with_all_items(templates)
            .with_ttl_ms(STABLE_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = resources::read(&self.call(&context)?, &request.uri).await;
        let contents = read.map_err(|error| protocol_error(&error))?;
        Ok(ReadResourceResult::new(vec![answer::contents(contents, &request.uri)]).into())
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = prompts::ALL.iter().map(answer::prompt).collect();
        Ok(ListPromptsResult::with_all_items(prompts).with_ttl_ms(STABLE_MS).with_cache_scope(CacheScope::Public))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let told = |error: Error| protocol_error(&error);
        let prompt = prompts::find(&request.name).map_err(told)?;
        let arguments = request.arguments.unwrap_or_default().into_iter();
        let arguments = arguments.map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        });
        let text = prompt.text(&arguments.collect()).map_err(told)?;
        let messages = vec![PromptMessage::new_text(Role::User, text)];
        Ok(GetPromptResult::new(messages).with_description(prompt.description).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let told = |error: Error| protocol_error(&error);
        let values = match &request.r#ref {
            Reference::Prompt(named) => {
                prompts::find(&named.name).map_err(told)?.complete(&request.argument.name, &request.argument.value)
            }
            Reference::Resource(named) => {
                let known: BTreeMap<_, _> =
                    request.context.and_then(|context| context.arguments).unwrap_or_default().into_iter().collect();
                let call = self.call(&context)?;
                let typed = &request.argument.value;
                resources::complete(&call, &named.uri, &request.argument.name, typed, &known).await.map_err(told)?
            }
            _ => Vec::new(),
        };
        let completion = CompletionInfo::with_all_values(values)
            .map_err(|_| protocol_error(&Error::internal("there are too many completions")))?;
        Ok(CompleteResult::new(completion))
    }

    /// Also where a method that we know arrives when its parameters are not as they must be.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            method @ ("tools/call" | "resources/read" | "prompts/get" | "completion/complete") => {
                ErrorData::invalid_params(format!("the parameters of {method} are not as they must be"), None)
            }
            method => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method {method:?}"), None),
        })
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").field("callers", &self.shared.callers).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("callers", &self.callers).finish_non_exhaustive()
    }
}
