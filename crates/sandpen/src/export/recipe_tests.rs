use super::*;

fn path(text: &str) -> GuestPath {
    text.parse().unwrap()
}

fn survivor(text: &str, state: Survival, milliseconds: i128) -> Survivor {
    Survivor { path: path(text), state, changed_ns: milliseconds * 1_000_000 }
}

fn file(text: &str, milliseconds: i128) -> Survivor {
    survivor(text, Survival::File, milliseconds)
}

fn command(line: &str, from: i128, to: i128, status: ExecStatus) -> HistoryEntry {
    HistoryEntry {
        started_ns: from * 1_000_000,
        ended_ns: Some(to * 1_000_000),
        deed: Deed::Command {
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_owned()],
            environment: KnownEnvironment::default(),
            work_directory: GuestPath::workspace(),
            status: Some(status),
        },
    }
}

fn ran(line: &str, from: i128, to: i128) -> HistoryEntry {
    command(line, from, to, ExecStatus::Exited(0))
}

fn done(deed: Deed, at: i128) -> HistoryEntry {
    HistoryEntry { started_ns: at * 1_000_000, ended_ns: Some(at * 1_000_000), deed }
}

fn written(text: &str, at: i128) -> HistoryEntry {
    done(Deed::FileWritten { path: path(text), mode: 0o644, bytes: 1 }, at)
}

/// The steps as a person would note them.
fn told(entries: &[HistoryEntry], survivors: &[Survivor], choice: Choice) -> Vec<String> {
    let names = |paths: &BTreeSet<GuestPath>| paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let tell = |step: &Step| match step {
        Step::Files(paths) => format!("copy {}", names(paths)),
        Step::Remove(paths) => format!("remove {}", names(paths)),
        Step::Run(Run { what: Work::Command(argv), may_fail, .. }) => {
            format!("{}{}", argv[2], if *may_fail { " (may fail)" } else { "" })
        }
        Step::Run(Run { what: Work::Code { language, .. }, .. }) => format!("{language} code"),
    };
    steps(entries, survivors, choice).iter().map(tell).collect()
}

#[test]
fn a_command_is_done_again_if_something_of_it_is_left() {
    let entries = [ran("make", 100, 200), ran("ls", 300, 400), ran("touch x; rm x", 500, 600)];
    let survivors = [file("/workspace/a.out", 150), file("/workspace/b", 199)];
    assert_eq!(told(&entries, &survivors, Choice::Effective), ["make"]);
    assert_eq!(told(&entries, &survivors, Choice::Nothing), ["copy /workspace/a.out /workspace/b"]);
}

#[test]
fn what_came_before_the_last_effective_one_may_be_needed() {
    let entries = [ran("fetch", 100, 200), ran("build", 300, 400), ran("ls", 500, 600)];
    let survivors = [file("/workspace/out", 350)];
    assert_eq!(told(&entries, &survivors, Choice::Effective), ["build"]);
    assert_eq!(told(&entries, &survivors, Choice::Successful), ["fetch", "build"]);
}

#[test]
fn the_clock_of_files_may_be_behind() {
    let entries = [ran("one", 100, 200), ran("two", 205, 300)];
    assert_eq!(told(&entries, &[file("/workspace/x", 203)], Choice::Effective), ["two"]);
    assert_eq!(told(&entries, &[file("/workspace/x", 199)], Choice::Effective), ["one"]);
}

#[test]
fn a_file_is_copied_where_it_was_first_written() {
    let entries = [written("/workspace/s.py", 100), ran("python3 s.py", 200, 300), written("/workspace/s.py", 400)];
    let survivors = [file("/workspace/out", 250), file("/workspace/s.py", 399)];
    assert_eq!(told(&entries, &survivors, Choice::Effective), ["copy /workspace/s.py", "python3 s.py"]);
}

#[test]
fn a_file_that_a_command_changed_is_put_right_at_the_end() {
    let entries = [written("/workspace/f", 100), ran("sed -i s/a/b/ f", 200, 300)];
    let survivors = [file("/workspace/f", 250)];
    let expected = ["copy /workspace/f", "sed -i s/a/b/ f", "copy /workspace/f"];
    assert_eq!(told(&entries, &survivors, Choice::Effective), expected);
}

#[test]
fn what_nothing_accounts_for_is_copied() {
    let killed = command("train", 100, 200, ExecStatus::TimedOut);
    let failed = command("make", 300, 400, ExecStatus::Exited(2));
    let survivors = [
        file("/workspace/a", 150),
        file("/workspace/b", 350),
        file("/workspace/c", 9999),
        file("/workspace/d", 0),
        survivor("/workspace/empty", Survival::Directory, 5000),
    ];
    let expected = ["make (may fail)", "copy /workspace/a /workspace/c /workspace/d /workspace/empty"];
    assert_eq!(told(&[killed, failed], &survivors, Choice::Effective), expected);
}

#[test]
fn a_directory_comes_with_what_is_in_it() {
    let unpacked = done(Deed::Unpacked { path: path("/workspace/src"), bytes: 1 }, 100);
    let survivors = [
        survivor("/workspace/src", Survival::Directory, 90),
        file("/workspace/src/a", 95),
        survivor("/workspace/src/b", Survival::Directory, 95),
    ];
    let expected = ["copy /workspace/src/a /workspace/src/b"];
    assert_eq!(told(&[unpacked], &survivors, Choice::Effective), expected);
}

#[test]
fn removals_are_done_again() {
    let removed = done(Deed::Removed { path: path("/srv/old") }, 100);
    let entries = [removed, ran("rm /srv/other", 200, 300)];
    let gone = |text, at| survivor(text, Survival::Removed, at);
    let survivors = [gone("/srv/nobody-knows", 500), gone("/srv/old", 99), gone("/srv/other", 250)];
    let expected = ["remove /srv/old", "rm /srv/other", "remove /srv/nobody-knows"];
    assert_eq!(told(&entries, &survivors, Choice::Effective), expected);
}

#[test]
fn what_took_something_away_may_be_needed_too() {
    let entries = [ran("make", 100, 200), ran("rm junk", 300, 400), ran("ls", 500, 600)];
    let survivors = [file("/workspace/out", 150)];
    assert_eq!(told(&entries, &survivors, Choice::Successful), ["make"]);
    assert_eq!(told(&entries, &survivors, Choice::All), ["make", "rm junk", "ls"]);
}

#[test]
fn what_differs_is_put_right_after_everything_else() {
    let survivors = [
        survivor("/workspace/d", Survival::Directory, 150),
        file("/workspace/d/a", 150),
        survivor("/workspace/d/old", Survival::Removed, 150),
        file("/workspace/kind", 150),
        file("/workspace/moment", 150),
        file("/workspace/same", 150),
    ];
    let differ = |(text, what)| Difference { path: path(text), what };
    let differences = [
        ("/workspace/d", What::Missing),
        ("/workspace/extra", What::Extra),
        ("/workspace/kind", What::Kind),
        ("/workspace/moment", What::Contents),
    ];
    let remove = ["/workspace/extra", "/workspace/kind"].map(path).into();
    let copy = ["/workspace/d", "/workspace/d/a", "/workspace/kind", "/workspace/moment"].map(path).into();
    let first = Step::Remove([path("/srv/first")].into());
    assert_eq!(
        corrected(std::slice::from_ref(&first), &differences.map(differ), &survivors),
        [first, Step::Remove(remove), Step::Files(copy)]
    );
}
