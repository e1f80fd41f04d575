//! What a registry wants to see before it answers: the `WWW-Authenticate` header.

/// How to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from this place.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// The best of all that the headers offer.
    pub fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let offered: Vec<Self> = headers.flat_map(parse).collect();
        let is_bearer = |challenge: &&Self| matches!(challenge, Self::Bearer { .. });
        offered.iter().find(is_bearer).or_else(|| offered.first()).cloned()
    }
}

fn parse(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut rest = header.trim_start();
    while let Some((scheme, after)) = split_word(rest) {
        let (parameters, next) = parameters(after);
        let get = |name: &str| {
            parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = get("realm")
        {
            found.push(Challenge::Bearer { realm, service: get("service") });
        }
        if next.len() >= rest.len() {
            break;
        }
        rest = next;
    }
    found
}

fn split_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', ',', '\t']);
    let end = text.find([' ', ',']).unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], &text[end..]))
}

/// Pairs of name and value up to where the next scheme begins.
fn parameters(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut pairs = Vec::new();
    loop {
        let start = text.trim_start_matches([' ', ',', '\t']);
        let name_end = start.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let Some(after) = name_end.and_then(|end| start[end..].strip_prefix('=')) else { return (pairs, start) };
        let name = start[..name_end.unwrap_or(0)].to_owned();
        let (value, rest) = if let Some(quoted) = after.strip_prefix('"') {
            unquote(quoted)
        } else {
            let end = after.find([',', ' ']).unwrap_or(after.len());
            (after[..end].to_owned(), &after[end..])
        };
        pairs.push((name, value));
        text = rest;
    }
}

fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (value, &text[index + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
    }

    #[test]
    fn headers_of_real_registries_are_understood() {
        let choose = |headers: &[&str]| Challenge::choose(headers.iter().copied());
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/debian:pull""#;
        assert_eq!(choose(&[hub]), bearer("https://auth.docker.io/token", Some("registry.docker.io")));
        assert_eq!(choose(&[r#"Basic realm="Registry Realm""#]), Some(Challenge::Basic));
        assert_eq!(choose(&["basic"]), Some(Challenge::Basic));
        let both = r#"Basic realm="a, b", Bearer realm="https://x/", error="invalid_token""#;
        assert_eq!(choose(&[both]), bearer("https://x/", None));
        assert_eq!(choose(&["Basic", r#"bearer service=s, realm=https://x"#]), bearer("https://x", Some("s")));
        assert_eq!(choose(&[r#"Bearer realm="a\"b""#]), bearer("a\"b", None));
    }

    #[test]
    fn nonsense_is_no_challenge_and_ends() {
        for header in ["", ",,,", "Negotiate", "Bearer", "Bearer service=x", "=", "\"", "Bearer realm", "a=b c=d"] {
            assert_eq!(Challenge::choose([header].into_iter()), None, "{header:?}");
        }
    }
}
