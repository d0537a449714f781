//! The JSON Schema of a recipe, for editors and other programs.

use serde_json::{Map, Value, json};

use super::super::kinded::{Kinded, KindedConfig};
use super::super::kinds::{KindRegistry, Kinds};
use super::super::limits::{Bound, Limits};
use super::super::section::Section;
use super::super::sections::{GptDatasetConfig, RecipeConfig, TransformerConfig};
use super::super::spec::{FieldSpec, TypeSpec};

/// The JSON Schema (draft 2020-12) of a recipe, with the settings of all registered kinds.
pub fn json_schema(kinds: &Kinds) -> Value {
    let mut schema = section(&RecipeConfig::fields());
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Bridge recipe");
    add_kinds::<TransformerConfig>(&mut schema["properties"]["model"], kinds);
    add_kinds::<GptDatasetConfig>(&mut schema["properties"]["dataset"], kinds);
    schema
}

fn add_kinds<C: KindedConfig>(schema: &mut Value, kinds: &Kinds) {
    let registry: &KindRegistry = C::registry(kinds);
    let names: Vec<_> = registry.names().collect();
    schema["properties"]["kind"]["enum"] = json!(names);
    let lists = names.iter().filter_map(|name| Some((*name, registry.get(name)?.settings.as_ref()?)));
    let lists: Map<_, _> = lists.map(|(name, settings)| (name.to_owned(), json!(settings))).collect();
    if !lists.is_empty() {
        // Settings that these kinds support; `x-status` and `x-accepted` describe all other kinds.
        schema["x-settings-of-kinds"] = Value::Object(lists);
    }
    let own: Vec<_> = Kinded::<C>::names();
    for field in names.iter().filter_map(|name| registry.get(name)).flat_map(|kind| &kind.extra) {
        if own.contains(&field.name.as_str()) {
            continue;
        }
        let mut property = type_schema(&field.spec, &Limits::NONE);
        property["description"] = json!(field.doc);
        if let Some(default) = &field.default {
            property["default"] = json!(default);
        }
        schema["properties"][&field.name] = property;
    }
}

fn section(fields: &[FieldSpec]) -> Value {
    let properties: Map<_, _> = fields
        .iter()
        .map(|field| {
            let spec = (field.spec)();
            let mut property = type_schema(&spec, &field.limits);
            property["description"] = json!(field.doc);
            if !matches!(spec, TypeSpec::Section(_)) {
                property["default"] = json!(field.default);
            }
            add_status(&mut property, field);
            (field.name.to_owned(), property)
        })
        .collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// Status of the setting: `accepted`, `refused` (only the values in `x-accepted`, which have no
/// effect, are accepted), `partly` (the values in `x-accepted` are implemented), or `inert` (no
/// value has an effect). `x-reason` is the message of a refusal.
fn add_status(property: &mut Value, field: &FieldSpec) {
    let Some(refusal) = &field.refusal else {
        property["x-status"] = json!("accepted");
        return;
    };
    property["x-status"] = json!(refusal.status(field));
    property["x-reason"] = json!(refusal.message());
    property["x-accepted"] = json!(refusal.accepted(&field.default));
}

fn type_schema(spec: &TypeSpec, limits: &Limits) -> Value {
    match spec {
        TypeSpec::Bool => json!({"type": "boolean"}),
        TypeSpec::Integer => number("integer", limits),
        TypeSpec::Count => {
            let mut schema = number("integer", limits);
            if limits.min.is_none() {
                schema["minimum"] = json!(0);
            }
            schema
        }
        TypeSpec::Float => number("number", limits),
        TypeSpec::String => json!({"type": "string"}),
        TypeSpec::Choice(names) => json!({"enum": names}),
        TypeSpec::List(item) => json!({"type": "array", "items": type_schema(item, limits)}),
        TypeSpec::Array(item, length) => json!({
            "type": "array",
            "items": type_schema(item, limits),
            "minItems": length,
            "maxItems": length,
        }),
        TypeSpec::Map(value) => {
            json!({"type": "object", "additionalProperties": type_schema(value, limits)})
        }
        TypeSpec::OneOf(options) => {
            let options: Vec<_> = options.iter().map(|o| type_schema(o, limits)).collect();
            json!({"anyOf": options})
        }
        TypeSpec::Nullable(inner) => {
            // TOML has no null, so its name is accepted for it.
            json!({"anyOf": [type_schema(inner, limits), {"type": "null"}, {"const": "null"}]})
        }
        TypeSpec::Section(fields) => section(&fields()),
        TypeSpec::Any => json!({}),
    }
}

fn number(name: &str, limits: &Limits) -> Value {
    let mut schema = json!({"type": name});
    let ends = [(limits.min, "minimum", "exclusiveMinimum"), (limits.max, "maximum", "exclusiveMaximum")];
    for (bound, inclusive, exclusive) in ends {
        match bound {
            Some(Bound::Inclusive(bound)) => schema[inclusive] = json!(bound),
            Some(Bound::Exclusive(bound)) => schema[exclusive] = json!(bound),
            None => {}
        }
    }
    schema
}
