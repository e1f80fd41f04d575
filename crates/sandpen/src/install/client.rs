//! The clients that can be set up: what their configuration is like, and when they read it.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
    Windsurf,
    Gemini,
    Codex,
    Zed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json(Shape),
    /// A table `mcp_servers`, which only Codex has.
    Toml,
}

/// Where servers stand in a JSON file, and what its reader puts up with. What it does not is broken for the client, and so
/// for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub key: &'static str,
    /// Entries say that they are commands.
    pub is_typed: bool,
    pub has_comments: bool,
    pub has_trailing_commas: bool,
}

impl Client {
    pub const ALL: [Self; 8] = [
        Self::ClaudeDesktop,
        Self::ClaudeCode,
        Self::Cursor,
        Self::Vscode,
        Self::Windsurf,
        Self::Gemini,
        Self::Codex,
        Self::Zed,
    ];

    /// As it is called on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "claude-desktop",
            Self::ClaudeCode => "claude-code",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Windsurf => "windsurf",
            Self::Gemini => "gemini",
            Self::Codex => "codex",
            Self::Zed => "zed",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::Cursor => "Cursor",
            Self::Vscode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Gemini => "Gemini CLI",
            Self::Codex => "Codex",
            Self::Zed => "Zed",
        }
    }

    pub fn format(self) -> Format {
        let strict = Shape { key: "mcpServers", is_typed: false, has_comments: false, has_trailing_commas: false };
        let with_comments = Shape { has_comments: true, ..strict };
        let lenient = Shape { has_trailing_commas: true, ..with_comments };
        match self {
            Self::ClaudeDesktop => Format::Json(strict),
            Self::ClaudeCode => Format::Json(Shape { is_typed: true, ..strict }),
            Self::Cursor | Self::Windsurf => Format::Json(lenient),
            Self::Vscode => Format::Json(Shape { key: "servers", is_typed: true, ..lenient }),
            Self::Gemini => Format::Json(with_comments),
            Self::Codex => Format::Toml,
            Self::Zed => Format::Json(Shape { key: "context_servers", ..lenient }),
        }
    }

    /// What a person has to do before the client knows of a change.
    pub fn restart(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "quit Claude Desktop and start it again; to close its window is not enough",
            Self::ClaudeCode => "start a new session of Claude Code; /mcp lists its servers",
            Self::Cursor => "restart Cursor; its settings list the servers under MCP",
            Self::Vscode => "VS Code needs no restart; its command \"MCP: List Servers\" starts and stops servers",
            Self::Windsurf => "restart Windsurf, or refresh the servers in its MCP panel",
            Self::Gemini => "start Gemini CLI again, in a folder that it trusts; /mcp lists its servers",
            Self::Codex => "start Codex again; /mcp lists its servers",
            Self::Zed => "Zed needs no restart; the settings of its agent list the servers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_command_line() {
        assert_eq!(Client::value_variants(), Client::ALL);
        for client in Client::ALL {
            assert_eq!(client.to_possible_value().unwrap().get_name(), client.word());
        }
    }
}
