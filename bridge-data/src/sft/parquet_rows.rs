//! Rows of Parquet files, by the `parquet` crate.

use std::fs::File;

use parquet::file::reader::SerializedFileReader;
use parquet::record::Row;
use parquet::record::reader::RowIter;
use serde_json::Value;

use crate::outside;

/// The rows of a file.
pub(super) struct Rows {
    rows: RowIter<'static>,
    number: u64,
}

impl Rows {
    /// # Errors
    /// A file of another format, or a damaged one, as a sentence.
    pub(super) fn open(file: File) -> Result<Self, String> {
        let open = || {
            let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
            Ok(RowIter::from_file_into(Box::new(reader)))
        };
        let rows = outside::contained(open).and_then(|rows| rows)?;
        Ok(Self { rows, number: 0 })
    }

    /// The next row as an object, and its number, from 1.
    ///
    /// # Errors
    /// A damaged row, as a sentence.
    pub(super) fn next_row(&mut self) -> Result<Option<(u64, Value)>, String> {
        self.number += 1;
        let number = self.number;
        let rows = &mut self.rows;
        let next = || rows.next().transpose().map_err(|error| error.to_string());
        let row = outside::contained(next).and_then(|row| row).map_err(|error| format!("row {number}: {error}"))?;
        let value =
            |row: Row| outside::contained(|| row.to_json_value()).map_err(|error| format!("row {number}: {error}"));
        Ok(row.map(value).transpose()?.map(|value| (number, value)))
    }
}
