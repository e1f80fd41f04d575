//! Arguments of older tools, which each server checks in its own words.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

/// What is wrong with one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub argument: &'static str,
    pub problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    Missing,
    /// It is of another type than this.
    Not(&'static str),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem {
            Problem::Missing => write!(f, "{} is required", self.argument),
            Problem::Not(kind) => {
                let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
                write!(f, "{} must be {article} {kind}", self.argument)
            }
        }
    }
}

/// The arguments of one call, read by name.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a>(pub &'a Map<String, Value>);

impl<'a> Arguments<'a> {
    pub fn text(self, argument: &'static str) -> Result<&'a str, Wrong> {
        self.optional_text(argument)?.ok_or(Wrong { argument, problem: Problem::Missing })
    }

    pub fn optional_text(self, argument: &'static str) -> Result<Option<&'a str>, Wrong> {
        self.read(argument, "string", Value::as_str)
    }

    pub fn truth(self, argument: &'static str) -> Result<Option<bool>, Wrong> {
        self.read(argument, "boolean", Value::as_bool)
    }

    pub fn number(self, argument: &'static str) -> Result<Option<f64>, Wrong> {
        self.read(argument, "number", Value::as_f64)
    }

    pub fn object(self, argument: &'static str) -> Result<Option<Arguments<'a>>, Wrong> {
        Ok(self.read(argument, "object", Value::as_object)?.map(Arguments))
    }

    /// `null` is what some clients send for what they leave out.
    fn read<T>(
        self,
        argument: &'static str,
        kind: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Wrong> {
        match self.0.get(argument) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or(Wrong { argument, problem: Problem::Not(kind) }),
        }
    }
}

/// A time in milliseconds, or nothing where it makes no sense as one.
pub fn milliseconds(count: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(count / 1000.0).ok().filter(|time| !time.is_zero())
}
