//! Where a client gets its answer: an address that it has named before, letter by letter.

use url::Url;

use crate::auth::oauth::address::is_loopback;

const MOST_CHARACTERS: usize = 512;

/// Schemes that run something, or show it as if it came from here.
const NEVER: &[&str] = &["javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "ws", "wss", "ftp"];

/// Whether a client may be answered there at all.
pub fn is_acceptable(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    let is_place = match url.scheme() {
        "https" => url.has_host(),
        // Nobody on the way can read what is sent to this machine itself.
        "http" => is_loopback(&url),
        scheme => !NEVER.contains(&scheme),
    };
    is_plain && is_place && text.len() <= MOST_CHARACTERS && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether an address is the one that was named. A program on this machine takes whatever port is free (RFC 8252).
pub fn is_same(named: &str, asked: &str) -> bool {
    if named == asked {
        return true;
    }
    let (Ok(named), Ok(asked_url)) = (Url::parse(named), Url::parse(asked)) else { return false };
    let is_loopback_pair = [&named, &asked_url].iter().all(|url| url.scheme() == "http" && is_loopback(url));
    let without_port = |url: &Url| {
        let mut url = url.clone();
        let _ = url.set_port(None);
        url
    };
    is_loopback_pair && is_acceptable(asked) && without_port(&named) == without_port(&asked_url)
}

/// Whom a person would name: the host, or the program of this machine.
pub fn shown(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.scheme() == "https" => url.host_str().unwrap_or_default().to_owned(),
        Ok(url) if is_loopback(&url) => format!("{} (a program on your computer)", url.host_str().unwrap_or_default()),
        Ok(url) => format!("{}: (a program on your computer)", url.scheme()),
        Err(_) => String::new(),
    }
}

/// For the policy of a page whose form leads there in the end.
pub fn source(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let source = match url.scheme() {
        "http" | "https" => url.origin().ascii_serialization(),
        scheme => format!("{scheme}:"),
    };
    // Nothing of it may end the list that it is put into.
    source.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';' && byte != b',').then_some(source)
}

/// The same address with what is to be said there.
pub fn with(text: &str, pairs: &[(&str, &str)]) -> Option<String> {
    let mut url = Url::parse(text).ok()?;
    url.query_pairs_mut().extend_pairs(pairs);
    Some(url.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_runs_or_leaks_is_not_taken() {
        for text in [
            "https://app.example/callback?x=1",
            "http://127.0.0.1:3334/oauth/callback",
            "http://localhost/callback",
            "http://[::1]:1/",
            "cursor://anysphere.cursor-retrieval/oauth/callback",
            "com.example.app:/callback",
        ] {
            assert!(is_acceptable(text), "{text}");
        }
        for text in [
            "",
            "/callback",
            "http://app.example/callback",
            "http://127.0.0.1.evil.example/",
            "http://localhost.evil.example/",
            "https://app.example/#x",
            "https://user@app.example/",
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
            "https://app.example/\n",
            "https://app.example/ü",
        ] {
            assert!(!is_acceptable(text), "{text:?}");
        }
    }

    #[test]
    fn only_the_port_of_this_machine_is_free() {
        let named = "http://127.0.0.1:3334/callback";
        for asked in [named, "http://127.0.0.1:9/callback", "http://127.0.0.1/callback"] {
            assert!(is_same(named, asked), "{asked}");
        }
        for asked in [
            "http://localhost:3334/callback",
            "https://127.0.0.1:3334/callback",
            "http://127.0.0.1:3334/callback/",
            "http://127.0.0.1:3334/callback?x",
            "http://127.0.0.1:3334/callback#x",
            "http://a@127.0.0.1:3334/callback",
            "http://127.0.0.1:3334/other",
        ] {
            assert!(!is_same(named, asked), "{asked}");
        }
        let https = "https://app.example/callback";
        for asked in [
            "https://app.example:443/callback",
            "https://app.example/callback/",
            "https://APP.example/callback",
            "https://app.example/callback?x",
            "https://app.example/x/../callback",
            "https://app.example.evil.example/callback",
        ] {
            assert!(!is_same(https, asked), "{asked}");
        }
    }

    #[test]
    fn what_is_said_is_added_to_what_is_there() {
        let url = with("https://a.example/c?x=1", &[("code", "a b&c"), ("state", "=\"")]).unwrap();
        assert_eq!(url, "https://a.example/c?x=1&code=a+b%26c&state=%3D%22");
        assert_eq!(source("https://a.example:8443/c").unwrap(), "https://a.example:8443");
        assert_eq!(source("cursor://a/b").unwrap(), "cursor:");
    }
}
