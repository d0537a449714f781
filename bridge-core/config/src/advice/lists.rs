//! Lists as Megatron-LM takes them on its command line, in Python: `[0]*3+[1]*58` and
//! `([1]*2+[0])*4`.

use super::super::node::{Data, Node};

/// No longer text is read.
const LONGEST_TEXT: usize = 200;
/// No longer list is written out: no model has more layers.
const LONGEST_LIST: usize = 512;

/// List that a sum of repeated lists of integers denotes; `None` if a text is not such a sum.
pub(super) fn as_in_python(text: &str) -> Option<Node> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    // A single list without `*` and `+` is a list in TOML too.
    if text.len() > LONGEST_TEXT || !text.contains(['*', '+']) {
        return None;
    }
    let (items, rest) = sum(&text)?;
    rest.is_empty().then(|| Data::List(items.into_iter().map(|item| Data::Int(item).into()).collect()).into())
}

/// Value of `a+b+...` at the beginning of a text, and the rest of the text.
fn sum(text: &str) -> Option<(Vec<i128>, &str)> {
    let (mut items, mut rest) = product(text)?;
    while let Some(behind) = rest.strip_prefix('+') {
        let (more, behind) = product(behind)?;
        items.extend(more);
        rest = behind;
    }
    (items.len() <= LONGEST_LIST).then_some((items, rest))
}

/// Value of `[1,0]`, `[0]*3` or `(...)*4` at the beginning of a text, and the rest of the text.
fn product(text: &str) -> Option<(Vec<i128>, &str)> {
    let (items, rest) = match text.strip_prefix('(') {
        Some(inner) => {
            let (items, behind) = sum(inner)?;
            (items, behind.strip_prefix(')')?)
        }
        None => {
            let (inner, behind) = text.strip_prefix('[')?.split_once(']')?;
            (inner.split(',').map(|item| item.parse().ok()).collect::<Option<_>>()?, behind)
        }
    };
    let Some(behind) = rest.strip_prefix('*') else { return Some((items, rest)) };
    let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    let (times, behind) = behind.split_at(end);
    let times: usize = times.parse().ok()?;
    let length = items.len().checked_mul(times)?;
    (length <= LONGEST_LIST).then(|| (items.repeat(times), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_in_python() {
        for (text, expected) in [
            ("[0]*3+[1]*2", "[0, 0, 0, 1, 1]"),
            ("([0] * 1 + [1] * 2)", "[0, 1, 1]"),
            ("([1,1,0]+[0])*2", "[1, 1, 0, 0, 1, 1, 0, 0]"),
        ] {
            assert_eq!(as_in_python(text).expect(text).to_inline(), expected, "{text}");
        }
        let nested = format!("{}[0]*2", "(".repeat(99));
        for text in
            ["[0]", "[0]*", "[0]*3+", "[0]*3)", "[a]*3", "1+1", "[0]*999999999", "([0]*400)*400", nested.as_str()]
        {
            assert_eq!(as_in_python(text), None, "{text}");
        }
    }
}
