//! Whose sandboxes somebody has whom an issuer vouches for.

use sandbox::Owner;
use sha2::{Digest, Sha256};

use super::address::IssuerUrl;

/// In front of all of them, and of no owner that is named by hand without meaning one of them.
const PREFIX: &str = "oauth:";

/// What of the host is shown.
const HOST_CHARACTERS: usize = 64;

/// One owner for each subject of each issuer. The host is for people; that no two are the same is the digest's.
pub fn owner(issuer: &IssuerUrl, subject: &str) -> Owner {
    // An issuer has no line break.
    let digest = Sha256::digest(format!("{issuer}\n{subject}"));
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let host: String = issuer.host().chars().filter(char::is_ascii_graphic).take(HOST_CHARACTERS).collect();
    let text = format!("{PREFIX}{host}:{digits}");
    text.parse().expect("it is short, and visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_somebody_else() {
        let one: IssuerUrl = "https://a.example/one".parse().unwrap();
        let two: IssuerUrl = "https://a.example/two".parse().unwrap();
        assert_eq!(owner(&one, "alice"), owner(&one, "alice"));
        let all =
            [owner(&one, "alice"), owner(&one, "Alice"), owner(&two, "alice"), owner(&one, "local"), Owner::local()];
        for (at, first) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|second| first != second), "{first}");
        }
        let long: IssuerUrl = format!("https://{}.example", "a".repeat(60)).parse().unwrap();
        assert!(owner(&long, &"\u{1f600}\n".repeat(1000)).as_str().starts_with("oauth:aaa"));
    }
}
