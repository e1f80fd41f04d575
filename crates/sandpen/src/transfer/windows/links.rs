//! Which links of a sandbox a copy has. There are fewer kinds of copies on Windows: no directory is opened for a model.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// As they are; that none can be made here is told to the person who asked for the copy.
    AsTheyAre,
    /// None at all.
    Never,
}

impl Links {
    /// Of files that go from one sandbox to the next.
    pub const LENT: Self = Self::Never;

    pub fn admit(self, _: usize, _: &[u8]) -> bool {
        match self {
            Self::AsTheyAre => true,
            Self::Never => false,
        }
    }
}
