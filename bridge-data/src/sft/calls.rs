//! Calls of tools in the spelling that chat templates read, from the spellings of OpenAI, ShareGPT,
//! LLaMA-Factory, ms-swift and trl.

use serde_json::{Map, Value, json};

use super::fields::is_nothing;
use crate::chat::arguments;

/// Calls of a message: `tool_calls`, or the older `function_call`. `None` if it has none. Fails on
/// a call without a name or without arguments, text that is not JSON, calls in both fields. As a
/// sentence that names the place.
pub(super) fn calls_of(message: &Map<String, Value>) -> Result<Option<Vec<Value>>, String> {
    let [calls, call] = ["tool_calls", "function_call"].map(|field| {
        let value = message.get(field).unwrap_or(&Value::Null);
        // Tables that hold no calls may have the word.
        let value = arguments::json(value).map_err(|error| format!("{field}: {error}"))?;
        if is_nothing(&value) { Ok(None) } else { listed(field, &value).map(Some) }
    });
    match (calls?, call?) {
        (Some(_), Some(_)) => Err("tool_calls and function_call: expected calls in one of the two".to_owned()),
        (calls, call) => Ok(calls.or(call)),
    }
}

/// The calls of a value: a list, or a call alone. Each may be JSON text.
///
/// # Errors
/// As [`calls_of`]; a value that holds no call.
pub(super) fn listed(field: &str, value: &Value) -> Result<Vec<Value>, String> {
    let value = arguments::json(value).map_err(|error| format!("{field}: {error}"))?;
    let calls = match &*value {
        Value::Array(calls) => calls,
        call => return Ok(vec![normal(call).map_err(|problem| format!("{field}: {problem}"))?]),
    };
    let call = |(at, call)| normal(call).map_err(|problem| format!("{field}[{at}]: {problem}"));
    calls.iter().enumerate().map(call).collect()
}

/// A call as templates read it: an object whose `function` has a name and arguments.
fn normal(call: &Value) -> Result<Value, String> {
    let expected = |found: &Value| format!("expected a call with `name` and `arguments`, found {found}");
    let Value::Object(mut call) = arguments::json(call)?.into_owned() else { return Err(expected(call)) };
    if !call.contains_key("function") {
        // Without an id or a type of its own a call is the function alone.
        let named = |name: &str| ["name", "arguments", "parameters"].contains(&name);
        let (function, mut others): (Map<String, Value>, Map<String, Value>) =
            call.into_iter().partition(|(name, _)| named(name));
        others.insert("function".to_owned(), Value::Object(function));
        call = others;
    }
    let function = arguments::json(&call["function"])?.into_owned();
    let Value::Object(mut function) = function else { return Err(expected(&function)) };
    if function.get("name").and_then(Value::as_str).is_none_or(|name| name.trim().is_empty()) {
        return Err(expected(&Value::Object(function)));
    }
    if let Some(parameters) = function.remove("parameters") {
        // Llama 3 writes the arguments of a call so.
        function.entry("arguments").or_insert(parameters);
    }
    match function.get("arguments") {
        Some(Value::Object(_) | Value::Array(_) | Value::String(_)) => {}
        found => {
            let found = found.unwrap_or(&Value::Null);
            let name = &function["name"];
            return Err(format!("arguments of {name}: expected an object (without arguments: {{}}), found {found}"));
        }
    }
    if !call.contains_key("type") {
        let mut typed = Map::from_iter([("type".to_owned(), json!("function"))]);
        typed.extend(call);
        call = typed;
    }
    call.insert("function".to_owned(), Value::Object(function));
    Ok(Value::Object(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(message: Value) -> Result<Option<Vec<Value>>, String> {
        calls_of(message.as_object().unwrap())
    }

    #[test]
    fn calls_in_every_spelling_are_those_that_templates_read() {
        let function = json!({ "name": "w", "arguments": { "city": "Oslo" } });
        let call = json!({ "type": "function", "function": function });
        let text = |value: &Value| Value::from(value.to_string());
        for written in [
            json!({ "tool_calls": [call] }),
            json!({ "tool_calls": [function] }),
            json!({ "tool_calls": call }),
            json!({ "tool_calls": text(&json!([call])) }),
            json!({ "tool_calls": [text(&call)] }),
            json!({ "tool_calls": [{ "function": text(&function) }], "function_call": null }),
            json!({ "function_call": function }),
            json!({ "function_call": text(&function), "tool_calls": [] }),
            json!({ "function_call": [function], "tool_calls": null }),
            json!({ "function_call": { "name": "w", "parameters": { "city": "Oslo" } } }),
        ] {
            assert_eq!(calls(written.clone()), Ok(Some(vec![call.clone()])), "{written}");
        }
        // Arguments that are text and the id of a call are unchanged.
        let with_id = json!({ "id": "1", "type": "function", "function": { "name": "w", "arguments": "{}" } });
        assert_eq!(calls(json!({ "tool_calls": [with_id] })), Ok(Some(vec![with_id])));
        for nothing in [json!({}), json!({ "tool_calls": null }), json!({ "tool_calls": "", "function_call": "null" })]
        {
            assert_eq!(calls(nothing), Ok(None));
        }
    }

    #[test]
    fn empty_calls_are_errors_with_their_place() {
        for (written, reason) in [
            (json!({ "tool_calls": [null] }), "tool_calls[0]: expected a call"),
            (
                json!({ "tool_calls": [{ "function": { "name": "", "arguments": {} } }] }),
                "tool_calls[0]: expected a call",
            ),
            (json!({ "tool_calls": [{ "function": null }] }), "tool_calls[0]: expected a call"),
            (json!({ "tool_calls": [{ "name": "w" }] }), "tool_calls[0]: arguments of \"w\": expected an object"),
            (json!({ "function_call": "w()" }), "function_call: text that is not JSON"),
            (json!({ "function_call": { "arguments": "{}" } }), "function_call: expected a call"),
            (json!({ "function_call": 3 }), "function_call: expected a call"),
        ] {
            let error = calls(written.clone()).unwrap_err();
            assert!(error.starts_with(reason), "{written}: {error}");
        }
        let function = json!({ "name": "w", "arguments": {} });
        let both = calls(json!({ "tool_calls": [function], "function_call": function })).unwrap_err();
        assert!(both.contains("in one of the two"), "{both}");
    }
}
