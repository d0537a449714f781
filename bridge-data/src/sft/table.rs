//! Message for table values that JSON lacks: the same for all formats.

/// Message for a number that is infinite or NaN: it would be read as a missing value.
pub(super) const NOT_FINITE: &str = "has a number that is not finite (NaN or infinity)";

/// The text of a binary value, which programs write for columns without a type. Fails on bytes that
/// are not UTF-8, as a sentence.
pub(super) fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| {
        "has bytes that are not UTF-8 text, and no values of JSON: leave the column out, or write it as text or numbers"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use crate::sft::parquet_rows::Rows;

    /// Two rows: bytes, a number of 64 bits and one of 32 bits.
    fn written(path: &Path, bytes: &[u8], double: f64, float: f32) {
        let schema = "message m { required binary b; required double d; required float f; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values = [ByteArray::from("hello"), ByteArray::from(bytes.to_vec())];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[0.5, double], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<FloatType>().write_batch(&[0.25, float], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn what_json_has_not_is_named_and_bytes_are_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training.parquet");
        let rows = |bytes: &[u8], double: f64, float: f32| {
            written(&path, bytes, double, float);
            let mut rows = Rows::open(std::fs::File::open(&path).unwrap()).unwrap();
            let first = rows.next_row().unwrap().unwrap();
            assert_eq!(first, (1, serde_json::json!({ "b": "hello", "d": 0.5, "f": 0.25 })));
            rows.next_row()
        };
        let second = rows("é".as_bytes(), 2.0, 3.0).unwrap().unwrap();
        assert_eq!(second, (2, serde_json::json!({ "b": "é", "d": 2.0, "f": 3.0 })));
        let of_bytes = rows(b"\xff", 2.0, 3.0).unwrap_err();
        assert!(of_bytes.starts_with("row 2: column `b`: has bytes that are not UTF-8 text"), "{of_bytes}");
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let problem = rows(b"x", number, 3.0).unwrap_err();
            assert!(problem.starts_with("row 2: column `d`: has a number that is not finite"), "{problem}");
            let problem = rows(b"x", 2.0, number as f32).unwrap_err();
            assert!(problem.starts_with("row 2: column `f`: has a number that is not finite"), "{problem}");
        }
    }
}
