//! The checks of walls, read from their source: they are built with walls that can be taken away, and this program is not.

use sandbox::Layer;

use crate::root;

/// One check under `tests/escape` or `tests/network`.
#[derive(Clone)]
pub struct Check {
    pub file: String,
    pub id: String,
    pub tries: String,
    pub stopped_by: String,
    /// It is seen to turn red without each of these.
    pub controls: Vec<Layer>,
}

/// Every check of what a sandbox is made of, by id.
pub fn of_escape() -> Vec<Check> {
    below("tests/escape", 30)
}

/// Every check of what a sandbox reaches, by id.
pub fn of_network() -> Vec<Check> {
    below("tests/network", 15)
}

fn below(directory: &str, at_least: usize) -> Vec<Check> {
    let mut found = Vec::new();
    let directory = std::fs::read_dir(root().join(directory)).expect("the checks can be read");
    for path in directory.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a check can be read");
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.extend(text.split("About {\n").skip(1).filter_map(|block| read(&file, block)));
        }
    }
    found.sort_by(|a: &Check, b: &Check| a.id.cmp(&b.id));
    assert!(found.len() > at_least, "the checks have moved or changed their shape: {} found", found.len());
    found
}

fn read(file: &str, block: &str) -> Option<Check> {
    let field = |name: &str| {
        let after = block.split_once(&format!("{name}: \""))?.1;
        Some(after.split_once("\",")?.0.replace("\\\n", "").split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let controls = block.split_once("fn controls").map_or("", |(_, after)| after);
    let controls = controls.split_once("\n    }").map_or("", |(body, _)| body);
    let words: Vec<&str> = controls.split(|character: char| !character.is_ascii_alphanumeric()).collect();
    Some(Check {
        file: file.to_owned(),
        id: field("id")?,
        tries: field("tries")?,
        stopped_by: field("stopped_by")?,
        controls: Layer::ALL.iter().copied().filter(|layer| words.contains(&format!("{layer:?}").as_str())).collect(),
    })
}
