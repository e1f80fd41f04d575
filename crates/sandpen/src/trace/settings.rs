//! Where traces go, by the variables that every program which sends them understands. Without an address they go nowhere.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use sandbox::{Error, Result};

use super::context::Context;

#[derive(Debug, Clone)]
pub struct Settings {
    pub endpoint: Uri,
    pub headers: Vec<(HeaderName, Hidden)>,
    pub timeout: Duration,
    pub sampler: Sampler,
    /// What is said of this server with each span.
    pub resource: Vec<(String, String)>,
}

/// The value of a header, which may be a key.
#[derive(Clone)]
pub struct Hidden(pub HeaderValue);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// Which traces are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Of those that begin here.
    share: f64,
    /// Whether the one who asks has the first word.
    follows: bool,
}

impl Sampler {
    pub fn keeps(&self, parent: Option<&Context>, trace: &[u8; 16]) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows) {
            return parent.sampled;
        }
        // The last bytes are random in every kind of trace, so that all who see a trace decide alike.
        let mut last = [0; 8];
        last.copy_from_slice(&trace[8..]);
        (u64::from_be_bytes(last) >> 1) as f64 / 2f64.powi(63) < self.share
    }
}

impl Settings {
    /// `None`: nobody wants traces.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let lookup = |name: &str| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        if lookup("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || lookup("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none")
        {
            return Ok(None);
        }
        // What is said of traces alone counts more than what is said of everything.
        let either = |name: &str| {
            let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let of_all = format!("OTEL_EXPORTER_OTLP_{name}");
            lookup(&of_traces).map(|value| (of_traces, value)).or_else(|| lookup(&of_all).map(|value| (of_all, value)))
        };
        let Some((name, address)) = either("ENDPOINT") else { return Ok(None) };
        let address = match name.contains("TRACES") {
            true => address,
            false => format!("{}/v1/traces", address.trim_end_matches('/')),
        };
        let endpoint: Uri = address.parse().map_err(|_| wrong(&name, "it is not an address"))?;
        if !matches!(endpoint.scheme_str(), Some("http" | "https")) || endpoint.host().is_none() {
            return Err(wrong(&name, "it is not an address of http or https"));
        }
        if let Some((name, protocol)) = either("PROTOCOL")
            && protocol != "http/json"
        {
            return Err(
                wrong(&name, "traces are sent as http/json alone").with_hint("set it to http/json, or not at all")
            );
        }
        let timeout = match either("TIMEOUT") {
            Some((name, text)) => {
                Duration::from_millis(text.parse().map_err(|_| wrong(&name, "it is not a number of milliseconds"))?)
            }
            None => Duration::from_secs(10),
        };
        let headers = match either("HEADERS") {
            Some((name, text)) => headers(&text).ok_or_else(|| wrong(&name, "it is not a list of name=value"))?,
            None => Vec::new(),
        };
        let mut resource = vec![
            ("service.name".to_owned(), lookup("OTEL_SERVICE_NAME").unwrap_or_else(|| "sandpen".to_owned())),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if let Some(text) = lookup("OTEL_RESOURCE_ATTRIBUTES") {
            let pairs =
                pairs(&text).ok_or_else(|| wrong("OTEL_RESOURCE_ATTRIBUTES", "it is not a list of name=value"))?;
            let named = lookup("OTEL_SERVICE_NAME").is_some();
            for (name, value) in pairs {
                match resource.iter_mut().find(|(known, _)| *known == name) {
                    Some(_) if named && name == "service.name" => {}
                    Some(known) => known.1 = value,
                    None => resource.push((name, value)),
                }
            }
        }
        let sampler = sampler(lookup("OTEL_TRACES_SAMPLER"), lookup("OTEL_TRACES_SAMPLER_ARG"))?;
        Ok(Some(Self { endpoint, headers, timeout, sampler, resource }))
    }
}

fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler> {
    let share = || match &argument {
        None => Ok(1.0),
        Some(text) => text
            .parse()
            .ok()
            .filter(|share| (0.0..=1.0).contains(share))
            .ok_or_else(|| wrong("OTEL_TRACES_SAMPLER_ARG", "it is not a number from 0 to 1")),
    };
    Ok(match name.as_deref().unwrap_or("parentbased_always_on") {
        "always_on" => Sampler { share: 1.0, follows: false },
        "always_off" => Sampler { share: 0.0, follows: false },
        "traceidratio" => Sampler { share: share()?, follows: false },
        "parentbased_always_on" => Sampler { share: 1.0, follows: true },
        "parentbased_always_off" => Sampler { share: 0.0, follows: true },
        "parentbased_traceidratio" => Sampler { share: share()?, follows: true },
        _ => return Err(wrong("OTEL_TRACES_SAMPLER", "there is no such sampler")),
    })
}

/// What it says may be a key, and is not repeated.
fn wrong(name: &str, why: &str) -> Error {
    Error::invalid_input(format!("{name}: {why}"))
}

fn headers(text: &str) -> Option<Vec<(HeaderName, Hidden)>> {
    let read = |(name, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((name.parse().ok()?, Hidden(value)))
    };
    pairs(text)?.into_iter().map(read).collect()
}

fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_owned(), decoded(value.trim())?))
    };
    parts.map(pair).collect()
}

/// A space or a comma is written as its number.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = after;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>> {
        Settings::read(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn without_an_address_there_are_no_traces() {
        let address = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        assert!(read(&[address, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
        assert!(read(&[address, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        assert_eq!(read(&[address]).unwrap().unwrap().endpoint, "http://127.0.0.1:4318/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example/x");
        assert_eq!(read(&[address, own]).unwrap().unwrap().endpoint, "https://traces.example/x");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_not_repeated() {
        let address = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        for wrong in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "canary:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "canary"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "canary"),
            ("OTEL_TRACES_SAMPLER", "canary"),
            ("OTEL_RESOURCE_ATTRIBUTES", "canary"),
        ] {
            let error = read(&[wrong, address]).unwrap_err();
            assert!(error.message().starts_with(wrong.0) && !error.message().contains("canary"), "{error:?}");
        }
    }

    #[test]
    fn headers_are_hidden_and_resources_are_added() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20canary, x-team = a"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
        ])
        .unwrap()
        .unwrap();
        assert_eq!(settings.headers[0].1.0, "Bearer canary");
        assert!(!format!("{settings:?}").contains("canary"));
        let has = |name: &str, value: &str| settings.resource.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("service.name", "other") && has("deployment.environment.name", "test"));
    }

    #[test]
    fn a_sampler_follows_the_one_who_asks_or_does_not() {
        let parent = |sampled| Context { trace: [1; 16], span: [2; 8], sampled };
        let sampler = |name: &str, share: &str| sampler(Some(name.to_owned()), Some(share.to_owned())).unwrap();
        let usual = sampler("parentbased_always_on", "");
        assert!(usual.keeps(None, &[9; 16]) && usual.keeps(Some(&parent(true)), &[9; 16]));
        assert!(!usual.keeps(Some(&parent(false)), &[9; 16]));
        assert!(sampler("always_on", "").keeps(Some(&parent(false)), &[9; 16]));
        let half = sampler("traceidratio", "0.5");
        let (low, high) = ([0; 16], [0xff; 16]);
        assert!(half.keeps(None, &low) && !half.keeps(None, &high));
    }
}
