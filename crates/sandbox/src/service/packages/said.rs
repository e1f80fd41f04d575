//! What programs in a builder say of themselves and of their locks, as they write it down.

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub(super) struct Python {
    pub kind: String,
    pub has_pip: bool,
    pub path: String,
    pub python_path: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub kind: String,
    /// Where Node.js has its headers, for packages that are compiled. Otherwise they would be fetched from elsewhere.
    pub headers: Option<String>,
    pub path: String,
}

/// `package-lock.json`, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(super) struct NpmLock {
    pub packages: Map<String, Value>,
}
