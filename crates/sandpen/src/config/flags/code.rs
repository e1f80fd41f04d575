//! Flags of the profile `philschmid`.

use clap::Args;

use super::push;
use crate::config::key::Key;
use crate::config::written::Written;

#[derive(Args, Clone, Debug, Default)]
pub struct CodeFlags {
    /// With --profile philschmid, what run_python_code runs on [default: --image, or the older server's own]
    #[arg(long, value_name = "IMAGE")]
    python_image: Option<String>,

    /// With --profile philschmid, what run_javascript_code runs on [default: --image, or the older server's own]
    #[arg(long, value_name = "IMAGE")]
    js_image: Option<String>,

    /// With --profile philschmid, the language of all code in place of Python and JavaScript
    #[arg(long, value_name = "LANGUAGE")]
    code_language: Option<String>,
}

impl CodeFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::PythonImage, &self.python_image);
        push(written, Key::JsImage, &self.js_image);
        push(written, Key::CodeLanguage, &self.code_language);
    }
}
