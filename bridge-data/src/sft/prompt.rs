//! Prompts with their answers: the template that joins the fields of a record, and the truncation
//! of long examples.

use super::params::{ExampleOptions, TruncationMethod};

/// Names of prompts in lines that are read without a template.
const PROMPTS: [&str; 4] = ["input", "prompt", "question", "instruction"];

/// A part of a prompt: text of the template, or a field of a record with the blanks before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Field { blanks: &'t str, name: &'t str },
}

/// The parts of a template. A field takes the blanks before it, as upstream, so that they are
/// tokenized with its text.
pub(super) fn parts(template: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (Vec::new(), template);
    while let Some((before, name, after)) = next_field(rest) {
        let text = before.trim_end_matches(' ');
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        parts.push(Part::Field { blanks: &before[text.len()..], name });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

fn next_field(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('{')?;
    let close = open + text[open..].find('}')?;
    Some((&text[..open], &text[open + 1..close], &text[close + 1..]))
}

/// Refuses options that contradict each other.
///
/// # Errors
/// The setting and its allowed values, as a sentence.
pub(super) fn check(options: &ExampleOptions) -> Result<(), String> {
    let Some(template) = &options.prompt_template else {
        // A line's prompt may have any of these names.
        return match fields_to_shorten(options).find(|field| !PROMPTS.contains(field)) {
            Some(field) => Err(format!(
                "dataset.dataset_kwargs.truncation_field = {field:?}: without dataset.dataset_kwargs.prompt_template it must be the prompt, under one \
                 of the names {}, or nothing",
                PROMPTS.join(", ")
            )),
            None => Ok(()),
        };
    };
    let parts = parts(template);
    let label = &options.label_key;
    if !matches!(parts.last(), Some(Part::Field { name, .. }) if name == label) {
        return Err(format!(
            "dataset.dataset_kwargs.prompt_template = {template:?}: must end with {{{label}}}, the field of dataset.dataset_kwargs.label_key"
        ));
    }
    for field in fields_to_shorten(options) {
        if field == label || !parts.iter().any(|part| matches!(part, Part::Field { name, .. } if *name == field)) {
            return Err(format!(
                "dataset.dataset_kwargs.truncation_field = {field:?}: must be a field of dataset.dataset_kwargs.prompt_template = {template:?} \
                 before its label"
            ));
        }
    }
    Ok(())
}

/// The fields that may be shortened.
pub(super) fn fields_to_shorten(options: &ExampleOptions) -> impl Iterator<Item = &str> {
    options.truncation_field.split(',').map(str::trim).filter(|field| !field.is_empty())
}

/// Excess length of an example.
#[derive(Debug, Clone, Copy)]
pub(super) struct Excess {
    /// Tokens that have to go.
    pub(super) tokens: usize,
    /// Tokens that are kept free for an answer.
    pub(super) kept_free: usize,
    pub(super) method: TruncationMethod,
}

/// Shortens the pieces of an example, of which the last is its answer, as upstream's
/// `_multiple_truncation`: those at `places` by equal shares, of which the first ones are larger by
/// one; then, where these have too few, all pieces one after the other from the side that is cut.
pub(super) fn shorten(pieces: &mut [Vec<i64>], places: &[usize], excess: Excess) {
    let Excess { tokens: mut left, kept_free, method } = excess;
    if left == 0 {
        return;
    }
    let cut = |piece: &mut Vec<i64>, count: usize| match method {
        TruncationMethod::Right => piece.truncate(piece.len() - count),
        TruncationMethod::Left => drop(piece.drain(..count)),
    };
    let (each, more) = (left.checked_div(places.len()).unwrap_or(0), left.checked_rem(places.len()).unwrap_or(0));
    for (number, &place) in places.iter().enumerate() {
        let count = (each + usize::from(number < more)).min(pieces[place].len());
        left -= count;
        cut(&mut pieces[place], count);
    }
    if left == 0 {
        return;
    }
    if method == TruncationMethod::Right {
        left += pieces.last().map_or(0, Vec::len).min(kept_free);
    }
    let mut take = |piece: &mut Vec<i64>| {
        let count = left.min(piece.len());
        left -= count;
        cut(piece, count);
    };
    match method {
        TruncationMethod::Left => pieces.iter_mut().for_each(&mut take),
        TruncationMethod::Right => pieces.iter_mut().rev().for_each(&mut take),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_take_the_blanks_before_them() {
        let field = |blanks, name| Part::Field { blanks, name };
        assert_eq!(parts("{input} {output}"), [field("", "input"), field(" ", "output")]);
        assert_eq!(
            parts("Context:{a}  Q: {b}\nA:{label}"),
            [
                Part::Text("Context:"),
                field("", "a"),
                Part::Text("  Q:"),
                field(" ", "b"),
                Part::Text("\nA:"),
                field("", "label")
            ]
        );
        assert_eq!(parts("{a} end"), [field("", "a"), Part::Text(" end")]);
    }

    /// The expected pieces are those of upstream's function.
    #[test]
    fn what_is_too_long_is_shared_among_fields_and_then_cut_from_its_side() {
        use TruncationMethod::{Left, Right};
        let shortened = |places: &[usize], tokens, kept_free, method| {
            let mut pieces = vec![vec![1, 2, 3, 4], vec![9], vec![5, 6, 7], vec![10, 11]];
            shorten(&mut pieces, places, Excess { tokens, kept_free, method });
            pieces
        };
        // The first field gives the odd one.
        assert_eq!(shortened(&[0, 2], 3, 0, Right), [vec![1, 2], vec![9], vec![5, 6], vec![10, 11]]);
        assert_eq!(shortened(&[0, 2], 3, 0, Left), [vec![3, 4], vec![9], vec![6, 7], vec![10, 11]]);
        // A field with too few tokens: the remaining excess is cut from the side, including the
        // answer.
        assert_eq!(shortened(&[1], 4, 0, Right), [vec![1, 2, 3, 4], vec![], vec![5, 6], vec![]]);
        assert_eq!(shortened(&[1], 4, 0, Left), [vec![4], vec![], vec![5, 6, 7], vec![10, 11]]);
        assert_eq!(shortened(&[], 1, 0, Right), [vec![1, 2, 3, 4], vec![9], vec![5, 6, 7], vec![10]]);
        assert_eq!(shortened(&[0, 2], 9, 0, Left), [vec![], vec![], vec![], vec![11]]);
        // If more room is kept free than the answer needs, upstream cuts that much from the other
        // pieces as well.
        assert_eq!(shortened(&[], 1, 5, Right), [vec![1, 2, 3, 4], vec![9], vec![5, 6], vec![]]);
        assert_eq!(shortened(&[], 99, 5, Right), vec![Vec::<i64>::new(); 4]);
        assert_eq!(shortened(&[0], 0, 5, Right)[0], [1, 2, 3, 4]);
    }
}
