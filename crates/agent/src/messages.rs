//! What the server, process 1 of a sandbox and its helpers say to each other. Types alone: how they travel is told elsewhere.
//!
//! Shared by two programs built together, so the format needs no versions. Process 1 is not trusted by the server: every
//! length is bounded, every message is parsed, and a message that does not parse ends the conversation.

use serde::{Deserialize, Serialize};

/// Below the default socket buffer, above the largest message (arguments and environment of one exec).
pub const MAX_MESSAGE: usize = 192 * 1024;

/// Where the program of a hosted process 1 is seen inside. A link of the image there would lead to something of the image.
pub const PROGRAM_DIRECTORY: &str = "/.sandpen";

/// Where a hosted process 1 that keeps its files through a stop has them meanwhile: root's own, and closed to all others.
pub const KEPT_DIRECTORY: &str = "/.sandpen-kept";

/// How such a process 1 has ended, as its exit code. Any other code is that of one that could keep nothing.
#[derive(Debug)]
pub struct KeptExit;

impl KeptExit {
    /// It was stopped, and its files are kept.
    pub const STOPPED: i32 = 0;
    /// Its time was over.
    pub const ENDED: i32 = 100;
    /// It was started, and had been ended before it could keep anything.
    pub const LOST: i32 = 101;
    /// It was stopped, and there was no room for its files.
    pub const NOT_KEPT: i32 = 102;
    /// It was started, and there is no room for the files that are kept, or they cannot be read.
    pub const NOT_BROUGHT_BACK: i32 = 103;
}

/// To process 1.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInit {
    Work(Work),
    /// End by yourself after so many milliseconds from now, or never. Answered with [`FromInit::DeadlineSet`].
    SetDeadline {
        milliseconds: Option<u64>,
    },
    /// What only the inside can see. Answered with [`FromInit::Measured`].
    Measure,
    /// Take no work from anybody until this connection says [`ToInit::Thaw`] or closes, but for file work from this
    /// connection, which nobody disturbs then. Answered with
    /// [`FromInit::Frozen`] when nothing runs any more, or with [`FromInit::Busy`].
    Freeze,
    /// Not answered: whoever says it may have no time to wait.
    Thaw,
    /// The sender is there. Not answered; a bridge that does not say it has no hold on the sandbox any more.
    Beat,
    /// To one that would end with this connection: outlive it. Answered with [`FromInit::Staying`].
    Stay,
    /// The sockets on which everything lands that programs connect to. Answered with [`FromInit::Network`].
    Network,
    /// The first word on a socket that everybody inside can reach. Answered with [`FromInit::Ready`].
    Present {
        token: String,
    },
}

/// Something that a child of process 1 does, with descriptors: a channel for this piece of work comes first.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// Then stdin, stdout and stderr unless it has a terminal; with one, perhaps a pipe that is closed when the command ends.
    Exec(Exec),
    /// Then a pipe where the operation moves bytes.
    File(FileOperation),
    /// The output of detached commands.
    Logs,
    /// Connect to a port of the sandbox's own loopback addresses. Answered with [`FromDial`] and the descriptor.
    Dial { port: u16 },
}

/// From process 1.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInit {
    /// The sandbox is built and takes requests.
    Ready,
    DeadlineSet,
    /// Bytes in the writable layer, and processes that are ours and not the user's.
    Measured {
        disk: u64,
        helpers: u64,
        /// Since the last command and all that it left behind ended; `None` while one runs, and before the first.
        quiet_milliseconds: Option<u64>,
    },
    Frozen {
        /// What the writable layer holds.
        bytes: u64,
        inodes: u64,
        /// It holds as much as it did when process 1 started: nothing was made in it.
        untouched: bool,
        deadline_milliseconds: Option<u64>,
    },
    /// A command runs, or one left something running, or a file is being written.
    Busy,
    Staying,
    Network(Catch),
}

/// What becomes of the connections of programs. One bridge at a time has them: only the server that gave a name an address
/// knows the name.
#[derive(Debug, Serialize, Deserialize)]
pub enum Catch {
    /// With two descriptors, for connections and for questions about names. They are the bridge's until it ends.
    Yours,
    /// Another bridge has them. [`Catch::HandedOn`] follows when that one ends.
    Others,
    /// What [`Catch::Yours`] is, unasked.
    HandedOn,
    /// The sandbox has no network.
    None,
    /// The kernel did not take what catches connections, so they lead nowhere.
    Impossible { step: String, reason: String },
}

/// What came of a connection to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDial {
    Connected,
    Refused { errno: i32 },
}

/// From a bridge: somebody inside connects, or asks for a name.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromEntrance {
    /// Where the maker of the connection wanted to go.
    Connected { address: [u8; 16], port: u16 },
    /// A packet, to be answered with [`ToEntrance::Reply`].
    Asked { packet: Vec<u8> },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum ToEntrance {
    Reply { packet: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub work_directory: Vec<u8>,
    pub terminal: Option<Terminal>,
    pub timeout_milliseconds: u64,
    /// Go on when the channel closes.
    pub detached: bool,
    /// A file to write first: its path and contents.
    pub script: Option<(Vec<u8>, Vec<u8>)>,
    /// Both kinds of output go where standard output goes.
    pub joined: bool,
    /// Keep the output inside instead of sending it; there are no streams then.
    pub logged: bool,
    /// The user and group to be, in a builder alone.
    pub account: Option<(u32, u32)>,
    /// Begin it with a pipe in the place of its script, whose contents come with [`ToExec::Go`]. Its time begins then.
    pub ahead: bool,
    /// Not needed: what fails is left out.
    pub prelude: Option<Box<Prelude>>,
}

/// A directory to make, and a file to write there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prelude {
    pub directory: Vec<u8>,
    pub file: Vec<u8>,
    pub contents: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
}

/// To the supervisor of one exec.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToExec {
    Signal(i32),
    Kill,
    /// To one that was begun ahead: here is the script, and so much time. Answered as a start is.
    Go {
        script: Vec<u8>,
        timeout_milliseconds: u64,
    },
}

/// From the supervisor of one exec.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromExec {
    /// With a descriptor when there is a terminal: its controlling side.
    Started,
    NotStarted {
        stage: ExecStage,
        errno: i32,
    },
    Ended(ExecEnd),
    /// It is about to end and alone: all of its output is written, and there is no need to wait until nobody could write. Said of
    /// what was begun ahead alone, in the place of its end.
    Leaving(ExecEnd),
}

impl FromExec {
    /// Said in the place of a supervisor that could not be made. `EAGAIN`, which has this number wherever sandboxes run.
    pub const NO_ROOM: Self = Self::NotStarted { stage: ExecStage::Fork, errno: 11 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecStage {
    Log,
    Terminal,
    Fork,
    WorkDirectory,
    Script,
    Identity,
    Program,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ExecEnd {
    /// As `wait` tells it.
    pub status: i32,
    pub cause: EndCause,
    pub wall_microseconds: u64,
    pub cpu_microseconds: u64,
    pub peak_memory: u64,
    /// Whether nothing of the tree was left when this was sent; only looked at when the tree was killed.
    pub tree_empty: bool,
    /// Whether the kernel killed something of the sandbox meanwhile because memory was used up, where that is seen inside.
    pub memory_ran_out: bool,
}

/// Why an exec ended, as far as its supervisor had a part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    Itself,
    Deadline,
    Asked,
}

/// Answers to [`Work::Logs`]: each entry is followed by its output.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromLog {
    Entry(LogEntry),
    Output(Vec<u8>),
    Done,
}

/// A detached command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEntry {
    pub argv: Vec<String>,
    /// Since 1970.
    pub started_milliseconds: u64,
    pub end: Option<LogEnd>,
    /// Bytes that it wrote, of which the last are kept.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LogEnd {
    /// As `wait` tells it.
    pub status: i32,
    pub cause: EndCause,
}

/// File work, done inside the sandbox by a process of the sandbox's user.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileOperation {
    Stat {
        path: Vec<u8>,
    },
    List {
        path: Vec<u8>,
        recursive: bool,
        max_entries: u64,
    },
    /// Answered with [`FromFile::Opened`] and the descriptor.
    Read {
        path: Vec<u8>,
    },
    /// Answered with `Done` when bytes may come by the pipe, and again when they are in place, after [`ToFile::Commit`].
    Write {
        path: Vec<u8>,
        mode: u32,
        parents: bool,
        replace: bool,
    },
    /// Small files of the server's, whose contents come by the pipe one after the other. Answered with `Done` when all
    /// are in place.
    Place {
        files: Vec<PlacedFile>,
    },
    MakeDirectory {
        path: Vec<u8>,
    },
    Remove {
        path: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    /// A tar stream leaves by the pipe. Answered with `Done` before its first byte and after its last.
    Pack {
        path: Vec<u8>,
    },
    /// A tar stream comes by the pipe; answered as `Write` is.
    Unpack {
        path: Vec<u8>,
    },
    /// All that is in these directories leaves by the pipe, in the form of `stream`. Answered as `Pack` is.
    PackTrees {
        places: Vec<Vec<u8>>,
    },
    /// What these directories hold is removed, and what they are to hold comes by the pipe in that form. Answered as
    /// `Write` is.
    ReplaceTrees {
        places: Vec<Vec<u8>>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PlacedFile {
    pub path: Vec<u8>,
    pub bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum ToFile {
    Commit,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum FromFile {
    Done,
    Stat(Stat),
    Opened(Stat),
    /// Several of these may come before `ListEnd`.
    Entries(Vec<(Vec<u8>, Stat)>),
    ListEnd {
        truncated: bool,
    },
    Failed(FileFailure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFailure {
    System(i32),
    NotRegular,
    IsDirectory,
    NotDirectory,
    /// The archive leads outside, or is not an archive.
    BadArchive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Regular,
    Directory,
    Link,
    Other,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stat {
    pub kind: Kind,
    pub bytes: u64,
    pub mode: u32,
    pub modified_seconds: i64,
    pub modified_nanoseconds: u32,
    pub changed_seconds: i64,
    pub changed_nanoseconds: u32,
}
