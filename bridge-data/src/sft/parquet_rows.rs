//! Rows of Parquet files, by the `parquet` crate.

use std::fs::File;

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::table;
use crate::untrusted_io;

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
        let rows = untrusted_io::contained(open).and_then(|rows| rows)?;
        Ok(Self { rows, number: 0 })
    }

    /// The next row as an object, and its number, from 1. Fails on a damaged row, as a sentence.
    pub(super) fn next_row(&mut self) -> Result<Option<(u64, Value)>, String> {
        self.number += 1;
        let number = self.number;
        let rows = &mut self.rows;
        let next = || rows.next().transpose().map_err(|error| error.to_string());
        let row =
            untrusted_io::contained(next).and_then(|row| row).map_err(|error| format!("row {number}: {error}"))?;
        let value = |row: Row| {
            let value = untrusted_io::contained(|| object(&row)).and_then(|value| value);
            value.map_err(|error| format!("row {number}: {error}"))
        };
        Ok(row.map(value).transpose()?.map(|value| (number, value)))
    }
}

/// A row, or a structure, as an object.
fn object(row: &Row) -> Result<Value, String> {
    let value = |(name, field): (&String, &Field)| {
        let value = json(field).map_err(|problem| match problem.starts_with("column `") {
            true => problem,
            false => format!("column `{name}`: {problem}"),
        })?;
        Ok((name.clone(), value))
    };
    row.get_column_iter().map(value).collect::<Result<Map<_, _>, String>>().map(Value::Object)
}

/// A value as JSON. Bytes are read as text, because text columns may lack the annotation.
fn json(field: &Field) -> Result<Value, String> {
    let float = |number: f64| serde_json::Number::from_f64(number).map(Value::Number).ok_or(table::NOT_FINITE);
    Ok(match field {
        Field::Float16(number) => float(f64::from(*number))?,
        Field::Float(number) => float(f64::from(*number))?,
        Field::Double(number) => float(*number)?,
        Field::Bytes(bytes) => Value::String(table::text(bytes.data())?.to_owned()),
        Field::Group(row) => object(row)?,
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(json).collect::<Result<_, _>>()?),
        Field::MapInternal(map) => {
            let pair = |(key, value): &(Field, Field)| {
                let key = match json(key)? {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                Ok((key, json(value)?))
            };
            Value::Object(map.entries().iter().map(pair).collect::<Result<_, String>>()?)
        }
        other => other.to_json_value(),
    })
}
