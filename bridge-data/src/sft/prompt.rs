//! Prompts with their answers: the template that joins the fields of a record, and what is cut off of what is too long.

use super::params::{ExampleOptions, TruncationMethod};

/// A part of a prompt: text of the template, or a field of a record with the blanks before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Field { blanks: &'t str, name: &'t str },
}

/// The parts of a template. A field takes the blanks before it, as upstream, so that they are tokenized with its text.
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
/// The setting and what it must be, as a sentence.
pub(super) fn check(options: &ExampleOptions) -> Result<(), String> {
    let Some(template) = &options.prompt_template else {
        return Ok(());
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

/// Shortens the pieces at `places` of what comes before an answer by `excess` tokens in all, each by about as much, the last ones by more.
/// A piece that has fewer is emptied.
pub(super) fn shorten(pieces: &mut [Vec<i64>], places: &[usize], excess: usize, method: TruncationMethod) {
    if places.is_empty() {
        return;
    }
    let (each, more) = (excess / places.len(), excess % places.len());
    for (number, &place) in places.iter().enumerate() {
        let piece = &mut pieces[place];
        let count = (each + usize::from(number >= places.len() - more)).min(piece.len());
        match method {
            TruncationMethod::Right => piece.truncate(piece.len() - count),
            TruncationMethod::Left => drop(piece.drain(..count)),
        }
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

    #[test]
    fn what_is_too_long_is_shared_among_fields() {
        let pieces = || vec![vec![1, 2, 3, 4], vec![9], vec![5, 6, 7]];
        let shortened = |excess, method| {
            let mut pieces = pieces();
            shorten(&mut pieces, &[0, 2], excess, method);
            pieces
        };
        assert_eq!(shortened(3, TruncationMethod::Right), [vec![1, 2, 3], vec![9], vec![5]]);
        assert_eq!(shortened(3, TruncationMethod::Left), [vec![2, 3, 4], vec![9], vec![7]]);
        assert_eq!(shortened(99, TruncationMethod::Left), [vec![], vec![9], vec![]]);
    }
}
