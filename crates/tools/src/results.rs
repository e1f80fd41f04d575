//! Results of runs as blocks and objects.

/// Larger images are linked instead of shown: they would fill a model's context.
pub const IMAGE_BYTES: u64 = 1 << 20;
