//! The tables in the documents that are made from the code: fresh, or the test fails and `cargo xtask docs` writes them.

mod checks;
mod tables;

use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end of generated -->";

#[test]
fn generated_tables_are_fresh() {
    let bless = std::env::var_os("SANDPEN_TEST_BLESS").is_some();
    let mut stale = Vec::new();
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document can be read");
        let fresh = with_fresh_tables(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        if fresh == text {
            continue;
        }
        if bless {
            std::fs::write(&path, fresh).expect("a document can be written");
        } else {
            stale.push(path.display().to_string());
        }
    }
    assert!(stale.is_empty(), "run `cargo xtask docs`; stale: {}", stale.join(", "));
}

#[test]
fn a_stale_table_is_seen_and_made_fresh() {
    let text = format!("before\n{BEGIN}layers -->\nold\n{END}\nafter\n");
    let fresh = with_fresh_tables(&text).unwrap();
    assert_ne!(fresh, text);
    assert!(fresh.starts_with("before\n") && fresh.ends_with("after\n") && fresh.contains("`seccomp`"));
    assert_eq!(with_fresh_tables(&fresh).unwrap(), fresh);
}

#[test]
fn a_table_that_nothing_makes_or_that_has_no_end_is_refused() {
    assert!(with_fresh_tables(&format!("{BEGIN}nonsense -->\n{END}\n")).is_err());
    assert!(with_fresh_tables(&format!("{BEGIN}layers -->\n| x |\n")).is_err());
}

#[test]
fn pages_for_users_of_older_servers_say_what_is_promised_of_them() {
    let pages = std::fs::read_dir(root().join("docs/migrate")).expect("there are pages").flatten();
    let pages: Vec<_> = pages.map(|entry| entry.path()).collect();
    assert_eq!(pages.len(), tools::ProfileName::ALL.len());
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page can be read");
        for promised in ["becomes", "## The same", "## Better", "## Refused"] {
            let has = |line: &str| line == promised;
            assert!(text.lines().any(has), "{}: nothing under {promised:?}", page.display());
        }
    }
}

fn with_fresh_tables(text: &str) -> Result<String, String> {
    let mut fresh = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, body) = after.split_once(" -->").ok_or("a generated table has no name")?;
        let (_, tail) = body.split_once(END).ok_or_else(|| format!("the table {name:?} has no end"))?;
        let table = tables::table(name).ok_or_else(|| format!("nothing makes the table {name:?}"))?;
        fresh += &format!("{before}{BEGIN}{name} -->\n\n{table}\n{END}");
        rest = tail;
    }
    Ok(fresh + rest)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in the repository")
}

/// The places where documents may be; none has any below it.
fn documents() -> Vec<PathBuf> {
    let directories = ["", "docs", "tests/escape", "tests/network"].map(|directory| root().join(directory));
    let mut found: Vec<PathBuf> = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    found.sort();
    found
}
