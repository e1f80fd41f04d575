//! Which links of a sandbox a copy has.

/// Which links of a sandbox are made here. None is ever followed, but a person or a program may follow one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// As they are: the person who asked for the copy can look.
    AsTheyAre,
    /// Only those that stay in the copy: nobody looks at what a model copies.
    Inside,
}

impl Links {
    /// Of files that go from one sandbox to the next.
    pub const LENT: Self = Self::Inside;

    /// By how many names the link has below the top, its own among them.
    pub fn admit(self, names: usize, target: &[u8]) -> bool {
        match self {
            Self::AsTheyAre => true,
            Self::Inside => stays_inside(names.saturating_sub(1), target),
        }
    }
}

/// Whether a link so many directories deep leads to something below the top, whatever other links of the copy are on its
/// way. Upwards only first and no further than the top: where `..` leads from behind a name, which may be a link itself,
/// nobody can tell from the text.
fn stays_inside(depth: usize, target: &[u8]) -> bool {
    let mut names = target.split(|&byte| byte == b'/').filter(|name| *name != b".").peekable();
    let mut up = 0;
    while names.next_if(|name| *name == b"..").is_some() {
        up += 1;
    }
    !target.starts_with(b"/") && up <= depth && names.all(|name| name != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_out_are_left_out_when_nobody_looks() {
        for (depth, target, inside) in [
            (0, "a", true),
            (0, "./a/b", true),
            (0, "a/../b", false),
            (0, "..", false),
            (1, "../b", true),
            (1, "./../b", true),
            (1, "../../b", false),
            (2, "../..", true),
            // Through a link to the top this leads above it, however the names are counted.
            (0, "d1/d2/up/../../../etc/passwd", false),
            (0, "/etc/passwd", false),
        ] {
            assert_eq!(Links::Inside.admit(depth + 1, target.as_bytes()), inside, "{target} at {depth}");
        }
    }
}
