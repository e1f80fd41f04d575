//! Servers in a JSON file, which may have comments. The parser says where things stand; what is not the entry's is copied
//! byte for byte.

use jsonc_parser::ast::{Object, ObjectProp};
use jsonc_parser::common::Ranged;
use jsonc_parser::errors::ParseError;
use jsonc_parser::{CollectOptions, ParseOptions, ast, parse_to_ast};
use serde_json::{Map, Value, json};

mod render;
mod splice;

use super::client::Shape;
use super::entry::Entry;
use super::{Action, Edit, Refusal, Wish};

use crate::output;

pub use render::on_one_line;

pub fn edit(text: &str, shape: Shape, wish: Wish<'_>) -> Result<Edit, Refusal> {
    let file = File { shape };
    let present = file.find(text, &[shape.key, wish.name().as_str()])?;
    if present.as_ref().is_some_and(|entry| !wish.may_change(entry)) {
        return Err(Refusal::Foreign);
    }
    let at = [shape.key, wish.name().as_str()];
    let fields = wish.fields(shape.is_typed, present.as_ref())?;
    let mut edited = text.to_owned();
    let action = match (wish, &present) {
        (Wish::Lack { .. }, None) => Action::Miss,
        (Wish::Lack { .. }, Some(_)) => {
            edited = file.remove(text, at)?;
            Action::Remove
        }
        (Wish::Have(_), None) => {
            edited = file.set(text, &at, &object(&fields))?;
            Action::Add
        }
        (Wish::Have(entry), Some(present)) => {
            for (field, value) in &fields {
                if present.get(field) != Some(value) {
                    edited = file.set(&edited, &[shape.key, entry.name.as_str(), field], value)?;
                }
            }
            if edited == text { Action::Keep } else { entry.renewal(present) }
        }
    };
    file.verify(text, &edited, wish, &fields)?;
    Ok(Edit { action, text: edited })
}

pub fn snippet(shape: Shape, entry: &Entry) -> String {
    let whole = json!({ shape.key: { entry.name.as_str(): object(&entry.fields(shape.is_typed)) } });
    render::on_lines(&whole, "  ", "", "\n") + "\n"
}

fn object(fields: &[(String, Value)]) -> Value {
    fields.iter().cloned().collect::<Map<_, _>>().into()
}

struct File {
    shape: Shape,
}

impl File {
    fn options(&self) -> ParseOptions {
        ParseOptions {
            allow_comments: self.shape.has_comments,
            allow_trailing_commas: self.shape.has_trailing_commas,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        }
    }

    /// The whole as an object; `None` if there is nothing but comments.
    fn root<'a>(&self, text: &'a str) -> Result<Option<Object<'a>>, Refusal> {
        let parsed = parse_to_ast(text, &CollectOptions::default(), &self.options());
        match parsed.map_err(|error| broken(text, &error))?.value {
            None => Ok(None),
            Some(ast::Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(Refusal::broken(text, other.start(), "this should be an object")),
        }
    }

    fn value(&self, text: &str) -> Result<Value, Refusal> {
        Ok(self.root(text)?.map_or_else(|| json!({}), |root| Value::from(ast::Value::Object(root))))
    }

    /// What stands at the end of a path, if it is there.
    fn find(&self, text: &str, path: &[&str]) -> Result<Option<Value>, Refusal> {
        let Some(root) = self.root(text)? else { return Ok(None) };
        let [key, name] = path else { return Ok(None) };
        let Some(servers) = property(text, &root, key)? else { return Ok(None) };
        let Some(entry) = property(text, object_at(text, servers)?, name)? else { return Ok(None) };
        if let ast::Value::Object(fields) = &entry.value {
            refuse_twins(text, fields)?;
        }
        Ok(Some(Value::from(entry.value.clone())))
    }

    /// Sets what stands at the end of a path, and makes the objects that are missing on the way.
    fn set(&self, text: &str, path: &[&str], value: &Value) -> Result<String, Refusal> {
        let Some(root) = self.root(text)? else {
            let whole = render::on_lines(&nested(path, value), "  ", "", "\n");
            let before = text.trim_end();
            return Ok(if before.is_empty() { whole + "\n" } else { format!("{before}\n{whole}\n") });
        };
        let style = splice::Style::of(text, &root);
        let mut object = &root;
        for (depth, key) in path.iter().enumerate() {
            let behind = &path[depth + 1..];
            match property(text, object, key)? {
                None => return Ok(splice::append(text, &style, object, key, &nested(behind, value))),
                Some(found) if behind.is_empty() => return Ok(splice::replace(text, &style, found, value)),
                Some(found) => object = object_at(text, found)?,
            }
        }
        Ok(text.to_owned())
    }

    fn remove(&self, text: &str, [key, name]: [&str; 2]) -> Result<String, Refusal> {
        let root = self.root(text)?;
        let servers = root.as_ref().and_then(|root| root.get(key)).and_then(|found| found.value.as_object());
        let found = servers.and_then(|servers| {
            let index = servers.properties.iter().position(|property| property.name.as_str() == name)?;
            Some(splice::remove(text, servers, index))
        });
        Ok(found.unwrap_or_else(|| text.to_owned()))
    }

    /// The text was changed by hand, so to speak; whether it says what it should and nothing else is for the parser to
    /// tell.
    fn verify(&self, before: &str, after: &str, wish: Wish<'_>, fields: &[(String, Value)]) -> Result<(), Refusal> {
        let (mut wanted, found) = (self.value(before)?, self.value(after)?);
        wish.apply(&mut wanted, self.shape.key, fields);
        if wanted == found { Ok(()) } else { Err(Refusal::Unusual) }
    }
}

fn nested(path: &[&str], value: &Value) -> Value {
    path.iter().rev().fold(value.clone(), |inner, key| json!({ *key: inner }))
}

/// A key that is there twice means different things to different readers.
fn refuse_twins(text: &str, object: &Object<'_>) -> Result<(), Refusal> {
    let mut seen = std::collections::HashSet::new();
    for property in &object.properties {
        let name = property.name.as_str();
        if !seen.insert(name) {
            return Err(Refusal::broken(text, property.start(), format!("the key {name:?} is there twice")));
        }
    }
    Ok(())
}

fn property<'o, 'a>(text: &str, object: &'o Object<'a>, key: &str) -> Result<Option<&'o ObjectProp<'a>>, Refusal> {
    refuse_twins(text, object)?;
    Ok(object.properties.iter().find(|property| property.name.as_str() == key))
}

fn object_at<'o, 'a>(text: &str, property: &'o ObjectProp<'a>) -> Result<&'o Object<'a>, Refusal> {
    property.value.as_object().ok_or_else(|| {
        let what = format!("{:?} should be an object", property.name.as_str());
        Refusal::broken(text, property.value.start(), what)
    })
}

fn broken(text: &str, error: &ParseError) -> Refusal {
    Refusal::broken(text, error.range().start, output::in_a_sentence(&error.kind().to_string()))
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
