//! Cutting a long document into pieces that splits can divide: at blank lines, else at ends of
//! lines, else between characters. The pieces are sequences of one document: they are read one
//! after the other only where the order is not shuffled, and nothing stands between them.

/// Pieces of `text` of about `size` bytes, none longer than three times that; their concatenation
/// is the text.
pub(super) fn at_blank_lines(text: &str, size: usize) -> Vec<&str> {
    let size = size.max(1);
    let (mut pieces, mut rest) = (Vec::new(), text);
    // A short end would be a piece of its own.
    while rest.len() > size + size / 2 {
        let (piece, tail) = rest.split_at(cut_at(rest, size));
        pieces.push(piece);
        rest = tail;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// End of the first piece of `text`, which is longer than `size`.
fn cut_at(text: &str, size: usize) -> usize {
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at += 1;
        }
        at
    };
    // A piece is never empty.
    let (from, until) = (boundary((size / 2).max(1)), boundary(text.len().min(2 * size)));
    let middle = boundary(size);
    // Ends of lines, with whether a blank line follows. Among them the nearest to the wanted size
    // counts.
    let ends = || text[from..until].match_indices('\n').map(|(at, _)| from + at + 1).filter(|end| *end < text.len());
    let is_blank = |end: &usize| text[*end..].starts_with('\n') || text[*end..].starts_with("\r\n");
    let distance = |end: &usize| end.abs_diff(size);
    let spaces = || text[from..until].match_indices(' ').map(|(at, _)| from + at);
    let line = ends().filter(is_blank).min_by_key(distance).or_else(|| ends().min_by_key(distance));
    let at = line.or_else(|| spaces().min_by_key(distance)).unwrap_or(middle);
    // The blank line itself ends the piece before it.
    let blank = &text[at..];
    at + (blank.len() - blank.trim_start_matches(['\n', '\r']).len()).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_come_before_lines_and_lines_before_spaces() {
        let paragraphs = "one two\nthree\n\nfour five\n\nsix seven\r\n\r\neight\n";
        assert_eq!(at_blank_lines(paragraphs, 16), ["one two\nthree\n\n", "four five\n\n", "six seven\r\n\r\neight\n"]);
        assert_eq!(at_blank_lines("aaaa\nbbbb\ncccc\n", 5), ["aaaa\n", "bbbb\n", "cccc\n"]);
        assert_eq!(at_blank_lines("aaaa bbbb cccc", 5), ["aaaa", " bbbb", " cccc"]);
        assert_eq!(at_blank_lines("short", 16), ["short"]);
        assert!(at_blank_lines("", 16).is_empty());
    }

    #[test]
    fn nothing_is_lost_and_no_piece_is_long() {
        let texts = [
            "é".repeat(1000),
            "x".repeat(999),
            "\n".repeat(500),
            "a b\n\n".repeat(300),
            "日本語 テキスト\n".repeat(90),
        ];
        for (text, size) in texts.iter().flat_map(|text| [1, 2, 7, 64].map(|size| (text, size))) {
            let pieces = at_blank_lines(text, size);
            assert_eq!(&pieces.concat(), text);
            assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= 3 * size + 4), "{size}: {pieces:?}");
        }
    }
}
