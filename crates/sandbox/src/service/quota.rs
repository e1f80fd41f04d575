//! What one owner may hold at once. Pure: the registry counts, this says yes or no.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::exec::ExecRequest;
use crate::id::Owner;
use crate::pace::PerMinute;
use crate::spec::{ByteSize, Lifetime, Limits, Persistence, SandboxSpec};
use crate::tree::SavedName;

/// Bounds on one owner, and on any one request of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub sandboxes: usize,
    /// How many of them may be persistent.
    pub persistent: usize,
    /// The sum of the processor limits of all of them, in thousandths.
    pub cpu_millis: Option<u64>,
    /// The sum of the memory limits of all of them.
    pub memory: Option<ByteSize>,
    /// The sum of the disk limits of all of them, and of the bytes of the owner's saved images and checkpoints.
    pub disk: Option<ByteSize>,
    pub saved_images: usize,
    /// Commands that run at once, over all sandboxes of the owner.
    pub execs: usize,
    /// Jobs that run at once, those that wait for their sandbox among them.
    pub jobs: usize,
    /// How often something may be started, in all sandboxes of the owner together.
    pub runs: Option<PerMinute>,
    pub exec_timeout: Duration,
    pub idle_lifetime: Duration,
    /// The same of persistent ones, which somebody wants to find again.
    pub persistent_idle_lifetime: Duration,
    /// `None` lets a sandbox live as long as it is used.
    pub total_lifetime: Option<Duration>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: 1000,
            persistent: 100,
            cpu_millis: None,
            memory: None,
            disk: None,
            saved_images: 1000,
            execs: 1000,
            // A client that sends a thousand runs at once has them done one after the other, not refused.
            jobs: 2000,
            runs: None,
            exec_timeout: Duration::from_secs(30 * 60),
            idle_lifetime: Duration::from_secs(24 * 60 * 60),
            persistent_idle_lifetime: Duration::from_secs(30 * 24 * 60 * 60),
            total_lifetime: None,
        }
    }
}

/// What an owner holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub sandboxes: usize,
    pub persistent: usize,
    pub cpu_millis: u64,
    pub memory: u64,
    /// Also that of saved images and checkpoints, where they count.
    pub disk: u64,
    pub execs: usize,
}

/// What an owner holds that the registry of this process does not know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elsewhere {
    pub holdings: Holdings,
    /// Names and bytes of saved images, those that are being saved among them.
    pub saved: BTreeMap<SavedName, u64>,
}

impl Elsewhere {
    /// The names that are worth most, for somebody who needs room.
    fn largest(&self) -> String {
        let mut saved: Vec<_> = self.saved.iter().collect();
        saved.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), *name));
        let shown = saved.iter().take(3).map(|(name, bytes)| format!("{name} has {}", ByteSize::new(**bytes)));
        shown.collect::<Vec<_>>().join(", ")
    }

    fn how_to_make_room(&self) -> String {
        if self.saved.is_empty() {
            return "stop a sandbox that you no longer need".to_owned();
        }
        format!("stop a sandbox or forget a saved image that you no longer need ({})", self.largest())
    }
}

impl Holdings {
    pub fn of(spec: &SandboxSpec) -> Self {
        let persistent = usize::from(spec.persistence == Persistence::Persistent);
        let Limits { cpu_millis, memory, disk, .. } = spec.limits;
        let cpu_millis = u64::from(cpu_millis);
        Self { sandboxes: 1, persistent, cpu_millis, memory: memory.bytes(), disk: disk.bytes(), execs: 0 }
    }

    pub fn and(&self, other: &Self) -> Self {
        Self {
            sandboxes: self.sandboxes + other.sandboxes,
            persistent: self.persistent + other.persistent,
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory: self.memory.saturating_add(other.memory),
            disk: self.disk.saturating_add(other.disk),
            execs: self.execs + other.execs,
        }
    }

    pub fn without(&self, other: &Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
            persistent: self.persistent.saturating_sub(other.persistent),
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory: self.memory.saturating_sub(other.memory),
            disk: self.disk.saturating_sub(other.disk),
            execs: self.execs.saturating_sub(other.execs),
        }
    }
}

impl Quota {
    pub(crate) fn admit_sandbox(&self, held: &Holdings, elsewhere: &Elsewhere, spec: &SandboxSpec) -> Result<()> {
        let held = held.and(&elsewhere.holdings);
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
        let asked = u64::from(spec.limits.cpu_millis);
        let whole = held.cpu_millis.saturating_add(asked);
        if let Some(most) = self.cpu_millis.filter(|most| whole > *most) {
            let [asked, whole, most] = [asked, whole, most].map(|millis| millis as f64 / 1000.0);
            return Err(Error::limit_exceeded(format!(
                "{asked} more processors would make {whole}, and {most} are allowed"
            ))
            .with_hint("stop a sandbox that you no longer need, or ask for fewer processors"));
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
        let asked = spec.limits.disk;
        if let Some(disk) = self.disk.filter(|disk| held.disk.saturating_add(asked.bytes()) > disk.bytes()) {
            return Err(too_much_disk(asked, held.disk, disk)
                .with_hint(format!("{}, or ask for a smaller disk limit", elsewhere.how_to_make_room())));
        }
        self.admit_lifetime(spec.lifetime, spec.persistence)
    }

    /// Whether an image of so many bytes may be saved, in place of one that has this name.
    pub(crate) fn admit_save(
        &self,
        held: &Holdings,
        elsewhere: &Elsewhere,
        name: &SavedName,
        bytes: ByteSize,
    ) -> Result<()> {
        let replaced = elsewhere.saved.get(name);
        if replaced.is_none() && elsewhere.saved.len() >= self.saved_images {
            let count = self.saved_images;
            return Err(Error::limit_exceeded(format!("you have {count} saved images, which is all you may have"))
                .with_hint(format!("forget one that you no longer need ({})", elsewhere.largest())));
        }
        let held = held.and(&elsewhere.holdings).disk.saturating_sub(replaced.copied().unwrap_or(0));
        self.admit_bytes(held, elsewhere, bytes)
    }

    /// Whether a checkpoint of so many bytes may be kept.
    pub(crate) fn admit_checkpoint(&self, held: &Holdings, elsewhere: &Elsewhere, bytes: ByteSize) -> Result<()> {
        self.admit_bytes(held.and(&elsewhere.holdings).disk, elsewhere, bytes)
    }

    fn admit_bytes(&self, held: u64, elsewhere: &Elsewhere, bytes: ByteSize) -> Result<()> {
        match self.disk.filter(|disk| held.saturating_add(bytes.bytes()) > disk.bytes()) {
            Some(disk) => Err(too_much_disk(bytes, held, disk).with_hint(elsewhere.how_to_make_room())),
            None => Ok(()),
        }
    }

    pub(crate) fn admit_lifetime(&self, lifetime: Lifetime, persistence: Persistence) -> Result<()> {
        let most = match persistence {
            Persistence::Ephemeral => self.idle_lifetime,
            Persistence::Persistent => self.persistent_idle_lifetime,
        };
        if lifetime.idle > most {
            return Err(Error::limit_exceeded(format!(
                "an idle lifetime of {} s is too long",
                lifetime.idle.as_secs()
            ))
            .with_hint(format!("at most {} s are allowed", most.as_secs())));
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

/// The bounds of all owners, which may change while the service runs.
#[derive(Debug)]
pub(crate) struct Quotas(RwLock<Bounds>);

/// Some owners have bounds of their own.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    pub usual: Quota,
    pub of: BTreeMap<Owner, Quota>,
}

impl Quotas {
    pub fn new(bounds: Bounds) -> Self {
        Self(RwLock::new(bounds))
    }

    pub fn of(&self, owner: &Owner) -> Quota {
        let bounds = self.0.read().unwrap_or_else(PoisonError::into_inner);
        bounds.of.get(owner).copied().unwrap_or(bounds.usual)
    }

    /// What is held already stays, also where it is more than what is allowed from now on.
    pub fn replace(&self, bounds: Bounds) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bounds;
    }
}

fn too_much_disk(asked: ByteSize, held: u64, allowed: ByteSize) -> Error {
    let whole = ByteSize::new(held.saturating_add(asked.bytes()));
    Error::limit_exceeded(format!("{asked} more disk would make {whole}, and {allowed} are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refused(result: Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::LimitExceeded && error.hint().is_some())
    }

    #[test]
    fn each_bound_refuses_by_itself() {
        let quota = Quota { sandboxes: 3, persistent: 1, memory: Some(ByteSize::mebibytes(1024)), ..Quota::default() };
        let spec = SandboxSpec::new(Owner::local());
        let persistent = SandboxSpec { persistence: Persistence::Persistent, ..spec.clone() };
        let quota = Quota { disk: Some(ByteSize::mebibytes(4096)), cpu_millis: Some(4000), ..quota };
        let admit = |held: &Holdings, spec: &SandboxSpec| quota.admit_sandbox(held, &Elsewhere::default(), spec);
        let held =
            Holdings { sandboxes: 1, persistent: 1, cpu_millis: 3000, memory: 512 << 20, disk: 3 << 30, execs: 0 };
        assert!(admit(&held, &spec).is_ok());
        assert!(refused(admit(&held, &persistent)));
        assert!(refused(admit(&Holdings { cpu_millis: 3001, ..held }, &spec)));
        assert!(refused(admit(&Holdings { memory: (512 << 20) + 1, ..held }, &spec)));
        assert!(refused(admit(&Holdings { memory: u64::MAX, ..held }, &spec)));
        assert!(refused(admit(&Holdings { disk: (3 << 30) + 1, ..held }, &spec)));
        assert!(refused(admit(&Holdings { disk: u64::MAX, ..held }, &spec)));
        assert!(refused(admit(&Holdings { sandboxes: 3, ..held }, &spec)));
    }

    #[test]
    fn saves_are_bounded_in_bytes_and_number() {
        let quota = Quota { disk: Some(ByteSize::new(100)), saved_images: 2, ..Quota::default() };
        let name = |text: &str| text.parse::<SavedName>().unwrap();
        let held = Holdings { disk: 10, ..Holdings::default() };
        let saved: BTreeMap<_, _> = [(name("large"), 50), (name("small"), 20)].into();
        let elsewhere = Elsewhere { holdings: Holdings { disk: 70, ..Holdings::default() }, saved };
        let admit = |text, bytes| quota.admit_save(&held, &elsewhere, &name(text), ByteSize::new(bytes));
        assert!(refused(admit("new", 1)), "there are two already");
        assert!(admit("small", 40).is_ok());
        assert!(refused(admit("small", 41)));
        assert!(admit("large", 70).is_ok());
        let hint = admit("large", 71).unwrap_err().hint().unwrap().to_owned();
        assert!(hint.contains("large has 50 B, small has 20 B"), "{hint}");
    }

    #[test]
    fn lifetimes_are_bounded() {
        let quota = Quota { total_lifetime: Some(Duration::from_secs(60)), ..Quota::default() };
        let mut spec = SandboxSpec::new(Owner::local());
        let admit = |spec: &SandboxSpec| quota.admit_sandbox(&Holdings::default(), &Elsewhere::default(), spec);
        assert!(refused(admit(&spec)));
        spec.lifetime.total = Some(Duration::from_secs(60));
        assert!(admit(&spec).is_ok());
        spec.lifetime.idle = Duration::MAX;
        assert!(refused(admit(&spec)));
        for (persistence, days) in [(Persistence::Ephemeral, 1), (Persistence::Persistent, 30)] {
            let most = Duration::from_secs(days * 24 * 60 * 60);
            let lifetime = |idle| Lifetime { idle, ..Lifetime::default() };
            let admit = |idle| Quota::default().admit_lifetime(lifetime(idle), persistence);
            assert!(admit(most).is_ok(), "{persistence:?}");
            assert!(refused(admit(most + Duration::from_secs(1))), "{persistence:?}");
        }
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
