//! Packages that code wants to import: what may be asked for, as it is written for each package manager.
//!
//! Requirements come from models. They name packages of an index and versions of these, and nothing else: no option of the
//! package manager, no path, no address. Where packages come from is the operator's to say.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::path::GuestPath;

mod javascript;
mod python;

/// Whose packages they are. Languages that share a package manager share their packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackageLanguage {
    Python,
    /// TypeScript too.
    JavaScript,
}

impl PackageLanguage {
    pub const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }

    /// Of a runner, by its name.
    pub fn of_runner(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "javascript" | "typescript" => Some(Self::JavaScript),
            _ => None,
        }
    }

    /// Whose packages those are that do not say so themselves, in code of this runner. Must fail for a language that has none,
    /// when some do not: a package of the same name in another language is something else.
    pub fn usual<T: AsRef<str>>(runner: &str, texts: &[T]) -> Result<Self> {
        let says_so = |text: &str| Self::ALL.iter().any(|language| text.trim().starts_with(language.prefix()));
        match Self::of_runner(runner) {
            Some(language) => Ok(language),
            None if texts.iter().all(|text| says_so(text.as_ref())) => Ok(Self::Python),
            None => Err(Error::invalid_input(format!("there are no packages for {runner} here"))
                .with_hint("write pypi: before those of Python, npm: before those of JavaScript")),
        }
    }

    /// Before a requirement, where the language is not known otherwise.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Python => "pypi:",
            Self::JavaScript => "npm:",
        }
    }

    /// Where its packages are in sandboxes that have some.
    pub fn place(self) -> GuestPath {
        let path = match self {
            Self::Python => "/packages/python",
            // From any directory, Node.js looks here in the end, for `require` and for `import` alike.
            Self::JavaScript => "/node_modules",
        };
        GuestPath::resolve(&GuestPath::root(), path.as_bytes()).expect("both are absolute paths without odd bytes")
    }

    /// Where programs of its packages are, in sandboxes that have some.
    pub fn programs(self) -> String {
        match self {
            Self::Python => format!("{}/bin", self.place()),
            Self::JavaScript => format!("{}/.bin", self.place()),
        }
    }

    /// A package with its version, as people of this language write it.
    pub fn pinned(self, name: &str, version: &str) -> String {
        match self {
            Self::Python => format!("{name}=={version}"),
            Self::JavaScript => format!("{name}@{version}"),
        }
    }
}

impl FromStr for PackageLanguage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|language| language.as_str() == text)
            .ok_or_else(|| Error::invalid_input(format!("{text:?} is not a language with packages")))
    }
}

impl fmt::Display for PackageLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Packages of one language that are to be there together. Checked, in order, each once: equal requests are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packages {
    language: PackageLanguage,
    requirements: Vec<Requirement>,
}

/// A package by its name, and which versions of it will do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    pub(crate) name: String,
    /// All of it, in one spelling.
    pub(crate) text: String,
}

impl Requirement {
    pub const MAX_BYTES: usize = 256;

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Packages {
    pub const MOST: usize = 64;

    pub fn new<T: AsRef<str>>(language: PackageLanguage, texts: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut requirements = Vec::new();
        for text in texts {
            let text = text.as_ref().trim();
            if requirements.len() == Self::MOST {
                return Err(Error::limit_exceeded(format!("{} packages can be asked for at once", Self::MOST))
                    .with_hint("packages that others need come by themselves"));
            }
            if text.len() > Requirement::MAX_BYTES {
                return Err(Error::limit_exceeded(format!(
                    "a package with its versions has {} bytes at most",
                    Requirement::MAX_BYTES
                )));
            }
            requirements.push(match language {
                PackageLanguage::Python => python::requirement(text)?,
                PackageLanguage::JavaScript => javascript::requirement(text)?,
            });
        }
        if requirements.is_empty() {
            return Err(Error::invalid_input("no package is named"));
        }
        requirements.sort();
        requirements.dedup();
        if language == PackageLanguage::JavaScript
            && let Some(pair) = requirements.windows(2).find(|pair| pair[0].name == pair[1].name)
        {
            return Err(Error::invalid_input(format!("{} and {} name one package", pair[0].text, pair[1].text))
                .with_hint("name each package once"));
        }
        Ok(Self { language, requirements })
    }

    /// A list that may mix languages: `npm:` or `pypi:` before a requirement says its own, `usual` is that of the others.
    pub fn sort_out<T: AsRef<str>>(usual: PackageLanguage, texts: &[T]) -> Result<Vec<Self>> {
        let of = |text: &str| PackageLanguage::ALL.into_iter().find(|language| text.starts_with(language.prefix()));
        let mut sorted = Vec::new();
        for language in PackageLanguage::ALL {
            let own: Vec<&str> = texts
                .iter()
                .map(|text| text.as_ref().trim())
                .filter(|text| of(text).unwrap_or(usual) == language)
                .map(|text| text.strip_prefix(language.prefix()).unwrap_or(text))
                .collect();
            if !own.is_empty() {
                sorted.push(Self::new(language, own)?);
            }
        }
        Ok(sorted)
    }

    pub fn language(&self) -> PackageLanguage {
        self.language
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for Packages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, requirement.text)?;
        }
        Ok(())
    }
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_are_equal() {
        let packages = |texts: &[&str]| Packages::new(PackageLanguage::Python, texts).unwrap();
        assert_eq!(packages(&["Foo_Bar >= 1.0", "numpy"]), packages(&["numpy", "foo-bar>=1.0", "numpy"]));
        assert_eq!(packages(&["b", "a [x,  y] == 1 , <2"]).to_string(), "a[x,y]==1,<2, b");
    }

    #[test]
    fn a_list_is_sorted_out_by_prefixes() {
        let texts = ["npm:@types/node@^20", "pandas==2.2.3", "pypi:numpy"];
        let sorted = Packages::sort_out(PackageLanguage::Python, &texts).unwrap();
        assert_eq!(
            sorted.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["numpy, pandas==2.2.3", "@types/node@^20"]
        );
        let sorted = Packages::sort_out(PackageLanguage::JavaScript, &["lodash", "pypi:six"]).unwrap();
        assert_eq!(sorted.iter().map(|packages| packages.language()).collect::<Vec<_>>(), PackageLanguage::ALL);
        assert_eq!(PackageLanguage::usual("typescript", &["x"]).unwrap(), PackageLanguage::JavaScript);
        assert!(PackageLanguage::usual("ruby", &["rails"]).is_err());
        assert!(PackageLanguage::usual("ruby", &["pypi:six"]).is_ok());
        assert_eq!(Packages::sort_out::<&str>(PackageLanguage::Python, &[]).unwrap(), []);
    }

    #[test]
    fn requests_are_bounded() {
        let many = (0..=Packages::MOST).map(|index| format!("p{index}"));
        assert!(Packages::new(PackageLanguage::Python, many).is_err());
        assert!(Packages::new(PackageLanguage::Python, ["a".repeat(Requirement::MAX_BYTES + 1)]).is_err());
        assert!(Packages::new::<&str>(PackageLanguage::Python, []).is_err());
        assert!(Packages::new(PackageLanguage::JavaScript, ["a@1", "a@2"]).is_err());
    }
}
