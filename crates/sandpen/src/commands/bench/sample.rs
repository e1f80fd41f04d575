//! Many measurements of one thing in four numbers.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Sample {
    /// In milliseconds. At least one measurement is needed.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let index = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1;
            times[index].as_secs_f64() * 1000.0
        };
        Self { median: at(0.5), p10: at(0.1), p90: at(0.9), p99: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measurements() {
        let sample = Sample::new((1..=10).rev().map(Duration::from_millis).collect());
        assert_eq!(sample, Sample { median: 5.0, p10: 1.0, p90: 9.0, p99: 10.0 });
        let one = Sample::new(vec![Duration::from_millis(3)]);
        assert_eq!(one, Sample { median: 3.0, p10: 3.0, p90: 3.0, p99: 3.0 });
    }
}
