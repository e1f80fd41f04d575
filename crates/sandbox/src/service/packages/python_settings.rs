//! What pip and uv are told in a builder: where packages are, and nothing that the image or a home says.

use super::PackageIndex;
use crate::error::Result;
use crate::spec::Environment;

pub(super) fn pip_variables(index: &PackageIndex) -> Result<Environment> {
    let mut variables = Environment::default();
    for (name, value) in [
        // What the image or its home has of settings is not for here.
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_NO_CACHE_DIR", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("PIP_NO_INPUT", "1"),
        ("PIP_NO_COLOR", "1"),
        ("PIP_PROGRESS_BAR", "off"),
        ("PIP_RETRIES", "2"),
        ("PIP_DEFAULT_TIMEOUT", "60"),
        ("PIP_ROOT_USER_ACTION", "ignore"),
    ] {
        variables.insert(name, value)?;
    }
    if let Some((first, more)) = index.urls.split_first() {
        variables.insert("PIP_INDEX_URL", first.as_str())?;
        if !more.is_empty() {
            variables.insert("PIP_EXTRA_INDEX_URL", more.join(" "))?;
        }
    }
    if !index.trusted_hosts.is_empty() {
        variables.insert("PIP_TRUSTED_HOST", index.trusted_hosts.join(" "))?;
    }
    Ok(variables)
}

pub(super) fn uv_variables(index: &PackageIndex) -> Result<Environment> {
    let mut variables = Environment::default();
    for (name, value) in [
        ("UV_NO_CONFIG", "1"),
        ("UV_PYTHON_DOWNLOADS", "never"),
        ("UV_NO_PROGRESS", "1"),
        ("UV_HTTP_TIMEOUT", "60"),
        ("NO_COLOR", "1"),
    ] {
        variables.insert(name, value)?;
    }
    if let Some((first, more)) = index.urls.split_first() {
        variables.insert("UV_DEFAULT_INDEX", first.as_str())?;
        if !more.is_empty() {
            variables.insert("UV_INDEX", more.join(" "))?;
        }
    }
    if !index.trusted_hosts.is_empty() {
        variables.insert("UV_INSECURE_HOST", index.trusted_hosts.join(" "))?;
    }
    Ok(variables)
}
