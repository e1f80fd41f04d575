//! What the tools are called, how they are described, and how a run reads.

use std::time::Duration;

use serde_json::{Value, json};

use crate::policy::Policy;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Definition, Hints};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    CopyFile,
    CopyFileOut,
    CopyProject,
    Exec,
    Initialize,
    Stop,
    /// As its README had it.
    Write,
    WriteSandbox,
}

impl Which {
    /// By their names, as they were listed.
    pub const ALL: [Self; 8] = [
        Self::CopyFile,
        Self::CopyFileOut,
        Self::CopyProject,
        Self::Exec,
        Self::Initialize,
        Self::Stop,
        Self::Write,
        Self::WriteSandbox,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::CopyFile => "copy_file",
            Self::CopyFileOut => "copy_file_from_sandbox",
            Self::CopyProject => "copy_project",
            Self::Exec => "sandbox_exec",
            Self::Initialize => "sandbox_initialize",
            Self::Stop => "sandbox_stop",
            Self::Write => "write_file",
            Self::WriteSandbox => "write_file_sandbox",
        }
    }

    /// `unused`: how long a container stays that nobody uses.
    pub fn definition(self, unused: Duration) -> Definition {
        const CHANGES: Hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: true };
        const COPIES: Hints = Hints { idempotent: true, ..CHANGES };
        let started = format!(
            "Start a container from an image, to run commands in. Returns its container_id, which the other tools ask for. It \
             stays until sandbox_stop, or until {} have passed without use.",
            text::spoken(unused)
        );
        let (title, description, toolset, hints) = match self {
            Self::CopyFile => (
                "Copy a file in",
                "Copy one file of the host into a container. Only files below the directories that the operator opened \
                 can be copied.",
                Toolset::Files,
                COPIES,
            ),
            Self::CopyFileOut => (
                "Copy a file out",
                "Copy one file of a container to the host, in place of one that is there. Only below the directories that \
                 the operator opened.",
                Toolset::Files,
                COPIES,
            ),
            Self::CopyProject => (
                "Copy a directory in",
                "Copy what is in a directory of the host into a container. Only directories below those that the operator \
                 opened can be copied.",
                Toolset::Files,
                COPIES,
            ),
            Self::Exec => (
                "Run commands",
                "Run commands in a container, one after the other, and return a transcript. Each is run by a shell of its \
                 own in /app, so cd and variables do not last; the first that fails ends the row.",
                Toolset::Run,
                CHANGES,
            ),
            Self::Initialize => {
                ("Start a container", started.as_str(), Toolset::Sandboxes, Hints { destructive: false, ..CHANGES })
            }
            Self::Stop => (
                "Stop a container",
                "Stop and remove a container, with all of its files.",
                Toolset::Sandboxes,
                Hints { open_world: false, ..CHANGES },
            ),
            Self::Write | Self::WriteSandbox => (
                "Write a file",
                "Write a file in a container, in place of one that is there. Directories that are missing are made.",
                Toolset::Files,
                Hints { open_world: false, ..COPIES },
            ),
        };
        Definition { name: self.name(), title, description: description.to_owned(), toolset, hints }
    }

    pub fn schema(self, policy: &Policy) -> Value {
        let text = |description: &str| json!({ "type": "string", "description": description });
        let container = || text("What sandbox_initialize returned as container_id");
        let (properties, required) = match self {
            Self::CopyFile => (
                json!({
                    "container_id": container(),
                    "local_src_file": text("Path of a file of the host"),
                    "dest_path": text("Where to put it in the container (Default: /app/ and its own name)"),
                }),
                json!(["container_id", "local_src_file"]),
            ),
            Self::CopyFileOut => (
                json!({
                    "container_id": container(),
                    "container_src_path": text("Path of a file in the container; a relative one starts at /app"),
                    "local_dest_path": text("Where to put it on the host (Default: its own name in the server's current directory)"),
                }),
                json!(["container_id", "container_src_path"]),
            ),
            Self::CopyProject => (
                json!({
                    "container_id": container(),
                    "local_src_dir": text("Path of a directory of the host"),
                    "dest_dir": text("Where to put what is in it (Default: /app/ and its own name)"),
                }),
                json!(["container_id", "local_src_dir"]),
            ),
            Self::Exec => (
                json!({
                    "container_id": container(),
                    "commands": {
                        "type": "array",
                        "items": { "type": "string" },
                        "description": "Commands for a shell, for example [\"pip install requests\", \"python main.py\"]",
                    },
                }),
                json!(["container_id", "commands"]),
            ),
            Self::Initialize => (
                json!({
                    "image": {
                        "type": "string",
                        "description": "The image to start from, by its name",
                        "default": policy.image.shown(),
                    },
                }),
                json!([]),
            ),
            Self::Stop => (json!({ "container_id": container() }), json!(["container_id"])),
            Self::Write | Self::WriteSandbox => (
                json!({
                    "container_id": container(),
                    "file_name": text("Name of the file; directories in it are made"),
                    "file_contents": text("All that is to be in the file"),
                    "dest_dir": text("The directory to write it to (Default: /app)"),
                }),
                json!(["container_id", "file_name", "file_contents"]),
            ),
        };
        match required.as_array().is_some_and(Vec::is_empty) {
            true => json!({ "type": "object", "properties": properties }),
            false => json!({ "type": "object", "properties": properties, "required": required }),
        }
    }
}

/// One command and what it wrote: what went to stderr is called an error, also when the command succeeds.
pub fn transcript(command: &str, stdout: &str, stderr: &str) -> String {
    let mut text = format!("$ {command}\n{}", lines(stdout));
    if !stderr.is_empty() {
        text += "Error: ";
        text += &lines(stderr);
    }
    text
}

pub fn exited(code: i32) -> String {
    format!("Command exited with code {code}\n")
}

/// With an end to the last one.
fn lines(text: &str) -> String {
    match text {
        "" => String::new(),
        text if text.ends_with('\n') => text.to_owned(),
        text => format!("{text}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_listed_by_name() {
        let names = Which::ALL.map(Which::name);
        assert!(names.is_sorted(), "{names:?}");
    }

    #[test]
    fn a_transcript_has_both_streams_and_whole_lines() {
        assert_eq!(transcript("true", "", ""), "$ true\n");
        assert_eq!(transcript("a", "out", ""), "$ a\nout\n");
        assert_eq!(transcript("a", "out\n", "bad"), "$ a\nout\nError: bad\n");
        assert_eq!(transcript("a", "", "one\ntwo\n"), "$ a\nError: one\ntwo\n");
    }
}
