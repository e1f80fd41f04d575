//! What fuzzing may reach of secrets: functions that take bytes and panic when a promise is broken.

use std::sync::Arc;

use http::Request;
use sandbox::Host;

use super::keepsake::Placeholder;
use super::replace::{Patterns, Replacer};
use super::request::{Channel, Filling, Target, check};
use super::spelling::Spelling;
use super::value::SecretValue;
use super::vault::Secret;

const VALUES: [&str; 3] = ["abcabcab", "%61\\u0061 é😀", "abcabcabcabd"];

/// The first byte says how the rest is cut into pieces. However it is cut, the same comes out, and no value is in it.
pub fn replacement(data: &[u8]) {
    let Some((&size, stream)) = data.split_first() else {
        return;
    };
    let mut patterns = Patterns::default();
    for value in VALUES {
        patterns.add(Spelling::all(value), b"<>".to_vec());
    }
    let patterns = Arc::new(patterns);
    let (whole, _) = Replacer::whole(&patterns, stream);
    let (mut replacer, mut pieces) = (Replacer::new(Arc::clone(&patterns)), Vec::new());
    for piece in stream.chunks(usize::from(size).max(1)) {
        replacer.push(piece, &mut pieces);
    }
    replacer.finish(&mut pieces);
    assert!(whole == pieces, "the cuts can be seen");
    for value in VALUES {
        assert!(!whole.windows(value.len()).any(|window| window == value.as_bytes()), "a value comes through");
    }
    let (again, _) = Replacer::whole(&patterns, &whole);
    assert!(again == whole, "something is left to mask");
}

/// A request, line by line: method, target, then headers. `@` stands for the placeholder. Whatever is let through goes to
/// the host of its connection, and holds the value only if it held the placeholder.
pub fn request(data: &[u8]) {
    const VALUE: &str = "sk-canary-value";
    let name = "KEY".parse().expect("a name");
    let Ok(placeholder) = Placeholder::random(&name) else {
        return;
    };
    let host: Host = "api.example.com".parse().expect("a host");
    let hosts = vec!["api.example.com".parse().expect("a rule")];
    let secret = Secret::new(name, SecretValue::new(VALUE).expect("a value"), hosts, None).expect("a secret");
    let text = String::from_utf8_lossy(data).replace('@', placeholder.as_str());
    let mut lines = text.split('\n');
    let mut builder = Request::builder().method(lines.next().unwrap_or_default()).uri(lines.next().unwrap_or_default());
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        builder = builder.header(name, value.trim());
    }
    let Ok(request) = builder.body(()) else {
        return;
    };
    let mut head = request.into_parts().0;
    let target = Target { host, port: 443, channel: Channel::Encrypted };
    if check(&mut head, &target).is_err() {
        return;
    }
    let Ok(used) = Filling::new([(&secret, &placeholder)]).fill(&mut head) else {
        return;
    };
    assert_eq!(head.headers.get_all("host").iter().collect::<Vec<_>>(), ["api.example.com"]);
    assert!(head.uri.authority().is_none() && head.uri.scheme().is_none());
    assert_eq!(head.headers["accept-encoding"], "identity");
    for name in ["connection", "upgrade", "transfer-encoding", "range", "proxy-authorization"] {
        assert!(!head.headers.contains_key(name), "{name} goes on");
    }
    assert!(used.is_empty() || text.contains(placeholder.as_str()) || text.to_ascii_lowercase().contains("basic"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_hold() {
        for seed in [
            &b"\x01xabcabcabcabdx"[..],
            b"\x03%61bcabcab\\u0061bcabcab 6162636162636162",
            b"\x02YWJjYWJjYWI=%41\\",
            b"",
        ] {
            replacement(seed);
        }
        for seed in [
            &b"GET\n/a?b=@\nhost:api.example.com\nx:@@"[..],
            b"POST\nhttps://api.example.com/@\nHost: API.example.com:443\nAuthorization: Basic @\nConnection: x",
            b"GET\n/\nhost: evil.example\n",
        ] {
            request(seed);
        }
    }
}
