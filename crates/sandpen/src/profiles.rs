//! Older servers from settings.

use std::sync::Arc;

use sandbox::Result;
use tools::profile::{Automata, Cloudflare, CodeImage, CodeRunner, Philschmid, SandboxServer};
use tools::{Profile, ProfileName};

use self::code_runner::Store;
use crate::config::{CodeConfig, Config, Key};

pub mod code_runner;

/// The one of this name, set up as its own users would have it.
pub fn profile(name: ProfileName, config: &Config) -> Result<Arc<dyn Profile>> {
    let options = config.server.profile_options.clone();
    match name {
        ProfileName::Cloudflare => Ok(Arc::new(Cloudflare::new(options))),
        ProfileName::SandboxServer => Ok(Arc::new(SandboxServer::new(options))),
        ProfileName::Philschmid => {
            let CodeConfig { python_image, js_image, language } = config.server.code.clone();
            let whole = config.is_written(Key::Image).then(|| config.sandbox.image.clone());
            let python = CodeImage::python(python_image.or_else(|| whole.clone()), language.clone())?;
            let javascript = CodeImage::javascript(js_image.or(whole), language)?;
            Ok(Arc::new(Philschmid::new(options, python, javascript)))
        }
        ProfileName::CodeRunner => {
            let store = Store::new(&config.code_runner, config.state_dir()?);
            Ok(Arc::new(CodeRunner::new(options, Arc::new(store))))
        }
        ProfileName::Automata => Ok(Arc::new(Automata::new(options))),
    }
}
