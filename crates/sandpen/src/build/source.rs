//! Where files are copied from: the build context, without what is to be ignored, or the tree of an image.

use std::path::Path;

use images::confined::Name;
use images::dockerfile::{Ignore, Pattern};
use images::overlaid::{Leaving, Lost, Node, Overlaid};
use images::{Error, Result};
use tokio_util::sync::CancellationToken;

/// Deeper than this nobody keeps files, and a loop of mounts would have no end.
pub const DEEPEST: usize = 128;

#[derive(Debug)]
pub struct Source {
    tree: Overlaid,
    ignore: Ignore,
    leaving: Leaving,
}

/// One thing that is to be copied.
#[derive(Debug)]
pub struct Item {
    /// From the root of the source, all links followed.
    pub path: Vec<u8>,
    /// What it is called where it goes: as it was asked for, not what a link says.
    pub name: Vec<u8>,
    pub node: Node,
}

impl Source {
    pub fn context(directory: &Path, ignore: &str) -> Result<Self> {
        let tree = Overlaid::of_directory(directory)
            .map_err(Error::io(format!("opening the context {}", directory.display())))?;
        Ok(Self { tree, ignore: Ignore::parse(ignore)?, leaving: Leaving::Refused })
    }

    pub fn image(tree: Overlaid) -> Self {
        Self { tree, ignore: Ignore::default(), leaving: Leaving::StaysAtRoot }
    }

    /// What a word of `COPY` means, in byte order if it means several things.
    pub fn items(&self, word: &str, cancel: &CancellationToken) -> Result<Vec<Item>> {
        let pattern = Pattern::parse(word)?;
        if pattern.is_plain() {
            let literal = unescaped(word);
            return Ok(vec![self.item(literal.as_bytes(), word)?]);
        }
        // A pattern with `..` in it could mean anything.
        if word.split('/').any(|name| name == "..") {
            return Err(Error::Invalid(format!("{} goes up, and has a pattern in it", shown(word.as_bytes()))));
        }
        let deepest =
            if word.contains("**") { DEEPEST } else { word.split('/').filter(|part| !part.is_empty()).count() };
        let mut found = Vec::new();
        let mut search = Search { pattern: &pattern, deepest, found: &mut found, cancel };
        search.directory(self, &self.tree.again().map_err(reading)?, &mut Vec::new(), 0)?;
        found.iter().map(|path| self.item(path, word)).collect()
    }

    /// Whether a path is left out. What is below such a directory may be kept all the same.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        self.ignore.leaves_out(&String::from_utf8_lossy(path))
    }

    /// Whether there is any use in looking below a directory that is left out.
    pub fn has_exceptions(&self) -> bool {
        self.ignore.has_exceptions()
    }

    fn item(&self, path: &[u8], word: &str) -> Result<Item> {
        let place = self.tree.follow(path, self.leaving).map_err(|lost| match lost {
            Lost::Outside => Error::Refused(format!("{} leads outside of the build context", shown(word.as_bytes()))),
            Lost::TooManyLinks => Error::Invalid(format!("{} goes through too many links", shown(path))),
            Lost::NoDirectory => not_found(word, ""),
            Lost::Io(error) => reading(error),
        })?;
        let is_kept = |path: &[u8]| {
            let is_directory = matches!(place.node, Some(Node::Directory(_)));
            path.is_empty() || !self.leaves_out(path) || is_directory && self.has_exceptions()
        };
        match place.node {
            None => Err(not_found(word, "")),
            Some(_) if !is_kept(&place.path) => Err(not_found(word, "; .dockerignore leaves it out")),
            Some(node) => {
                let name = path.rsplit(|byte| *byte == b'/').find(|name| !matches!(*name, b"" | b"."));
                Ok(Item { name: name.unwrap_or_default().to_vec(), path: place.path, node })
            }
        }
    }
}

struct Search<'a> {
    pattern: &'a Pattern,
    deepest: usize,
    found: &'a mut Vec<Vec<u8>>,
    cancel: &'a CancellationToken,
}

impl Search<'_> {
    fn directory(&mut self, source: &Source, directory: &Overlaid, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth >= self.deepest {
            return Ok(());
        }
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        for bytes in directory.names().map_err(reading)? {
            let Some(name) = Name::new(&bytes) else { continue };
            let length = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&bytes);
            let is_out = source.leaves_out(path);
            if !is_out && self.pattern.matches(&String::from_utf8_lossy(path)) {
                self.found.push(path.clone());
            } else if (!is_out || source.has_exceptions())
                && let Some(Node::Directory(child)) = directory.child(name).map_err(reading)?
            {
                self.directory(source, &child, path, depth + 1)?;
            }
            path.truncate(length);
        }
        Ok(())
    }
}

/// A plain word may have characters that would mean something without the escape in front of them.
fn unescaped(word: &str) -> String {
    let mut text = String::new();
    let mut characters = word.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            character => text.push(character),
        }
    }
    text
}

fn not_found(word: &str, why: &str) -> Error {
    Error::NotFound(format!("there is no {} to copy{why}", shown(word.as_bytes())))
}

pub fn reading(error: std::io::Error) -> Error {
    Error::io("reading what is to be copied")(error)
}

pub fn shown(path: &[u8]) -> String {
    format!("\"{}\"", path[..path.len().min(128)].escape_ascii())
}
