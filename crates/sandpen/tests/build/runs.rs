//! RUN, in real sandboxes.
