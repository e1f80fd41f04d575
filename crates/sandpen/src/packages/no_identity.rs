//! In the place of a look at images of this machine, where there are none.

use std::path::Path;

use sandbox::{Image, Owner, Result};

use crate::embedded;

pub fn identity(_: &Path, _: &Owner, _: &Image) -> Result<String> {
    Err(embedded::not_here())
}
