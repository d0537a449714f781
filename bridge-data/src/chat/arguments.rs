//! Arguments of a chat template that a record has beside its messages: tools, documents, switches
//! such as `enable_thinking`.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Fields of a record that are arguments of chat templates under the same name.
const NAMED: [&str; 24] = [
    "add_thoughts",
    "add_vision_id",
    "available_tools",
    "builtin_tools",
    "citation_mode",
    "clear_thinking",
    "controls",
    "current_date",
    "custom_tools",
    "date_string",
    "documents",
    "enable_thinking",
    "json_mode",
    "keep_all_reasoning",
    "model_identity",
    "preserve_thinking",
    "python_tools",
    "reasoning_effort",
    "safety_mode",
    "thinking_budget",
    "thinking_mode",
    "tools_in_user_message",
    "truncate_history_thinking",
    "xml_tools",
];
/// Fields that hold several arguments, by name.
pub(crate) const GROUPS: [&str; 2] = ["chat_template_kwargs", "template_kwargs"];
/// Arguments that the renderer sets.
const OWN: [&str; 6] =
    ["messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"];

/// True if a field of a record holds several arguments of templates.
pub(crate) fn is_group(field: &str) -> bool {
    GROUPS.contains(&field)
}

/// True if a value holds nothing: null, empty text, an empty list or object.
pub(crate) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Template arguments of a record. A field that is null is not an argument: tables have it in each
/// record. In a group, null is a value. `thinking` is an argument if it is a boolean; as text it is
/// the reasoning of a message.
///
/// # Errors
/// A group that is not an object, an argument that the renderer sets, documents that are not a list
/// of objects. The error is a sentence.
pub(crate) fn arguments_of(record: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let is_switch = |name: &str, value: &Value| name == "thinking" && value.is_boolean();
    let named = record.iter().filter(|(name, value)| {
        !value.is_null() && (NAMED.contains(&name.as_str()) || is_switch(name.as_str(), value))
    });
    let mut arguments: Map<String, Value> = named.map(|(name, value)| (name.clone(), value.clone())).collect();
    for group in GROUPS {
        let expected = || format!("{group}: expected an object with arguments of the chat template");
        let value = json(record.get(group).unwrap_or(&Value::Null)).map_err(|error| format!("{group}: {error}"))?;
        let entries = match value.into_owned() {
            Value::Null => continue,
            Value::Object(entries) => entries,
            _ => return Err(expected()),
        };
        for (name, value) in entries {
            if OWN.contains(&name.as_str()) {
                if value.is_null() {
                    continue;
                }
                return Err(format!(
                    "{group}.{name}: cannot be set by a record: conversations are rendered whole by one template"
                ));
            }
            arguments.insert(name, value);
        }
    }
    if let Some(documents) = arguments.get_mut("documents").filter(|documents| !documents.is_null()) {
        *documents = json(documents).map_err(|error| format!("documents: {error}"))?.into_owned();
        let list = documents.as_array().ok_or("documents: expected a list of objects with `title` and `text`")?;
        if let Some(at) = list.iter().position(|document| !document.is_object()) {
            return Err(format!("documents[{at}]: expected an object with `title` and `text`"));
        }
    }
    Ok(arguments)
}

/// Tools of a record: a list of objects, or null. A list may be JSON text, and so may each of its
/// tools; one tool may stand alone.
///
/// # Errors
/// Text that is not JSON; a tool that is not an object, with its index. The error is a sentence.
pub(crate) fn tools_of(field: &str, value: &Value) -> Result<Value, String> {
    let value = json(value).map_err(|error| format!("{field}: {error}"))?;
    let tools = match &*value {
        Value::Null => return Ok(Value::Null),
        Value::Array(tools) => tools.as_slice(),
        tool @ Value::Object(_) => std::slice::from_ref(tool),
        other => return Err(format!("{field}: expected a list of tools, found {other}")),
    };
    let tool = |(at, tool): (usize, &Value)| {
        let tool = json(tool).map_err(|error| format!("{field}[{at}]: {error}"))?;
        match tool.as_object().is_some_and(|fields| !fields.is_empty()) {
            true => Ok(tool.into_owned()),
            false => Err(format!("{field}[{at}]: expected the description of a tool, an object, found {tool}")),
        }
    };
    tools.iter().enumerate().map(tool).collect::<Result<_, _>>().map(Value::Array)
}

/// A value that may be written as JSON text, as tables keep nested values. Empty text is null.
/// Fails on text that is not JSON, as a sentence.
pub(crate) fn json(value: &Value) -> Result<Cow<'_, Value>, String> {
    match value.as_str().map(str::trim) {
        Some("") => Ok(Cow::Owned(Value::Null)),
        Some(text) => {
            serde_json::from_str(text).map(Cow::Owned).map_err(|error| format!("text that is not JSON: {error}"))
        }
        None => Ok(Cow::Borrowed(value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_stand_alone_and_in_groups() {
        let of = |record: Value| arguments_of(record.as_object().unwrap()).map(Value::Object);
        let record = json!({ "enable_thinking": false, "reasoning_effort": null, "thinking": "hm", "id": 3,
                             "chat_template_kwargs": "{\"enable_thinking\": true, \"x\": 1, \"y\": null}" });
        assert_eq!(of(record), Ok(json!({ "enable_thinking": true, "x": 1, "y": null })));
        let nulls = json!({ "template_kwargs": { "documents": null, "tools": null } });
        assert_eq!(of(nulls), Ok(json!({ "documents": null })));
        assert_eq!(of(json!({ "thinking": true })), Ok(json!({ "thinking": true })));
        let documents = json!([{ "title": "t", "text": "x" }]);
        assert_eq!(of(json!({ "documents": documents.to_string() })), Ok(json!({ "documents": documents })));
        for (record, reason) in [
            (json!({ "chat_template_kwargs": 3 }), "chat_template_kwargs: expected an object"),
            (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs.messages: cannot be set"),
            (json!({ "documents": ["a"] }), "documents[0]: expected an object"),
            (json!({ "documents": "a" }), "documents: text that is not JSON"),
        ] {
            assert!(of(record.clone()).unwrap_err().starts_with(reason), "{record}");
        }
    }

    #[test]
    fn tools_are_lists_of_objects_however_they_are_written() {
        let tool = json!({ "name": "w" });
        let list = json!([tool]);
        for written in [list.clone(), tool.clone(), list.to_string().into(), json!([tool.to_string()])] {
            assert_eq!(tools_of("tools", &written), Ok(list.clone()), "{written}");
        }
        assert_eq!(tools_of("tools", &json!("")), Ok(Value::Null));
        for (written, reason) in
            [(json!(["w"]), "tools[0]: text"), (json!([{}]), "tools[0]: expected"), (json!(3), "tools: expected")]
        {
            assert!(tools_of("tools", &written).unwrap_err().starts_with(reason), "{written}");
        }
    }
}
