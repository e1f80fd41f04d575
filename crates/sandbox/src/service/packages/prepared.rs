//! Packages that are there, and how a sandbox comes to see them.

use crate::error::Result;
use crate::package::PackageLanguage;
use crate::spec::{Environment, SandboxSpec};
use crate::tree::Attachment;

/// A package as it was installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResolvedPackage {
    pub name: String,
    pub version: String,
}

/// Packages that are there, for sandboxes to be made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub language: PackageLanguage,
    pub attachments: Vec<Attachment>,
    pub resolved: Vec<ResolvedPackage>,
    pub(super) paths: Vec<SearchPath>,
}

/// A variable with a list of directories, of which one is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SearchPath {
    pub name: &'static str,
    pub ours: String,
    /// What the image has there.
    pub rest: String,
}

impl Prepared {
    /// Let a sandbox have them. What its maker set himself goes before.
    pub fn attach_to(&self, spec: &mut SandboxSpec) -> Result<()> {
        spec.attachments.extend(self.attachments.iter().cloned());
        for path in &self.paths {
            if spec.environment.get(path.name).is_none() {
                let rest = if path.rest.is_empty() { String::new() } else { format!(":{}", path.rest) };
                spec.environment.insert(path.name, format!("{}{rest}", path.ours))?;
            } else {
                path.append_to(&mut spec.environment)?;
            }
        }
        Ok(())
    }

    /// Variables of a single run replace those of its sandbox: let them lead to the packages too.
    pub fn join(&self, environment: &mut Environment) -> Result<()> {
        self.paths.iter().try_for_each(|path| path.append_to(environment))
    }

    /// As people of the language write it.
    pub fn versions(&self) -> Vec<String> {
        self.resolved.iter().map(|package| self.language.pinned(&package.name, &package.version)).collect()
    }
}

impl SearchPath {
    fn append_to(&self, environment: &mut Environment) -> Result<()> {
        match environment.get(self.name).map(str::to_owned) {
            Some(theirs) if theirs.is_empty() => environment.insert(self.name, self.ours.as_str()),
            Some(theirs) => environment.insert(self.name, format!("{theirs}:{}", self.ours)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Owner;

    fn prepared(language: PackageLanguage, paths: &[(&'static str, &str, &str)]) -> Prepared {
        let path = |(name, ours, rest): &(&'static str, &str, &str)| SearchPath {
            name,
            ours: (*ours).to_owned(),
            rest: (*rest).to_owned(),
        };
        Prepared { language, attachments: Vec::new(), resolved: Vec::new(), paths: paths.iter().map(path).collect() }
    }

    #[test]
    fn what_a_caller_sets_goes_before() {
        let python =
            prepared(PackageLanguage::Python, &[("PATH", "/p/bin", "/usr/bin:/bin"), ("PYTHONPATH", "/p", "")]);
        let node = prepared(PackageLanguage::JavaScript, &[("PATH", "/n/.bin", "/usr/bin:/bin")]);
        let mut spec = SandboxSpec::new(Owner::local());
        spec.environment.insert("PYTHONPATH", "/mine").unwrap();
        python.attach_to(&mut spec).unwrap();
        node.attach_to(&mut spec).unwrap();
        assert_eq!(spec.environment.get("PATH"), Some("/p/bin:/usr/bin:/bin:/n/.bin"));
        assert_eq!(spec.environment.get("PYTHONPATH"), Some("/mine:/p"));

        let mut run = Environment::default();
        run.insert("PYTHONPATH", "/other").unwrap();
        python.join(&mut run).unwrap();
        assert_eq!((run.get("PYTHONPATH"), run.get("PATH")), (Some("/other:/p"), None));
    }
}
