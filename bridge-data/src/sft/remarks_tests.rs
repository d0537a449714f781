//! Warnings about records that teach something unwanted, and about held-out examples that are also
//! trained on.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::tests::{context, lines, params};
use super::{ExampleOptions, RecordKind, SftParams, SftProvider};
use crate::dataset::{BuildEvent, BuildObserver};
use crate::tokenizer::HuggingFaceTokenizer;
use crate::{DatasetBuildContext, DatasetProvider, ExamplesReport};

#[derive(Default)]
struct Heard(Mutex<Vec<BuildEvent>>);

impl BuildObserver for Heard {
    fn on_event(&self, event: &BuildEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// Events while the data of a folder is built.
fn said(params: SftParams, template: Option<&str>) -> Vec<BuildEvent> {
    let heard = Arc::new(Heard::default());
    let context = context(2);
    let tokenizer = match template {
        Some(template) => {
            let folder = tempfile::tempdir().unwrap();
            context.tokenizer.as_ref().unwrap().save_assets(folder.path()).unwrap();
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
            Some(Arc::new(HuggingFaceTokenizer::load(folder.path()).unwrap()) as _)
        }
        None => context.tokenizer.clone(),
    };
    let progress = Arc::clone(&heard) as Arc<dyn BuildObserver>;
    let context = DatasetBuildContext { tokenizer, progress, ..context };
    SftProvider::new(params).unwrap().build(&context).unwrap();
    std::mem::take(&mut heard.0.lock().unwrap())
}

fn report(records: &[Value], kind: RecordKind, template: Option<&str>) -> ExamplesReport {
    let folder = tempfile::tempdir().unwrap();
    lines(folder.path(), "training.jsonl", records);
    report_of(folder.path(), kind, template)
}

fn report_of(folder: &Path, kind: RecordKind, template: Option<&str>) -> ExamplesReport {
    let params = params(folder);
    let example = ExampleOptions { kind, ..params.example.clone() };
    let events = said(SftParams { example, ..params }, template);
    match events.into_iter().next() {
        Some(BuildEvent::Examples { report }) => *report,
        other => panic!("{other:?}"),
    }
}

fn chat(answer: Value) -> Value {
    let mut answer = answer;
    answer["role"] = "assistant".into();
    json!({ "messages": [{ "role": "user", "content": "Q" }, answer] })
}

#[test]
fn empty_answers_are_counted() {
    let records = [
        json!({ "prompt": "Q", "completion": "" }),
        json!({ "prompt": "Q", "completion": "A" }),
        json!({ "prompt": "Q", "completion": " \n" }),
        chat(json!({ "content": " " })),
        chat(json!({ "content": [{ "type": "text", "text": "A" }] })),
        chat(json!({ "content": "", "reasoning_content": "R" })),
    ];
    let report = report(&records, RecordKind::AsWritten, None);
    assert!(report.blank >= 2 && report.lacks(), "{report}");
    assert_eq!(report.blank + report.without_loss, 4, "an empty conversation has nothing that counts: {report:?}");
    assert!(report.to_string().contains("with an empty answer, which teach the model to end at once"), "{report}");
}

/// A template in which an answer ends with a token of its own.
const ENDING: &str = "{% for m in messages %}{{ '<u>' if m.role == 'user' else '<a>' }}{{ m.content }}{{ '<|endoftext|>' }}{% endfor %}\
                      {% if add_generation_prompt %}<a>{% endif %}";

#[test]
fn a_message_without_content_does_not_say_none() {
    let records = [chat(json!({ "content": null })), chat(json!({ "content": "A" }))];
    let nothing = [chat(json!({ "content": "" })), chat(json!({ "content": "A" }))];
    let found = report(&records, RecordKind::AsWritten, Some(ENDING));
    let expected = report(&nothing, RecordKind::AsWritten, Some(ENDING));
    assert_eq!((found.tokens, found.counted, found.blank), (expected.tokens, expected.counted, 1), "{found:?}");
}

#[test]
fn answers_without_an_end_of_their_turn_are_counted() {
    let unending = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    let records = [chat(json!({ "content": "A" }))];
    let found = report(&records, RecordKind::AsWritten, Some(unending));
    assert!(found.unended == 1 && found.lacks(), "{found:?}");
    assert!(found.to_string().contains("no token that ends a turn"), "{found}");
    assert_eq!(report(&records, RecordKind::AsWritten, Some(ENDING)).unended, 0);
}

#[test]
fn tool_calls_that_a_template_does_not_write_are_counted() {
    let calls = json!([{ "type": "function", "function": { "name": "f", "arguments": {} } }]);
    let records = [chat(json!({ "content": null, "tool_calls": calls })), chat(json!({ "content": "A" }))];
    let nothing = [chat(json!({ "content": "" })), chat(json!({ "content": "A" }))];
    let found = report(&records, RecordKind::AsWritten, Some(ENDING));
    let expected = report(&nothing, RecordKind::AsWritten, Some(ENDING));
    assert_eq!((found.tokens, found.lost_calls, found.blank), (expected.tokens, 1, 0), "{found:?}");
    assert!(found.to_string().contains("1 with tool calls, which the chat template does not write"), "{found}");
    let knowing =
        ENDING.replace("{{ m.content }}", "{{ m.tool_calls[0].function.name if m.tool_calls else m.content }}");
    let found = report(&records, RecordKind::AsWritten, Some(&knowing));
    assert!(found.lost_calls == 0 && found.tokens > expected.tokens && !found.lacks(), "{found:?}");
}

#[test]
fn preferences_without_a_preference_are_counted() {
    let pair = |chosen: &str, rejected: &str| json!({ "prompt": "Q", "chosen": chosen, "rejected": rejected });
    let records = [pair("A", "A"), pair("A", "B"), pair("", "B"), pair("A", "")];
    let found = report(&records, RecordKind::Preference, None);
    assert_eq!((found.ties, found.blank), (1, 1), "an empty answer may be the worse one: {found:?}");
    assert!(found.to_string().contains("1 with both answers the same, which teach nothing"), "{found}");
}

#[test]
fn preferences_with_different_prompts_are_counted() {
    let turns = |questions: [&str; 2], answer: &str| {
        let said = |role: &str, text: &str| json!({ "role": role, "content": text });
        json!([
            said("user", questions[0]),
            said("assistant", answer),
            said("user", questions[1]),
            said("assistant", answer)
        ])
    };
    let pair = |chosen: Value, rejected: Value| json!({ "chosen": chosen, "rejected": rejected });
    let records = [
        pair(turns(["P", "Q"], "A"), turns(["P", "Q"], "B")),
        pair(turns(["P", "Q"], "A"), turns(["P", "R"], "B")),
        pair(turns(["P", "Q"], "A"), turns(["R", "Q"], "B")),
    ];
    let found = report(&records, RecordKind::Preference, Some(ENDING));
    assert!(found.differing == 2 && found.lacks(), "{found:?}");
    assert!(found.to_string().contains("2 whose two answers have different messages of the user"), "{found}");
}

#[test]
fn examples_that_are_held_out_in_vain_are_counted() {
    let record = |number: usize| json!({ "prompt": format!("Q{number}"), "completion": "A" });
    let overlaps = |train: &[usize], valid: &[usize], limit: Option<usize>| {
        let folder = tempfile::tempdir().unwrap();
        for (name, numbers) in [("training.jsonl", train), ("validation.jsonl", valid)] {
            lines(folder.path(), name, &numbers.iter().map(|number| record(*number)).collect::<Vec<_>>());
        }
        let events = said(SftParams { max_train_samples: limit, ..params(folder.path()) }, None);
        // Reused files give the same events.
        assert_eq!(said(SftParams { max_train_samples: limit, ..params(folder.path()) }, None).len(), events.len());
        events.into_iter().find_map(|event| match event {
            BuildEvent::Overlap { split, examples, trained } => Some((split, examples, trained)),
            _ => None,
        })
    };
    assert_eq!(overlaps(&[1, 2, 3], &[1, 2, 3], None), Some(("valid", 3, 3)));
    assert_eq!(overlaps(&[1, 2, 3], &[7, 3, 3], None), Some(("valid", 3, 2)));
    assert_eq!(overlaps(&[1, 2, 3], &[7, 3], Some(2)), None, "the third is not trained on");
    assert_eq!(overlaps(&[1, 2], &[7, 8], None), None);
}

#[test]
fn records_are_known_by_what_they_say_not_by_their_place() {
    let records = ["A", "B"].map(|answer| json!({ "prompt": "Q", "completion": answer }));
    let digest = |records: &[Value]| report(records, RecordKind::AsWritten, None).digest;
    let first = digest(&records);
    assert_eq!(digest(&records), first, "in another folder");
    let swapped = [records[1].clone(), records[0].clone()];
    assert!(digest(&swapped) != first && digest(&records[..1]) != first);
}
