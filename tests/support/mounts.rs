//! Mount tables.

use std::collections::BTreeMap;
use std::fs;

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// What of its filesystem is mounted.
    pub root: String,
    pub point: String,
    pub options: Vec<String>,
    /// `shared:1`, `master:2`, `unbindable`; empty for a private mount.
    pub propagation: Vec<String>,
    pub kind: String,
    pub source: String,
    pub filesystem_options: Vec<String>,
}

impl Mount {
    pub fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let options = |text: &str| text.split(',').map(str::to_owned).collect();
        Some(Self {
            root: (*left.get(3)?).to_owned(),
            point: (*left.get(4)?).to_owned(),
            options: options(left.get(5)?),
            propagation: left.get(6..)?.iter().map(|text| (*text).to_owned()).collect(),
            kind: (*right.first()?).to_owned(),
            source: (*right.get(1)?).to_owned(),
            filesystem_options: options(right.get(2).unwrap_or(&"")),
        })
    }

    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|present| present == option)
    }
}

impl std::fmt::Display for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} on {} ({})", self.kind, self.source, self.point, self.options.join(","))
    }
}

/// The table that `process` sees: an id, or `self`.
pub fn of(process: &str) -> Vec<Mount> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    text.lines().filter_map(Mount::parse).collect()
}

/// What `after` has and `before` has not, counted: the same place may be mounted upon twice.
pub fn added(before: &[Mount], after: &[Mount]) -> Vec<Mount> {
    let mut left = before.iter().fold(BTreeMap::<&Mount, usize>::new(), |mut counts, mount| {
        *counts.entry(mount).or_default() += 1;
        counts
    });
    let mut added = Vec::new();
    for mount in after {
        match left.get_mut(mount) {
            Some(count) if *count > 0 => *count -= 1,
            Some(_) | None => added.push(mount.clone()),
        }
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mount_on_the_same_place_is_seen() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.point.as_str(), mount.propagation.len(), mount.kind.as_str()), ("/mnt2", 1, "ext3"));
        let (one, two) = (vec![mount.clone()], vec![mount.clone(), mount.clone()]);
        assert_eq!(added(&one, &two), vec![mount]);
        assert!(added(&two, &one).is_empty());
    }

    #[test]
    fn the_own_table_can_be_read() {
        assert!(of("self").iter().any(|mount| mount.point == "/"));
    }
}
