//! Settings from `sandpen.toml`.

use std::path::{Path, PathBuf};

use sandbox::{Error, Result};
use toml::{Table, Value};

use super::key::{Key, Shape};
use super::written::{Origin, Written};
use crate::suggest;

/// The file that was named, or else the first of the usual ones that exists.
///
/// The current directory is not a usual place: a file in a cloned repository could take walls away.
pub fn read(named: Option<&Path>, usual: &[PathBuf]) -> Result<Option<Written>> {
    if let Some(path) = named {
        let text = std::fs::read_to_string(path).map_err(|cause| unreadable(path, &cause))?;
        return parse(path, &text).map(Some);
    }
    for path in usual {
        match std::fs::read_to_string(path) {
            Ok(text) => return parse(path, &text).map(Some),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(unreadable(path, &cause)),
        }
    }
    Ok(None)
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Error {
    Error::invalid_input(format!(
        "the configuration {} cannot be read: {}",
        path.display(),
        crate::output::reason(cause)
    ))
}

fn parse(path: &Path, text: &str) -> Result<Written> {
    let table: Table = text.parse().map_err(|cause: toml::de::Error| {
        let line = cause.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        Error::invalid_input(format!("{}, line {line}: {}", path.display(), cause.message()))
    })?;
    let mut written = Written::new(Origin::File(path.to_owned()));
    for (name, value) in &table {
        let key = Key::from_name(name).ok_or_else(|| unknown(path, name))?;
        push(&mut written, key, value).ok_or_else(|| wrong_shape(path, key))?;
    }
    Ok(written)
}

fn push(written: &mut Written, key: Key, value: &Value) -> Option<()> {
    match (key.shape(), value) {
        (Shape::Parts, Value::Array(values)) if values.is_empty() => written.push(key, "none"),
        (Shape::Parts, Value::Array(values)) => {
            written.push(key, values.iter().map(scalar).collect::<Option<Vec<_>>>()?.join(","));
        }
        (Shape::One | Shape::Parts, value) => written.push(key, scalar(value)?),
        (Shape::List, Value::Array(values)) => {
            for value in values {
                written.push(key, scalar(value)?);
            }
        }
        (Shape::Map, Value::Table(pairs)) => {
            for (name, value) in pairs {
                written.push(key, format!("{name}={}", scalar(value)?));
            }
        }
        (Shape::List | Shape::Map, _) => return None,
    }
    Some(())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

fn unknown(path: &Path, name: &str) -> Error {
    let names = Key::ALL.iter().map(|key| key.name());
    let hint = match suggest::nearest(name, names.clone()) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("the keys are {}", names.collect::<Vec<_>>().join(", ")),
    };
    Error::invalid_input(format!("{} has the unknown key {name:?}", path.display())).with_hint(hint)
}

fn wrong_shape(path: &Path, key: Key) -> Error {
    let example = match key.shape() {
        Shape::One | Shape::Parts => format!("write a single value, for example {} = \"…\"", key.name()),
        Shape::List => format!("write a list, for example {} = [\"…\"]", key.name()),
        Shape::Map => format!("write a table, for example {} = {{ LANG = \"C.UTF-8\" }}", key.name()),
    };
    Error::invalid_input(format!("{} in {} has a value of the wrong type", key.name(), path.display()))
        .with_hint(example)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<Vec<(Key, String)>> {
        parse(Path::new("sandpen.toml"), text).map(|written| written.values)
    }

    #[test]
    fn every_type_of_value_is_taken() {
        let values = keys("memory = '1G'\ncpus = 0.5\nprocesses = 64\njson = true\n[env]\nA = 'b=c'\nN = 1\n").unwrap();
        assert!(values.contains(&(Key::Memory, "1G".into())));
        assert!(values.contains(&(Key::Cpus, "0.5".into())));
        assert!(values.contains(&(Key::Processes, "64".into())));
        assert!(values.contains(&(Key::Json, "true".into())));
        assert!(values.contains(&(Key::Env, "A=b=c".into())));
        assert!(values.contains(&(Key::Env, "N=1".into())));
    }

    #[test]
    fn hosts_can_be_a_list() {
        let values = keys("network = ['a.example', 'b.example:22']\nmax_network = []\n").unwrap();
        assert_eq!(values, [(Key::MaxNetwork, "none".into()), (Key::Network, "a.example,b.example:22".into())]);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        let error = keys("memmory = '1G'").unwrap_err();
        assert_eq!(error.message(), "sandpen.toml has the unknown key \"memmory\"");
        assert_eq!(error.hint(), Some("did you mean memory?"));
        assert!(keys("zzzzzzzz = 1").unwrap_err().hint().unwrap().starts_with("the keys are engine, "));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_an_example() {
        for text in ["memory = [1]", "allow_missing = 'landlock'", "env = ['A=b']", "engine = 1979-05-27"] {
            assert!(keys(text).unwrap_err().message().ends_with("has a value of the wrong type"), "{text}");
        }
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let error = keys("cpus = 1\nmemory = \n").unwrap_err();
        assert!(error.message().starts_with("sandpen.toml, line 2: "), "{}", error.message());
    }

    #[test]
    fn a_named_file_must_exist_and_a_usual_one_need_not() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent.toml");
        assert!(read(Some(&absent), &[]).is_err());
        assert_eq!(read(None, std::slice::from_ref(&absent)).unwrap(), None);
    }
}
