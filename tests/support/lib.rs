//! What every test program needs to drive the real binary.
