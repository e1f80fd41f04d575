//! Packages of Python: by `uv` where the image has it, else by its `pip`.
//!
//! Wheels first and alone: they are unpacked, and nothing of them runs. Only when that finds no answer, packages are built
//! from their sources, which is to run them.

use super::builder::Ran;
use super::failure::{self, Tool};
use super::make::{Interpreter, Lock, Trust, Work};
use super::python_settings::{pip_variables, uv_variables};
use super::record::Record;
use super::{PackageStep, ResolvedPackage, said, words};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::ExecStatus;
use crate::image::Image;
use crate::spec::Environment;

const PROBE: &str = r#"
import json, os, platform, sys, sysconfig
try:
    import pip
    has_pip = True
except ImportError:
    has_pip = False
kind = [sys.implementation.cache_tag, platform.python_version(), sysconfig.get_config_var("SOABI"),
        sysconfig.get_platform(), *platform.libc_ver()]
print(json.dumps({"kind": " ".join(str(part) for part in kind), "has_pip": has_pip,
                  "path": os.environ.get("PATH", ""), "python_path": os.environ.get("PYTHONPATH", "")}))
"#;

const LIST_WHEELS: &str = r#"
import hashlib, json, os, sys
found = []
for name in sorted(os.listdir(sys.argv[1])):
    hashing = hashlib.sha256()
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            hashing.update(block)
    found.append([name, hashing.hexdigest()])
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"#;

/// Says what an index answers. Whom it trusts does not matter: nothing is told to it and nothing of it is used.
const ASK_INDEX: &str = r#"
import ssl, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30, context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
except Exception as error:
    print("nothing:", error)
"#;

/// Without a home, a work directory or variables that could bring modules, and without holding back what it says.
const ALONE: &str = "-Iu";

const TREE: &str = "tree";
const REQUIREMENTS: &str = "requirements.txt";
const LOCK: &str = "lock.txt";
const MOST_LOCK_BYTES: usize = 4 << 20;

pub(super) async fn make(work: &Work<'_>) -> Result<Record> {
    let (python, said) = probe(work).await?;
    let installer = Installer::find(work, &python, said.has_pip).await?;
    let interpreter = said.interpreter();
    let requirements: Vec<&str> = work.request.packages.requirements().iter().map(|one| one.as_str()).collect();
    work.builder.write(REQUIREMENTS, format!("{}\n", requirements.join("\n")).as_bytes()).await?;

    let lock = match installer.lock(work, Sources::Never).await? {
        Ok(lock) => lock,
        Err(ran) if failure::is_final(&ran) => return Err(installer.explain(work, ran).await),
        Err(_) => match installer.lock(work, Sources::WhereNoWheelIs).await? {
            Ok(lock) => lock,
            Err(ran) => return Err(installer.explain(work, ran).await),
        },
    };
    let tree = work.tree(&interpreter, &lock)?;
    if work.trees.kept(&tree).await?.is_none() {
        work.report(PackageStep::Installing(lock.resolved.len()));
        work.builder.make_directory(TREE).await?;
        let ran = installer.install(work, lock.trust).await?;
        if !ran.is_success() {
            return Err(installer.explain(work, ran).await);
        }
        work.keep(TREE, &tree).await?;
    }
    Ok(work.record(interpreter, lock, tree))
}

impl said::Python {
    fn interpreter(self) -> Interpreter {
        Interpreter { kind: self.kind, path: self.path, python_path: self.python_path }
    }
}

/// The interpreter that code will run in: the same that runs of this language take.
async fn probe(work: &Work<'_>) -> Result<(String, said::Python)> {
    for python in ["python3", "python"] {
        let argv = [python, ALONE, "-c", PROBE];
        let Some(ran) = work.builder.try_run(&argv, &Environment::default(), None, |_| {}).await? else { continue };
        if let (true, Ok(said)) = (ran.is_success(), serde_json::from_str(ran.stdout.trim())) {
            return Ok((python.to_owned(), said));
        }
        return Err(failure::broken("python", work.request, &ran));
    }
    Err(Error::unsupported(format!("there is no Python in the image {}", work.request.image.shown()))
        .with_hint("use an image that has it"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    Never,
    WhereNoWheelIs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Uv,
    Pip,
}

struct Installer {
    by: By,
    python: String,
    variables: Environment,
}

impl Installer {
    async fn find(work: &Work<'_>, python: &str, has_pip: bool) -> Result<Self> {
        let uv = work.builder.try_run(&["uv", "--version"], &Environment::default(), None, |_| {}).await?;
        let by = match uv {
            Some(ran) if ran.is_success() => By::Uv,
            Some(_) | None if has_pip => By::Pip,
            Some(_) | None => return Err(no_installer(&work.request.image)),
        };
        let variables = match by {
            By::Uv => uv_variables(&work.request.index)?,
            By::Pip => pip_variables(&work.request.index)?,
        };
        Ok(Self { by, python: python.to_owned(), variables })
    }

    /// Or what the package manager said instead.
    async fn lock(&self, work: &Work<'_>, sources: Sources) -> Result<Result<Lock, Ran>> {
        let trust = match sources {
            Sources::Never => Trust::NothingForeignRan,
            Sources::WhereNoWheelIs => Trust::OnlyForTheSameRequest,
        };
        match self.by {
            By::Uv => self.lock_by_uv(work, trust).await,
            By::Pip => self.lock_by_pip(work, trust).await,
        }
    }

    async fn lock_by_uv(&self, work: &Work<'_>, trust: Trust) -> Result<Result<Lock, Ran>> {
        let mut argv = vec!["uv", "pip", "compile", "--python", &self.python, "--generate-hashes", "--no-header"];
        argv.extend(["--no-annotate", "--quiet", "--output-file", LOCK]);
        argv.extend(wheels_alone(trust));
        argv.push(REQUIREMENTS);
        let ran = self.run(work, &argv).await?;
        if !ran.is_success() {
            return Ok(Err(ran));
        }
        let text = String::from_utf8_lossy(&work.builder.read(LOCK, MOST_LOCK_BYTES).await?).into_owned();
        let resolved = text.lines().filter_map(pinned).collect();
        Ok(Ok(Lock { resolved, text, trust }))
    }

    /// All wheels are fetched, or built, and what they are is the lock: older versions of pip cannot tell otherwise.
    async fn lock_by_pip(&self, work: &Work<'_>, trust: Trust) -> Result<Result<Lock, Ran>> {
        let directory = wheels(trust);
        work.builder.make_directory(directory).await?;
        let mut argv = vec![self.python.as_str(), ALONE, "-m", "pip", "wheel", "--wheel-dir", directory];
        argv.extend(wheels_alone(trust));
        argv.extend(["--prefer-binary", "-r", REQUIREMENTS]);
        let ran = self.run(work, &argv).await?;
        if !ran.is_success() {
            return Ok(Err(ran));
        }
        let listed = self.run(work, &[&self.python, ALONE, "-c", LIST_WHEELS, directory, "wheels.json"]).await?;
        if !listed.is_success() {
            return Ok(Err(listed));
        }
        let bytes = work.builder.read("wheels.json", MOST_LOCK_BYTES).await?;
        let files: Vec<(String, String)> = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::unavailable("the list of fetched packages makes no sense").with_cause(cause))?;
        let mut lock = Lock { resolved: Vec::new(), text: String::new(), trust };
        let mut paths = String::new();
        for (file, digest) in &files {
            if let Some(package) = of_wheel(file) {
                lock.text.push_str(&format!("{file} {digest}\n"));
                lock.resolved.push(package);
                paths.push_str(&format!("./{directory}/{file}\n"));
            }
        }
        work.builder.write(LOCK, paths.as_bytes()).await?;
        Ok(Ok(lock))
    }

    async fn install(&self, work: &Work<'_>, trust: Trust) -> Result<Ran> {
        match self.by {
            By::Uv => {
                let mut argv = vec!["uv", "pip", "install", "--python", &self.python, "--target", TREE, "--no-deps"];
                argv.extend(["--require-hashes", "--compile-bytecode", "--link-mode", "copy"]);
                argv.extend(wheels_alone(trust));
                argv.extend(["-r", LOCK]);
                self.run(work, &argv).await
            }
            By::Pip => {
                let mut argv = vec![self.python.as_str(), ALONE, "-m", "pip", "install", "--no-index", "--no-deps"];
                argv.extend(["--target", TREE, "-r", LOCK]);
                self.run(work, &argv).await
            }
        }
    }

    /// pip does not tell an index that fails from a package that is not there, so the index is asked.
    async fn explain(&self, work: &Work<'_>, mut ran: Ran) -> Error {
        let tool = match self.by {
            By::Uv => return failure::explain(Tool::Uv, work.request, &ran),
            By::Pip => Tool::Pip,
        };
        if let (true, Some(url)) = (failure::found_nothing(&ran), work.request.index.urls.first()) {
            let page = format!("{}/sandpen/", url.trim_end_matches('/'));
            if let Ok(asked) = self.run(work, &[&self.python, ALONE, "-c", ASK_INDEX, &page]).await {
                let answer = asked.stdout.trim();
                if !matches!(answer, "200" | "404" | "410") {
                    ran.stderr.push_str(&format!("HTTP error {answer}\n"));
                    ran.refused.extend(asked.refused);
                    return failure::unreachable(work.request, &ran);
                }
            }
        }
        failure::explain(tool, work.request, &ran)
    }

    async fn run(&self, work: &Work<'_>, argv: &[&str]) -> Result<Ran> {
        let say = |line: &str| {
            let is_news = ["Collecting ", "Downloading ", "Building "].iter().any(|word| line.starts_with(word));
            if is_news {
                let line = line.split(" (from ").next().unwrap_or(line);
                work.report(PackageStep::Said(line.to_owned()));
            }
        };
        let ran = work.builder.try_run(argv, &self.variables, None, say).await?;
        ran.ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{} is gone from the image", argv[0])))
    }
}

fn wheels_alone(trust: Trust) -> &'static [&'static str] {
    match trust {
        Trust::NothingForeignRan => &["--only-binary", ":all:"],
        Trust::OnlyForTheSameRequest => &[],
    }
}

/// Of an attempt: what another has left is not to be among it.
fn wheels(trust: Trust) -> &'static str {
    match trust {
        Trust::NothingForeignRan => "wheels",
        Trust::OnlyForTheSameRequest => "built",
    }
}

/// Of a line of a lock: `name==version \`, perhaps with conditions behind it.
fn pinned(line: &str) -> Option<ResolvedPackage> {
    let (name, rest) = line.split_once("==")?;
    let version = rest.split([' ', ';', '\\']).next()?;
    is_plain(name).then(|| ResolvedPackage { name: name.to_owned(), version: words::plain(version) })
}

/// Of a wheel's file name: `name-version-….whl`.
fn of_wheel(file: &str) -> Option<ResolvedPackage> {
    let mut parts = file.strip_suffix(".whl")?.split('-');
    let (name, version) = (parts.next()?, parts.next()?);
    let is_sound = is_plain(&file.replace(['+', '!'], ""));
    is_sound.then(|| ResolvedPackage { name: name.to_ascii_lowercase().replace('_', "-"), version: version.to_owned() })
}

fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-'))
}

fn no_installer(image: &Image) -> Error {
    let hint = match image {
        Image::Host => "install one on this machine: apt install python3-pip, or uv in /usr/local/bin",
        Image::Directory(_) | Image::Archive(_) | Image::Named(_) | Image::Saved(_) => {
            "use an image with pip or uv in it, such as python:3.13-slim"
        }
    };
    Error::unsupported(format!("there is neither uv nor pip in the image {}", image.shown())).with_hint(hint)
}

impl Ran {
    /// Whether it ended by itself, with whatever code.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status, ExecStatus::Exited(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_off_wheels_and_locks() {
        let shown = |package: Option<ResolvedPackage>| package.map(|one| format!("{}=={}", one.name, one.version));
        assert_eq!(shown(of_wheel("Foo_Bar-1.0+cpu-py3-none-any.whl")).as_deref(), Some("foo-bar==1.0+cpu"));
        for file in ["a.whl", "a-1.tar.gz", "a-1-\n-r x.whl", "../a-1-py3.whl"] {
            assert_eq!(of_wheel(file), None, "{file:?}");
        }
        assert_eq!(shown(pinned("six==1.17.0 \\")).as_deref(), Some("six==1.17.0"));
        assert_eq!(shown(pinned("a==1 ; python_version < '3'")).as_deref(), Some("a==1"));
        assert_eq!(pinned("    --hash=sha256:00"), None);
    }
}
