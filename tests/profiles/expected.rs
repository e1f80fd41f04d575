//! What is expected of an answer: the same, but for what nobody can know before.

use std::collections::BTreeMap;

use sandpen_tests::Result;
use serde_json::{Map, Value};

/// Values by name: given ones, and those that answers told.
pub(crate) type Known = BTreeMap<String, String>;

/// Put in what is known.
pub(crate) fn filled(value: &Value, known: &Known) -> Result<Value> {
    Ok(match value {
        Value::String(text) => {
            let parts = parts(text)?.into_iter().map(|part| match part {
                Part::Text(text) => Ok(text.to_owned()),
                Part::Hole { name, kind: None } => {
                    known.get(name).cloned().ok_or_else(|| format!("nothing is called {name:?}").into())
                }
                Part::Hole { .. } => Err(format!("{text:?} asks where it should tell").into()),
            });
            Value::String(parts.collect::<Result<Vec<_>>>()?.concat())
        }
        Value::Array(items) => items.iter().map(|item| filled(item, known)).collect::<Result<Vec<_>>>()?.into(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| Ok((name.clone(), filled(value, known)?)));
            Value::Object(members.collect::<Result<Map<_, _>>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// Compare, and learn what the expectation leaves open. Tells the first place where they differ.
pub(crate) fn compare(expected: &Value, found: &Value, known: &mut Known, place: &str) -> Result<()> {
    let differs = || Err(format!("{place} is\n{found:#}\ninstead of\n{expected:#}").into());
    match (expected, found) {
        (Value::String(pattern), Value::String(text)) => match_text(pattern, text, known)
            .map_err(|why| format!("{place} is\n{text}\ninstead of\n{pattern}\n({why})").into()),
        (Value::Array(expected), Value::Array(items)) if expected.len() == items.len() => {
            let mut pairs = expected.iter().zip(items).enumerate();
            pairs.try_for_each(|(index, (expected, item))| compare(expected, item, known, &format!("{place}[{index}]")))
        }
        (Value::Object(expected), Value::Object(members)) if expected.len() == members.len() => {
            expected.iter().try_for_each(|(name, expected)| match members.get(name) {
                Some(found) => compare(expected, found, known, &format!("{place}.{name}")),
                None => differs(),
            })
        }
        (expected, found) if expected == found => Ok(()),
        _ => differs(),
    }
}

enum Part<'a> {
    Text(&'a str),
    Hole { name: &'a str, kind: Option<&'a str> },
}

fn parts(text: &str) -> Result<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<<") {
        let (hole, after) = after.split_once(">>").ok_or_else(|| format!("{text:?} has no end of <<"))?;
        let (name, kind) = hole.split_once(':').map_or((hole, None), |(name, kind)| (name, Some(kind)));
        parts.extend([Part::Text(before), Part::Hole { name, kind }]);
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn match_text(pattern: &str, text: &str, known: &mut Known) -> Result<()> {
    let parts = parts(pattern)?;
    let mut rest = text;
    for (index, part) in parts.iter().enumerate() {
        match part {
            Part::Text(words) => {
                rest = rest.strip_prefix(words).ok_or_else(|| format!("{words:?} is missing before {rest:?}"))?;
            }
            Part::Hole { name, kind: None } => {
                let value = known.get(*name).ok_or_else(|| format!("nothing is called {name:?}"))?;
                rest = rest.strip_prefix(value).ok_or_else(|| format!("{value:?} is missing before {rest:?}"))?;
            }
            Part::Hole { name, kind: Some(kind) } => {
                let next = parts[index + 1..].iter().find_map(|part| match part {
                    Part::Text(words) if !words.is_empty() => Some(*words),
                    Part::Text(_) | Part::Hole { .. } => None,
                });
                let end = match (*kind, next) {
                    ("hex64", _) => 64,
                    (_, Some(next)) => rest.find(next).ok_or_else(|| format!("{next:?} is missing in {rest:?}"))?,
                    (_, None) => rest.len(),
                };
                let value = rest.get(..end).ok_or_else(|| format!("{rest:?} is too short"))?;
                let fits = match *kind {
                    "hex64" => value.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)),
                    "number" => value.parse::<f64>().is_ok(),
                    "line" => !value.contains('\n'),
                    "any" => true,
                    kind => return Err(format!("there is no kind {kind:?}").into()),
                };
                if !fits {
                    return Err(format!("{value:?} is no {kind}").into());
                }
                if !name.is_empty() {
                    known.insert((*name).to_owned(), value.to_owned());
                }
                rest = &rest[end..];
            }
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(format!("{rest:?} is too much").into()) }
}
