//! Settings of sandboxes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use sandbox::{
    Environment, Error, Image, Insistence, Lifetime, Limits, Network, Owner, Quota, Result, Role, SandboxSpec,
    SecretName,
};

use super::ContainerUser;
use crate::attach::Screen;

/// What a new sandbox and a program in it get unless a command says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxConfig {
    pub image: Image,
    pub limits: Limits,
    pub lifetime: Lifetime,
    pub network: Network,
    pub(super) user: ContainerUser,
    /// What becomes of it where it cannot be.
    pub(super) insistence: Insistence,
    /// Those that it may use with their hosts.
    pub secrets: BTreeSet<SecretName>,
    /// `None` leaves it to the command: short for code, long for a person at a terminal.
    pub(super) timeout: Option<Duration>,
    pub(super) environment: Environment,
    pub(super) pass_through: BTreeSet<String>,
    /// Do without those of them that are not set.
    pub(super) skip_unset: bool,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            image: Image::Host,
            limits: Limits::default(),
            lifetime: Lifetime::default(),
            network: Network::None,
            user: ContainerUser::Sandbox,
            insistence: Insistence::Must,
            secrets: BTreeSet::new(),
            timeout: None,
            environment: Environment::default(),
            pass_through: BTreeSet::new(),
            skip_unset: false,
        }
    }
}

impl SandboxConfig {
    /// Whom programs are in it.
    pub fn role(&self) -> Role {
        match self.user {
            ContainerUser::Sandbox => Role::Guest,
            ContainerUser::Image => Role::ImageUser(self.insistence),
        }
    }

    pub fn timeout(&self, screen: Screen) -> Duration {
        self.timeout.unwrap_or(match screen {
            Screen::Streams => Duration::from_secs(30),
            Screen::Terminal => Quota::default().exec_timeout,
        })
    }

    /// What programs start with: the variables that were set, and those of ours that are passed on.
    ///
    /// Looked up only when it is needed: a command that starts no program needs none of them.
    pub fn environment(&self) -> Result<Environment> {
        self.environment_from(|name| std::env::var_os(name))
    }

    fn environment_from(&self, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Environment> {
        let mut passed = Environment::default();
        for name in self.named() {
            let value = lookup(name);
            if value.is_none() && self.skip_unset {
                tracing::warn!(name, "a variable that is to be passed on is not set");
                continue;
            }
            let value = value.ok_or_else(|| {
                Error::invalid_input(format!("{name} is to be passed on, and is not set"))
                    .with_hint(format!("set it, or leave out --pass-through-env {name}"))
            })?;
            let value = value
                .into_string()
                .map_err(|_| Error::invalid_input(format!("{name} is to be passed on, and is not UTF-8 text")))?;
            passed.insert(name, value)?;
        }
        let environment = passed.overlaid_by(&self.environment);
        // The variable would win, and the secret would be of no use.
        if let Some(name) = self.secrets.iter().find(|name| environment.get(name.as_str()).is_some()) {
            return Err(Error::invalid_input(format!("{name} is set as a variable and given as a secret"))
                .with_hint("leave one of them out"));
        }
        Ok(environment)
    }

    /// The names of our variables that programs get, with what they hold.
    pub fn passed_through(&self) -> impl Iterator<Item = &str> {
        self.named().filter(|name| !self.skip_unset || std::env::var_os(name).is_some())
    }

    fn named(&self) -> impl Iterator<Item = &str> {
        // One that is set as well has the value that was set, which is no news to anybody.
        self.pass_through.iter().map(String::as_str).filter(|name| self.environment.get(name).is_none())
    }

    /// One name, or several with commas between them.
    pub(super) fn pass_on(&mut self, names: &str) -> Result<()> {
        // A comma too many is no name.
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            Environment::default().insert(name, "")?;
            self.pass_through.insert(name.to_owned());
        }
        Ok(())
    }

    /// A sandbox as this command line asks for it. Whoever types it is the operator, so nothing is above it.
    pub fn spec(&self, owner: &Owner) -> SandboxSpec {
        SandboxSpec {
            image: self.image.clone(),
            limits: self.limits,
            network: self.network.clone(),
            secrets: self.secrets.clone(),
            role: self.role(),
            ..SandboxSpec::new(owner.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(names: &[&str]) -> SandboxConfig {
        let mut config = SandboxConfig::default();
        names.iter().for_each(|name| config.pass_on(name).unwrap());
        config
    }

    #[test]
    fn variables_that_are_named_are_passed_on_and_no_others() {
        let ours = |name: &str| (name != "GONE").then(|| OsString::from(format!("our {name}")));
        let mut config = config(&["REGION", "LANG"]);
        config.environment.insert("LANG", "C").unwrap();
        let environment = config.environment_from(ours).unwrap();
        assert_eq!(environment.iter().collect::<Vec<_>>(), [("LANG", "C"), ("REGION", "our REGION")]);
        assert_eq!(config.passed_through().collect::<Vec<_>>(), ["REGION"]);
    }

    #[test]
    fn a_secret_is_not_hidden_by_a_variable() {
        let mut config = config(&["REGION"]);
        config.secrets.insert("API_KEY".parse().unwrap());
        assert!(config.environment_from(|_| Some("our".into())).is_ok());
        config.secrets.insert("REGION".parse().unwrap());
        let error = config.environment_from(|_| Some("our".into())).unwrap_err();
        assert_eq!(error.message(), "REGION is set as a variable and given as a secret");
    }

    #[test]
    fn one_that_is_not_set_is_missed() {
        let error = config(&["GONE"]).environment_from(|_| None).unwrap_err();
        assert_eq!(error.message(), "GONE is to be passed on, and is not set");
        assert!(SandboxConfig::default().pass_on("A=B").is_err());
    }

    #[test]
    fn a_comma_too_many_is_no_name() {
        let environment = config(&["REGION,", ",", " , LANG", ""]).environment_from(|_| Some("our".into())).unwrap();
        assert_eq!(environment.iter().collect::<Vec<_>>(), [("LANG", "our"), ("REGION", "our")]);
    }

    #[test]
    fn some_do_without_those_that_are_not_set() {
        let mut config = config(&["REGION, GONE"]);
        config.skip_unset = true;
        let ours = |name: &str| (name != "GONE").then(|| OsString::from("our"));
        let environment = config.environment_from(ours).unwrap();
        assert_eq!(environment.iter().collect::<Vec<_>>(), [("REGION", "our")]);
    }
}
