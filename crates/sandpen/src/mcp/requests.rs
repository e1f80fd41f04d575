//! What requests ask for beyond what their types say.

use rmcp::model::{ArgumentInfo, CompleteRequestParams, ErrorCode, ErrorData, PaginatedRequestParams, Reference};
use tools::{Call, prompts, resources};

use super::era::Era;

/// What there was before 2026-07-28 and is no longer.
const REMOVED: &[&str] = &["initialize", "resources/subscribe", "resources/unsubscribe"];

/// The methods that take parameters which can be wrong.
const METHODS: &[&str] = &[
    "completion/complete",
    "initialize",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "subscriptions/listen",
    "tasks/cancel",
    "tasks/get",
    "tasks/update",
    "tools/call",
    "tools/list",
];

/// A method that is not there, or one that is there and was called with something else than it takes.
pub fn unknown(method: &str, era: Era) -> ErrorData {
    let removed = era == Era::Modern && REMOVED.contains(&method);
    if METHODS.contains(&method) && !removed {
        ErrorData::invalid_params(format!("the parameters of {method} are not as they must be"), None)
    } else {
        absent(method)
    }
}

/// A method that is not there, although others have one of this name.
pub fn absent(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method {method:?}"), None)
}

/// Every list is given whole, so there is no place to go on from.
pub fn first_page(request: Option<&PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor.as_ref()) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params("this server gave out no such cursor", None)),
    }
}

pub async fn complete(call: &Call, request: CompleteRequestParams) -> sandbox::Result<Vec<String>> {
    let ArgumentInfo { name, value, .. } = &request.argument;
    match &request.r#ref {
        // What there is not has no completions. An error would be a fault of the client's, and to one who is typing it is none.
        Reference::Prompt(prompt) => {
            Ok(prompts::find(&prompt.name).map_or_else(|_| Vec::new(), |prompt| prompt.complete(name, value)))
        }
        Reference::Resource(template) => {
            let known = request.context.and_then(|context| context.arguments).unwrap_or_default();
            resources::complete(call, &template.uri, name, value, &known.into_iter().collect()).await
        }
        _ => Ok(Vec::new()),
    }
}
