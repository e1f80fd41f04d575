//! Feeds every target seeded random and mutated inputs, on a stable toolchain, for a few seconds.
//!
//! It has no coverage to follow, so it is no replacement for cargo-fuzz; it finds what a small change broke. The seed is
//! printed and can be given back in `SANDPEN_FUZZ_SEED`, the number of inputs in `SANDPEN_FUZZ_INPUTS`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandpen_fuzz::{TARGETS, Target};

const INPUTS: u64 = 20_000;
const MAX_BYTES: usize = 4096;
const LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let seed = number("SANDPEN_FUZZ_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64) | 1);
    let inputs = number("SANDPEN_FUZZ_INPUTS").unwrap_or(INPUTS);
    println!("seed {seed}, up to {inputs} inputs or {} s each", LIMIT.as_secs());
    // A panic is reported with its input below, once, and not for every input by the default hook.
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = 0;
    let planted = Target { name: "planted fault", run: planted_fault, seeds: &[b"sand"] };
    match feed(&planted, seed, inputs) {
        Fed::Broken { after, .. } => println!("planted fault | pass | found after {after} inputs"),
        Fed::Held { inputs } => {
            println!("planted fault | fail | not found in {inputs} inputs: this run proves nothing");
            failed += 1;
        }
    }
    for target in TARGETS {
        match feed(target, seed, inputs) {
            Fed::Held { inputs } => println!("{} | pass | {inputs} inputs", target.name),
            Fed::Broken { after, input, message } => {
                println!("{} | fail | input {after}: {message}: {}", target.name, input.escape_ascii());
                failed += 1;
            }
        }
    }
    println!("sum: {} passed, {failed} failed, 0 skipped, 0 void", TARGETS.len() + 1 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The negative control: a fault that only a mutated seed reaches.
fn planted_fault(data: &[u8]) {
    assert!(!(data.starts_with(b"sa") && data.contains(&0xff)), "planted");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

enum Fed {
    Held { inputs: u64 },
    Broken { after: u64, input: Vec<u8>, message: String },
}

fn feed(target: &Target, seed: u64, inputs: u64) -> Fed {
    let mut random = Random(seed);
    let started = Instant::now();
    for count in 0..inputs {
        let input = match target.seeds.get(count as usize) {
            Some(seed) => seed.to_vec(),
            None => random.input(target.seeds),
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            let message = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "panic".to_owned());
            return Fed::Broken { after: count, input, message };
        }
        if started.elapsed() > LIMIT {
            return Fed::Held { inputs: count + 1 };
        }
    }
    Fed::Held { inputs }
}

/// Xorshift: small, seeded, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn input(&mut self, seeds: &[&[u8]]) -> Vec<u8> {
        let mut input = match seeds {
            [] => Vec::new(),
            seeds if self.below(8) > 0 => seeds[self.below(seeds.len())].to_vec(),
            _ => Vec::new(),
        };
        if input.is_empty() {
            let length = self.below(64);
            input.extend((0..length).map(|_| self.next() as u8));
        }
        for _ in 0..=self.below(6) {
            self.mutate(&mut input, seeds);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, seeds: &[&[u8]]) {
        const ODD: &[u8] = b"\0\xff/.\n\"\\{}[]\x7f\x80~:-0";
        let at = self.below(input.len() + 1);
        match self.below(7) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.next() as u8,
            2 => input.insert(at, ODD[self.below(ODD.len())]),
            3 if at < input.len() => _ = input.remove(at),
            4 => input.truncate(at),
            5 => {
                let end = at + self.below(input.len() + 1 - at);
                let copied = input[at..end].to_vec();
                input.extend(copied);
            }
            _ if !seeds.is_empty() => {
                let seed = seeds[self.below(seeds.len())];
                let from = self.below(seed.len() + 1);
                input.extend(&seed[from..]);
            }
            _ => input.push(self.next() as u8),
        }
    }
}
