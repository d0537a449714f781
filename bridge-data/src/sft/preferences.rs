//! Preferences: a prompt with two answers, in the spellings of trl, LLaMA-Factory and ms-swift.

use serde_json::{Value, json};

use super::fields::{Fields, is_nothing};
use super::messages::{Message, Words, messages_of};
use super::spellings::{
    NamedList, Spoken, answer_messages, finish, history, prompt_of, question_field, take_list, take_messages,
    take_system,
};

const CHOSEN: &str = "chosen";
const REJECTED: [&str; 3] = ["rejected", "rejected_response", "rejected_messages"];

/// A prompt with the preferred answer and the other one.
pub(super) enum Pair {
    /// Plain text.
    Text { prompt: String, answers: [String; 2] },
    /// Conversations of which the answers count.
    Chat(Box<[Spoken; 2]>),
}

/// Names of the answers, in their order.
pub(super) const ANSWERS: [&str; 2] = ["chosen", "rejected"];

/// The pair of a record. `is_chat`: text becomes messages. Fails on a missing field or another
/// type, as a sentence.
pub(super) fn pair(fields: &mut Fields<'_>, words: &Words, is_chat: bool) -> Result<Pair, String> {
    let [first, others @ ..] = REJECTED;
    if fields.look_at(CHOSEN).is_null()
        && let Some(rejected) = others.into_iter().find(|name| !is_nothing(fields.look_at(name)))
    {
        return of_messages(fields, words, rejected);
    }
    let (chosen, rejected) = (fields.take(CHOSEN), fields.take(first));
    if chosen.is_null() || rejected.is_null() {
        return Err(expected(fields));
    }
    let messages = take_prompt(fields, chosen)?;
    let question = question_field(fields);
    if let (Value::String(chosen), Value::String(rejected), None) = (chosen, rejected, &messages)
        && !(is_chat && question.is_some())
    {
        return text(fields, words, question, [chosen, rejected]);
    }
    let answers = [(CHOSEN, chosen), (first, rejected)].map(|(name, value)| {
        let messages = answer_messages(name, value, words)?;
        if messages.is_empty() { Err(expected(fields)) } else { Ok(messages) }
    });
    let [chosen, rejected] = answers;
    let (chosen, rejected) = (chosen?, rejected?);
    let are_whole = [&chosen, &rejected].map(|answer| answer[0].value["role"] != "assistant");
    if are_whole[0] != are_whole[1] {
        return Err("`chosen` and `rejected`: one begins with the assistant, the other does not".to_owned());
    }
    let (prompt, answers) = match (are_whole[0], messages, question) {
        (true, Some((key, list)), _) => whole(messages_of(key, &list, words)?, chosen, rejected)?,
        (true, None, question) => {
            let (prompt, answers) = divided(chosen, rejected);
            // The prompt that stands beside whole conversations is a message of them.
            let is_said = |text: &str| {
                prompt
                    .iter()
                    .any(|message| message.value["content"].as_str().is_some_and(|said| said.trim() == text.trim()))
            };
            if let Some(field) = question.filter(|field| fields.look_at(field).as_str().is_some_and(is_said)) {
                fields.take(field);
            }
            (prompt, answers)
        }
        (false, Some((key, list)), _) => {
            let mut prompt = history(fields, words)?;
            prompt.extend(messages_of(key, &list, words)?);
            (prompt, [chosen, rejected])
        }
        (false, None, Some(question)) => {
            let mut prompt = history(fields, words)?;
            let asked = json!({ "role": "user", "content": prompt_of(fields, question)? });
            prompt.extend(messages_of("prompt", &[asked], words)?);
            (prompt, [chosen, rejected])
        }
        (false, None, None) => {
            return Err(format!("the answers begin with the assistant, and there is no prompt: {}", expected(fields)));
        }
    };
    let system = take_system(fields)?;
    spoken(fields, words, prompt, answers, system)
}

/// The messages that are a prompt. A prompt that is text, and whole conversations as answers, leave
/// the messages beside them to other uses, such as `messages` of UltraFeedback.
fn take_prompt<'r>(fields: &mut Fields<'r>, chosen: &Value) -> Result<Option<NamedList<'r, 'static>>, String> {
    const BEGINNING: [&str; 5] = ["user", "human", "system", "prompter", "developer"];
    if fields.look_at("prompt").is_array() {
        return take_list(fields, &["prompt"]);
    }
    let first = chosen.as_array().and_then(|list| list.first());
    let role = first.and_then(|first| ["role", "from"].iter().find_map(|key| first[*key].as_str()));
    let is_whole = role.is_some_and(|role| BEGINNING.contains(&role.to_lowercase().as_str()));
    if is_whole || fields.look_at("prompt").is_string() { Ok(None) } else { take_messages(fields) }
}

/// A conversation whose last answer is preferred, beside another answer or another whole
/// conversation.
fn of_messages(fields: &mut Fields<'_>, words: &Words, rejected: &str) -> Result<Pair, String> {
    let value = fields.take(rejected);
    let Some((key, list)) = take_messages(fields)? else { return Err(expected(fields)) };
    let chosen = messages_of(key, &list, words)?;
    let other = answer_messages(rejected, value, words)?;
    let is_whole = other.first().is_some_and(|first| first.value["role"] != "assistant");
    let (prompt, answers) = match is_whole {
        true => divided(chosen, other),
        false => {
            let end = chosen.iter().rposition(|message| message.value["role"] != "assistant").map_or(0, |at| at + 1);
            let mut prompt = chosen;
            let chosen = prompt.split_off(end);
            (prompt, [chosen, other])
        }
    };
    if answers.iter().any(Vec::is_empty) {
        return Err(format!("{key}: expected an answer of the assistant at the end"));
    }
    let system = take_system(fields)?;
    spoken(fields, words, prompt, answers, system)
}

/// Two answers that are text.
fn text(
    fields: &mut Fields<'_>,
    words: &Words,
    question: Option<&str>,
    [chosen, rejected]: [&str; 2],
) -> Result<Pair, String> {
    if !history(fields, words)?.is_empty() {
        return Err(
            "`history`: earlier turns are written by a chat template: dataset.dataset_kwargs.chat = true".to_owned()
        );
    }
    let system = take_system(fields)?.map(|system| format!("{system}\n\n")).unwrap_or_default();
    if let Some(question) = question {
        let prompt = system + &prompt_of(fields, question)?;
        return Ok(Pair::Text { prompt, answers: [chosen.to_owned(), rejected.to_owned()] });
    }
    let [a, b]: [Vec<char>; 2] = [chosen, rejected].map(|text| text.chars().collect());
    if a.is_empty() || b.is_empty() {
        return Err(format!("there is no prompt, and an answer is empty: {}", expected(fields)));
    }
    let mut end = common(&a, &b, |a, b| a == b);
    if end > 0 && a[end - 1] == ' ' && a.get(end) != b.get(end) {
        end -= 1;
    }
    let rest = |text: &[char]| text[end..].iter().collect::<String>();
    let prompt = system + &a[..end].iter().collect::<String>();
    Ok(Pair::Text { prompt, answers: [rest(&a), rest(&b)] })
}

/// Items at which two lists agree from the first on. As in trl, the last item of the shorter list
/// is never included.
fn common<T>(a: &[T], b: &[T], is_same: impl Fn(&T, &T) -> bool) -> usize {
    let shorter = a.len().min(b.len());
    a.iter().zip(b).position(|(a, b)| !is_same(a, b)).unwrap_or(shorter.saturating_sub(1))
}

/// Whole conversations, divided after the messages that both begin with.
fn divided(mut chosen: Vec<Message>, mut rejected: Vec<Message>) -> (Vec<Message>, [Vec<Message>; 2]) {
    let end = common(&chosen, &rejected, |a, b| a.value == b.value);
    let answers = [chosen.split_off(end), rejected.split_off(end)];
    (chosen, answers)
}

/// A prompt beside answers that begin with another role than the assistant's: they have the prompt
/// within them, or go on after it.
fn whole(
    prompt: Vec<Message>,
    chosen: Vec<Message>,
    rejected: Vec<Message>,
) -> Result<(Vec<Message>, [Vec<Message>; 2]), String> {
    if begins_with(&chosen, &prompt) && begins_with(&rejected, &prompt) {
        return Ok(divided(chosen, rejected));
    }
    match prompt.last().is_some_and(|last| last.value["role"] == chosen[0].value["role"]) {
        true => {
            Err("the prompt is no part of `chosen` and `rejected`, which begin as whole conversations do".to_owned())
        }
        false => Ok((prompt, [chosen, rejected])),
    }
}

fn begins_with(messages: &[Message], first: &[Message]) -> bool {
    messages.len() >= first.len() && messages.iter().zip(first).all(|(a, b)| a.value == b.value)
}

/// Two conversations with the same prompt, of which the answers count.
fn spoken(
    fields: &mut Fields<'_>,
    words: &Words,
    mut prompt: Vec<Message>,
    answers: [Vec<Message>; 2],
    system: Option<String>,
) -> Result<Pair, String> {
    prompt.iter_mut().for_each(|message| message.weight = 0.0);
    let [chosen, rejected] = answers.map(|answer| {
        let messages = prompt.iter().cloned().chain(answer).collect();
        finish(fields, messages, system.clone(), words)
    });
    Ok(Pair::Chat(Box::new([chosen?, rejected?])))
}

fn expected(fields: &Fields<'_>) -> String {
    format!(
        "expected `prompt`, `chosen` and `rejected`, all text or all lists of messages; found the fields {}",
        fields.names()
    )
}
