//! Checkpoints: what is remembered, what is told of changes, and what going back brings.

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    Vec::new()
}
