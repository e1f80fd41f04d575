//! The network of a fake sandbox: nothing is sent anywhere, but what may be reached is decided as it really is, and told.

use crate::network::{Denial, Host, Network, NetworkActivity, NetworkUsage, Refusal};

/// Refusals that are listed one by one.
const MOST_LISTED: usize = 64;

/// Bytes that each connection moves in either direction.
const BYTES: u64 = 100;

/// Everything that was tried, from the beginning.
#[derive(Debug, Default)]
pub(super) struct Tried {
    attempts: Vec<Attempt>,
}

#[derive(Clone, Debug)]
struct Attempt {
    host: Host,
    port: u16,
    denial: Option<Denial>,
}

impl Tried {
    /// What a program is told. Where there is no network, nobody is there to keep count.
    pub fn connect(&mut self, network: &Network, host: Host, port: u16) -> Result<(), &'static str> {
        if network.is_none() {
            return Err("network is unreachable");
        }
        let denial = network.allows(&host, port).err();
        self.attempts.push(Attempt { host, port, denial });
        denial.map_or(Ok(()), |denial| Err(denial.description()))
    }

    pub fn count(&self) -> usize {
        self.attempts.len()
    }

    /// What happened after so many attempts.
    pub fn since(&self, count: usize) -> NetworkActivity {
        let mut activity = NetworkActivity::default();
        for Attempt { host, port, denial } in &self.attempts[count..] {
            let Some(denial) = *denial else {
                activity.usage.connections += 1;
                activity.usage.bytes_in += BYTES;
                activity.usage.bytes_out += BYTES;
                continue;
            };
            activity.usage.refused += 1;
            let same = |known: &Refusal| (&known.host, known.port, known.denial) == (host, Some(*port), denial);
            match activity.refused.iter().position(same) {
                Some(index) => activity.refused[index].count += 1,
                None if activity.refused.len() < MOST_LISTED => {
                    activity.refused.push(Refusal { host: host.clone(), port: Some(*port), denial, count: 1 });
                }
                None => activity.refused_left_out += 1,
            }
        }
        activity
    }

    pub fn usage(&self) -> NetworkUsage {
        self.since(0).usage
    }
}
