//! Differences between two tokenizers, so that ids of one are not mistaken for ids of the other.
//! The caller decides on the consequence.

use std::fmt;

use serde_json::{Map, Value};

use super::HuggingFaceTokenizer;

/// Relation of a tokenizer to another, which is the first of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Every text has the same ids.
    Same,
    /// The tokenizer has every id of the other, with the same meaning, and this many more.
    Extends(usize),
    /// The same text may have other ids.
    Differs(Difference),
}

/// The first thing in which two tokenizers differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the property.
    pub what: String,
    /// Value in the first.
    pub first: String,
    /// Value in the second.
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} there, {} here", self.what, self.first, self.second)
    }
}

/// Parts of a `tokenizer.json` that training text never meets, besides the tokens, which are
/// compared one by one.
const OTHER_PARTS: [&str; 6] = ["version", "truncation", "padding", "added_tokens", "model", "post_processor"];

/// Compares `second` with `first`: tokens by id, merges in their order, then every other part that
/// decides about ids.
pub fn compare(first: &HuggingFaceTokenizer, second: &HuggingFaceTokenizer) -> Comparison {
    if first.json() == second.json() {
        return Comparison::Same;
    }
    let [one, two] = [first, second].map(|tokenizer| parse(tokenizer.json()));
    let [tokens_one, tokens_two] = [first, second].map(HuggingFaceTokenizer::tokens);
    if let Some(id) =
        (0..tokens_one.len()).find(|&id| tokens_one[id].as_ref() != tokens_two.get(id).and_then(Option::as_ref))
    {
        let name = |tokens: &[Option<String>]| match tokens.get(id) {
            Some(Some(token)) => format!("{token:?}"),
            _ => "no token".to_owned(),
        };
        return differs(format!("token {id}"), name(&tokens_one), name(&tokens_two));
    }
    let [merges_one, merges_two] = [&one, &two].map(merges);
    let length = merges_one.len().max(merges_two.len());
    if let Some(index) = (0..length).find(|&index| merges_one.get(index) != merges_two.get(index)) {
        let pair = |merges: &[Value]| merges.get(index).map_or("no merge".to_owned(), Value::to_string);
        return differs(format!("merge {index}"), pair(merges_one), pair(merges_two));
    }
    let parts = |tokenizer: &Map<String, Value>| {
        let mut parts = tokenizer.clone();
        parts.retain(|name, value| !OTHER_PARTS.contains(&name.as_str()) && !value.is_null());
        if let Some(Value::Object(model)) = tokenizer.get("model") {
            let settings = model.iter().filter(|(name, value)| !is_table_of_tokens(name) && !value.is_null());
            parts.extend(settings.map(|(name, value)| (format!("model.{name}"), value.clone())));
        }
        parts
    };
    let (parts_one, parts_two) = (parts(&one), parts(&two));
    let mut names = parts_one.keys().chain(parts_two.keys());
    if let Some(name) = names.find(|name| parts_one.get(*name) != parts_two.get(*name)) {
        let part = |parts: &Map<String, Value>| shortened(&parts.get(name).unwrap_or(&Value::Null).to_string());
        return differs(name.clone(), part(&parts_one), part(&parts_two));
    }
    match tokens_two.len() - tokens_one.len() {
        0 => Comparison::Same,
        more => Comparison::Extends(more),
    }
}

fn differs(what: String, first: String, second: String) -> Comparison {
    Comparison::Differs(Difference { what, first, second })
}

fn parse(json: &str) -> Map<String, Value> {
    // The JSON was written by the library that reads it.
    serde_json::from_str(json).unwrap_or_default()
}

fn merges(tokenizer: &Map<String, Value>) -> &[Value] {
    let merges = tokenizer.get("model").and_then(|model| model.get("merges")).and_then(Value::as_array);
    merges.map_or(&[], Vec::as_slice)
}

fn is_table_of_tokens(name: &str) -> bool {
    matches!(name, "vocab" | "merges")
}

fn shortened(text: &str) -> String {
    const LENGTH: usize = 80;
    let start: String = text.chars().take(LENGTH).collect();
    if start.len() < text.len() { format!("{start}...") } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{BpeTrainParams, train_byte_level_bpe};

    fn trained(text: &str, vocab_size: usize) -> HuggingFaceTokenizer {
        let params = BpeTrainParams { vocab_size, ..BpeTrainParams::default() };
        train_byte_level_bpe(&params, std::iter::once(text.to_owned())).unwrap()
    }

    const TEXT: &str = "the thing that they thought was there, and this and that, was then the other thing";

    #[test]
    fn the_same_text_gives_the_same_tokenizer() {
        assert_eq!(compare(&trained(TEXT, 270), &trained(TEXT, 270)), Comparison::Same);
    }

    #[test]
    fn other_text_is_told_by_its_first_token() {
        let Comparison::Differs(difference) = compare(&trained(TEXT, 270), &trained("zz zz zzz zz zz qq qq", 260))
        else {
            panic!("they differ");
        };
        assert!(difference.what.starts_with("token 25"), "{difference}");
        assert!(
            difference.to_string().contains(" there, ") && difference.to_string().ends_with(" here"),
            "{difference}"
        );
    }

    #[test]
    fn more_special_tokens_extend_and_fewer_differ() {
        let plain = || trained(TEXT, 270);
        let more = plain().with_special_tokens(&["<|user|>".to_owned(), "<|end|>".to_owned()]).unwrap();
        assert_eq!(compare(&plain(), &more), Comparison::Extends(2));
        assert!(matches!(compare(&more, &plain()), Comparison::Differs(_)));
    }

    #[test]
    fn more_merges_are_another_tokenizer() {
        let Comparison::Differs(difference) = compare(&trained(TEXT, 265), &trained(TEXT, 270)) else {
            panic!("more merges change what a text's ids are");
        };
        assert!(difference.what.starts_with("merge "), "{difference}");
        assert_eq!(difference.first, "no merge");
    }
}
