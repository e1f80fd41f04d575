//! What a client asks of a person, from the address that it sent them to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::clients::Client;
use super::grants::scopes_of;
use crate::auth::oauth::site::Site;
use crate::auth::scope::{Scope, Scopes};

const MOST_STATE: usize = 4096;

/// A query or a form, in which nothing is said twice.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    /// The only one of which there may be several.
    pub resources: Vec<String>,
}

impl Parameters {
    /// `None` where something is said twice: two readers would understand two things.
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut parameters = Self::default();
        for (name, value) in url::form_urlencoded::parse(text) {
            if name == "resource" {
                parameters.resources.push(value.into_owned());
            } else if parameters.values.insert(name.into_owned(), value.into_owned()).is_some() {
                return None;
            }
        }
        Some(parameters)
    }

    /// What is said to be nothing is not said.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// All that is needed to ask a person, and to answer the client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub client: String,
    pub client_name: Option<String>,
    pub client_host: Option<String>,
    pub redirect_uri: String,
    pub state: Option<String>,
    pub scope: String,
    pub challenge: String,
}

impl Asked {
    pub fn scopes(&self) -> Scopes {
        scopes_of(&self.scope)
    }
}

/// Why a person is not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Told to the person: to send it on would send it to whoever made it up.
    Here(&'static str),
    /// Told to the client, in its words.
    There { redirect_uri: String, state: Option<String>, error: &'static str, description: &'static str },
}

impl Asked {
    pub fn read(parameters: &Parameters, client: &Client, site: &Site) -> Result<Self, Problem> {
        let redirect_uri = match (parameters.get("redirect_uri"), client.redirect_uris.as_slice()) {
            (Some(asked), _) if client.allows(asked) => asked.to_owned(),
            (None, [only]) => only.clone(),
            (Some(_) | None, _) => {
                return Err(Problem::Here("The program wants its answer at an address that it has not registered."));
            }
        };
        let state = parameters.get("state").map(str::to_owned);
        let problem = |error, description| {
            let state = state.clone().filter(|state| state.len() <= MOST_STATE);
            Err(Problem::There { redirect_uri: redirect_uri.clone(), state, error, description })
        };
        if state.as_ref().is_some_and(|state| state.len() > MOST_STATE) {
            return problem("invalid_request", "the state is too long");
        }
        if parameters.get("response_type") != Some("code") {
            return problem("unsupported_response_type", "the only response type is code");
        }
        if parameters.get("request").is_some() {
            return problem("request_not_supported", "a request is made of parameters");
        }
        if parameters.get("request_uri").is_some() {
            return problem("request_uri_not_supported", "a request is made of parameters");
        }
        let is_challenge = |text: &&str| {
            text.len() == 43 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let Some(challenge) = parameters.get("code_challenge").filter(is_challenge) else {
            return problem("invalid_request", "a code_challenge is needed, by S256");
        };
        // Without the method it would be `plain`, which whoever sees the request can answer.
        if parameters.get("code_challenge_method") != Some("S256") {
            return problem("invalid_request", "the code_challenge_method must be S256");
        }
        if !parameters.resources.iter().all(|resource| site.owns(resource)) {
            return problem("invalid_target", "the resource is not of this server");
        }
        if parameters.get("prompt") == Some("none") {
            return problem("interaction_required", "somebody has to agree");
        }
        let scopes = match parameters.get("scope") {
            // Words of others, like offline_access, mean nothing here and do no harm.
            Some(asked) if scopes_of(asked).highest().is_some() => scopes_of(asked),
            Some(_) | None => [Scope::Run].into_iter().collect(),
        };
        Ok(Self {
            client: client.id.clone(),
            client_name: client.name.clone(),
            client_host: client.host.clone(),
            redirect_uri,
            challenge: challenge.to_owned(),
            scope: scopes.claims(),
            state,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Asked, Problem> {
        let site = Site::new(None, "http", "127.0.0.1:8228".parse().unwrap()).unwrap();
        let redirect_uris = vec!["https://a.example/c".to_owned()];
        let client = Client { id: "c".into(), name: None, redirect_uris, host: None };
        Asked::read(&Parameters::read(query.as_bytes()).unwrap(), &client, &site)
    }

    const GOOD: &str = "response_type=code&redirect_uri=https%3A%2F%2Fa.example%2Fc&state=s&code_challenge_method=S256\
                        &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    #[test]
    fn what_is_asked_has_a_default_and_no_more() {
        assert_eq!(read(GOOD).unwrap().scope, "sandpen:read sandpen:run");
        assert_eq!(read(&format!("{GOOD}&scope=openid+sandpen%3Aread")).unwrap().scope, "sandpen:read");
        assert_eq!(read(&format!("{GOOD}&scope=openid")).unwrap().scope, "sandpen:read sandpen:run");
        assert!(read(&format!("{GOOD}&resource=http%3A%2F%2F127.0.0.1%3A8228%2Fmcp")).is_ok());
        assert!(read(&GOOD.replace("redirect_uri=https%3A%2F%2Fa.example%2Fc&", "")).is_ok());
        assert!(Parameters::read(b"a=1&a=2").is_none());
    }

    #[test]
    fn a_wrong_address_is_not_answered_and_all_else_is() {
        let here = read(&GOOD.replace("a.example", "evil.example")).unwrap_err();
        assert!(matches!(here, Problem::Here(_)), "{here:?}");
        for (query, expected) in [
            (GOOD.replace("=code&", "=token&"), "unsupported_response_type"),
            (GOOD.replace("=S256", "=plain"), "invalid_request"),
            (GOOD.replace("code_challenge_method=S256", ""), "invalid_request"),
            (GOOD.replace("code_challenge=", "x="), "invalid_request"),
            (GOOD.replace("E9Mel", "E9Me"), "invalid_request"),
            (format!("{GOOD}&resource=https%3A%2F%2Fother.example%2Fmcp"), "invalid_target"),
            (format!("{GOOD}&request=x"), "request_not_supported"),
            (format!("{GOOD}&prompt=none"), "interaction_required"),
        ] {
            match read(&query).unwrap_err() {
                Problem::There { error, state, .. } => assert_eq!((error, state.as_deref()), (expected, Some("s"))),
                Problem::Here(why) => panic!("{query}: {why}"),
            }
        }
    }
}
