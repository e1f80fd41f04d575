//! Programs of the fake: what a command of a test does to streams and files.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Mutex;

use super::ports;
use super::sandbox::FakeSandbox;
use super::shell::{self, Join, Piece, Redirection, Step, Word};
use super::tree::{LastLink, Node};
use crate::error::{Error, Result};
use crate::path::GuestPath;
use crate::spec::Environment;

const PROGRAMS: [&str; 23] = [
    "bash", "cat", "cc", "connect", "echo", "env", "false", "head", "id", "listen", "ln", "mkdir", "mkfifo",
    "printenv", "printf", "pwd", "rm", "sh", "sleep", "test", "touch", "true", "yes",
];

type Stream = Arc<Mutex<DuplexStream>>;

#[derive(Clone)]
enum Output {
    Stream(Stream),
    File(GuestPath),
}

#[derive(Clone)]
enum Input {
    Stream(Stream),
    File(GuestPath),
}

/// A command about to run.
#[derive(Clone)]
pub(super) struct Context {
    sandbox: Arc<FakeSandbox>,
    user: u32,
    argv: Vec<String>,
    environment: BTreeMap<String, String>,
    directory: GuestPath,
    input: Input,
    /// Standard output and standard error.
    outputs: [Output; 2],
}

impl Context {
    /// Fails as a real engine fails when a program cannot be started.
    pub fn new(
        sandbox: Arc<FakeSandbox>,
        user: u32,
        argv: &[String],
        environment: &Environment,
        directory: GuestPath,
        [stdin, stdout, stderr]: [DuplexStream; 3],
    ) -> Result<Self> {
        {
            let tree = sandbox.tree.lock().unwrap();
            match tree.find(&directory, LastLink::Follow)? {
                Node::Directory { .. } => {}
                Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => {
                    return Err(Error::not_found(format!("{directory} is not a directory")));
                }
            }
        }
        let whole = sandbox.spec.environment.clone().overlaid_by(environment);
        let mut variables: BTreeMap<String, String> =
            [("HOME", "/workspace"), ("PATH", "/usr/bin:/bin"), ("USER", if user == 0 { "root" } else { "user" })]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        variables.extend(whole.iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        let stream = |stream| Arc::new(Mutex::new(stream));
        let context = Self {
            sandbox,
            user,
            argv: argv.to_vec(),
            environment: variables,
            directory,
            input: Input::Stream(stream(stdin)),
            outputs: [Output::Stream(stream(stdout)), Output::Stream(stream(stderr))],
        };
        context.program()?;
        Ok(context)
    }

    /// With errors where the output goes.
    pub fn joined(mut self) -> Self {
        self.outputs[1] = self.outputs[0].clone();
        self
    }

    fn path(&self, text: &str) -> Result<GuestPath> {
        GuestPath::resolve(&self.directory, text.as_bytes())
    }

    fn program(&self) -> Result<Program> {
        let name = self.argv.first().map_or("", String::as_str);
        let known = |name: &str| PROGRAMS.into_iter().find(|program| *program == name);
        let base = name.strip_prefix("/usr/bin/").or_else(|| name.strip_prefix("/bin/")).unwrap_or(name);
        if let Some(program) = known(base) {
            return Ok(Program::BuiltIn(program));
        }
        if !name.contains('/') {
            return Err(Error::not_found(format!("there is no program {name} in the sandbox")));
        }
        let path = self.path(name)?;
        let tree = self.sandbox.tree.lock().unwrap();
        match tree.find(&path, LastLink::Follow)? {
            Node::File { bytes, mode, .. } if mode & 0o111 != 0 => {
                Ok(Program::Script(String::from_utf8_lossy(bytes).into_owned()))
            }
            Node::File { .. } | Node::Directory { .. } | Node::Link { .. } | Node::Fifo { .. } => {
                Err(Error::invalid_input(format!("{path} cannot be executed")))
            }
        }
    }

    async fn write(&self, output: usize, bytes: &[u8]) -> std::result::Result<(), i32> {
        match &self.outputs[output] {
            // A reader that went away ends a program as SIGPIPE does.
            Output::Stream(stream) => stream.lock().await.write_all(bytes).await.map_err(|_| 141),
            Output::File(path) => {
                let mut tree = self.sandbox.tree_of(self.user);
                let mut content = tree.read(path).map(|(_, bytes)| bytes).unwrap_or_default();
                content.extend_from_slice(bytes);
                tree.resolve(path, LastLink::Follow)
                    .and_then(|names| tree.insert(&names, Node::file(content, 0o644), path))
                    .map_err(|_| 1)
            }
        }
    }

    async fn complain(&self, text: &str) -> i32 {
        let _ = self.write(1, format!("{}: {text}\n", self.argv[0]).as_bytes()).await;
        1
    }
}

enum Program {
    BuiltIn(&'static str),
    Script(String),
}

/// Boxed because a shell runs programs, which may be shells.
pub(super) fn run(context: Context) -> Pin<Box<dyn Future<Output = i32> + Send>> {
    Box::pin(async move {
        match context.program() {
            Err(error) => {
                context.complain(error.message()).await;
                127
            }
            Ok(Program::Script(text)) => script(context, &text).await,
            Ok(Program::BuiltIn(name)) => built_in(name, context).await.unwrap_or_else(|code| code),
        }
    })
}

async fn built_in(name: &'static str, context: Context) -> std::result::Result<i32, i32> {
    let arguments: Vec<&str> = context.argv[1..].iter().map(String::as_str).collect();
    match (name, arguments.as_slice()) {
        ("true", _) => {}
        ("false", _) => return Ok(1),
        ("echo", words) => context.write(0, format!("{}\n", words.join(" ")).as_bytes()).await?,
        ("printf", [text, ..]) => context.write(0, text.replace("\\n", "\n").as_bytes()).await?,
        ("pwd", _) => context.write(0, format!("{}\n", context.directory).as_bytes()).await?,
        ("env", []) => {
            let lines: String = context.environment.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            context.write(0, lines.as_bytes()).await?;
        }
        ("printenv", [name]) => match context.environment.get(*name) {
            Some(value) => context.write(0, format!("{value}\n").as_bytes()).await?,
            None => return Ok(1),
        },
        ("id", ["-u"]) => context.write(0, format!("{}\n", context.user).as_bytes()).await?,
        ("sleep", [seconds]) => {
            tokio::time::sleep(Duration::from_secs_f64(seconds.parse().map_err(|_| 2)?)).await;
        }
        ("connect", [host, port]) => {
            let (host, port) = (host.parse().map_err(|_| 2)?, port.parse().map_err(|_| 2)?);
            let connected = context.sandbox.tried.lock().unwrap().connect(&context.sandbox.spec.network, host, port);
            match connected {
                Ok(()) => context.write(0, b"connected\n").await?,
                Err(reason) => return Ok(context.complain(reason).await),
            }
        }
        ("listen", [_family, port]) => {
            let port = port.parse().map_err(|_| 2)?;
            let Some(listening) = ports::listen(Arc::clone(&context.sandbox), port) else {
                return Ok(context.complain("address already in use").await);
            };
            context.write(0, b"listening\n").await?;
            return Ok(listening.await);
        }
        ("cat", []) => copy_input(&context).await?,
        ("cat", paths) => {
            for path in paths {
                let read = context.path(path).and_then(|path| context.sandbox.tree.lock().unwrap().read(&path));
                match read {
                    Ok((_, bytes)) => context.write(0, &bytes).await?,
                    Err(error) => return Ok(context.complain(error.message()).await),
                }
            }
        }
        ("head", ["-c", count, "/dev/zero"]) => {
            let mut left: usize = count.parse().map_err(|_| 2)?;
            while left > 0 {
                let chunk = left.min(8192);
                context.write(0, &vec![0; chunk]).await?;
                left -= chunk;
            }
        }
        ("yes", _) => loop {
            context.write(0, b"y\n").await?;
        },
        ("sh" | "bash", ["-c", text, ..]) => {
            let text = (*text).to_owned();
            return Ok(script(context, &text).await);
        }
        ("sh" | "bash", [path, ..]) => {
            let read = context.path(path).and_then(|path| context.sandbox.tree.lock().unwrap().read(&path));
            match read {
                Ok((_, bytes)) => return Ok(script(context, &String::from_utf8_lossy(&bytes)).await),
                Err(error) => return Ok(context.complain(error.message()).await),
            }
        }
        (_, arguments) => {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            if let Err(error) = change_files(name, &context, &arguments) {
                return Ok(context.complain(error.message()).await);
            }
        }
    }
    Ok(0)
}

async fn copy_input(context: &Context) -> std::result::Result<(), i32> {
    match &context.input {
        Input::File(path) => {
            let (_, bytes) = context.sandbox.tree.lock().unwrap().read(path).map_err(|_| 1)?;
            context.write(0, &bytes).await
        }
        Input::Stream(stream) => {
            let mut buffer = vec![0; 8192];
            loop {
                let count = stream.lock().await.read(&mut buffer).await.map_err(|_| 1)?;
                if count == 0 {
                    return Ok(());
                }
                context.write(0, &buffer[..count]).await?;
            }
        }
    }
}

fn change_files(name: &str, context: &Context, arguments: &[String]) -> Result<()> {
    let mut tree = context.sandbox.tree_of(context.user);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match (name, words.as_slice()) {
        ("ln", ["-s", target, link]) => {
            let path = context.path(link)?;
            let names = tree.resolve(&path, LastLink::Keep)?;
            tree.insert(&names, Node::link(target.as_bytes().to_vec()), &path)
        }
        ("mkdir", ["-p", paths @ ..] | paths) => {
            paths.iter().try_for_each(|path| tree.make_directories(&context.path(path)?))
        }
        ("mkfifo", [path]) => {
            let path = context.path(path)?;
            let names = tree.resolve(&path, LastLink::Keep)?;
            tree.insert(&names, Node::fifo(), &path)
        }
        ("touch", paths) => paths.iter().try_for_each(|path| {
            let path = context.path(path)?;
            let names = tree.resolve(&path, LastLink::Follow)?;
            if tree.get(&names).is_some() { Ok(()) } else { tree.insert(&names, Node::file(Vec::new(), 0o644), &path) }
        }),
        ("rm", ["-r" | "-rf" | "-f", paths @ ..] | paths) => paths.iter().try_for_each(|path| {
            let path = context.path(path)?;
            let names = tree.resolve(&path, LastLink::Keep)?;
            tree.remove(&names, &path).map(drop)
        }),
        ("test", ["-e", path]) => tree.find(&context.path(path)?, LastLink::Follow).map(drop),
        // A compiler whose language is the shell: a source that says `syntax error` does not build.
        ("cc", words) => {
            let source = words.iter().find(|word| word.ends_with(".c")).copied().unwrap_or("");
            let output = words.iter().skip_while(|word| **word != "-o").nth(1).copied().unwrap_or("a.out");
            let (_, bytes) = tree.read(&context.path(source)?)?;
            if String::from_utf8_lossy(&bytes).contains("syntax error") {
                return Err(Error::invalid_input("the source has a syntax error"));
            }
            let path = context.path(output)?;
            let names = tree.resolve(&path, LastLink::Follow)?;
            tree.insert(&names, Node::file(bytes, 0o755), &path)
        }
        _ => Err(Error::invalid_input("the fake does not know this use")),
    }
}

async fn script(mut context: Context, text: &str) -> i32 {
    let steps = match shell::parse(text) {
        Ok(steps) => steps,
        Err(reason) => {
            context.complain(&reason).await;
            return 2;
        }
    };
    let mut status = 0;
    for step in steps {
        let runs = match step.join {
            Join::Always => true,
            Join::IfSuccess => status == 0,
            Join::IfFailure => status != 0,
        };
        if !runs {
            continue;
        }
        let argv: Vec<String> = step.words.iter().map(|word| expand(word, &context, status)).collect();
        match argv.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["exit"] => return status,
            ["exit", code] => return code.parse().unwrap_or(2),
            ["cd", path] => {
                match context.path(path) {
                    Ok(path) => context.directory = path,
                    Err(_) => status = 1,
                }
                continue;
            }
            _ => {}
        }
        let inner = match inner_context(&context, argv, &step, status) {
            Ok(inner) => inner,
            Err(error) => {
                status = context.complain(error.message()).await;
                continue;
            }
        };
        if inner.argv.is_empty() {
            status = 0;
        } else if step.background {
            // A daemon: it outlives its command, holds its streams, and ends with the sandbox.
            let mut gone = context.sandbox.gone.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    _ = gone.wait_for(|gone| *gone) => {}
                    _ = run(inner) => {}
                }
            });
            status = 0;
        } else {
            status = run(inner).await;
        }
    }
    status
}

fn inner_context(outer: &Context, argv: Vec<String>, step: &Step, status: i32) -> Result<Context> {
    let mut inner = outer.clone();
    inner.argv = argv;
    for redirection in &step.redirections {
        match redirection {
            Redirection::Copy { descriptor, from } => inner.outputs[descriptor - 1] = inner.outputs[from - 1].clone(),
            Redirection::FromFile { path } => inner.input = Input::File(outer.path(&expand(path, outer, status))?),
            Redirection::ToFile { descriptor, append, path } => {
                let path = outer.path(&expand(path, outer, status))?;
                let mut tree = outer.sandbox.tree_of(outer.user);
                let names = tree.resolve(&path, LastLink::Follow)?;
                if !append || tree.get(&names).is_none() {
                    tree.insert(&names, Node::file(Vec::new(), 0o644), &path)?;
                }
                inner.outputs[descriptor - 1] = Output::File(path);
            }
        }
    }
    Ok(inner)
}

fn expand(word: &Word, context: &Context, status: i32) -> String {
    word.iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Variable(name) if name == "?" => status.to_string(),
            Piece::Variable(name) if name == "$" => "2".to_owned(),
            Piece::Variable(name) => match name.parse::<usize>() {
                // The script's own name is argv[1], so `$1` is argv[2].
                Ok(index) => context.argv.get(index + 1).cloned().unwrap_or_default(),
                Err(_) => context.environment.get(name).cloned().unwrap_or_default(),
            },
        })
        .collect()
}
