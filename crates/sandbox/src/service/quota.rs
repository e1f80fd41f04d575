//! What one owner may hold at once. Pure: the registry counts, this says yes or no.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::exec::ExecRequest;
use crate::spec::{ByteSize, Lifetime, Persistence, SandboxSpec};

/// Bounds on one owner, and on any one request of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub sandboxes: usize,
    /// How many of them may be persistent.
    pub persistent: usize,
    /// The sum of the memory limits of all of them.
    pub memory: Option<ByteSize>,
    /// Commands that run at once, over all sandboxes of the owner.
    pub execs: usize,
    /// Jobs that run at once, those that wait for their sandbox among them.
    pub jobs: usize,
    pub exec_timeout: Duration,
    pub idle_lifetime: Duration,
    /// `None` lets a sandbox live as long as it is used.
    pub total_lifetime: Option<Duration>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: 1000,
            persistent: 100,
            memory: None,
            execs: 1000,
            // A client that sends a thousand runs at once has them done one after the other, not refused.
            jobs: 2000,
            exec_timeout: Duration::from_secs(30 * 60),
            idle_lifetime: Duration::from_secs(24 * 60 * 60),
            total_lifetime: None,
        }
    }
}

/// What an owner holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub sandboxes: usize,
    pub persistent: usize,
    pub memory: u64,
    pub execs: usize,
}

impl Holdings {
    pub fn of(spec: &SandboxSpec) -> Self {
        let persistent = usize::from(spec.persistence == Persistence::Persistent);
        Self { sandboxes: 1, persistent, memory: spec.limits.memory.bytes(), execs: 0 }
    }

    pub fn and(&self, other: &Self) -> Self {
        Self {
            sandboxes: self.sandboxes + other.sandboxes,
            persistent: self.persistent + other.persistent,
            memory: self.memory.saturating_add(other.memory),
            execs: self.execs + other.execs,
        }
    }

    pub fn without(&self, other: &Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
            persistent: self.persistent.saturating_sub(other.persistent),
            memory: self.memory.saturating_sub(other.memory),
            execs: self.execs.saturating_sub(other.execs),
        }
    }
}

impl Quota {
    pub(crate) fn admit_sandbox(&self, held: &Holdings, spec: &SandboxSpec) -> Result<()> {
        if held.sandboxes >= self.sandboxes {
            return Err(Error::limit_exceeded(format!(
                "you have {} sandboxes, which is all you may have",
                self.sandboxes
            ))
            .with_hint("stop a sandbox that you no longer need"));
        }
        if spec.persistence == Persistence::Persistent && held.persistent >= self.persistent {
            return Err(Error::limit_exceeded(format!(
                "you have {} persistent sandboxes, which is all you may have",
                self.persistent
            ))
            .with_hint("stop a persistent sandbox that you no longer need"));
        }
        let asked = spec.limits.memory.bytes();
        if let Some(memory) = self.memory
            && held.memory.saturating_add(asked) > memory.bytes()
        {
            return Err(Error::limit_exceeded(format!(
                "{} more memory would make {}, and {memory} are allowed",
                spec.limits.memory,
                ByteSize::new(held.memory.saturating_add(asked)),
            ))
            .with_hint("stop a sandbox that you no longer need, or ask for a smaller memory limit"));
        }
        self.admit_lifetime(spec.lifetime)
    }

    pub(crate) fn admit_lifetime(&self, lifetime: Lifetime) -> Result<()> {
        if lifetime.idle > self.idle_lifetime {
            return Err(Error::limit_exceeded(format!(
                "an idle lifetime of {} s is too long",
                lifetime.idle.as_secs()
            ))
            .with_hint(format!("at most {} s are allowed", self.idle_lifetime.as_secs())));
        }
        let Some(most) = self.total_lifetime else { return Ok(()) };
        if lifetime.total.is_none_or(|total| total > most) {
            return Err(Error::limit_exceeded("a total lifetime is needed, and this one is missing or too long")
                .with_hint(format!("at most {} s are allowed", most.as_secs())));
        }
        Ok(())
    }

    pub(crate) fn admit_timeout(&self, timeout: Duration) -> Result<()> {
        if timeout > self.exec_timeout {
            return Err(Error::limit_exceeded(format!("a time-out of {} s is too long", timeout.as_secs()))
                .with_hint(format!("at most {} s are allowed", self.exec_timeout.as_secs())));
        }
        Ok(())
    }

    pub(crate) fn admit_exec(&self, held: &Holdings, request: &ExecRequest) -> Result<()> {
        self.admit_timeout(request.timeout)?;
        if held.execs >= self.execs {
            return Err(Error::limit_exceeded(format!(
                "{} commands are running, which is all you may run",
                self.execs
            ))
            .with_hint("wait for one to end, or cancel one"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::id::Owner;

    fn refused(result: Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::LimitExceeded && error.hint().is_some())
    }

    #[test]
    fn each_bound_refuses_by_itself() {
        let quota = Quota { sandboxes: 3, persistent: 1, memory: Some(ByteSize::mebibytes(1024)), ..Quota::default() };
        let spec = SandboxSpec::new(Owner::local());
        let persistent = SandboxSpec { persistence: Persistence::Persistent, ..spec.clone() };
        let held = Holdings { sandboxes: 1, persistent: 1, memory: 512 << 20, execs: 0 };
        assert!(quota.admit_sandbox(&held, &spec).is_ok());
        assert!(refused(quota.admit_sandbox(&held, &persistent)));
        assert!(refused(quota.admit_sandbox(&Holdings { memory: (512 << 20) + 1, ..held }, &spec)));
        assert!(refused(quota.admit_sandbox(&Holdings { memory: u64::MAX, ..held }, &spec)));
        assert!(refused(quota.admit_sandbox(&Holdings { sandboxes: 3, ..held }, &spec)));
    }

    #[test]
    fn lifetimes_are_bounded() {
        let quota = Quota { total_lifetime: Some(Duration::from_secs(60)), ..Quota::default() };
        let mut spec = SandboxSpec::new(Owner::local());
        assert!(refused(quota.admit_sandbox(&Holdings::default(), &spec)));
        spec.lifetime.total = Some(Duration::from_secs(60));
        assert!(quota.admit_sandbox(&Holdings::default(), &spec).is_ok());
        spec.lifetime.idle = Duration::MAX;
        assert!(refused(quota.admit_sandbox(&Holdings::default(), &spec)));
    }

    #[test]
    fn execs_are_bounded_in_time_and_number() {
        let quota = Quota { execs: 1, exec_timeout: Duration::from_secs(2), ..Quota::default() };
        let request = |seconds| ExecRequest::new(["true"], Duration::from_secs(seconds)).unwrap();
        assert!(quota.admit_exec(&Holdings::default(), &request(2)).is_ok());
        assert!(refused(quota.admit_exec(&Holdings::default(), &request(3))));
        assert!(refused(quota.admit_exec(&Holdings { execs: 1, ..Holdings::default() }, &request(2))));
    }
}
