//! Which revision of the protocol a request speaks, as far as answers differ by it.

use rmcp::RoleServer;
use rmcp::model::ProtocolVersion;
use rmcp::service::RequestContext;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Era {
    /// 2024-11-05 and 2025-03-26: text, images and embedded resources are all that a result can hold.
    Plain,
    /// 2025-06-18 and 2025-11-25: links, structured content, titles.
    Structured,
    /// 2026-07-28: every request stands by itself.
    Modern,
}

impl Era {
    pub fn of(context: &RequestContext<RoleServer>) -> Self {
        context.protocol_version().map_or(Self::Structured, |version| Self::of_version(&version))
    }

    /// Dates compare like the words that they are.
    fn of_version(version: &ProtocolVersion) -> Self {
        if version.as_str() >= ProtocolVersion::V_2026_07_28.as_str() {
            Self::Modern
        } else if version.as_str() >= ProtocolVersion::V_2025_06_18.as_str() {
            Self::Structured
        } else {
            Self::Plain
        }
    }
}
