//! The entry that an older server wrote for itself, whose place the entry of its profile takes.

use serde_json::Value;

use super::entry::program_name;

/// An older server that could set up a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Older {
    Automata,
}

impl Older {
    /// Whether this is what it wrote, or what a person made of that with its own flags.
    ///
    /// Another server has a program of the same name. People write that without its directory, or with arguments that this
    /// one did not know.
    pub fn wrote(self, entry: &Value) -> bool {
        let Self::Automata = self;
        let arguments: Option<Vec<&str>> = match entry.get("args") {
            None => Some(Vec::new()),
            Some(arguments) => arguments.as_array().and_then(|words| words.iter().map(Value::as_str).collect()),
        };
        let (Some(command), Some(arguments)) = (entry.get("command").and_then(Value::as_str), arguments) else {
            return false;
        };
        // On Windows it had itself started by the shell.
        let (path, flags) = match arguments.as_slice() {
            ["/c", path, flags @ ..] if program_name(command) == "cmd" => (*path, flags),
            flags => (command, flags),
        };
        let name = program_name(path);
        let rest = name.strip_prefix("code-sandbox-mcp");
        // As its releases are called, or as its script calls them.
        let is_it = rest.is_some_and(|rest| {
            rest.is_empty() || ["-linux-", "-darwin-", "-windows-"].iter().any(|system| rest.starts_with(system))
        });
        is_it
            && name.len() < path.len()
            && path.contains(['/', '\\'])
            && flags.iter().all(|flag| matches!(*flag, "--no-update" | "-no-update"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn its_own_entry_is_known_on_every_system() {
        for entry in [
            json!({ "command": "/home/user/.local/share/code-sandbox-mcp/code-sandbox-mcp", "args": [], "env": {} }),
            json!({ "command": "/opt/code-sandbox-mcp-linux-amd64", "args": ["--no-update"] }),
            json!({ "command": "cmd", "args": ["/c", r"C:\Users\me\AppData\Local\code-sandbox-mcp\code-sandbox-mcp.exe"] }),
            json!({ "command": "/opt/code-sandbox-mcp" }),
        ] {
            assert!(Older::Automata.wrote(&entry), "{entry}");
        }
    }

    #[test]
    fn others_are_not_taken_for_it() {
        for entry in [
            json!({ "command": "code-sandbox-mcp", "args": [] }),
            json!({ "command": "/bin/code-sandbox-mcp", "args": ["--pass-through-env", "KEY"] }),
            json!({ "command": "/bin/code-sandbox-mcp-fork" }),
            json!({ "command": "npx", "args": ["code-sandbox-mcp"] }),
            json!({ "command": "cmd", "args": ["/c", "npx"] }),
            json!({ "command": "/bin/code-sandbox-mcp", "args": "--no-update" }),
            json!({ "url": "http://x/code-sandbox-mcp" }),
            json!("/bin/code-sandbox-mcp"),
        ] {
            assert!(!Older::Automata.wrote(&entry), "{entry}");
        }
    }
}
