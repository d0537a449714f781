//! Train, valid and test: the split string and its ranges of the data. Index arrays are built in
//! `index`.

use std::ops::Range;

use crate::DataError;

/// The three parts of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Training data.
    Train,
    /// Validation data.
    Valid,
    /// Data of the test at the end.
    Test,
}

impl Split {
    /// In the order of split strings.
    pub const ALL: [Self; 3] = [Self::Train, Self::Valid, Self::Test];

    /// Name in messages and cache files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Valid => "valid",
            Self::Test => "test",
        }
    }
}

/// A split string such as `"969,30,1"` and the fractions of the data each part takes.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitMatrix {
    text: String,
    fractions: [Option<(f64, f64)>; 3],
}

impl SplitMatrix {
    /// Parses a split string: up to three non-negative numbers, in any unit; missing ones are 0.
    ///
    /// # Errors
    /// No number, more than three, one that is malformed, or a sum of zero.
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let bad = |why: String| {
            DataError::Parameter(format!(
                "split = {text:?}: {why}; expected up to three non-negative numbers such as \"969,30,1\""
            ))
        };
        if text.contains('-') {
            return Err(bad("negative numbers are not allowed".into()));
        }
        let numbers = text
            .split(|c: char| !(c.is_ascii_digit() || c == '.'))
            .filter(|number| !number.is_empty())
            .map(|number| number.parse::<f64>().map_err(|_| bad(format!("{number:?} is not a number"))))
            .collect::<Result<Vec<f64>, _>>()?;
        if numbers.is_empty() || numbers.len() > 3 {
            return Err(bad(format!("found {} numbers", numbers.len())));
        }
        let mut shares = [0.0; 3];
        shares[..numbers.len()].copy_from_slice(&numbers);
        let sum: f64 = shares.iter().sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Err(bad(format!("the numbers sum to {sum}")));
        }
        let mut end = 0.0;
        let fractions = shares.map(|share| {
            let begin = end;
            end += share / sum;
            (share > 0.0).then_some((begin, end))
        });
        Ok(Self { text: text.to_owned(), fractions })
    }

    /// Everything goes to one split.
    pub fn whole(split: Split) -> Self {
        let mut fractions = [None; 3];
        fractions[split as usize] = Some((0.0, 1.0));
        Self { text: String::new(), fractions }
    }

    /// The string it was parsed from; `None` for [`SplitMatrix::whole`].
    pub fn text(&self) -> Option<&str> {
        (!self.text.is_empty()).then_some(&self.text)
    }

    /// The fractions of the data at which `split` begins and ends; `None` if its proportion is 0.
    pub fn fraction(&self, split: Split) -> Option<(f64, f64)> {
        self.fractions[split as usize]
    }

    /// The sequences of `split` out of `sequences`; `None` if its proportion is 0.
    pub fn range(&self, split: Split, sequences: usize) -> Option<Range<usize>> {
        let cut = |fraction: f64| ((fraction * sequences as f64).round_ties_even() as usize).min(sequences);
        self.fraction(split).map(|(begin, end)| cut(begin)..cut(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str, sequences: usize) -> [Option<Range<usize>>; 3] {
        let matrix = SplitMatrix::parse(text).expect("valid split");
        Split::ALL.map(|split| matrix.range(split, sequences))
    }

    #[test]
    fn shares_become_ranges() {
        assert_eq!(ranges("1,1,1", 100_000), [Some(0..33333), Some(33333..66667), Some(66667..100_000)]);
        assert_eq!(ranges("99 , 1", 100), [Some(0..99), Some(99..100), None]);
        assert_eq!(ranges("0.5/0/.5", 5), [Some(0..2), None, Some(2..5)]);
        assert_eq!(ranges("1", 0), [Some(0..0), None, None]);
    }

    #[test]
    fn fractions_accumulate_like_upstream() {
        let matrix = SplitMatrix::parse("70,20,10").expect("valid split");
        assert_eq!(matrix.fraction(Split::Valid), Some((0.7, 0.899_999_999_999_999_9)));
        assert_eq!(matrix.fraction(Split::Test), Some((0.899_999_999_999_999_9, 0.999_999_999_999_999_9)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "1,2,3,4", "0,0,0", "-1,2,3", "1.2.3", "1,-1"] {
            let error = SplitMatrix::parse(text).expect_err(text).to_string();
            assert!(error.contains("split = "), "{error}");
        }
    }
}
