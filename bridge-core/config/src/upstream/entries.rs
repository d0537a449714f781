//! Access to the fields of one saved class, by name.

use super::super::catalogue::row;
use super::super::node::{Data, Entry, Location, Node};

/// The key that names the class of a table.
pub(super) const TARGET: &str = "_target_";

/// True if a value was given on the command line, which only has settings of Bridge.
pub(super) fn is_given(node: &Node) -> bool {
    node.location.as_ref().is_some_and(Location::is_command_line)
}

/// The fields of a section; `None` if it is absent or no table.
pub(super) fn fields_of<'a>(sections: &'a mut [Entry], name: &str) -> Option<&'a mut Vec<Entry>> {
    let section =
        sections.iter_mut().find(|entry| entry.key == name).filter(|_| row(name).is_some_and(|row| row.is_section));
    match &mut section?.node.data {
        Data::Table(entries) => Some(entries),
        _ => None,
    }
}

/// The value of a field; `None` if it is absent or null.
pub(super) fn value<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Node> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node).filter(|node| !node.is_null())
}

/// The number in a field.
pub(super) fn number(entries: &[Entry], key: &str) -> Option<f64> {
    value(entries, key)?.number()
}

/// The text in a field.
pub(super) fn text<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
    value(entries, key)?.text()
}

/// True if a field is `true`.
pub(super) fn is_true(entries: &[Entry], key: &str) -> bool {
    value(entries, key).is_some_and(|node| node.data == Data::Bool(true))
}

/// Sets a field. A value from the command line stays.
pub(super) fn set(entries: &mut Vec<Entry>, key: &str, data: Data) {
    match entries.iter_mut().find(|entry| entry.key == key) {
        Some(entry) if is_given(&entry.node) => {}
        Some(entry) => entry.node.data = data,
        None => entries.push(Entry::new(key, data.into())),
    }
}

/// Removes a field and returns it. A value from the command line stays.
pub(super) fn take(entries: &mut Vec<Entry>, key: &str) -> Option<Entry> {
    let index = entries.iter().position(|entry| entry.key == key && !is_given(&entry.node))?;
    Some(entries.remove(index))
}

/// Renames a field. If the new name has a value already, that stays.
pub(super) fn rename(entries: &mut Vec<Entry>, old: &str, new: &str) {
    if let Some(mut entry) = take(entries, old)
        && value(entries, new).is_none()
    {
        take(entries, new);
        entry.key = new.to_owned();
        entries.push(entry);
    }
}
