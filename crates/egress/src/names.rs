//! The addresses that a sandbox's resolver makes up: one for each name, so that the address of a connection is its name.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sandbox::HostName;

/// Names that one sandbox has addresses for at the same time. The one that was not used for longest makes room.
const MOST_NAMES: usize = 8192;

/// 198.18.0.0/15, without its first 256: a sandbox's own interface may have one of those.
const V4_FIRST: u32 = Ipv4Addr::new(198, 18, 1, 0).to_bits();
const V4_LAST: u32 = Ipv4Addr::new(198, 19, 255, 255).to_bits();

/// The IPv6 address of a name is this with its IPv4 address at the end.
const V6_PREFIX: u128 = Ipv6Addr::new(0xfd73, 0x616e, 0x6470, 0x656e, 0, 0, 0, 0).to_bits();

/// Addresses are given out in a circle: one that a program kept from long ago leads nowhere rather than to another name,
/// until all others were given out once.
#[derive(Debug)]
pub(crate) struct Names {
    addresses: HashMap<HostName, u32>,
    entries: HashMap<u32, Entry>,
    by_use: BTreeMap<u64, u32>,
    uses: u64,
    next: u32,
    most: usize,
}

#[derive(Debug)]
struct Entry {
    name: HostName,
    used: u64,
}

/// The addresses that stand for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Synthetic {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Names {
    /// The first address is a random one: after a restart of the server, what programs kept from before leads nowhere,
    /// most likely, rather than to another name.
    pub fn new() -> Self {
        let start = getrandom::u32().unwrap_or(0) % (V4_LAST - V4_FIRST + 1);
        Self::with_room(MOST_NAMES, V4_FIRST + start)
    }

    fn with_room(most: usize, next: u32) -> Self {
        Self { addresses: HashMap::new(), entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, next, most }
    }

    /// The addresses of a name, now and for as long as it is in use.
    pub fn give(&mut self, name: &HostName) -> Synthetic {
        let bits = match self.addresses.get(name) {
            Some(bits) => *bits,
            None => self.add(name),
        };
        self.touch(bits);
        Synthetic { v4: Ipv4Addr::from_bits(bits), v6: Ipv6Addr::from_bits(V6_PREFIX | u128::from(bits)) }
    }

    /// The name that an address was given to.
    pub fn find(&mut self, address: IpAddr) -> Option<HostName> {
        let bits = match address.to_canonical() {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                let low = bits as u32;
                if bits != V6_PREFIX | u128::from(low) {
                    return None;
                }
                low
            }
        };
        let name = self.entries.get(&bits)?.name.clone();
        self.touch(bits);
        Some(name)
    }

    fn add(&mut self, name: &HostName) -> u32 {
        if self.entries.len() >= self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some(entry) = self.entries.remove(&oldest)
        {
            self.addresses.remove(&entry.name);
        }
        while self.entries.contains_key(&self.next) {
            self.next = following(self.next);
        }
        let bits = self.next;
        self.next = following(bits);
        self.addresses.insert(name.clone(), bits);
        self.entries.insert(bits, Entry { name: name.clone(), used: 0 });
        bits
    }

    fn touch(&mut self, bits: u32) {
        if let Some(entry) = self.entries.get_mut(&bits) {
            self.uses += 1;
            self.by_use.remove(&entry.used);
            entry.used = self.uses;
            self.by_use.insert(self.uses, bits);
        }
    }
}

fn following(bits: u32) -> u32 {
    if bits == V4_LAST { V4_FIRST } else { bits + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(index: usize) -> HostName {
        format!("n{index}.example").parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_addresses_and_each_leads_back() {
        let mut names = Names::new();
        let first = names.give(&name(0));
        let second = names.give(&name(1));
        assert_ne!(first, second);
        assert_eq!(names.give(&name(0)), first);
        for (synthetic, index) in [(first, 0), (second, 1)] {
            assert_eq!(names.find(synthetic.v4.into()), Some(name(index)));
            assert_eq!(names.find(synthetic.v6.into()), Some(name(index)));
            assert_eq!(names.find(synthetic.v4.to_ipv6_mapped().into()), Some(name(index)));
        }
    }

    #[test]
    fn addresses_that_were_not_given_lead_nowhere() {
        let mut names = Names::with_room(9, V4_FIRST);
        let given = names.give(&name(0));
        let beside = Ipv6Addr::from_bits(given.v6.to_bits() | 1 << 32);
        for address in ["198.18.0.1", "198.18.1.1", "198.19.255.255", "8.8.8.8", "::", "fd73:616e:6470:656e::"] {
            assert_eq!(names.find(address.parse().unwrap()), None, "{address}");
        }
        assert_eq!(names.find(beside.into()), None);
    }

    #[test]
    fn what_is_made_up_can_never_be_dialled() {
        let mut names = Names::new();
        let given = names.give(&name(0));
        assert!(crate::address::denial(given.v4.into()).is_some());
        assert!(crate::address::denial(given.v6.into()).is_some());
    }

    #[test]
    fn room_is_bounded_and_the_least_used_goes_first() {
        let mut names = Names::with_room(3, V4_LAST);
        let given: Vec<Synthetic> = (0..3).map(|index| names.give(&name(index))).collect();
        names.find(given[0].v4.into());
        names.give(&name(3));
        assert_eq!(names.find(given[1].v4.into()), None);
        assert_eq!(names.find(given[0].v4.into()), Some(name(0)));
        // An address that was given up is not another name's at once.
        assert_ne!(names.give(&name(1)), given[1]);

        for index in 0..300_000 {
            names.give(&name(index));
        }
        assert_eq!((names.entries.len(), names.addresses.len(), names.by_use.len()), (3, 3, 3));
    }
}
