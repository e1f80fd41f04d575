//! Numbers under one name, told apart by labels, and how they are written.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Words of ours, and routes as our code has them.
type Labels<const COUNT: usize> = [String; COUNT];

/// Numbers that only grow.
#[derive(Debug)]
pub struct Counters<const COUNT: usize> {
    head: Head<COUNT>,
    counts: Mutex<BTreeMap<Labels<COUNT>, u64>>,
}

/// How long something took.
#[derive(Debug)]
pub struct Durations<const COUNT: usize> {
    head: Head<COUNT>,
    histograms: Mutex<BTreeMap<Labels<COUNT>, Histogram>>,
}

#[derive(Clone, Copy, Debug)]
struct Head<const COUNT: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; COUNT],
}

/// In seconds: from a call that changes nothing to a run that goes on for minutes.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];

#[derive(Clone, Copy, Debug, Default)]
struct Histogram {
    /// Of each bound those that are above the one before; what is above all is in the count alone.
    within: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl<const COUNT: usize> Counters<COUNT> {
    pub fn new(name: &'static str, help: &'static str, labels: [&'static str; COUNT]) -> Self {
        Self { head: Head { name, help, labels }, counts: Mutex::default() }
    }

    pub fn add(&self, labels: [&str; COUNT], more: u64) {
        let mut counts = lock(&self.counts);
        *counts.entry(labels.map(str::to_owned)).or_default() += more;
    }

    pub fn write(&self, page: &mut String) {
        self.head.write(page, "counter");
        let counts = lock(&self.counts);
        if COUNT == 0 && counts.is_empty() {
            // One that is never told apart is there from the beginning.
            line(page, self.head.name, "", "0");
        }
        for (labels, count) in &*counts {
            line(page, self.head.name, &self.head.pairs(labels), &count.to_string());
        }
    }
}

impl<const COUNT: usize> Durations<COUNT> {
    pub fn new(name: &'static str, help: &'static str, labels: [&'static str; COUNT]) -> Self {
        Self { head: Head { name, help, labels }, histograms: Mutex::default() }
    }

    pub fn add(&self, labels: [&str; COUNT], took: Duration) {
        let seconds = took.as_secs_f64();
        let mut histograms = lock(&self.histograms);
        let histogram = histograms.entry(labels.map(str::to_owned)).or_default();
        histogram.count += 1;
        histogram.sum += seconds;
        if let Some(within) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            histogram.within[within] += 1;
        }
    }

    pub fn write(&self, page: &mut String) {
        self.head.write(page, "histogram");
        let name = self.head.name;
        for (labels, Histogram { within, count, sum }) in &*lock(&self.histograms) {
            let pairs = self.head.pairs(labels);
            let bucket = |bound: &str| match pairs.as_str() {
                "" => format!("le=\"{bound}\""),
                pairs => format!("{pairs},le=\"{bound}\""),
            };
            let mut so_far = 0;
            for (bound, more) in BOUNDS.iter().zip(within) {
                so_far += more;
                line(page, &format!("{name}_bucket"), &bucket(&bound.to_string()), &so_far.to_string());
            }
            line(page, &format!("{name}_bucket"), &bucket("+Inf"), &count.to_string());
            line(page, &format!("{name}_sum"), &pairs, &sum.to_string());
            line(page, &format!("{name}_count"), &pairs, &count.to_string());
        }
    }
}

/// One that is looked up when it is asked for.
pub fn gauge(page: &mut String, name: &'static str, help: &'static str, labels: &[(&'static str, &str)], value: f64) {
    let (names, values): (Vec<_>, Vec<_>) = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).unzip();
    Head::<0> { name, help, labels: [] }.write(page, "gauge");
    line(page, name, &pairs(&names, &values), &value.to_string());
}

/// One that somebody else counts.
pub fn counter(page: &mut String, name: &'static str, help: &'static str, value: f64) {
    Head::<0> { name, help, labels: [] }.write(page, "counter");
    line(page, name, "", &value.to_string());
}

impl<const COUNT: usize> Head<COUNT> {
    fn write(&self, page: &mut String, kind: &str) {
        let _ = writeln!(page, "# HELP {} {}\n# TYPE {} {kind}", self.name, self.help, self.name);
    }

    fn pairs(&self, values: &Labels<COUNT>) -> String {
        pairs(&self.labels, values)
    }
}

fn pairs(names: &[&'static str], values: &[String]) -> String {
    let pair = |(name, value): (&&str, &String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    names.iter().zip(values).map(pair).collect::<Vec<_>>().join(",")
}

fn line(page: &mut String, name: &str, pairs: &str, value: &str) {
    let _ = match pairs {
        "" => writeln!(page, "{name} {value}"),
        pairs => writeln!(page, "{name}{{{pairs}}} {value}"),
    };
}

fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    // Numbers are changed in single steps.
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_within_their_bound() {
        let durations = Durations::new("took_seconds", "How long.", ["what"]);
        for milliseconds in [1, 3, 3, 700_000] {
            durations.add(["a \"b\" \\ c"], Duration::from_millis(milliseconds));
        }
        let mut page = String::new();
        durations.write(&mut page);
        assert!(page.starts_with("# HELP took_seconds How long.\n# TYPE took_seconds histogram\n"), "{page}");
        for line in [
            r#"took_seconds_bucket{what="a \"b\" \\ c",le="0.001"} 1"#,
            r#"took_seconds_bucket{what="a \"b\" \\ c",le="0.0025"} 1"#,
            r#"took_seconds_bucket{what="a \"b\" \\ c",le="0.005"} 3"#,
            r#"took_seconds_bucket{what="a \"b\" \\ c",le="600"} 3"#,
            r#"took_seconds_bucket{what="a \"b\" \\ c",le="+Inf"} 4"#,
            r#"took_seconds_count{what="a \"b\" \\ c"} 4"#,
            r#"took_seconds_sum{what="a \"b\" \\ c"} 700.007"#,
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_number_without_labels_is_there_before_it_is_counted() {
        let lost = Counters::<0>::new("lost_total", "Lost.", []);
        let mut page = String::new();
        lost.write(&mut page);
        lost.add([], 2);
        lost.write(&mut page);
        assert!(page.contains("\nlost_total 0\n") && page.ends_with("\nlost_total 2\n"), "{page}");
    }
}
