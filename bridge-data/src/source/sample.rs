//! Samples of files by size: windows that lie evenly over the bytes of all files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::{DataError, untrusted_io};

/// Bytes of a window, if the sample has room for a thousand of them.
const WINDOW: u64 = 16 << 10;

/// Bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// Number of the file.
    pub(super) file: usize,
    /// First byte.
    pub(super) start: u64,
    /// End, exclusive.
    pub(super) end: u64,
    /// Size of the file.
    size: u64,
}

/// Windows of about `bytes` bytes together over files of these `sizes`, which have more. All bytes
/// form one row, which is divided into equal cells with a window each. The window begins with the
/// cell, or at the start of the largest file that begins in the cell, so that the first line of a
/// file with one long line is not missed. A window that ends beyond its file continues in the next
/// file.
pub(super) fn windows(sizes: &[u64], bytes: u64) -> Vec<Window> {
    let total = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let width = WINDOW.min((bytes / 1000).max(256)).min(bytes.max(1));
    let cells = (bytes / width).max(1);
    let cell = |number: u64| (u128::from(total) * u128::from(number) / u128::from(cells)) as u64;
    let starts: Vec<u64> = sizes
        .iter()
        .scan(0_u64, |next, size| {
            let start = *next;
            *next = next.saturating_add(*size);
            Some(start)
        })
        .collect();
    let (mut windows, mut done, mut first) = (Vec::<Window>::new(), 0, 0);
    for number in 0..cells {
        let (from, until) = (cell(number), cell(number + 1));
        let begin = starts.partition_point(|start| *start < from);
        let end = starts.partition_point(|start| *start < until);
        let largest = (begin..end).max_by_key(|file| (sizes[*file], std::cmp::Reverse(*file)));
        let mut at = largest.map_or(from, |file| starts[file]).max(done);
        done = at.saturating_add(width).min(total);
        while at < done {
            while starts[first].saturating_add(sizes[first]) <= at {
                first += 1;
            }
            let (start, size) = (at - starts[first], sizes[first]);
            let end = size.min(start + (done - at));
            match windows.last_mut() {
                Some(last) if last.file == first && last.end == start => last.end = end,
                _ => windows.push(Window { file: first, start, end, size }),
            }
            at += end - start;
        }
    }
    windows
}

fn open_at(path: &Path, start: u64) -> Result<File, DataError> {
    let (mut file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    file.seek(SeekFrom::Start(start)).map_err(DataError::io("read", path))?;
    Ok(file)
}

/// Calls `on` with start and length of each line that begins in the window.
pub(super) fn lines_from(path: &Path, window: &Window, mut on: impl FnMut(u64, usize)) -> Result<(), DataError> {
    // A line begins after the end of another: the byte before the window decides about its first
    // line.
    let before = u64::from(window.start > 0);
    let mut reader = BufReader::new(open_at(path, window.start - before)?);
    let mut start = window.start - before;
    let mut line = Vec::new();
    let mut is_cut = before > 0;
    while start < window.end {
        line.clear();
        let length = reader.read_until(b'\n', &mut line).map_err(DataError::io("read", path))?;
        if length == 0 {
            break;
        }
        if !is_cut {
            on(start, length);
        }
        is_cut = false;
        start += length as u64;
    }
    Ok(())
}

/// Start and length of the text of a window. Where the window cuts a file, its text begins and ends
/// with a line, or, if the window has too few lines, with a character.
pub(super) fn text_in(path: &Path, window: &Window) -> Result<(u64, usize), DataError> {
    let mut bytes = Vec::new();
    let file = open_at(path, window.start)?;
    file.take(window.end - window.start).read_to_end(&mut bytes).map_err(DataError::io("read", path))?;
    let is_inside = |byte: &u8| byte & 0xc0 == 0x80;
    let mut from = 0;
    if window.start > 0 {
        let line = bytes[..bytes.len() / 2].iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        from = line.unwrap_or_else(|| bytes.iter().take(3).take_while(|byte| is_inside(byte)).count());
    }
    let mut until = bytes.len();
    if window.end < window.size {
        let line = bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        until = line.filter(|at| *at > bytes.len() / 2).unwrap_or_else(|| {
            // The last character may be cut.
            let begin = bytes.iter().rev().take(4).position(|byte| !is_inside(byte)).map(|back| bytes.len() - 1 - back);
            begin.filter(|at| bytes[*at] >= 0x80).unwrap_or(bytes.len())
        });
    }
    let until = until.max(from);
    Ok((window.start + from as u64, until - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sizes: &[u64], bytes: u64) -> Vec<u64> {
        let mut shares = vec![0; sizes.len()];
        for window in windows(sizes, bytes) {
            assert!(window.start < window.end && window.end <= sizes[window.file]);
            shares[window.file] += window.end - window.start;
        }
        shares
    }

    #[test]
    fn files_have_shares_by_their_sizes_in_any_order() {
        for sizes in [[46, 30_000_000, 10_000_000], [30_000_000, 46, 10_000_000], [10_000_000, 30_000_000, 46]] {
            let shares = shares(&sizes, 4_000_000);
            for (size, share) in sizes.iter().zip(&shares) {
                let fair = size / 10;
                assert!(share.abs_diff(fair) <= 32_000, "{sizes:?}: {shares:?}");
            }
        }
        let many: Vec<u64> = (0..10_000).map(|number| number % 700).collect();
        let total: u64 = many.iter().sum();
        let half: u64 = shares(&many, total / 2).iter().sum();
        assert!(half.abs_diff(total / 2) < total / 50, "{half} of {total}");
        assert_eq!(shares(&[1000, 0, 2000], 1), [0, 0, 1]);
    }

    #[test]
    fn windows_begin_and_end_with_lines_or_characters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let text = |content: &str, start: u64, end: u64| {
            std::fs::write(&path, content).unwrap();
            let window = Window { file: 0, start, end, size: content.len() as u64 };
            let (start, length) = text_in(&path, &window).unwrap();
            content[start as usize..start as usize + length].to_owned()
        };
        assert_eq!(text("one\ntwo\nthree\nfour\n", 1, 16), "two\nthree\n");
        assert_eq!(text("one\ntwo", 0, 7), "one\ntwo");
        assert_eq!(text("日本語日本語", 1, 11), "本語");
        assert_eq!(text("日本語", 0, 9), "日本語");
        let lines = |start, end| {
            let mut found = Vec::new();
            let window = Window { file: 0, start, end, size: 12 };
            lines_from(&path, &window, |start, length| found.push((start, length))).unwrap();
            found
        };
        std::fs::write(&path, "abc\ndef\nghi").unwrap();
        assert_eq!(lines(0, 4), [(0, 4)]);
        assert_eq!(lines(4, 5), [(4, 4)]);
        assert_eq!(lines(5, 12), [(8, 3)]);
        assert_eq!(lines(1, 3), []);
    }
}
