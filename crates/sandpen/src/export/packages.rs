//! Packages of a sandbox: a line that installs them, and the tree that is in their place while a Dockerfile is checked.

use std::path::Path;

use images::{Local, Store};
use sandbox::{Attachment, GuestPath, PackageLanguage, PackageSet};

/// What is attached to a sandbox, with the versions that were resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub language: PackageLanguage,
    pub at: GuestPath,
    /// As people of the language write it, `numpy==2.1.0`.
    pub pinned: Vec<String>,
    tree: String,
}

impl Installed {
    /// Those of the attachments that are known, and where the others are.
    pub fn of(attachments: &[Attachment], sets: &[PackageSet]) -> (Vec<Self>, Vec<GuestPath>) {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for Attachment { tree, at } in attachments {
            let set = sets.iter().find(|set| set.tree == *tree);
            // What a builder says is resolved may be the word of a package.
            match set.filter(|set| set.resolved.iter().all(|package| begins_plainly(set.language, &package.name))) {
                Some(set) => known.push(Self {
                    language: set.language,
                    at: at.clone(),
                    pinned: set
                        .resolved
                        .iter()
                        .map(|package| set.language.pinned(&package.name, &package.version))
                        .collect(),
                    tree: tree.to_string(),
                }),
                None => unknown.push(at.clone()),
            }
        }
        (known, unknown)
    }

    /// Everything that was resolved is named, so nothing has to be resolved again.
    pub fn command(&self) -> Vec<String> {
        let at = self.at.to_string_lossy();
        let start: Vec<&str> = match self.language {
            PackageLanguage::Python => {
                vec!["python3", "-m", "pip", "install", "--no-cache-dir", "--no-deps", "--target", &at, "--"]
            }
            PackageLanguage::JavaScript => {
                let install = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--cache", "cache", "--"];
                ["/bin/sh", "-c", ELSEWHERE, "sh", &at].into_iter().chain(install).collect()
            }
        };
        start.into_iter().map(str::to_owned).chain(self.pinned.iter().cloned()).collect()
    }

    /// The tree as an archive of the context, if it is still here.
    pub fn write(&self, store: &Store, context: &Path, number: usize) -> images::Result<Option<String>> {
        let Some(image) = store.resolve(&Local::Tree.reference(self.tree.as_str())?)? else { return Ok(None) };
        let Some(layer) = image.layers.first() else { return Ok(None) };
        let name = format!("{DIRECTORY}/{number}.tar");
        let writing = || images::Error::io("writing the build context");
        std::fs::create_dir_all(context.join(DIRECTORY)).map_err(writing())?;
        let mut file = std::fs::File::create_new(context.join(&name)).map_err(writing())?;
        std::io::copy(&mut store.open_blob(layer.blob.digest)?, &mut file).map_err(writing())?;
        Ok(Some(name))
    }
}

/// What a search path has before and after the image's own because of packages; `None` when somebody set it himself. The
/// image's own is not told: with another base it would be one of this machine.
pub fn added(packages: &[Installed], path: &str) -> Option<Added> {
    let is_ours = |part: &&str| packages.iter().any(|installed| installed.language.programs() == *part);
    let before: Vec<String> = path.split(':').take_while(is_ours).map(str::to_owned).collect();
    let mut after: Vec<String> = path.rsplit(':').take_while(is_ours).map(str::to_owned).collect();
    after.reverse();
    (!before.is_empty()).then_some(Added { before, after })
}

/// Directories beside those that an image has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub before: Vec<String>,
    pub after: Vec<String>,
}

/// Nothing that a tool could take for an option.
fn begins_plainly(language: PackageLanguage, name: &str) -> bool {
    let name = match language {
        PackageLanguage::Python => name,
        PackageLanguage::JavaScript => name.strip_prefix('@').unwrap_or(name),
    };
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// npm cannot work in the root directory, and keeps what it fetched in a home that is the sandbox's user's. `$1` is where
/// packages are to be, the rest the command.
const ELSEWHERE: &str = "mkdir /tmp/npm && cd /tmp/npm && echo {} > package.json && at=$1 && shift && \"$@\" && \
                         rm -rf \"$at\" && mv node_modules \"$at\" && rm -rf /tmp/npm";

/// Of the context, while it is checked.
pub const DIRECTORY: &str = "packages";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_where_they_were() {
        let installed = |language: PackageLanguage, pinned: &str| Installed {
            language,
            at: language.place(),
            pinned: vec![pinned.to_owned()],
            tree: "x/y".to_owned(),
        };
        assert_eq!(
            installed(PackageLanguage::Python, "six==1.17.0").command().join(" "),
            "python3 -m pip install --no-cache-dir --no-deps --target /packages/python -- six==1.17.0"
        );
        assert_eq!(
            installed(PackageLanguage::JavaScript, "left-pad@1.3.0").command()[4..].join(" "),
            "/node_modules npm install --no-save --no-audit --no-fund --cache cache -- left-pad@1.3.0"
        );
    }

    #[test]
    fn the_search_path_of_this_machine_is_not_told() {
        let of = |language: PackageLanguage| Installed {
            language,
            at: language.place(),
            pinned: Vec::new(),
            tree: "x/y".to_owned(),
        };
        let python = [of(PackageLanguage::Python)];
        let both = [of(PackageLanguage::Python), of(PackageLanguage::JavaScript)];
        let told = |packages: &[Installed], path: &str| {
            added(packages, path).map(|added| (added.before.join(":"), added.after.join(":")))
        };
        let (bin, node) = ("/packages/python/bin", "/node_modules/.bin");
        let expected = |before: &str, after: &str| Some((before.to_owned(), after.to_owned()));
        assert_eq!(told(&python, &format!("{bin}:/opt/secret/bin:/bin")), expected(bin, ""));
        assert_eq!(told(&both, &format!("{bin}:/opt/secret/bin:/bin:{node}")), expected(bin, node));
        assert_eq!(told(&python, &format!("/mine:{bin}")), None, "a caller has set it");
        assert_eq!(told(&[], "/usr/bin:/bin"), None);
    }

    #[test]
    fn no_package_is_called_like_an_option() {
        use PackageLanguage::{JavaScript, Python};
        let tree: sandbox::TreeName = "x/y".parse().unwrap();
        let attachments = [Attachment { tree: tree.clone(), at: Python.place() }];
        for (language, name, is_known) in [
            (Python, "six", true),
            (Python, "--index-url=http://evil", false),
            (Python, "", false),
            (JavaScript, "@types/node", true),
            (JavaScript, "@--registry", false),
            (JavaScript, "-g", false),
        ] {
            let package = sandbox::ResolvedPackage { name: name.to_owned(), version: "1".to_owned() };
            let set = PackageSet {
                tree: tree.clone(),
                language,
                image: "host".to_owned(),
                requests: Vec::new(),
                resolved: vec![package],
                bytes: None,
                last_used: std::time::SystemTime::UNIX_EPOCH,
            };
            let (known, unknown) = Installed::of(&attachments, &[set]);
            assert_eq!((known.len(), unknown.len()), if is_known { (1, 0) } else { (0, 1) }, "{name}");
        }
    }
}
