//! Upstream's rules for the size of the vocabulary, which concern both `[tokenizer]` and `[model]`.

use super::super::node::{Data, Entry, Node};
use super::entries::{TARGET, fields_of, is_true, set, take, text, value};

/// Applies `use_tokenizer_vocab_size`, and converts the size of upstream's `NullTokenizer`.
pub(super) fn settings_of(sections: &mut [Entry]) {
    let of = |name: &str| value(sections, name).and_then(Node::entries);
    let has_model = sections.iter().any(|section| section.key == "model");
    let Some(entries) = of("tokenizer").filter(|_| has_model) else { return };
    if value(entries, TARGET).is_none() {
        return;
    }
    let is_derived = is_true(entries, "use_tokenizer_vocab_size");
    let is_null = text(entries, "tokenizer_type") == Some("NullTokenizer");
    let size = value(entries, "vocab_size").map(|node| node.data.clone());
    let has_eod = entries.iter().any(|entry| entry.key == "null_tokenizer_eod_id");
    let of_model = of("model").and_then(|model| value(model, "vocab_size"));
    // Upstream's tokenizer of N tokens ends documents with token N - 1. Bridge's ends them with
    // token N, as Megatron's did before it had this field, and so does not fit into N rows.
    let is_counted = has_eod || of_model.is_some_and(|node| Some(&node.data) == size.as_ref());
    if let (true, true, Some(Data::Int(size))) = (is_null, is_counted, size)
        && let Some(entries) = fields_of(sections, "tokenizer")
    {
        set(entries, "vocab_size", Data::Int(size - 1));
    }
    if is_derived {
        // Upstream then ignores the model's size, and saves the tokenizer's in its place.
        if let Some(entries) = fields_of(sections, "model") {
            take(entries, "vocab_size");
            take(entries, "should_pad_vocab");
        }
        if let Some(entries) = fields_of(sections, "tokenizer") {
            take(entries, "use_tokenizer_vocab_size");
        }
    }
}
