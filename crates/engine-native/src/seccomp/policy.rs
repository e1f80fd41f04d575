//! The policy as data: read from JSON, resolved to the numbers of one architecture, and able to answer by itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;

const DEFAULT: &str = include_str!("../../seccomp/default.json");
const NUMBERS: &str = include_str!("../../seccomp/numbers.txt");

/// What a program gets back from a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Answer {
    /// The kernel does the work, or says why not.
    #[serde(rename = "allow")]
    Allow,
    /// Known and dangerous: `EPERM`.
    #[serde(rename = "EPERM")]
    NotPermitted,
    /// As from a kernel that lacks the call, so that libraries take another way: `ENOSYS`.
    #[serde(rename = "ENOSYS")]
    NotImplemented,
    /// As from a kernel built without this kind of socket: `EAFNOSUPPORT`.
    #[serde(rename = "EAFNOSUPPORT")]
    FamilyNotSupported,
}

impl Answer {
    pub fn errno(self) -> Option<i32> {
        match self {
            Self::Allow => None,
            // Linux's numbers, also where this is compiled on another system.
            Self::NotPermitted => Some(1),
            Self::NotImplemented => Some(38),
            Self::FamilyNotSupported => Some(97),
        }
    }
}

/// Machines that the engine runs on. All of them can be compiled for and tested anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Self = Self::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Self = Self::Aarch64;

    /// `AUDIT_ARCH_*`, as the kernel presents it to a filter.
    pub fn audit_code(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    fn column(self) -> usize {
        match self {
            Self::X86_64 => 1,
            Self::Aarch64 => 2,
        }
    }
}

/// Values by name; the names are for people and travel into nothing.
type NamedValues = BTreeMap<String, u32>;

/// One look at one argument.
///
/// Only the low 32 bits count. Every argument that the policy looks at is an `int` or shorter in the kernel, which
/// ignores the rest; a filter that compared all 64 bits could be passed by by setting one of the upper ones.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub argument: u8,
    #[serde(default)]
    mask: Option<NamedValues>,
    #[serde(rename = "is")]
    values: NamedValues,
}

impl Check {
    pub fn mask(&self) -> Option<u32> {
        self.mask.as_ref().map(|bits| bits.values().fold(0, |all, bit| all | bit))
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.values.values().copied()
    }

    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        let seen = arguments[usize::from(self.argument)] as u32 & self.mask().unwrap_or(u32::MAX);
        self.values().any(|value| value == seen)
    }
}

/// An answer that depends on arguments: `then` if all checks of any clause hold, `otherwise` if not.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    pub reason: String,
    calls: Vec<String>,
    #[serde(rename = "when")]
    pub clauses: Vec<Vec<Check>>,
    pub then: Answer,
    pub otherwise: Answer,
}

impl Condition {
    fn validate(&self) -> Result<(), PolicyError> {
        let wrong = |what: &str| Err(PolicyError(format!("the rule for {:?} {what}", self.calls)));
        if self.then == self.otherwise {
            return wrong("gives the same answer either way");
        }
        if self.clauses.is_empty() || self.clauses.iter().any(Vec::is_empty) {
            return wrong("has an empty condition");
        }
        for check in self.clauses.iter().flatten() {
            if check.argument > 5 {
                return wrong("looks at an argument that no system call has");
            }
            if check.values.is_empty() || check.values().any(|value| value & !check.mask().unwrap_or(u32::MAX) != 0) {
                return wrong("waits for a value that cannot be");
            }
        }
        Ok(())
    }

    pub fn decide(&self, arguments: &[u64; 6]) -> Answer {
        if self.clauses.iter().any(|clause| clause.iter().all(|check| check.holds(arguments))) {
            self.then
        } else {
            self.otherwise
        }
    }
}

/// Names are borrowed from the text: this is read whenever a server starts, and most of it is names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed<'a> {
    #[serde(borrow)]
    reason: Cow<'a, str>,
    calls: Vec<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused<'a> {
    answer: Answer,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    calls: Vec<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    unknown: Answer,
    #[serde(borrow)]
    allowed: Vec<Allowed<'a>>,
    conditional: Vec<Condition>,
    #[serde(borrow)]
    refused: Vec<Refused<'a>>,
}

/// What the policy says about one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    Always(Answer),
    Depends(&'a Condition),
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Always(Answer),
    /// An index into the conditions.
    Depends(usize),
}

/// The policy of one architecture.
#[derive(Debug)]
pub struct Policy {
    architecture: Architecture,
    unknown: Answer,
    conditions: Vec<Condition>,
    /// By number.
    calls: Vec<Option<Call>>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    name: &'static str,
    entry: Entry,
}

/// A mistake in the policy itself, which a test finds before anybody else does.
#[derive(Debug, PartialEq, Eq)]
pub struct PolicyError(String);

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    pub fn built_in(architecture: Architecture) -> Result<Self, PolicyError> {
        Self::parse(DEFAULT, architecture)
    }

    pub(super) fn parse(json: &str, architecture: Architecture) -> Result<Self, PolicyError> {
        let document: Document = serde_json::from_str(json).map_err(|error| PolicyError(error.to_string()))?;
        document.conditional.iter().try_for_each(Condition::validate)?;
        let mut known = Known::read(architecture)?;
        for group in &document.allowed {
            known.answer(Entry::Always(Answer::Allow), &group.reason, &group.calls)?;
        }
        for group in &document.refused {
            known.answer(Entry::Always(group.answer), &group.reason, &group.calls)?;
        }
        for (index, condition) in document.conditional.iter().enumerate() {
            known.answer(Entry::Depends(index), &condition.reason, &condition.calls)?;
        }
        let calls = known.finish()?;
        Ok(Self { architecture, unknown: document.unknown, conditions: document.conditional, calls })
    }

    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The answer to numbers without a rule, and to all calls of a foreign architecture.
    pub fn unknown(&self) -> Answer {
        self.unknown
    }

    /// Numbers with a rule, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.calls).filter(|(_, call)| call.is_some()).map(|(number, _)| number)
    }

    pub fn name(&self, number: u32) -> Option<&'static str> {
        self.call(number).map(|call| call.name)
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        self.numbers().find(|number| self.name(*number) == Some(name))
    }

    pub fn rule(&self, number: u32) -> Rule<'_> {
        match self.call(number).map(|call| call.entry) {
            None => Rule::Always(self.unknown),
            Some(Entry::Always(answer)) => Rule::Always(answer),
            Some(Entry::Depends(index)) => Rule::Depends(&self.conditions[index]),
        }
    }

    fn call(&self, number: u32) -> Option<Call> {
        self.calls.get(number as usize).copied().flatten()
    }

    /// What the policy means for one call, worked out without the filter; the two are compared by tests.
    pub fn decide(&self, audit_code: u32, number: u32, arguments: &[u64; 6]) -> Answer {
        if audit_code != self.architecture.audit_code() {
            return self.unknown;
        }
        match self.rule(number) {
            Rule::Always(answer) => answer,
            Rule::Depends(condition) => condition.decide(arguments),
        }
    }
}

/// All calls that Linux has, while answers are given to them.
struct Known {
    calls: HashMap<&'static str, (Option<usize>, Option<Entry>)>,
}

impl Known {
    fn read(architecture: Architecture) -> Result<Self, PolicyError> {
        let mut calls = HashMap::with_capacity(512);
        for line in NUMBERS.lines().filter(|line| !line.starts_with('#')) {
            let wrong = || PolicyError(format!("{line:?} is not a name with two numbers"));
            let mut columns = line.split(' ');
            let name = columns.next().ok_or_else(wrong)?;
            let number = match columns.nth(architecture.column() - 1).ok_or_else(wrong)? {
                "-" => None,
                digits => Some(digits.parse().map_err(|_| wrong())?),
            };
            calls.insert(name, (number, None));
        }
        Ok(Self { calls })
    }

    fn answer(
        &mut self,
        entry: Entry,
        reason: &str,
        names: &[impl AsRef<str> + fmt::Debug],
    ) -> Result<(), PolicyError> {
        if reason.is_empty() {
            return Err(PolicyError(format!("no reason is given for {names:?}")));
        }
        for name in names.iter().map(AsRef::as_ref) {
            match self.calls.get_mut(name) {
                None => return Err(PolicyError(format!("there is no system call {name}"))),
                Some((_, Some(_))) => return Err(PolicyError(format!("{name} is named twice"))),
                Some((_, unanswered)) => *unanswered = Some(entry),
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Option<Call>>, PolicyError> {
        let mut calls = Vec::new();
        for (name, (number, entry)) in self.calls {
            let entry = entry.ok_or_else(|| PolicyError(format!("nothing is said about {name}")))?;
            // A call that this architecture never had needs no answer here.
            let Some(number) = number else { continue };
            if calls.len() <= number {
                calls.resize(number + 1, None);
            }
            calls[number] = Some(Call { name, entry });
        }
        Ok(calls)
    }
}
