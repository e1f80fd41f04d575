//! Walls that a test may ask to leave out, to show that it would notice. Nothing can be asked for in the product.

pub const KEEP_CAPABILITIES: &str = "keep-capabilities";
pub const LEAK_DESCRIPTOR: &str = "leak-descriptor";

#[cfg(not(feature = "weaken"))]
pub fn is_asked(_wall: &str) -> bool {
    false
}

#[cfg(feature = "weaken")]
pub fn is_asked(wall: &str) -> bool {
    std::env::args().any(|argument| argument == wall)
}
