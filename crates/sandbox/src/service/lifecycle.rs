//! The life of a sandbox as one pure function: what may follow what.

use crate::error::{Error, ErrorKind};

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Promised to somebody; the engine is at work.
    Creating,
    Live,
    /// Its end was decided; nothing new may start in it.
    Stopping,
    /// Nothing of it is left. Kept by nobody; the last word to those who wait for the end.
    Gone,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Live => "live",
            Self::Stopping => "stopping",
            Self::Gone => "gone",
        }
    }
}

/// What can happen to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happening {
    /// The engine has made it.
    Made,
    /// The engine could not make it, and has left nothing.
    NotMade,
    /// Somebody wants to run something in it, touch its files or renew it.
    Use,
    /// Its owner, its clock or a shutdown wants it ended.
    Stop,
    /// The engine has ended it.
    Destroyed,
    /// The engine could not end it.
    NotDestroyed,
    /// The engine no longer knows it.
    Lost,
}

#[cfg(test)]
impl State {
    const ALL: [State; 4] = [State::Creating, State::Live, State::Stopping, State::Gone];
}

#[cfg(test)]
impl Happening {
    const ALL: [Happening; 7] = [
        Happening::Made,
        Happening::NotMade,
        Happening::Use,
        Happening::Stop,
        Happening::Destroyed,
        Happening::NotDestroyed,
        Happening::Lost,
    ];
}

/// Why something may not happen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    StillCreating,
    Stopping,
    Gone,
    /// Cannot happen unless we have a fault: for example a second `Made`.
    OutOfOrder,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::StillCreating => Error::new(ErrorKind::WrongState, "the sandbox is still being created"),
            Refusal::Stopping => Error::new(ErrorKind::WrongState, "the sandbox is being stopped"),
            Refusal::Gone => Error::new(ErrorKind::NotFound, "there is no such sandbox"),
            Refusal::OutOfOrder => Error::internal("the sandbox is in a state that it cannot be in"),
        }
    }
}

/// The state after `happening`, or why it may not happen.
///
/// A stop during creation is taken, not refused: a shutdown cannot wait for an engine to finish first. Who creates it then
/// sees `Stopping` after `Made` and destroys what it has made.
pub fn next(state: State, happening: Happening) -> Result<State, Refusal> {
    match (state, happening) {
        (State::Creating, Happening::Made) => Ok(State::Live),
        (State::Creating, Happening::NotMade) => Ok(State::Gone),
        (State::Creating, Happening::Use) => Err(Refusal::StillCreating),
        (State::Creating, Happening::Stop) => Ok(State::Stopping),
        // An engine that was asked a moment too early does not know it yet.
        (State::Creating, Happening::Lost) => Ok(State::Creating),
        (State::Creating, Happening::Destroyed | Happening::NotDestroyed) => Err(Refusal::OutOfOrder),

        (State::Live, Happening::Use) => Ok(State::Live),
        (State::Live, Happening::Stop) => Ok(State::Stopping),
        (State::Live, Happening::Lost) => Ok(State::Gone),
        (State::Live, Happening::Made | Happening::NotMade | Happening::Destroyed | Happening::NotDestroyed) => {
            Err(Refusal::OutOfOrder)
        }

        (State::Stopping, Happening::Made) => Ok(State::Stopping),
        (State::Stopping, Happening::NotMade | Happening::Destroyed) => Ok(State::Gone),
        (State::Stopping, Happening::Use) => Err(Refusal::Stopping),
        // Idempotent, and how a destroy that failed is tried again.
        (State::Stopping, Happening::Stop | Happening::NotDestroyed) => Ok(State::Stopping),
        // Whoever destroys it reports the end; forgetting it earlier would let its name be taken again too soon.
        (State::Stopping, Happening::Lost) => Ok(State::Stopping),

        (
            State::Gone,
            Happening::Made
            | Happening::NotMade
            | Happening::Use
            | Happening::Stop
            | Happening::Destroyed
            | Happening::NotDestroyed
            | Happening::Lost,
        ) => Err(Refusal::Gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are states, columns are happenings in the order of `Happening::ALL`; a dot is a refusal out of order.
    const TABLE: [(State, &str); 4] = [
        (State::Creating, "live      gone      still     stopping  .         .         creating"),
        (State::Live, "    .         .         live      stopping  .         .         gone"),
        (State::Stopping, "stopping  gone      ending    stopping  gone      stopping  stopping"),
        (State::Gone, "    none      none      none      none      none      none      none"),
    ];

    #[test]
    fn every_pair_has_its_answer() {
        for (state, row) in TABLE {
            for (happening, expected) in Happening::ALL.into_iter().zip(row.split_whitespace()) {
                let found = match next(state, happening) {
                    Ok(state) => state.as_str(),
                    Err(Refusal::StillCreating) => "still",
                    Err(Refusal::Stopping) => "ending",
                    Err(Refusal::Gone) => "none",
                    Err(Refusal::OutOfOrder) => ".",
                };
                assert_eq!(found, expected, "{state:?} + {happening:?}");
            }
            assert_eq!(row.split_whitespace().count(), Happening::ALL.len());
        }
        assert_eq!(TABLE.map(|(state, _)| state), State::ALL);
    }

    #[test]
    fn nothing_leads_back_to_life() {
        for state in [State::Stopping, State::Gone] {
            for happening in Happening::ALL {
                assert_ne!(next(state, happening), Ok(State::Live));
            }
        }
    }
}
