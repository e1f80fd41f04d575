//! Schemas that every client understands: nothing nullable, nothing referenced, no formats of one language.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Input,
    Output,
}

/// The schema of a type, as an object that stands by itself.
pub fn of<T: JsonSchema>(direction: Direction) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = match direction {
        Direction::Input => settings.for_deserialize(),
        Direction::Output => settings.for_serialize(),
    };
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    match schema {
        Value::Object(mut schema) => {
            schema.remove("title");
            schema.remove("description");
            schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
            schema
        }
        _ => Map::new(),
    }
}

fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            drop_null(object);
            if matches!(object.get("format"), Some(Value::String(format)) if is_rust_format(format)) {
                object.remove("format");
            }
            if object.get("default") == Some(&Value::Null) {
                object.remove("default");
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An optional argument may be left out, which is all that is needed: `null` in a union is refused by some clients.
fn drop_null(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    for union in ["anyOf", "oneOf"] {
        let Some(Value::Array(variants)) = object.get_mut(union) else { continue };
        variants.retain(|variant| variant.get("type") != Some(&Value::from("null")));
        if let [Value::Object(only)] = variants.as_slice() {
            let only = only.clone();
            object.remove(union);
            for (key, value) in only {
                object.entry(key).or_insert(value);
            }
        }
    }
}

fn is_rust_format(format: &str) -> bool {
    matches!(format, "float" | "double") || format.starts_with("uint") || format.starts_with("int")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape is looked at")]
    struct Sample {
        /// How many.
        count: Option<u64>,
        kind: Option<Kind>,
        ratio: f64,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        One,
        Two,
    }

    #[test]
    fn nothing_is_nullable_and_nothing_is_rust() {
        assert_eq!(
            Value::Object(of::<Sample>(Direction::Input)),
            json!({
                "type": "object",
                "properties": {
                    "count": { "type": "integer", "minimum": 0, "description": "How many." },
                    "kind": { "type": "string", "enum": ["one", "two"] },
                    "ratio": { "type": "number" }
                },
                "required": ["ratio"],
                "additionalProperties": false
            })
        );
    }
}
