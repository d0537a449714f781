//! Comparison of names: without case and separators, and by their words.

use std::collections::BTreeSet;

/// `learningRate`, `--learning-rate` and `Learning_Rate` as `learning_rate`; the parts of a path
/// stay apart.
pub(super) fn normal(path: &str) -> Vec<String> {
    path.split(['.', '/', ':']).filter(|part| !part.is_empty()).map(normal_part).collect()
}

fn normal_part(part: &str) -> String {
    let mut normal = String::with_capacity(part.len() + 4);
    let mut previous = '_';
    for c in part.chars() {
        let is_separator = !c.is_alphanumeric();
        let begins_word = c.is_uppercase() && (previous.is_lowercase() || previous.is_ascii_digit());
        if (is_separator || begins_word) && !normal.is_empty() && !normal.ends_with('_') {
            normal.push('_');
        }
        if !is_separator {
            normal.extend(c.to_lowercase());
        }
        previous = c;
    }
    normal.trim_end_matches('_').to_owned()
}

/// A name without separators.
pub(super) fn collapsed(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// The words of a name, each by the first word of its group; those of the last group say nothing.
pub(super) fn words<'w>(name: &'w str, groups: &'w [String]) -> BTreeSet<&'w str> {
    let (fillers, groups) = groups.split_last().map_or(("", groups), |(last, rest)| (last.as_str(), rest));
    let is_filler = |word: &str| fillers.split(' ').any(|filler| filler == word);
    let representative = |word: &'w str| {
        let group = groups.iter().find(|group| group.split(' ').any(|other| other == word));
        group.and_then(|group| group.split(' ').next()).unwrap_or(word)
    };
    name.split('_').filter(|word| !word.is_empty() && !is_filler(word)).map(representative).collect()
}

/// Share of the words of two names that both have: 0 to 1.
pub(super) fn likeness(a: &BTreeSet<&str>, b: &BTreeSet<&str>) -> f64 {
    let both = a.intersection(b).count();
    both as f64 / (a.len() + b.len() - both).max(1) as f64
}
