//! The tables by name. Each is made from what the program itself uses.

use std::fmt::Write;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};
use sandbox::{Denial, ErrorKind, Layer, Lifetime, Limits, Quota, Runners};
use sandpen::attach::Screen;
use sandpen::cli::Cli;
use sandpen::config::{Config, Key};
use sandpen::install::client::{Client, Format};
use sandpen::install::place::{Machine, System};
use sandpen::time::spoken;
use tools::{Catalog, Policy, Selection, Toolset};

use crate::checks;

pub fn table(name: &str) -> Option<String> {
    match name {
        "checks" => Some(table_of(checks::of_escape())),
        "clients" => Some(clients()),
        "commands" => Some(commands()),
        "errors" => Some(errors()),
        "languages" => Some(languages()),
        "layers" => Some(layers()),
        "limits" => Some(limits()),
        "network-checks" => Some(table_of(checks::of_network())),
        "network-rules" => Some(network_rules()),
        "packages" => Some(packages()),
        "run-options" => Some(options_of("run")),
        "serve-options" => Some(own_options_of("serve", "mcp")),
        "mcp-options" => Some(options_of("mcp")),
        "settings" => Some(settings()),
        "tools" => Some(tools()),
        "toolsets" => Some(toolsets()),
        _ => None,
    }
}

fn languages() -> String {
    let code = |words: Vec<&str>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let runners = Runners::built_in();
    let rows = runners.iter().map(|runner| {
        let names = [&runner.name].into_iter().chain(&runner.aliases).map(String::as_str).collect();
        let programs = runner.probes.iter().filter_map(|probe| probe.first()).map(String::as_str).collect();
        [runner.title.clone(), code(names), code(programs)]
    });
    markdown(["Language", "Names", "Needs one of"], rows)
}

fn clients() -> String {
    let file = |system, client| {
        let variable = |name: &str| match (system, name) {
            (System::Linux | System::MacOs, "HOME") => Some("~".into()),
            (System::Windows, "USERPROFILE" | "APPDATA") => Some(format!("%{name}%").into()),
            _ => None,
        };
        let place = Machine { system, variable, names: |_: &std::path::Path| Vec::new() }.place(client);
        let file = place.expect("it has a home").file.display().to_string();
        format!("`{}`", if system == System::Windows { file.replace('/', "\\") } else { file })
    };
    let rows = Client::ALL.into_iter().map(|client| {
        let key = match client.format() {
            Format::Json(shape) => shape.key,
            Format::Toml => "mcp_servers",
        };
        let [linux, mac, windows] = [System::Linux, System::MacOs, System::Windows].map(|system| file(system, client));
        [client.title().to_owned(), format!("`{key}`"), linux, mac, windows]
    });
    markdown(["Client", "Key", "Linux", "macOS", "Windows"], rows)
}

fn packages() -> String {
    let runners = Runners::built_in();
    let rows = runners.iter().map(|runner| {
        let package = |manager: &str| runner.install.get(manager).map_or_else(|| "–".to_owned(), Clone::clone);
        [runner.title.clone(), package("apt"), package("dnf"), package("apk"), package("brew")]
    });
    markdown(["Language", "apt", "dnf", "apk", "brew"], rows)
}

/// With the checks that are seen to fail when the layer is left out.
fn layers() -> String {
    let checks = [checks::of_escape(), checks::of_network()].concat();
    let rows = Layer::ALL.iter().map(|layer| {
        let shown_by = checks.iter().filter(|check| check.controls.contains(layer)).map(|check| check.id.as_str());
        let shown_by = shown_by.collect::<Vec<_>>().join(", ");
        let shown_by = if shown_by.is_empty() { "–".to_owned() } else { shown_by };
        [format!("`{layer}`"), layer.description().to_owned(), shown_by]
    });
    markdown(["Layer", "What it gives", "Checks that fail without it"], rows)
}

fn table_of(checks: Vec<checks::Check>) -> String {
    let rows = checks.into_iter().map(|checks::Check { file, id, tries, stopped_by, .. }| {
        [format!("{id} ([{file}]({file}))"), tries, stopped_by]
    });
    markdown(["Check", "What it tries", "What must stop it"], rows)
}

fn errors() -> String {
    use ErrorKind::{
        AlreadyExists, Denied, Internal, InvalidInput, LimitExceeded, NotFound, TimedOut, Unavailable, Unsupported,
        WrongState,
    };
    let meaning = |kind| match kind {
        InvalidInput => "the request itself is wrong; repeating it cannot help",
        NotFound => "no such thing, or not yours: the two are not told apart",
        AlreadyExists => "the name or id is taken",
        WrongState => "it exists but cannot do this now",
        LimitExceeded => "a limit of yours, of the sandbox or of the host is used up",
        Denied => "policy or permission says no",
        Unsupported => "this engine or host cannot do it at all",
        TimedOut => "it took longer than allowed",
        Unavailable => "something that is needed does not answer now; later may help",
        Internal => "a fault of ours",
    };
    let kinds = [
        InvalidInput,
        NotFound,
        AlreadyExists,
        WrongState,
        LimitExceeded,
        Denied,
        Unsupported,
        TimedOut,
        Unavailable,
        Internal,
    ];
    markdown(["Kind", "Meaning"], kinds.map(|kind| [format!("`{}`", kind.as_str()), meaning(kind).to_owned()]))
}

fn limits() -> String {
    let Limits { cpu_millis, memory, processes, disk, inodes, open_files } = Limits::default();
    let (lifetime, quota) = (Lifetime::default(), Quota::default());
    let config = Config::default();
    let timeout = config.sandbox.timeout(Screen::Streams);
    let at_most = |duration: Duration| format!("at most {}", spoken(duration));
    let but = |bound: String| format!("{bound}, unless the option says more");
    let idle =
        format!("{}, {} when it is persistent", at_most(quota.idle_lifetime), spoken(quota.persistent_idle_lifetime));
    let row = |what: &str, default: String, key: Option<Key>, bound: String| {
        [what.to_owned(), default, key.map_or_else(|| "–".to_owned(), |key| format!("`{}`", key.flag())), bound]
    };
    let rows = [
        row("Memory, swap excluded", memory.to_string(), Some(Key::Memory), String::new()),
        row("Processors", (f64::from(cpu_millis) / 1000.0).to_string(), Some(Key::Cpus), String::new()),
        row("Processes and threads", processes.to_string(), Some(Key::Processes), String::new()),
        row(
            "Bytes written, over all writable places",
            disk.to_string(),
            Some(Key::Disk),
            "at most three quarters of the memory, where the files are".to_owned(),
        ),
        row("Files, directories and links", inodes.to_string(), Some(Key::Inodes), String::new()),
        row("Open files per process", open_files.to_string(), Some(Key::OpenFiles), String::new()),
        row("Time of one program", spoken(timeout), Some(Key::Timeout), but(at_most(quota.exec_timeout))),
        row("Life of an unused sandbox", spoken(lifetime.idle), Some(Key::Idle), but(idle)),
        row("Life of any sandbox", "unbounded".to_owned(), Some(Key::Lifetime), String::new()),
        row(
            "Sandboxes of one user",
            quota.sandboxes.to_string(),
            Some(Key::OwnerSandboxes),
            format!("{} that stay", quota.persistent),
        ),
        row("Processors of one user, for all sandboxes", "unbounded".to_owned(), Some(Key::OwnerCpus), String::new()),
        row("Memory of one user, for all sandboxes", "unbounded".to_owned(), Some(Key::OwnerMemory), String::new()),
        row("Runs of one user in a minute", "unbounded".to_owned(), Some(Key::OwnerRuns), String::new()),
        row(
            "Room of one user, for all sandboxes and saved images",
            "unbounded".to_owned(),
            Some(Key::OwnerDisk),
            String::new(),
        ),
        row("Saved images of one user", quota.saved_images.to_string(), Some(Key::OwnerSavedImages), String::new()),
        row("Network", config.sandbox.network.to_string(), Some(Key::Network), "what is named, over TCP".to_owned()),
        row(
            "Connections at once",
            config.gateway.of_sandbox.connections.to_string(),
            Some(Key::NetworkConnections),
            format!("{} of one user", config.gateway.of_owner.connections),
        ),
    ];
    markdown(["What", "Default", "Option", "Bound"], rows)
}

fn network_rules() -> String {
    let rows = Denial::ALL.iter().map(|denial| [format!("`{}`", denial.as_str()), denial.description().to_owned()]);
    markdown(["Rule", "Means"], rows)
}

/// Built, so that every command has the global options too.
fn built() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn commands() -> String {
    let root = built();
    let rows = root.get_subcommands().map(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        [format!("`sandpen {}`", command.get_name()), about]
    });
    markdown(["Command", "Does"], rows)
}

fn options_of(command: &str) -> String {
    let root = built();
    let command = root.find_subcommand(command).expect("there is such a command");
    let options = command.get_arguments().filter(|argument| argument.get_long().is_some_and(|long| long != "help"));
    markdown(["Option", "Does"], options.map(|option| [spelled(option), help(option)]))
}

/// Those that another command does not have.
fn own_options_of(command: &str, other: &str) -> String {
    let root = built();
    let options = |name| root.find_subcommand(name).expect("there is such a command").get_arguments();
    let known: Vec<_> = options(other).map(Arg::get_id).collect();
    let own = options(command).filter(|argument| !known.contains(&argument.get_id()));
    markdown(["Option", "Does"], own.map(|option| [spelled(option), help(option)]))
}

/// With copy_files, which is there when a directory was opened.
fn catalog() -> Catalog {
    let policy = Policy { roots: vec!["DIR".to_owned()], ..Policy::default() };
    Catalog::new(&policy, &Selection::default()).expect("everything is selected")
}

fn tools() -> String {
    let catalog = catalog();
    let rows = catalog.tools().iter().map(|tool| {
        let arguments = tool.arguments().into_iter().map(|argument| {
            if argument.required { format!("**`{}`**", argument.name) } else { format!("`{}`", argument.name) }
        });
        let read_only = if tool.hints.read_only { "yes" } else { "–" };
        [
            format!("`{}`", tool.name),
            tool.title.to_owned(),
            arguments.collect::<Vec<_>>().join(", "),
            read_only.to_owned(),
        ]
    });
    markdown(["Tool", "Does", "Arguments, those needed in bold", "Read-only"], rows)
}

fn toolsets() -> String {
    let catalog = catalog();
    let rows = Toolset::ALL.map(|toolset| {
        let tools = catalog.tools().iter().filter(|tool| tool.toolset == toolset);
        let names: Vec<_> = tools.map(|tool| format!("`{}`", tool.name)).collect();
        [format!("`{}`", toolset.as_str()), names.join(", ")]
    });
    markdown(["Toolset", "Tools"], rows)
}

fn settings() -> String {
    let root = built();
    let commands = || [&root].into_iter().chain(root.get_subcommands());
    let rows = Key::ALL.iter().map(|key| {
        let flag = key.flag();
        let argument = commands()
            .flat_map(Command::get_arguments)
            .find(|argument| argument.get_long() == flag.strip_prefix("--"))
            .expect("every setting is a flag");
        [format!("`{}`", key.name()), format!("`{flag}`"), format!("`{}`", key.variable()), help(argument)]
    });
    markdown(["Key", "Flag", "Variable", "Meaning"], rows)
}

fn spelled(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let long = argument.get_long().unwrap_or_default();
    let value = argument.get_value_names().filter(|_| argument.get_action().takes_values());
    let value = value.map(|names| format!(" {}", names.join(" "))).unwrap_or_default();
    format!("`{short}--{long}{value}`")
}

fn help(argument: &Arg) -> String {
    argument.get_help().map(ToString::to_string).unwrap_or_default()
}

fn markdown<const COLUMNS: usize>(head: [&str; COLUMNS], rows: impl IntoIterator<Item = [String; COLUMNS]>) -> String {
    let mut table = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(COLUMNS));
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        writeln!(table, "| {} |", cells.join(" | ")).expect("a string takes all");
    }
    table
}
