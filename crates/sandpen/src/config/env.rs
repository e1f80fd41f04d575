//! Settings from `SANDPEN_*` variables.

use std::ffi::OsString;

use sandbox::{Error, Result};

use super::key::{Key, Shape};
use super::written::{Origin, Written};

/// `lookup` is the environment; a parameter because tests may not change that of their process.
///
/// A variable that is set to nothing counts as not set, which is what `SANDPEN_IMAGE= sandpen run …` means to a shell
/// user. Lists and maps are written with commas between their parts; a value with a comma of its own needs the file or
/// the flag.
pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Written> {
    let mut written = Written::new(Origin::Variables);
    for &key in Key::ALL {
        let variable = key.variable();
        let Some(value) = lookup(&variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let value = text(&variable, value)?;
        match key.shape() {
            Shape::One | Shape::Parts => written.push(key, value),
            Shape::List | Shape::Map => {
                value.split(',').filter(|part| !part.is_empty()).for_each(|part| written.push(key, part));
            }
        }
    }
    Ok(written)
}

/// What a variable holds, as text.
pub fn text(name: &str, value: OsString) -> Result<String> {
    value.into_string().map_err(|_| Error::invalid_input(format!("{name} is not valid UTF-8 text")))
}
