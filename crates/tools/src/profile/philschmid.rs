//! The server that calls itself `code-sandbox`: code in Python or JavaScript, each time in a fresh sandbox.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{Environment, ExecStatus, Image, JobPlace, JobRequest, JobWork, Result, RunCode};
use serde_json::{Map, Value, json};

use super::fastmcp::{self, Field, Kind, Signature};
use super::{Identity, Offers, Profile, ProfileOption, ProfileOptions, containers, work};
use crate::call::Call;
use crate::content::{Body, Content, Output};
use crate::error::tell;
use crate::image;
use crate::policy::Policy;
use crate::resources::{Contents, Resource};
use crate::select::Toolset;
use crate::tool::{self, Definition, Hints, Reason, Rejection, Tool};

const DIRECTORY: &str = "/sandbox";

const ENVIRONMENTS: &str = "sandbox://environments";

#[derive(Debug)]
pub struct Philschmid {
    options: ProfileOptions,
    python: CodeImage,
    javascript: CodeImage,
}

/// What the code of a tool runs on: what the operator chose, or the older server's own image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeImage {
    language: String,
    image: Image,
    /// Those that its users were promised, which are in its own image alone.
    libraries: &'static str,
}

impl CodeImage {
    pub fn python(chosen: Option<Image>, language: Option<String>) -> Result<Self> {
        let own = "philschmi/code-sandbox-python:latest";
        let libraries = "numpy, pandas, matplotlib, scikit-learn, requests, google-genai";
        Self::new(own, libraries, chosen, language.unwrap_or_else(|| "python".to_owned()))
    }

    pub fn javascript(chosen: Option<Image>, language: Option<String>) -> Result<Self> {
        let own = "philschmi/code-sandbox-js:latest";
        Self::new(own, "@google/genai", chosen, language.unwrap_or_else(|| "javascript".to_owned()))
    }

    fn new(own: &str, libraries: &'static str, chosen: Option<Image>, language: String) -> Result<Self> {
        let own: Image = own.parse()?;
        let libraries = if chosen.as_ref().is_none_or(|image| *image == own) { libraries } else { "" };
        Ok(Self { language, image: chosen.unwrap_or(own), libraries })
    }

    /// What programs find besides. Libraries of the older image lie where programs look only when they are told to.
    fn environment(&self, given: &Environment) -> Result<Environment> {
        const MODULES: &str = "NODE_PATH";
        let mut environment = Environment::default();
        if self.language == "javascript" && !self.libraries.is_empty() && given.get(MODULES).is_none() {
            environment.insert(MODULES, "/usr/local/lib/node_modules")?;
        }
        Ok(environment)
    }
}

impl Philschmid {
    pub fn new(options: ProfileOptions, python: CodeImage, javascript: CodeImage) -> Self {
        Self { options, python, javascript }
    }
}

#[async_trait::async_trait]
impl Profile for Philschmid {
    fn identity(&self) -> Identity {
        Identity { name: "code-sandbox", version: "1.12.0" }
    }

    /// Its library had handlers for all of it.
    fn offers(&self) -> Offers {
        Offers { resources: true, prompts: true }
    }

    fn instructions(&self, _policy: &Policy) -> Option<String> {
        Some(
            "Runs code in a secure sandbox, which is a fresh one for each call. Figures and images that Python shows, and \
             pictures that code saves as files in its directory, come back as images."
                .to_owned(),
        )
    }

    fn tools(self: Arc<Self>, _policy: &Policy) -> Vec<Tool> {
        let tool = |which: Which| {
            let (profile, signature) = (Arc::clone(&self), Arc::new(self.signature(which)));
            let schema = signature.schema();
            Tool::older(self.definition(which), schema, move |call, arguments| {
                let (profile, signature) = (Arc::clone(&profile), Arc::clone(&signature));
                async move { Ok(profile.answer(which, &call, &signature, &arguments).await) }
            })
            .with_output_schema(fastmcp::block_result_schema())
        };
        Which::ALL.map(tool).into()
    }

    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection> {
        Ok(fastmcp::unknown_tool(name))
    }

    fn resources(&self) -> Vec<Resource> {
        vec![Resource {
            uri: ENVIRONMENTS.to_owned(),
            name: "environment_details".to_owned(),
            description: "The images that code runs on, and the libraries in them.".to_owned(),
            mime_type: "text/plain",
            bytes: None,
        }]
    }

    async fn read(&self, call: &Call, uri: &str) -> Result<Contents, Rejection> {
        if uri != ENVIRONMENTS {
            return Err(Rejection::new(Reason::Parameters, format!("Unknown resource: {uri}")));
        }
        let failed =
            |error| Rejection::new(Reason::Internal, format!("Error reading resource {uri}: {}", tell(&error)));
        let mut environments = Map::new();
        for (name, code) in [("python", &self.python), ("javascript", &self.javascript)] {
            let image = call.service.image_for(&code.language, code.image.clone()).await.map_err(failed)?;
            let mut details = json!({ "image": image.shown(), "installed_libraries": code.libraries });
            if code.language != name {
                details["language"] = json!(code.language);
            }
            environments.insert(name.to_owned(), details);
        }
        let text = format!("{:#}", Value::Object(environments));
        Ok(Contents { mime_type: "text/plain", body: Body::Text(text) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Python,
    JavaScript,
    /// Under the name that its documentation had.
    Js,
}

impl Which {
    const ALL: [Self; 3] = [Self::Python, Self::JavaScript, Self::Js];

    fn name(self) -> &'static str {
        match self {
            Self::Python => "run_python_code",
            Self::JavaScript => "run_javascript_code",
            Self::Js => "run_js_code",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Python => "Run Python code",
            Self::JavaScript | Self::Js => "Run JavaScript code",
        }
    }

    /// For code that ran well and said nothing, which is of no use to anybody.
    fn silent(self) -> &'static str {
        match self {
            Self::Python => "No output, forgot print()?",
            Self::JavaScript | Self::Js => "No output, forgot console.logs?",
        }
    }
}

impl Philschmid {
    fn code(&self, which: Which) -> &CodeImage {
        match which {
            Which::Python => &self.python,
            Which::JavaScript | Which::Js => &self.javascript,
        }
    }

    /// As a person writes it.
    fn language(&self, which: Which) -> &str {
        match self.code(which).language.as_str() {
            "python" => "Python",
            "javascript" => "JavaScript",
            other => other,
        }
    }

    fn definition(&self, which: Which) -> Definition {
        let shows = match self.code(which).language.as_str() {
            "python" => "Figures and images that it shows, and pictures that it saves as files,",
            _ => "Pictures that it saves as files",
        };
        let description = format!(
            "Execute {} code in a fresh sandbox and get its standard output, or its standard error when it fails. {shows} come \
             back as images.",
            self.language(which)
        );
        let hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: true };
        Definition { name: which.name(), title: which.title(), description, toolset: Toolset::Run, hints }
    }

    fn signature(&self, which: Which) -> Signature {
        let mut description = format!("The {} code to execute", self.language(which));
        let libraries = self.code(which).libraries;
        if !libraries.is_empty() {
            description.push_str(&format!(", included libraries are {libraries}"));
        }
        let code = Field { description: Some(description), ..Field::new("code", Kind::Text) };
        Signature { tool: which.name(), fields: vec![code] }
    }

    async fn answer(&self, which: Which, call: &Call, signature: &Signature, arguments: &Map<String, Value>) -> Output {
        let given = match signature.check(arguments) {
            Ok(given) => given,
            Err(refusal) => return refusal,
        };
        let (result, pictures) = match self.run(which, call, given.text("code")).await {
            Ok(ran) => ran,
            Err(error) => {
                tool::log(which.name(), &error);
                (Err(tell(&error)), Vec::new())
            }
        };
        let is_error = result.is_err() && self.options.has(ProfileOption::FlagFailures);
        Output { is_error, ..fastmcp::block_result(result.unwrap_or_else(|why| failure(&why)), pictures) }
    }

    /// What it printed, or what is wrong with it, and the pictures that it made.
    async fn run(&self, which: Which, call: &Call, code: &str) -> Result<(Result<String, String>, Vec<Content>)> {
        let CodeImage { language, image, .. } = self.code(which);
        let timeout = call.policy.timeout;
        let mut spec = containers::spec(call, None, DIRECTORY)?;
        // The operator's choice, as the image of the policy is.
        spec.image = call.service.image_for(language, image.clone()).await?;
        image::provide(call, &spec.image).await?;
        let environment = self.code(which).environment(&spec.environment)?;
        let run = RunCode { environment, displays: true, ..RunCode::new(language, code, timeout) };
        let request = JobRequest::new(JobPlace::Fresh(Box::new(spec)), JobWork::Code(run));
        let ended = work::run(call, request).await?;
        let (told, pictures) = (ended.told(call).await, ended.images(call).await);
        let (printed, complained) = (told.trim(), ended.stderr.trim());
        let result = match ended.status {
            ExecStatus::Exited(0) if !printed.is_empty() => Ok(printed.to_owned()),
            // Clients look for these words; pictures come behind them.
            ExecStatus::Exited(0) => Err(which.silent().to_owned()),
            ExecStatus::Exited(_) => Err(complained.to_owned()),
            ExecStatus::TimedOut => Err(timed_out(timeout)),
            ExecStatus::OutOfMemory => Err(because(complained, "Memory ran out, and the code was killed")),
            ExecStatus::Signalled(signal) => {
                Err(because(complained, &format!("The code was ended by signal {signal}")))
            }
            ExecStatus::Killed | ExecStatus::Cancelled => Err(because(complained, "The code was stopped")),
        };
        Ok((result, pictures))
    }
}

fn timed_out(limit: Duration) -> String {
    format!("Operation timed out after {} seconds", limit.as_secs_f64())
}

fn because(complained: &str, why: &str) -> String {
    format!("{complained}\n{why}").trim_start().to_owned()
}

/// The exit code is always 1, and what was printed is lost: so it was.
fn failure(why: &str) -> String {
    format!("{:#}", json!({ "exit_code": 1, "stderr": why, "stdout": "" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_objects_of_three_members() {
        assert_eq!(
            failure("a\n\"b\""),
            "{\n  \"exit_code\": 1,\n  \"stderr\": \"a\\n\\\"b\\\"\",\n  \"stdout\": \"\"\n}"
        );
        assert_eq!(timed_out(Duration::from_secs(30)), "Operation timed out after 30 seconds");
        assert_eq!(timed_out(Duration::from_millis(1500)), "Operation timed out after 1.5 seconds");
        assert_eq!(because("", "Why"), "Why");
    }

    #[test]
    fn libraries_are_promised_with_the_older_images_alone() {
        let own = CodeImage::python(None, None).unwrap();
        assert_eq!(own.image.to_string(), "philschmi/code-sandbox-python:latest");
        assert!(own.libraries.starts_with("numpy"));
        assert_eq!(CodeImage::python(Some(own.image.clone()), None).unwrap(), own);
        assert_eq!(CodeImage::python(Some(Image::Host), None).unwrap().libraries, "");
        let modules = |code: &CodeImage, given: &Environment| code.environment(given).unwrap().iter().count();
        let javascript = CodeImage::javascript(None, None).unwrap();
        assert_eq!(modules(&javascript, &Environment::default()), 1);
        let mut given = Environment::default();
        given.insert("NODE_PATH", "/mine").unwrap();
        assert_eq!(modules(&javascript, &given), 0);
        assert_eq!(modules(&CodeImage::javascript(Some(Image::Host), None).unwrap(), &Environment::default()), 0);
    }
}
