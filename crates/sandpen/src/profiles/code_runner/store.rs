//! Conversations on this machine: a directory for each, below one root, for one run at a time.
//!
//! ```text
//! SANDBOX_ROOT/<64 digits>/…      files as code left them
//!              <16 digits>/…      the same, where the older server's last version made it
//!              .locks/<64 digits> locked by whoever has the conversation, in whichever process
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{ByteSize, Error, Files, GuestPath, Limits, Result, system};
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};
use tools::profile::code_runner::{Conversation, Conversations, Directory, FileName, Links, Located};

use crate::config::code_runner::{CodeRunnerConfig, FileSecret};
use crate::random;
use crate::transfer::host_tree::HostTree;
use crate::transfer::kept::{Kept, Opened};
use crate::transfer::{blocking, names};

const LOCKS: &str = ".locks";

/// Between two looks at whether another process is done with a conversation.
const PATIENCE: Duration = Duration::from_millis(50);

/// Whose files are on the host: the user that the older server gave them to, as which its code ran.
const USER: u32 = 1000;

/// What a directory is called in messages, which clients read.
const SHOWN: &str = "/data";

/// Nothing of it is made before somebody asks: a list of tools must not leave directories behind.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    secret: Option<FileSecret>,
    /// Where one is kept that nobody chose.
    secret_file: PathBuf,
    links: Links,
    /// What directories of new conversations are called by.
    naming: Naming,
    opened: OnceLock<Arc<Root>>,
    /// Those who wait for a conversation in this process, in the order in which they came.
    queues: Mutex<BTreeMap<Directory, Weak<Queue<()>>>>,
}

/// Which of the older server's generations names directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Whole,
    /// By the beginning, as its last version did.
    Short,
}

#[derive(Debug)]
struct Root {
    tree: HostTree,
    secret: FileSecret,
}

impl Store {
    pub fn new(config: &CodeRunnerConfig, state_dir: &Path) -> Self {
        let own = state_dir.join("code-runner");
        Self {
            root: config.root.clone().unwrap_or_else(|| own.join("files")),
            secret: config.secret.clone(),
            secret_file: own.join("file-secret"),
            links: match &config.base {
                Some(base) => Links::Http(base.as_str().to_owned()),
                None => Links::Resources,
            },
            naming: Naming::Whole,
            opened: OnceLock::new(),
            queues: Mutex::default(),
        }
    }

    #[must_use]
    pub fn naming(self, naming: Naming) -> Self {
        Self { naming, ..self }
    }

    /// Whether files can be kept at all; for the operator, who may read where.
    pub fn prepare(&self) -> Result<()> {
        self.root().map(drop)
    }

    /// As [`Self::root`], for clients.
    fn ready(&self) -> Result<&Arc<Root>> {
        self.root().map_err(|error| conceal(&[&self.root, &self.secret_file], error))
    }

    fn root(&self) -> Result<&Arc<Root>> {
        if let Some(root) = self.opened.get() {
            return Ok(root);
        }
        let failed = |cause: std::io::Error| {
            Error::unavailable(format!(
                "files cannot be kept in {}: {}",
                self.root.display(),
                crate::output::reason(&cause)
            ))
        };
        system::private_directory().create(self.root.join(LOCKS)).map_err(failed)?;
        let secret = match &self.secret {
            Some(secret) => secret.clone(),
            None => own_secret(&self.secret_file)?,
        };
        let root = Root { tree: HostTree::open_existing(&self.root)?.for_user(USER), secret };
        Ok(self.opened.get_or_init(|| Arc::new(root)))
    }

    /// What has this name below a directory that is called so, or by the beginning of its name.
    ///
    /// Anybody may ask, and there may be many directories to look through: nobody else waits for that.
    pub async fn find(&self, located: &Located) -> Result<Opened> {
        let (root, located) = (Arc::clone(self.ready()?), located.clone());
        blocking(move || root.open(&located)).await
    }

    /// In the order in which they came, as far as this process knows; then when no other process has it.
    async fn hold(&self, whole: &Directory) -> Result<Held> {
        let queue = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, queue| queue.strong_count() > 0);
            let known = queues.get(whole).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let queue = Arc::new(Queue::new(()));
                queues.insert(whole.clone(), Arc::downgrade(&queue));
                queue
            })
        };
        let turn = queue.lock_owned().await;
        let failed = |cause| Error::unavailable("the conversation cannot be locked").with_cause(cause);
        let path = self.root.join(LOCKS).join(whole.as_str());
        let lock = system::private_file().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Held { _turn: turn, _lock: lock }),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(PATIENCE).await,
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
    }
}

/// Paths of the host are not for clients.
fn conceal(hidden: &[&Path], error: Error) -> Error {
    let told = format!("{} {}", error.message(), error.hint().unwrap_or_default());
    if hidden.iter().all(|path| !told.contains(&path.display().to_string())) {
        return error;
    }
    Error::new(error.kind(), "the files of the conversation cannot be kept").with_cause(error)
}

impl Root {
    fn open(&self, located: &Located) -> Result<Opened> {
        let lost = |cause: std::io::Error| Error::unavailable("the file cannot be read").with_cause(cause);
        let Some(tree) = self.find(&located.directory).map_err(lost)? else { return Ok(Opened::Nothing) };
        let names = located.path.iter().map(|name| names::here(name.as_bytes())).collect::<Result<Vec<_>>>();
        match names {
            Ok(names) => tree.open_below(&names).map_err(lost),
            // No file of this machine can be called so.
            Err(_) => Ok(Opened::Nothing),
        }
    }

    /// Where a conversation has its files. One that is there goes on as it is, whichever version made it.
    fn directory(&self, whole: &Directory, naming: Naming) -> std::io::Result<Directory> {
        let short = whole.shortened();
        if self.existing(&short)?.is_some() {
            return Ok(short);
        }
        match naming {
            Naming::Short if self.existing(whole)?.is_none() => Ok(short),
            Naming::Short | Naming::Whole => Ok(whole.clone()),
        }
    }

    /// Both of its names lead to a directory, whichever of them it has.
    fn find(&self, asked: &Directory) -> std::io::Result<Option<HostTree>> {
        if let Some(found) = self.existing(asked)? {
            return Ok(Some(found));
        }
        if !asked.is_short() {
            return self.existing(&asked.shortened());
        }
        let is_it = |name: &Directory| !name.is_short() && name.shortened() == *asked;
        let names = self.tree.names()?;
        let mut found = names.iter().filter_map(|name| name.to_str()?.parse().ok()).filter(is_it);
        found.next().map_or(Ok(None), |whole| self.existing(&whole))
    }

    fn existing(&self, directory: &Directory) -> std::io::Result<Option<HostTree>> {
        self.tree.existing(OsStr::new(directory.as_str()), Path::new(SHOWN))
    }
}

#[async_trait]
impl Conversations for Store {
    async fn open(&self, conversation: &[u8], limits: Limits) -> Result<Box<dyn Conversation>> {
        let root = self.ready()?;
        let whole = Directory::of(conversation, root.secret.as_bytes());
        let held = self.hold(&whole).await?;
        let directory = root
            .directory(&whole, self.naming)
            .map_err(|cause| Error::unavailable("the files of the conversation cannot be found").with_cause(cause))?;
        let tree = root.tree.below_private(OsStr::new(directory.as_str()), Path::new(SHOWN));
        let concealed = |error| conceal(&[&self.root], error);
        let tree = tree.map_err(concealed)?;
        // There may be many files to look at.
        let kept = blocking(move || Kept::new(tree, held, limits)).await.map_err(concealed)?;
        Ok(Box::new(One { directory, kept, root: self.root.clone() }))
    }

    async fn read(&self, located: &Located, at_most: u64) -> Result<Vec<u8>> {
        let Opened::File(file) = self.find(located).await? else {
            return Err(Error::not_found("there is no such file"));
        };
        let bytes = blocking(move || {
            let mut bytes = Vec::new();
            let unread = |cause| Error::unavailable("the file could not be read to its end").with_cause(cause);
            file.take(at_most + 1).read_to_end(&mut bytes).map_err(unread)?;
            Ok(bytes)
        });
        let bytes = bytes.await?;
        if bytes.len() as u64 > at_most {
            return Err(Error::limit_exceeded(format!("the file has more than {at_most} bytes"))
                .with_hint("read a part of it with run_code"));
        }
        Ok(bytes)
    }

    fn links(&self) -> &Links {
        &self.links
    }
}

/// Dropped, it lets the next one in.
#[derive(Debug)]
struct Held {
    _turn: OwnedMutexGuard<()>,
    _lock: File,
}

struct One {
    directory: Directory,
    kept: Kept,
    root: PathBuf,
}

impl One {
    fn concealed<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| conceal(&[&self.root], error))
    }
}

#[async_trait]
impl Conversation for One {
    fn directory(&self) -> &Directory {
        &self.directory
    }

    async fn files(&self) -> Result<Vec<FileName>> {
        let names = self.concealed(self.kept.names().await)?;
        names.iter().map(|name| FileName::new(name.as_encoded_bytes())).collect()
    }

    async fn memory(&self) -> Result<ByteSize> {
        self.concealed(self.kept.memory().await)
    }

    async fn put(&mut self, name: &FileName, contents: Vec<u8>) -> Result<()> {
        let put = self.kept.put(name.as_bytes(), contents).await;
        self.concealed(put)
    }

    async fn lend(&mut self, files: &dyn Files, to: &GuestPath) -> Result<()> {
        let lent = self.kept.lend(files, to).await;
        self.concealed(lent)
    }

    async fn take_back(&mut self, files: &dyn Files, from: &GuestPath) -> Result<()> {
        let taken = self.kept.take_back(files, from).await;
        self.concealed(taken)
    }
}

/// Made once and then kept, so that addresses stay good over restarts. Of several processes that make one, the first counts.
fn own_secret(path: &Path) -> Result<FileSecret> {
    let failed = |cause: std::io::Error| {
        Error::unavailable(format!("{} cannot be read or made: {}", path.display(), crate::output::reason(&cause)))
            .with_hint("set FILE_SECRET to a long random text")
    };
    if let Some(above) = path.parent() {
        system::private_directory().create(above).map_err(failed)?;
    }
    for _ in 0..2 {
        match system::private_file().read(true).open(path) {
            Ok(mut file) => {
                if system::exposure(&file.metadata().map_err(failed)?).is_some() {
                    return Err(Error::denied(format!("{} is not for its owner alone", path.display())).with_hint(
                        "others may have read it: delete it, and links to files that were given out are void",
                    ));
                }
                let mut secret = Vec::new();
                file.read_to_end(&mut secret).map_err(failed)?;
                return Ok(FileSecret::new(secret));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let draft = path.with_extension(random::digits()?);
        let secret = format!("{}{}", random::digits()?, random::digits()?);
        let mut file = system::private_file().write(true).create_new(true).open(&draft).map_err(failed)?;
        let written = file.write_all(secret.as_bytes()).and_then(|()| file.sync_all());
        // Another process may have been faster.
        let _ = written.as_ref().map(|()| std::fs::hard_link(&draft, path));
        let _ = std::fs::remove_file(&draft);
        written.map_err(failed)?;
    }
    Err(failed(std::io::ErrorKind::NotFound.into()))
}

#[cfg(all(test, unix))]
#[path = "store_tests.rs"]
mod tests;
