//! One transcript: what is sent, and what must come back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sandpen_tests::daemon::Given;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::expected::{Known, compare, filled};
use crate::server::{Server, Transport, told};

/// Said of results by the newest revision alone.
const LABELS: [&str; 4] = ["_meta", "resultType", "ttlMs", "cacheScope"];

pub(crate) struct Transcript(Value);

impl Transcript {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let read = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()));
        Ok(Self(read?))
    }

    /// To a server that is there only for it.
    pub fn replay(&self, profile: &str, transport: Transport) -> Result<()> {
        let place = tempfile::Builder::new().prefix("sandpen-profiles-").tempdir()?;
        let host = place.path().join("host");
        fs::create_dir(&host)?;
        for (name, contents) in self.0["files"].as_object().into_iter().flatten() {
            let path = host.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&host))?;
            fs::write(path, contents.as_str().unwrap_or_default())?;
        }
        let daemon = Given::of_environment()?;
        let image = daemon.as_ref().map_or("host", |daemon| &daemon.image).to_owned();
        let mut known: Known =
            [("image".to_owned(), image), ("host".to_owned(), host.to_string_lossy().into_owned())].into();
        let words = |value: &Value| match filled(value, &known)? {
            Value::String(word) => Ok(word),
            other => Err(Trouble(format!("{other} is no text"))),
        };
        let flags = self.0["flags"].as_array().into_iter().flatten().map(words).collect::<Result<Vec<_>>>()?;
        let variables = self.0["variables"].as_object().into_iter().flatten();
        let variables =
            variables.map(|(name, value)| Ok((name.clone(), words(value)?))).collect::<Result<BTreeMap<_, _>>>()?;
        let home = place.path().to_owned();
        let mut server = Server::start(transport, profile, place, &flags, &variables, daemon.as_ref())?;
        let taken = self.take_all(&mut server, &mut known, daemon.is_some());
        // Containers of most older servers outlive them.
        let stopped = told(&home, daemon.as_ref(), &["stop", "--all"]);
        taken?;
        stopped?;
        server.end()
    }

    fn take_all(&self, server: &mut Server, known: &mut Known, is_on_daemon: bool) -> Result<()> {
        let steps = self.0["steps"].as_array().ok_or("there are no steps")?;
        let kind = if is_on_daemon { "daemon" } else { "embedded" };
        for (index, step) in steps.iter().enumerate() {
            // What an image is differs, and with it what can be done with it.
            if step["only"].as_str().is_some_and(|only| only != kind) {
                continue;
            }
            let what = step["what"].as_str().unwrap_or("a step without words");
            take(server, step, known)
                .map_err(|trouble| server.tell(&format!("step {} ({what}): {trouble}", index + 1)))?;
        }
        Ok(())
    }
}

fn take(server: &mut Server, step: &Value, known: &mut Known) -> Result<()> {
    let (method, parameters) = match (step["call"].as_str(), step["request"].as_str()) {
        (Some(tool), None) => ("tools/call", json!({ "name": tool, "arguments": step["arguments"] })),
        (None, Some(method)) => (method, step["params"].clone()),
        _ => return Err("a step is either a call or a request".into()),
    };
    let reply = server.ask(method, &filled(&parameters, known)?)?;
    if let Some(expected) = step.get("error") {
        let found = json!({ "code": reply["error"]["code"], "message": reply["error"]["message"] });
        if reply.get("error").is_none() {
            return Err(format!("it is answered: {reply:#}").into());
        }
        return compare(expected, &found, known, "error");
    }
    let expected = step.get("answer").ok_or("a step has an answer or an error")?;
    let mut found = reply.get("result").cloned().ok_or_else(|| Trouble(format!("it fails: {reply:#}")))?;
    let mut expected = expected.clone();
    if let (Some(found), Some(expected)) = (found.as_object_mut(), expected.as_object_mut()) {
        LABELS.iter().for_each(|label| _ = found.remove(*label));
        if !expected.contains_key("structuredContent") {
            found.remove("structuredContent");
        }
        for side in [found, expected] {
            if side.get("isError") == Some(&Value::Bool(false)) {
                side.remove("isError");
            }
        }
    }
    compare(&expected, &found, known, "answer")
}
