//! Public shapes of records: each is read whole, or its fields are named, or it is refused with a
//! reason.

use std::sync::Arc;

use serde_json::{Value, json};

use super::example::ExampleBuilder;
use super::tests::{params, tokenizer};
use super::{ExampleOptions, RecordKind, TruncationMethod};
use crate::chat::ChatTemplate;
use crate::tokenizer::{HuggingFaceTokenizer, Tokenizer};

/// Writes tools, roles by their first letter, reasoning and calls.
const TEMPLATE: &str = "{% if tools %}[{% for t in tools %}{{ t.name or t.function.name }}{% endfor %}]{% endif %}\
    {% for d in documents or [] %}{{ d.text }}{% endfor %}{% if enable_thinking %}!{% endif %}\
    {% for m in messages %}{{ '<a>' if m.role == 'assistant' else '<u>' ~ m.role[0] ~ ':' }}\
    {% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }};{% endfor %}{% endfor %}\
    {% if add_generation_prompt %}<a>{% endif %}";

fn with_template(template: &str) -> Arc<dyn Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    tokenizer().save_assets(folder.path()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Arc::new(HuggingFaceTokenizer::load(folder.path()).unwrap())
}

fn builder(kind: RecordKind, template: &str, change: impl Fn(&mut ExampleOptions)) -> ExampleBuilder {
    let tokenizer = with_template(template);
    let template = ChatTemplate::from_tokenizer(tokenizer.as_ref()).unwrap();
    let mut options = params(std::path::Path::new(".")).example;
    (options.seq_length, options.kind) = (4096, kind);
    change(&mut options);
    ExampleBuilder::new(tokenizer, template, options).unwrap()
}

/// Text of each example with the tokens of the loss in brackets, and the unused fields.
fn read_by(builder: &ExampleBuilder, record: &Value) -> Result<(Vec<String>, String), String> {
    let tokenizer = tokenizer();
    let read = builder.read(record)?;
    let text = |example: &super::example::Example| {
        let (mut text, mut counts) = (String::new(), false);
        let ends = example.ids.iter().zip(&example.weights).map(|(id, weight)| (Some(*id), *weight > 0.0));
        for (id, does) in ends.chain([(None, false)]) {
            if does != counts {
                text.push(if does { '⟦' } else { '⟧' });
                counts = does;
            }
            id.iter().for_each(|id| text += &tokenizer.decode(&[*id]).unwrap());
        }
        text.replace("<|endoftext|>", "$")
    };
    Ok((read.examples.iter().map(text).collect(), read.unused.join(" ")))
}

fn read(kind: RecordKind, record: &Value) -> Result<(Vec<String>, String), String> {
    read_by(&builder(kind, TEMPLATE, |_| {}), record)
}

fn is_read(kind: RecordKind, record: Value, text: &str, unused: &str) {
    let (found, named) = read(kind, &record).unwrap_or_else(|error| panic!("{record}: {error}"));
    assert_eq!((found.join(" | ").as_str(), named.as_str()), (text, unused), "{record}");
}

fn is_refused(kind: RecordKind, record: Value, reason: &str) {
    let error = read(kind, &record).expect_err(&record.to_string());
    assert!(error.contains(reason), "{record}: {error}");
}

#[test]
fn prompts_with_answers_are_read_whole() {
    use RecordKind::{AsWritten, Chat};
    let pair = |record: Value, text: &str, unused: &str| is_read(AsWritten, record, text, unused);
    // Alpaca, Code Alpaca, WizardLM.
    pair(json!({ "instruction": "I", "input": "Q", "output": "A" }), "I\n\nQ⟦A$⟧", "");
    pair(json!({ "instruction": "I", "input": "", "output": "A", "text": "Below" }), "I⟦A$⟧", "text");
    pair(json!({ "instruction": "I", "input": "Q", "response": "A" }), "I\n\nQ⟦A$⟧", "");
    // Databricks Dolly.
    let dolly = json!({ "instruction": "I", "context": "C", "response": "A", "category": "qa" });
    pair(dolly.clone(), "I\n\nC⟦A$⟧", "category");
    is_read(Chat, dolly, "<u>u:I\n\nC<a>⟦A⟧", "category");
    // SQuAD, BoolQ-like passages, TriviaQA-like lists.
    let squad = json!({ "id": "5", "title": "T", "context": "C", "question": "Q", "answers": { "text": ["A", "B"], "answer_start": [1, 2] } });
    pair(squad, "C\n\nQ⟦A$⟧", "id title");
    pair(json!({ "passage": "C", "question": "Q", "answer": "A" }), "C\n\nQ⟦A$⟧", "");
    pair(json!({ "question": "Q", "answers": ["A", "B"], "contexts": ["C", "D"] }), "C\n\nD\n\nQ⟦A$⟧", "");
    // GSM8K, MetaMath, NuminaMath, s1K.
    pair(json!({ "question": "Q", "answer": "A" }), "Q⟦A$⟧", "");
    pair(
        json!({ "query": "Q", "response": "A", "type": "t", "original_question": "O" }),
        "Q⟦A$⟧",
        "type original_question",
    );
    pair(json!({ "problem": "Q", "solution": "S", "answer": "A" }), "Q⟦S$⟧", "answer");
    pair(
        json!({ "question": "Q", "solution": "A", "thinking_trajectories": ["t"], "metadata": "{}" }),
        "Q⟦A$⟧",
        "thinking_trajectories metadata",
    );
    // FLAN, Aya, P3, Natural Instructions, HelpSteer, Magpie.
    pair(json!({ "inputs": "Q", "targets": "A", "task": "t" }), "Q⟦A$⟧", "task");
    pair(
        json!({ "inputs": [5], "targets": [6], "inputs_pretokenized": "Q", "targets_pretokenized": "A" }),
        "Q⟦A$⟧",
        "inputs targets",
    );
    pair(json!({ "definition": "D", "inputs": "Q", "targets": "A" }), "D\n\nQ⟦A$⟧", "");
    pair(json!({ "prompt": "Q", "response": "A", "helpfulness": 3 }), "Q⟦A$⟧", "helpfulness");
    pair(json!({ "instruction": "Q", "response": "A", "uuid": "u" }), "Q⟦A$⟧", "uuid");
    // An instruction that the prompt repeats.
    pair(json!({ "instruction": "I", "prompt": "### I", "completion": "A" }), "### I⟦A$⟧", "");
    // Open-Orca: with a system message.
    let orca = json!({ "id": "o", "system_prompt": "S", "question": "Q", "response": "A" });
    pair(orca.clone(), "S\n\nQ⟦A$⟧", "id");
    is_read(Chat, orca, "<u>s:S<u>u:Q<a>⟦A⟧", "id");
    // Reasoning beside an answer.
    is_read(Chat, json!({ "question": "Q", "reasoning": "R", "answer": "A" }), "<u>u:Q<a>⟦(R)A⟧", "");
    // Earlier turns.
    let history = json!({ "instruction": "Q", "input": "", "output": "A", "history": [["q", "a"]], "system": "S" });
    pair(history, "<u>s:S<u>u:q<a>⟦a<u>⟧u:Q<a>⟦A⟧", "");
    is_refused(RecordKind::Prompt, json!({ "query": "Q", "response": "A", "history": [["q", "a"]] }), "chat = true");
    is_refused(AsWritten, json!({ "query": "Q", "response": "A", "history": "q" }), "`history`: expected a list");
    is_refused(AsWritten, json!({ "query": "Q", "response": "A", "context": { "a": 1 } }), "`context`: expected text");
}

#[test]
fn roles_that_the_template_does_not_write_are_named() {
    const TWO_ROLES: &str = "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}\
        {% elif m.role == 'assistant' %}<a>{{ m.content }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<a>{% endif %}";
    let said = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = [said("system", "S"), said("user", "Q"), said("narrator", "N"), said("assistant", "A")];
    let two_roles = builder(RecordKind::AsWritten, TWO_ROLES, |_| {});
    let (text, unused) = read_by(&two_roles, &json!({ "messages": messages })).unwrap();
    assert_eq!(text, ["<u>Q<a>⟦A⟧"]);
    assert_eq!(unused, "messages[].content of role system messages[].content of role narrator");
}

#[test]
fn fields_of_messages_that_the_template_does_not_read_are_named() {
    let call = json!({ "id": "1", "type": "function", "index": 0,
                       "function": { "name": "w", "arguments": { "c": 1 }, "strict": true } });
    let messages = json!([{ "role": "user", "content": "Q", "name": "N", "id": 3, "audio": null },
                          { "role": "assistant", "content": "A", "tool_calls": [call] }]);
    let unused = |template: &str| {
        let template = format!("{template}{{% if add_generation_prompt %}}<a>{{% endif %}}");
        let builder = builder(RecordKind::AsWritten, &template, |options| options.answer_only_loss = false);
        read_by(&builder, &json!({ "messages": messages })).unwrap().1
    };
    // A template that names `name`, `id` and `index`, but of other values.
    let by_name = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}\
                   {{ c.function.arguments | tojson }}{{ loop.index }}{% endfor %}{{ tools.id }}{% endfor %}";
    assert_eq!(
        unused(&by_name.replace("tools.id", "bos.id if false")),
        "messages[].name messages[].id messages[].tool_calls[].id messages[].tool_calls[].index \
         messages[].tool_calls[].function.strict"
    );
    let read =
        "{% for m in messages %}{{ m.get('name') }}{{ m['id'] }}{{ m.tool_calls | default([]) | tojson }}{% endfor %}";
    assert_eq!(unused(read), "");
    assert_eq!(unused("{% for m in messages %}{{ m | tojson }}{% endfor %}"), "");
    assert_eq!(
        unused("{% for m in messages %}{% for key, value in m.items() %}{{ value }}{% endfor %}{% endfor %}"),
        ""
    );
}

#[test]
fn conversations_are_read_whole() {
    let chat = |record: Value, text: &str, unused: &str| is_read(RecordKind::AsWritten, record, text, unused);
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let turns = "<u>u:Q<a>⟦A⟧";
    // UltraChat, No Robots, Tulu, Capybara, LIMA, BELLE, OpenHermes, SlimOrca, LMSYS, WildChat.
    chat(json!({ "prompt": "Q", "messages": [said("user", "Q"), said("assistant", "A")] }), turns, "prompt");
    chat(json!({ "conversation": [{ "input": "Q", "output": "A" }], "source": "s" }), turns, "source");
    chat(json!({ "conversations": ["Q", "A"] }), turns, "");
    chat(json!({ "conversation": [{ "human": "Q", "assistant": "A" }] }), turns, "");
    let sharegpt =
        json!([{ "from": "human", "value": "Q", "weight": null }, { "from": "gpt", "value": "A", "weight": 1.0 }]);
    chat(json!({ "conversations": sharegpt, "system_prompt": "S" }), "<u>s:S<u>u:Q<a>⟦A⟧", "");
    chat(json!({ "conversations": sharegpt.to_string() }), turns, "");
    chat(json!({ "conversations": { "from": ["human", "gpt"], "value": ["Q", "A"] } }), turns, "");
    let wild = json!([{ "role": "user", "content": "Q", "country": "x" }, { "role": "assistant", "content": "A", "toxic": false }]);
    chat(json!({ "conversation": wild, "model": "m" }), turns, "model messages[].country messages[].toxic");
    // Roles in any case.
    chat(
        json!({ "messages": [said("SYSTEM", "S"), said("User", "Q"), said("Assistant", "A")] }),
        "<u>s:S<u>u:Q<a>⟦A⟧",
        "",
    );
    chat(
        json!({ "messages": [said("developer", "S"), said("HUMAN", "Q"), said("AI", "A")] }),
        "<u>s:S<u>u:Q<a>⟦A⟧",
        "",
    );
    // trl's prompt and completion.
    chat(json!({ "prompt": [said("user", "Q")], "completion": [said("assistant", "A")] }), turns, "");
    chat(json!({ "prompt": [said("user", "Q")], "completion": "A" }), turns, "");
    // Parts of a content that are strings.
    let parts = json!({ "role": "user", "content": ["Q", "q"] });
    chat(json!({ "messages": [parts, said("assistant", "A")] }), "<u>u:Qq<a>⟦A⟧", "");
    // An answer that is a JSON list as text stays text.
    let answer = "[\"a\", \"b\"]";
    chat(json!({ "prompt": [said("user", "Q")], "completion": answer }), "<u>u:Q<a>⟦[\"a\", \"b\"]⟧", "");
    // Arguments of the template.
    let asked = [said("user", "Q"), said("assistant", "A")];
    chat(json!({ "messages": asked, "enable_thinking": true }), "!<u>u:Q<a>⟦A⟧", "");
    chat(
        json!({ "messages": asked, "chat_template_kwargs": { "enable_thinking": true, "other": 1 } }),
        "!<u>u:Q<a>⟦A⟧",
        "chat_template_kwargs.other",
    );
    chat(
        json!({ "messages": asked, "documents": [{ "title": "t", "text": "D" }], "reasoning_effort": "low" }),
        "D<u>u:Q<a>⟦A⟧",
        "reasoning_effort",
    );
    // Reasoning under its three names.
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let messages = json!([said("user", "Q"), { "role": "assistant", "content": "A", name: "R" }]);
        chat(json!({ "messages": messages }), "<u>u:Q<a>⟦(R)A⟧", "");
    }
    // A content of parts, for a template that writes text.
    let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "Q" }] });
    let plain = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
    let all = |options: &mut ExampleOptions| options.answer_only_loss = false;
    let found =
        read_by(&builder(RecordKind::Chat, plain, all), &json!({ "messages": [parts, said("assistant", "A")] }));
    assert_eq!(found.unwrap().0, ["⟦userQassistantA⟧"]);
}

#[test]
fn factors_of_messages_are_heeded() {
    for (field, value) in [
        ("train", json!(false)),
        ("training", json!(0)),
        ("trainable", json!(false)),
        ("weight", json!(0)),
        ("loss", json!(false)),
        ("loss_weight", json!(0.0)),
        ("masked", json!(true)),
    ] {
        let messages = json!([{ "role": "assistant", "content": "x", field: value }, { "role": "user", "content": "Q" }, { "role": "assistant", "content": "A" }]);
        is_read(RecordKind::AsWritten, json!({ "messages": messages }), "<a>x<u>u:Q<a>⟦A⟧", "");
    }
    let weighted = |field: &str, value: Value| json!({ "messages": [{ "role": "user", "content": "Q" }, { "role": "assistant", "content": "A", field: value }] });
    is_refused(RecordKind::AsWritten, weighted("loss_per_token", json!([1])), "messages[1]: loss_per_token");
    is_refused(RecordKind::AsWritten, weighted("train_detail", json!([1])), "messages[1]: train_detail");
    is_refused(RecordKind::AsWritten, weighted("loss", json!("no")), "messages[1]: loss: expected a number");
}

#[test]
fn tools_and_calls_are_read_in_every_spelling() {
    let function = json!({ "name": "w", "arguments": { "c": 1 } });
    let tools = json!([{ "name": "w" }]);
    let expected = "[w]<u>u:Q<a>⟦w{\"c\": 1};<u>⟧t:-3<a>⟦A⟧";
    let chat = |record: Value| is_read(RecordKind::AsWritten, record, expected, "");
    let around = |call: Value, reply: &str| json!([{ "role": "user", "content": "Q" }, call, { "role": reply, "content": "-3" }, { "role": "assistant", "content": "A" }]);
    let call =
        json!({ "role": "assistant", "content": null, "tool_calls": [{ "type": "function", "function": function }] });
    chat(json!({ "messages": around(call.clone(), "tool"), "tools": tools.to_string() }));
    chat(json!({ "messages": around(call, "ipython"), "tools": [tools[0].to_string()] }));
    let text = json!({ "role": "assistant", "content": "", "tool_calls": json!([function]).to_string() });
    chat(json!({ "messages": around(text, "tool"), "tools": tools }));
    let legacy = json!({ "role": "assistant", "content": null, "function_call": function });
    chat(json!({ "messages": around(legacy, "function"), "functions": tools }));
    // ms-swift.
    let swift = json!({ "role": "tool_call", "content": function.to_string() });
    chat(json!({ "messages": around(swift, "tool_response"), "tools": tools }));
    // LLaMA-Factory, APIGen and ToolACE.
    let sharegpt = |call: String| {
        json!({ "tools": tools.to_string(), "conversations": [{ "from": "human", "value": "Q" }, { "from": "function_call", "value": call },
                 { "from": "observation", "value": "-3" }, { "from": "gpt", "value": "A" }] })
    };
    chat(sharegpt(function.to_string()));
    chat(sharegpt(json!([function]).to_string()));
    let (found, _) = read(RecordKind::AsWritten, &sharegpt(json!([function, function]).to_string())).unwrap();
    assert_eq!(found, ["[w]<u>u:Q<a>⟦w{\"c\": 1};w{\"c\": 1};<u>⟧t:-3<a>⟦A⟧"]);
    // Calls in messages of their own belong to one turn.
    let twice = json!([{ "role": "user", "content": "Q" }, { "role": "tool_call", "content": function }, { "role": "tool_call", "content": function }]);
    is_read(RecordKind::AsWritten, json!({ "messages": twice }), "<u>u:Q<a>⟦w{\"c\": 1};w{\"c\": 1};⟧", "");
    // xLAM.
    let xlam = json!({ "query": "Q", "answers": json!([function]).to_string(), "tools": tools.to_string() });
    is_read(RecordKind::AsWritten, xlam.clone(), "[w]<u>u:Q<a>⟦w{\"c\": 1};⟧", "");
    is_refused(RecordKind::Prompt, xlam, "chat = true");
    for (message, place) in [
        (
            json!({ "role": "assistant", "tool_calls": [{ "function": { "name": null } }] }),
            "messages[0]: tool_calls[0]: expected a call",
        ),
        (
            json!({ "role": "assistant", "content": null, "function_call": "w(1)" }),
            "messages[0]: function_call: text that is not JSON",
        ),
        (json!({ "from": "function_call", "value": "[]" }), "messages[0]: value: expected a call"),
        (json!({ "from": "function_call", "value": "{'name': 'w'}" }), "messages[0]: value: text that is not JSON"),
    ] {
        is_refused(RecordKind::AsWritten, json!({ "messages": [message] }), place);
    }
    is_refused(
        RecordKind::AsWritten,
        json!({ "messages": [{ "role": "user", "content": "Q" }], "tools": ["w"] }),
        "tools[0]: text that is not JSON",
    );
}

#[test]
fn preferences_are_read_in_every_spelling() {
    use RecordKind::{ChatPreference, Preference};
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let whole = |answer: &str| json!([said("user", "Q"), said("assistant", answer)]);
    let (texts, turns) = ("Q⟦A$⟧ | Q⟦B$⟧", "<u>u:Q<a>⟦A⟧ | <u>u:Q<a>⟦B⟧");
    let pair = |record: Value, text: &str, unused: &str| is_read(Preference, record, text, unused);
    pair(json!({ "prompt": "Q", "chosen": "A", "rejected": "B" }), texts, "");
    is_read(ChatPreference, json!({ "prompt": "Q", "chosen": "A", "rejected": "B" }), turns, "");
    // orca_dpo_pairs, LLaMA-Factory's Alpaca.
    pair(json!({ "system": "S", "question": "Q", "chosen": "A", "rejected": "B" }), "S\n\nQ⟦A$⟧ | S\n\nQ⟦B$⟧", "");
    pair(json!({ "instruction": "Q", "input": "", "chosen": "A", "rejected": "B" }), texts, "");
    // UltraFeedback, without a prompt, and trl's own.
    let ultra = json!({ "prompt": "Q", "prompt_id": "p", "chosen": whole("A"), "rejected": whole("B"), "messages": whole("A"), "score_chosen": 8 });
    pair(ultra, turns, "prompt_id messages score_chosen");
    pair(json!({ "chosen": whole("A"), "rejected": whole("B") }), turns, "");
    let answers = |field: &str| json!([{ "role": "assistant", "content": field }]);
    pair(json!({ "prompt": [said("user", "Q")], "chosen": answers("A"), "rejected": answers("B") }), turns, "");
    pair(json!({ "prompt": [said("user", "Q")], "chosen": whole("A"), "rejected": whole("B") }), turns, "");
    pair(json!({ "prompt": [said("user", "Q")], "chosen": "A", "rejected": "B" }), turns, "");
    pair(
        json!({ "prompt": "Q", "chosen": answers("A"), "rejected": answers("B"), "system": "S" }),
        "<u>s:S<u>u:Q<a>⟦A⟧ | <u>s:S<u>u:Q<a>⟦B⟧",
        "",
    );
    // LLaMA-Factory's ShareGPT, ms-swift.
    let from = |from: &str, value: &str| json!({ "from": from, "value": value });
    pair(
        json!({ "conversations": [from("human", "Q")], "chosen": from("gpt", "A"), "rejected": from("gpt", "B") }),
        turns,
        "",
    );
    pair(json!({ "messages": whole("A"), "rejected_response": "B" }), turns, "");
    pair(json!({ "messages": whole("A"), "rejected_messages": whole("B") }), turns, "");
    // Anthropic HH, and the blank before the first difference, which trl leaves to the answers.
    let hh = |answer: &str| format!("\n\nHuman: Q\n\nAssistant: {answer}");
    pair(
        json!({ "chosen": hh("A"), "rejected": hh("B") }),
        "\n\nHuman: Q\n\nAssistant:⟦ A$⟧ | \n\nHuman: Q\n\nAssistant:⟦ B$⟧",
        "",
    );
    pair(json!({ "chosen": "ab", "rejected": "abc" }), "a⟦b$⟧ | a⟦bc$⟧", "");
    is_refused(Preference, json!({ "prompt": "Q", "chosen": "A" }), "`prompt`, `chosen` and `rejected`");
    is_refused(Preference, json!({ "chosen": answers("A"), "rejected": answers("B") }), "there is no prompt");
    is_refused(
        Preference,
        json!({ "prompt": [said("user", "X")], "chosen": whole("A"), "rejected": whole("B") }),
        "no part of",
    );
    is_refused(RecordKind::AsWritten, json!({ "prompt": "Q", "chosen": "A", "rejected": "B" }), "[dpo]");
}

#[test]
fn other_records_are_refused_with_a_reason() {
    let refused = |record: Value, reason: &str| is_refused(RecordKind::AsWritten, record, reason);
    refused(json!({ "prompt": "Q", "completion": "A", "label": false }), "`label`: found false");
    is_read(RecordKind::AsWritten, json!({ "prompt": "Q", "completion": "A", "label": true }), "Q⟦A$⟧", "");
    refused(
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
        "content[0]: expected text, found a part of type \"image\"",
    );
    refused(json!({ "messages": [], "images": ["a.png"] }), "`images`: models here read text alone");
    refused(json!({ "messages": [] }), "an empty list of messages");
    refused(json!({ "messages": "[{'role': 'user'}]" }), "messages: text that is not JSON");
    refused(
        json!({ "messages": [{ "role": "system", "content": "S" }], "system": "T" }),
        "`system`: the conversation begins with another",
    );
    // OASST, Glaive, plain text.
    refused(
        json!({ "message_id": "m", "parent_id": null, "text": "t", "role": "prompter" }),
        "found the fields message_id, parent_id, text, role",
    );
    refused(json!({ "system": "S", "chat": "USER: a\n\n\nASSISTANT: b" }), "`chat` is a conversation as one text");
    refused(json!({ "text": "### Human: a" }), "`text` alone is no example");
    refused(json!([1]), "expected an object");
}

/// A tokenizer that puts a token before texts, as Llama's do.
#[test]
fn prompts_begin_as_they_are_generated_from() {
    let folder = tempfile::tempdir().unwrap();
    tokenizer().save_assets(folder.path()).unwrap();
    let config = json!({ "bos_token": "<u>", "eos_token": "<|endoftext|>", "add_bos_token": true });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(HuggingFaceTokenizer::load(folder.path()).unwrap());
    for (add_bos, expected) in [(None, "<u>Q⟦A$⟧"), (Some(true), "<u>Q⟦A$⟧"), (Some(false), "Q⟦A$⟧")] {
        let options = ExampleOptions { add_bos, ..params(folder.path()).example };
        let builder = ExampleBuilder::new(Arc::clone(&tokenizer), None, options).unwrap();
        let record = json!({ "prompt": "Q", "completion": "A" });
        assert_eq!(read_by(&builder, &record).unwrap().0, [expected]);
        // An answer that has its end gets no second one.
        let record = json!({ "prompt": "Q", "completion": "A<|endoftext|>" });
        assert_eq!(read_by(&builder, &record).unwrap().0, [expected]);
    }
}

#[test]
fn lists_are_read_as_lines_are() {
    let folder = tempfile::tempdir().unwrap();
    let records = json!([{ "prompt": "Q", "completion": "A", "id": 1 }, { "prompt": "Q", "completion": "B" }]);
    std::fs::write(folder.path().join("training.json"), serde_json::to_string_pretty(&records).unwrap()).unwrap();
    let train = super::tests::built(params(folder.path()), 2).unwrap().train.unwrap();
    assert_eq!(train.len(), 2);
    std::fs::write(
        folder.path().join("training.json"),
        "[{\"prompt\": \"Q\", \"completion\": \"A\"},\n{\"prompt\": 3}]",
    )
    .unwrap();
    let error = super::tests::built(params(folder.path()), 2).err().unwrap().to_string();
    assert!(error.contains("training.json: line 2: expected text"), "{error}");
}

#[test]
fn of_long_conversations_one_end_is_kept_in_little_memory() {
    let said = |length: usize| json!([{ "role": "user", "content": "q" }, { "role": "assistant", "content": "abcdefg".repeat(length) }]);
    for length in [1, 2, 3, 4, 50] {
        let record = json!({ "messages": said(length) });
        let read = |seq_length: usize, method: TruncationMethod, answer_only: bool| {
            let builder = builder(RecordKind::Chat, TEMPLATE, |options| {
                (options.seq_length, options.truncation_method, options.answer_only_loss) =
                    (seq_length, method, answer_only);
            });
            builder.read(&record).unwrap().examples.remove(0)
        };
        for answer_only in [true, false] {
            let whole = read(4096, TruncationMethod::Right, answer_only);
            assert!(!whole.is_truncated);
            for seq_length in [1, 2, 11, whole.ids.len() - 1, whole.ids.len()] {
                let excess = whole.ids.len() - seq_length;
                for (method, kept) in
                    [(TruncationMethod::Right, 0..seq_length), (TruncationMethod::Left, excess..whole.ids.len())]
                {
                    let cut = read(seq_length, method, answer_only);
                    assert_eq!((&cut.ids[..], &cut.weights[..]), (&whole.ids[kept.clone()], &whole.weights[kept]));
                    assert_eq!(cut.is_truncated, excess > 0);
                    assert!(!answer_only || cut.ids.capacity() <= 4 * seq_length + 8, "{}", cut.ids.capacity());
                }
            }
        }
    }
}
