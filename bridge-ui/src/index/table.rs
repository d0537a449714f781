//! The numbers of a metrics file as columns: for each kind of line the iterations, for each figure
//! its values. This file does not read files.

use std::collections::{BTreeMap, HashMap};

use super::line::{Line, numbers_of, slowly};

/// Maximum number of figures of a kind of line, and of kinds of lines: a file with more is not a
/// metrics file.
const MOST: usize = 4096;

/// Columns of a file.
#[derive(Debug, Default)]
pub struct Table {
    kinds: BTreeMap<String, Lines>,
    /// Number of lines that are not records.
    damaged: usize,
}

/// Lines of a kind.
#[derive(Debug, Default)]
struct Lines {
    iterations: Vec<u32>,
    columns: Vec<Column>,
    places: HashMap<String, usize>,
}

/// The values of a figure.
#[derive(Debug)]
struct Column {
    /// Name of the object that it is in, or nothing.
    within: String,
    name: String,
    rows: Rows,
    values: Values,
}

/// The lines that have the figure.
#[derive(Debug)]
enum Rows {
    /// All from this one to that of the last value.
    From(u32),
    At(Vec<u32>),
}

#[derive(Debug)]
enum Values {
    /// One value, repeated.
    Same(f64, usize),
    /// Each, to seven digits.
    Short(Vec<f32>),
    Each(Vec<f64>),
}

/// True if float32 represents a value to seven digits, and a count exactly.
fn is_short(value: f64) -> bool {
    !value.is_finite() || value == 0.0 || (1e-37..16_777_216.0).contains(&value.abs())
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Same(_, count) => *count,
            Self::Short(values) => values.len(),
            Self::Each(values) => values.len(),
        }
    }

    fn push(&mut self, value: f64) {
        match self {
            Self::Same(same, count) if *count == 0 || same.to_bits() == value.to_bits() => {
                (*same, *count) = (value, *count + 1);
            }
            Self::Same(same, count) if is_short(*same) && is_short(value) => {
                let mut values = vec![*same as f32; *count];
                values.push(value as f32);
                *self = Self::Short(values);
            }
            Self::Same(same, count) => {
                let mut values = vec![*same; *count];
                values.push(value);
                *self = Self::Each(values);
            }
            Self::Short(values) if is_short(value) => values.push(value as f32),
            Self::Short(values) => {
                let mut values: Vec<f64> = values.iter().copied().map(f64::from).collect();
                values.push(value);
                *self = Self::Each(values);
            }
            Self::Each(values) => values.push(value),
        }
    }
}

impl Column {
    fn push(&mut self, row: u32, value: f64) {
        let count = self.values.len();
        match &mut self.rows {
            Rows::From(first) if *first as usize + count == row as usize => {}
            Rows::From(first) => {
                let mut rows: Vec<u32> = (*first..*first + count as u32).collect();
                rows.push(row);
                self.rows = Rows::At(rows);
            }
            Rows::At(rows) => rows.push(row),
        }
        self.values.push(value);
    }

    fn bytes(&self) -> usize {
        let rows = if let Rows::At(rows) = &self.rows { rows.capacity() * 4 } else { 0 };
        let values = match &self.values {
            Values::Same(..) => 0,
            Values::Short(values) => values.capacity() * 4,
            Values::Each(values) => values.capacity() * 8,
        };
        rows + values
    }
}

impl Lines {
    fn add(&mut self, line: &Line<'_>, iteration: u64) {
        let Ok(row) = u32::try_from(self.iterations.len()) else { return };
        self.iterations.push(u32::try_from(iteration).unwrap_or(u32::MAX));
        for (expected, (within, name, value)) in line.numbers.iter().enumerate() {
            // Most lines have the figures of the one before.
            let is_there = self.columns.get(expected).is_some_and(|c| c.name == *name && c.within == *within);
            let place = if is_there { Some(expected) } else { self.place(within, name, row) };
            let Some(column) = place.map(|place| &mut self.columns[place]) else { continue };
            // A name that a line has twice has its first value.
            if column.values.len() == 0 || column.last_row() != row {
                column.push(row, *value);
            }
        }
    }

    fn place(&mut self, within: &str, name: &str, row: u32) -> Option<usize> {
        let full = full_name(within, name);
        if let Some(place) = self.places.get(&full) {
            return Some(*place);
        }
        if self.columns.len() == MOST {
            return None;
        }
        self.columns.push(Column {
            within: within.to_owned(),
            name: name.to_owned(),
            rows: Rows::From(row),
            values: Values::Same(0.0, 0),
        });
        self.places.insert(full, self.columns.len() - 1);
        Some(self.columns.len() - 1)
    }
}

impl Column {
    fn last_row(&self) -> u32 {
        match &self.rows {
            Rows::From(first) => *first + self.values.len() as u32 - 1,
            Rows::At(rows) => rows.last().copied().unwrap_or(0),
        }
    }
}

fn full_name(within: &str, name: &str) -> String {
    if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") }
}

/// The values of a figure with their iterations, in the order of the lines.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    iterations: &'a [u32],
    column: &'a Column,
}

impl Series<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.column.values.len()
    }

    /// Iteration and value at a place. Panics if there is no such place.
    pub fn get(&self, place: usize) -> (u32, f64) {
        let row = match &self.column.rows {
            Rows::From(first) => *first as usize + place,
            Rows::At(rows) => rows[place] as usize,
        };
        let value = match &self.column.values {
            Values::Same(value, _) => *value,
            Values::Short(values) => f64::from(values[place]),
            Values::Each(values) => values[place],
        };
        (self.iterations[row], value)
    }

    /// All, in order.
    pub fn points(&self) -> impl Iterator<Item = (u32, f64)> {
        (0..self.len()).map(|place| self.get(place))
    }
}

impl Table {
    /// Adds the whole lines of `text`; returns the bytes up to the end of the last one.
    pub fn add(&mut self, text: &[u8]) -> usize {
        let mut line = Line::default();
        let mut start = 0;
        while let Some(length) = text[start..].iter().position(|byte| *byte == b'\n') {
            let bytes = &text[start..start + length];
            start += length + 1;
            if line.read(bytes).is_some() {
                self.record(&line);
            } else if let Some(object) = slowly(bytes) {
                self.record(&numbers_of(&object));
            } else {
                self.damaged += usize::from(!bytes.is_empty());
            }
        }
        start
    }

    fn record(&mut self, line: &Line<'_>) {
        let Some(iteration) = line.iteration else { return };
        if let Some(lines) = self.kinds.get_mut(line.kind) {
            lines.add(line, iteration);
        } else if self.kinds.len() < MOST {
            self.kinds.entry(line.kind.to_owned()).or_default().add(line, iteration);
        }
    }

    /// A figure of a kind of line; a figure inside an object is called `OBJECT/NAME`.
    pub fn series(&self, kind: &str, name: &str) -> Option<Series<'_>> {
        let lines = self.kinds.get(kind)?;
        let column = &lines.columns[*lines.places.get(name)?];
        Some(Series { iterations: &lines.iterations, column })
    }

    /// Kinds of lines and names of figures.
    pub fn figures(&self) -> impl Iterator<Item = (&str, String)> {
        self.kinds.iter().flat_map(|(kind, lines)| {
            lines.columns.iter().map(move |column| (kind.as_str(), full_name(&column.within, &column.name)))
        })
    }

    /// Number of lines that are not records.
    pub fn damaged(&self) -> usize {
        self.damaged
    }

    /// Memory that it needs, in bytes.
    pub fn bytes(&self) -> usize {
        let of_kind =
            |lines: &Lines| lines.iterations.capacity() * 4 + lines.columns.iter().map(Column::bytes).sum::<usize>();
        self.kinds.values().map(of_kind).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_what_lines_have() {
        let text = b"{\"kind\":\"train\",\"iteration\":1,\"loss\":3,\"lr\":0.5}\n\
            {\"kind\":\"valid\",\"iteration\":1,\"loss\":9,\"losses\":{\"x\":1}}\n\
            {\"kind\":\"train\",\"iteration\":2,\"loss\":\"NaN\",\"lr\":0.5,\"new\":7}\nnothing\n\
            {\"kind\": \"train\", \"iteration\": 4, \"lr\": 0.25, \"list\": [1]}\n{\"kind\":\"train\",\"iter";
        let mut table = Table::default();
        let taken = table.add(text);
        assert_eq!(&text[taken..], b"{\"kind\":\"train\",\"iter");
        assert_eq!(table.damaged(), 1);
        let values = |kind: &str, name: &str| {
            let series = table.series(kind, name).unwrap();
            format!("{:?}", (0..series.len()).map(|place| series.get(place)).collect::<Vec<_>>())
        };
        assert_eq!(values("train", "loss"), "[(1, 3.0), (2, NaN)]");
        assert_eq!(values("train", "lr"), "[(1, 0.5), (2, 0.5), (4, 0.25)]");
        assert_eq!(values("train", "new"), "[(2, 7.0)]");
        assert_eq!(values("valid", "losses/x"), "[(1, 1.0)]");
        assert!(table.series("train", "list").is_none() && table.series("test", "loss").is_none());
        assert_eq!(table.figures().count(), 5);
    }

    #[test]
    fn values_keep_seven_digits_and_counts_all() {
        let mut table = Table::default();
        let values = [1.0, 1.0, 6.262_086_4, 1e-40, 16_777_217.0, -3e300];
        for (i, value) in values.iter().enumerate() {
            table.add(format!("{{\"kind\":\"train\",\"iteration\":{i},\"a\":{value}}}\n").as_bytes());
        }
        let a = table.series("train", "a").unwrap();
        for ((_, found), value) in a.points().zip(values) {
            assert!((found - value).abs() <= 1e-7 * value.abs(), "{found} {value}");
        }
        assert_eq!(a.get(4).1, 16_777_217.0);
    }

    #[test]
    fn a_figure_that_comes_and_goes_keeps_its_iterations() {
        let mut table = Table::default();
        for i in 1..=100 {
            let more = if i % 7 < 3 { format!(",\"some\":{i}") } else { String::new() };
            table.add(format!("{{\"kind\":\"train\",\"iteration\":{i}{more},\"loss\":1}}\n").as_bytes());
        }
        let some = table.series("train", "some").unwrap();
        assert_eq!(some.len(), (1..=100).filter(|i| i % 7 < 3).count());
        assert!((0..some.len()).all(|place| f64::from(some.get(place).0) == some.get(place).1));
        assert_eq!(table.series("train", "loss").unwrap().len(), 100);
    }
}
