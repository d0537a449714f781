//! The columns of an Arrow file: names and types, as its schema has them (Schema.fbs of the Arrow
//! format).

use super::flatbuffer::{Broken, Table};

/// Most levels of lists and structures.
const DEEPEST: usize = 32;
/// Most columns, including nested ones.
const MOST_FIELDS: usize = 10_000;

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub kind: Kind,
    /// The number of the dictionary that has the values, and the type of the places in it.
    pub dictionary: Option<(i64, Number)>,
    pub children: Vec<Field>,
}

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Number(Number),
    /// With offsets of 32 or 64 bits.
    Text(Offsets),
    /// Short texts beside their lengths, long ones in buffers of their own.
    TextView,
    List(Offsets),
    FixedList(usize),
    Struct,
    Map,
}

/// Width of the offsets of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offsets {
    Short,
    Long,
}

/// Number of a given width. Dates and times are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Signed(usize),
    Unsigned(usize),
    Float(usize),
}

/// The columns of a schema.
pub fn fields(schema: Table<'_>) -> Result<Vec<Field>, String> {
    if schema.short(0).map_err(broken)? != 0 {
        return Err("has numbers whose first byte is the highest (big-endian), which are not read".into());
    }
    let mut count = 0;
    schema.tables(1).map_err(broken)?.into_iter().map(|field| read(field, 0, &mut count)).collect()
}

/// Error text of broken tables.
pub fn broken(_: Broken) -> String {
    "its description is damaged".to_owned()
}

fn read(field: Table<'_>, depth: usize, count: &mut usize) -> Result<Field, String> {
    let name = field.text(0).map_err(broken)?.to_owned();
    *count += 1;
    if depth > DEEPEST || *count > MOST_FIELDS {
        return Err(format!("column `{name}`: has more than {DEEPEST} levels or {MOST_FIELDS} columns"));
    }
    let of_column = |problem: String| format!("column `{name}`: {problem}");
    let children = field.tables(5).map_err(broken)?;
    let children = children.into_iter().map(|child| read(child, depth + 1, count)).collect::<Result<Vec<_>, _>>()?;
    let kind = kind(field).map_err(of_column)?;
    let expected = match kind {
        Kind::List(_) | Kind::FixedList(_) | Kind::Map => Some(1),
        Kind::Struct => None,
        Kind::Null | Kind::Bool | Kind::Number(_) | Kind::Text(_) | Kind::TextView => Some(0),
    };
    let is_map_of_pairs = kind != Kind::Map || children.first().is_some_and(|pairs| pairs.children.len() == 2);
    if expected.is_some_and(|expected| children.len() != expected) || !is_map_of_pairs {
        return Err(of_column(broken(Broken)));
    }
    Ok(Field { dictionary: dictionary(field).map_err(of_column)?, name: name.clone(), kind, children })
}

fn dictionary(field: Table<'_>) -> Result<Option<(i64, Number)>, String> {
    let Some(encoding) = field.table(4).map_err(broken)? else { return Ok(None) };
    let places = match encoding.table(1).map_err(broken)? {
        Some(places) => int(places)?,
        None => Number::Signed(4),
    };
    Ok(Some((encoding.long(0).map_err(broken)?, places)))
}

fn int(table: Table<'_>) -> Result<Number, String> {
    let (bits, signed) = (table.int(0).map_err(broken)?, table.byte(1).map_err(broken)? != 0);
    let size = match bits {
        8 | 16 | 32 | 64 => bits as usize / 8,
        _ => return Err(format!("has integers of {bits} bits")),
    };
    Ok(if signed { Number::Signed(size) } else { Number::Unsigned(size) })
}

/// The type of a column, by its number in the union `Type`.
fn kind(field: Table<'_>) -> Result<Kind, String> {
    let number = field.byte(2).map_err(broken)?;
    let table = field.table(3).map_err(broken)?;
    let settings = || table.ok_or_else(|| broken(Broken));
    let unread = |what: &str| {
        Err(format!("has {what}, which are no values of JSON: leave the column out, or write it as text or numbers"))
    };
    Ok(match number {
        1 => Kind::Null,
        2 => Kind::Number(int(settings()?)?),
        3 => match settings()?.short(0).map_err(broken)? {
            1 => Kind::Number(Number::Float(4)),
            2 => Kind::Number(Number::Float(8)),
            _ => return unread("numbers of 16 bits"),
        },
        // Bytes are read as text, which they may be.
        4 | 5 => Kind::Text(Offsets::Short),
        6 => Kind::Bool,
        // Days in 32 bits or, which the table says, milliseconds in 64.
        8 => Kind::Number(Number::Signed(if is_default(settings()?, 0, 1)? { 8 } else { 4 })),
        9 => {
            let bits = settings()?.int(1).map_err(broken)?;
            Kind::Number(Number::Signed(if bits == 64 { 8 } else { 4 }))
        }
        10 | 18 => Kind::Number(Number::Signed(8)),
        12 => Kind::List(Offsets::Short),
        13 => Kind::Struct,
        16 => {
            let size = settings()?.int(0).map_err(broken)?;
            Kind::FixedList(usize::try_from(size).map_err(|_| broken(Broken))?)
        }
        17 => Kind::Map,
        19 | 20 => Kind::Text(Offsets::Long),
        21 => Kind::List(Offsets::Long),
        23 | 24 => Kind::TextView,
        15 => return unread("bytes of one length"),
        7 => return unread("decimal numbers"),
        11 => return unread("intervals"),
        14 => return unread("values of several types"),
        22 => return unread("runs"),
        25 | 26 => return unread("views of lists"),
        _ => return Err(format!("has a type that is not known (number {number})")),
    })
}

/// True if the 16-bit field of a table, whose default is `default`, has that value.
fn is_default(table: Table<'_>, field: usize, default: i16) -> Result<bool, String> {
    let value = table.short_or(field, default).map_err(broken)?;
    Ok(value == default)
}
