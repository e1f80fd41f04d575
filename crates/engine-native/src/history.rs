//! What a sandbox has under its writable layer besides its image: layers that were frozen, and which of them are moments
//! that it can go back to.

use sandbox::{Checkpoint, Error, Limits, Result};
use serde::{Deserialize, Serialize};

use crate::live::{Description, Live};
use crate::plan::{Heir, Held, Inheritance, enforced_limits};
use crate::wire::MOST_FROZEN;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// What each of them holds, the lowest first.
    pub layers: Vec<Held>,
    /// How many of them it started with.
    pub inherited: usize,
    /// Numbers of checkpoints, and how many layers there were then. Both grow.
    pub checkpoints: Vec<(u32, usize)>,
    /// The last number that was given; those of checkpoints that are gone are not given again.
    pub last: u32,
}

impl History {
    /// What all of them hold.
    pub fn held(&self) -> Held {
        self.layers.iter().fold(Held::default(), |all, layer| Held {
            bytes: all.bytes + layer.bytes,
            inodes: all.inodes + layer.inodes,
        })
    }

    /// The newest checkpoint, if no layer came after it.
    pub fn newest_here(&self) -> Option<Checkpoint> {
        let (number, layers) = self.checkpoints.last()?;
        (*layers == self.layers.len()).then_some(Checkpoint(*number))
    }

    /// How many layers there were at a checkpoint; those that it started with when none is named.
    pub fn layers_at(&self, checkpoint: Option<Checkpoint>) -> Result<usize> {
        let Some(Checkpoint(wanted)) = checkpoint else { return Ok(self.inherited) };
        let found = self.checkpoints.iter().find(|(number, _)| *number == wanted);
        let missing = || {
            let numbers: Vec<String> = self.checkpoints.iter().map(|(number, _)| number.to_string()).collect();
            let has = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
            Error::not_found(format!("the sandbox has no checkpoint {wanted}"))
                .with_hint(format!("it has {has}; going back takes later checkpoints away"))
        };
        found.map(|(_, layers)| *layers).ok_or_else(missing)
    }

    /// With one more layer on top.
    pub fn with_layer(mut self, layer: Held) -> Self {
        self.layers.push(layer);
        self
    }

    pub fn with_checkpoint(mut self) -> (Self, Checkpoint) {
        self.last += 1;
        self.checkpoints.push((self.last, self.layers.len()));
        let checkpoint = Checkpoint(self.last);
        (self, checkpoint)
    }

    /// As it was at a checkpoint that there is.
    pub fn back_to(mut self, checkpoint: Checkpoint) -> Result<Self> {
        let layers = self.layers_at(Some(checkpoint))?;
        self.layers.truncate(layers);
        self.checkpoints.retain(|(number, _)| *number <= checkpoint.0);
        Ok(self)
    }

    /// The same layers, as the beginning of another sandbox.
    pub fn of_fork(&self) -> Self {
        Self { layers: self.layers.clone(), inherited: self.layers.len(), checkpoints: Vec::new(), last: 0 }
    }

    /// Whether limits leave something to work with beside all that is frozen.
    pub fn check(&self, limits: &Limits, heir: Heir) -> Result<()> {
        if self.layers.len() > MOST_FROZEN {
            return Err(Error::limit_exceeded(format!("a sandbox can have {MOST_FROZEN} layers of frozen files"))
                .with_hint("go back to an earlier checkpoint, or save the sandbox and go on from the image"));
        }
        let (whole, held) = (enforced_limits(limits), self.held());
        let left = |what: &str, limit: u64, held: u64, least: u64| {
            if limit.saturating_sub(held) >= least {
                return Ok(());
            }
            Err(Error::limit_exceeded(format!(
                "{held} of {limit} {what} are used by files that are to be kept, and {least} must be left"
            ))
            .with_hint("remove files that are not needed, or use a sandbox with higher limits"))
        };
        left("bytes of disk", whole.disk.bytes(), held.bytes, 1 << 20)?;
        left("inodes", whole.inodes, held.inodes, 64)?;
        match heir {
            // Its files are charged to its group, as they were.
            Heir::Successor => Ok(()),
            Heir::Fork => left("bytes of memory", whole.memory.bytes(), held.memory(), 8 << 20),
        }
    }
}

/// All that a sandbox has, for an heir.
pub fn inheritance(heir: Heir, source: &Live, freeze: bool) -> Inheritance {
    let Description { holds, .. } = source.description;
    Inheritance { heir, holds, layers: source.history().layers.len(), freeze }
}

#[cfg(test)]
mod tests {
    use sandbox::{ByteSize, ErrorKind};

    use super::*;

    fn layer(bytes: u64) -> Held {
        Held { bytes, inodes: 10 }
    }

    #[test]
    fn going_back_takes_later_moments_away() {
        let (history, first) = History::default().with_layer(layer(1)).with_checkpoint();
        let (history, second) = history.with_layer(layer(2)).with_layer(layer(3)).with_checkpoint();
        assert!(second > first);
        assert_eq!(history.newest_here(), Some(second));
        assert_eq!((history.layers_at(Some(first)).unwrap(), history.layers_at(None).unwrap()), (1, 0));
        let back = history.back_to(first).unwrap();
        assert_eq!((back.layers.len(), back.newest_here()), (1, Some(first)));
        assert_eq!(back.layers_at(Some(second)).unwrap_err().kind(), ErrorKind::NotFound);
        let (again, third) = back.with_layer(layer(4)).with_checkpoint();
        assert!(third > second, "a number is not given twice");
        assert_eq!(again.of_fork(), History { layers: vec![layer(1), layer(4)], inherited: 2, ..History::default() });
    }

    #[test]
    fn limits_hold_over_all_that_is_frozen() {
        let limits = Limits { memory: ByteSize::mebibytes(40), disk: ByteSize::mebibytes(30), ..Limits::default() };
        let history = |bytes| History::default().with_layer(layer(bytes));
        assert!(history(20 << 20).check(&limits, Heir::Fork).is_ok());
        let full = history(30 << 20).check(&limits, Heir::Successor).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::LimitExceeded);
        assert!(full.message().contains("31457280 of 31457280"), "{full}");
        let many = History::default().with_layer(Held { bytes: 0, inodes: 33 << 10 });
        assert!(many.check(&limits, Heir::Successor).is_ok(), "they are charged already");
        let full = many.check(&limits, Heir::Fork).unwrap_err();
        assert!(full.message().contains("34603008 of 41943040 bytes of memory"), "{full}");
        let deep = (0..=MOST_FROZEN).fold(History::default(), |history, _| history.with_layer(layer(0)));
        assert_eq!(deep.check(&limits, Heir::Successor).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}
