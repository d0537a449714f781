//! Tokens as readable text, which marks the tokens that count for the loss.

use bridge_core::logging::terminal::printable;
use bridge_data::tokenizer::Tokenizer;
use dialoguer::console::{Style, colors_enabled};

/// Role of a token in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The token's prediction counts.
    Counted,
    /// The token is not predicted, or the data excludes it from the loss.
    LeftOut,
}

/// The text of `ids`. On a terminal, adjacent tokens have two colours, and those that do not count
/// are dim; elsewhere these stand between `⟦` and `⟧`. Ids that the tokenizer does not know are
/// shown as numbers.
pub fn paint(tokenizer: &dyn Tokenizer, ids: &[i64], part: impl Fn(usize) -> Part) -> String {
    if colors_enabled() { coloured(tokenizer, ids, part) } else { bracketed(tokenizer, ids, part) }
}

fn coloured(tokenizer: &dyn Tokenizer, ids: &[i64], part: impl Fn(usize) -> Part) -> String {
    let styles = [Style::new().cyan(), Style::new().yellow()];
    let mut painted = String::new();
    for (number, (start, text)) in pieces(tokenizer, ids, &part).into_iter().enumerate() {
        let style = match part(start) {
            Part::Counted => styles[number % 2].clone(),
            Part::LeftOut => Style::new().dim(),
        };
        // A style ends where a line does, so that a pager shows each line in its own.
        let text = printable(&text);
        let lines: Vec<String> = text.split('\n').map(|line| style.apply_to(line).to_string()).collect();
        painted.push_str(&lines.join("\n"));
    }
    painted
}

fn bracketed(tokenizer: &dyn Tokenizer, ids: &[i64], part: impl Fn(usize) -> Part) -> String {
    let (mut painted, mut before) = (String::new(), Part::Counted);
    for (start, text) in pieces(tokenizer, ids, &part) {
        let now = part(start);
        match (before, now) {
            (Part::Counted, Part::LeftOut) => painted.push('⟦'),
            (Part::LeftOut, Part::Counted) => painted.push('⟧'),
            (Part::Counted, Part::Counted) | (Part::LeftOut, Part::LeftOut) => {}
        }
        painted.push_str(&text);
        before = now;
    }
    if before == Part::LeftOut {
        painted.push('⟧');
    }
    painted
}

/// Runs of tokens that are whole characters together, each with the place of its first token. None
/// goes from tokens that count to others.
fn pieces(tokenizer: &dyn Tokenizer, ids: &[i64], part: &impl Fn(usize) -> Part) -> Vec<(usize, String)> {
    // A character has at most four bytes, and a token at least one of them.
    const LONGEST: usize = 4;
    let (mut pieces, mut start, mut before) = (Vec::new(), 0, 0..0);
    while start < ids.len() {
        let same = (start..ids.len().min(start + LONGEST)).take_while(|at| part(*at) == part(start)).count();
        // The text of a token depends on the previous token, because tokenizers may put spaces
        // between them.
        let text_of = |length: usize| {
            let all = tokenizer.decode(&ids[before.start..start + length]).ok()?;
            let context = tokenizer.decode(&ids[before.clone()]).ok()?;
            all.strip_prefix(context.as_str()).map(str::to_owned)
        };
        let whole = (1..=same)
            .find_map(|length| text_of(length).filter(|text| !text.contains('\u{fffd}')).map(|text| (length, text)));
        let (length, text) = whole.unwrap_or_else(|| (1, text_of(1).unwrap_or_else(|| format!("<{}>", ids[start]))));
        pieces.push((start, text));
        before = start..start + length;
        start += length;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use bridge_data::tokenizer::{BpeTrainParams, NullTokenizer, train_byte_level_bpe};

    use super::*;

    #[test]
    fn characters_of_several_tokens_stay_whole() {
        let params = BpeTrainParams { vocab_size: 257, ..BpeTrainParams::default() };
        let tokenizer = train_byte_level_bpe(&params, ["ab".to_owned()].into_iter()).expect("trained");
        let ids = tokenizer.encode("aé🙂b").expect("encoded");
        assert_eq!(ids.len(), 8);
        let texts = |ids: &[i64]| {
            pieces(&tokenizer, ids, &|_| Part::Counted).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(texts(&ids), ["a", "é", "🙂", "b"]);
        assert_eq!(texts(&ids[2..]), ["\u{fffd}", "🙂", "b"]);
        assert_eq!(texts(&[99_999]), ["<99999>"]);
        let numbers =
            bracketed(&NullTokenizer::new(9), &[1, 2, 3], |at| if at == 0 { Part::LeftOut } else { Part::Counted });
        assert_eq!(numbers, "⟦1⟧ 2 3");
        let part = |at: usize| if at == 0 || at > 6 { Part::LeftOut } else { Part::Counted };
        assert_eq!(bracketed(&tokenizer, &ids, part), "⟦a⟧é🙂⟦b⟧");
        let painted = coloured(&tokenizer, &ids, part);
        assert!(painted.contains("é"), "{painted}");
    }
}
