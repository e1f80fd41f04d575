//! Errors of ours as errors of the protocol: one table.
//!
//! What a tool cannot do is not among them: that is an answer of the tool.

use rmcp::model::{ErrorCode, ErrorData};
use sandbox::{Error, ErrorKind};
use tools::{Reason, Rejection, tell};

/// For methods other than `tools/call`.
pub fn protocol_error(error: &Error) -> ErrorData {
    if error.kind() == ErrorKind::Internal || error.cause().is_some() {
        tracing::warn!(?error, "a request failed");
    }
    ErrorData::new(code(error.kind()), tell(error), None)
}

/// For what older servers refuse as a request.
pub fn rejected(rejection: Rejection) -> ErrorData {
    let Rejection { reason, message, detail } = rejection;
    let code = match reason {
        Reason::Parameters => ErrorCode::INVALID_PARAMS,
        Reason::Method => ErrorCode::METHOD_NOT_FOUND,
        Reason::Internal => ErrorCode::INTERNAL_ERROR,
    };
    ErrorData::new(code, message, detail)
}

fn code(kind: ErrorKind) -> ErrorCode {
    match kind {
        // Turned into "invalid params" by the library where the revision says so.
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        ErrorKind::InvalidInput | ErrorKind::LimitExceeded | ErrorKind::Denied | ErrorKind::Unsupported => {
            ErrorCode::INVALID_PARAMS
        }
        ErrorKind::AlreadyExists
        | ErrorKind::WrongState
        | ErrorKind::TimedOut
        | ErrorKind::Unavailable
        | ErrorKind::Internal => ErrorCode::INTERNAL_ERROR,
    }
}
