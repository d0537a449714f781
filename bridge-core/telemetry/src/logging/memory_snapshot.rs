//! The history of an allocator as files: a table of who held memory when most was in use, and the
//! pickle that PyTorch's viewer of memory snapshots (`torch.cuda.memory._snapshot`,
//! pytorch.org/memory_viz) opens.

use std::collections::BTreeMap;
use std::fmt::Write;

use bridge_memory::history::{OwnerTotal, Window, WindowBlock};

/// Blocks that the table names.
const NAMED: usize = 40;

/// Table of the owners of memory at the peak.
pub fn table(window: &Window) -> String {
    let mut text = format!(
        "The most in large blocks (64 KiB and more): {} bytes in {} blocks, {:.6} s after the window was opened.\n",
        window.peak_bytes,
        window.at_peak.len(),
        window.peak_at
    );
    if window.is_cut {
        text.push_str("More happened than is kept: what came later is not looked at.\n");
    }
    text.push_str("\nBy owner:\n");
    for OwnerTotal { owner, bytes, blocks } in window.owners_at_peak() {
        let _ = writeln!(text, "{bytes:>14} bytes  {blocks:>6} blocks  {owner}");
    }
    let _ = writeln!(text, "\nThe largest blocks, {NAMED} at most:");
    for WindowBlock { bytes, owner, .. } in window.at_peak.iter().take(NAMED) {
        let _ = writeln!(text, "{bytes:>14} bytes  {owner}");
    }
    text
}

/// A value of a pickle, as far as snapshots need them.
#[derive(Clone, Debug)]
enum Value {
    Int(u64),
    Text(String),
    List(Vec<Value>),
    Tuple([u64; 2]),
    Dict(Vec<(&'static str, Value)>),
}

impl Value {
    fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Writes a value by the opcodes of pickle's protocol 2 (`pickletools` of Python describes them).
fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Int(number) => match (u8::try_from(*number), i32::try_from(*number)) {
            (Ok(number), _) => out.extend([b'K', number]),
            (_, Ok(number)) => {
                out.push(b'J');
                out.extend(number.to_le_bytes());
            }
            _ => {
                // Two's complement, with room for the sign.
                out.extend([0x8a, 9]);
                out.extend(number.to_le_bytes());
                out.push(0);
            }
        },
        Value::Text(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Value::List(values) => {
            out.extend(b"](");
            values.iter().for_each(|value| put(out, value));
            out.push(b'e');
        }
        Value::Tuple(numbers) => {
            numbers.iter().for_each(|number| put(out, &Value::Int(*number)));
            out.push(0x86);
        }
        Value::Dict(entries) => {
            out.extend(b"}(");
            for (key, value) in entries {
                put(out, &Value::text(key));
                put(out, value);
            }
            out.push(b'u');
        }
    }
}

/// The snapshot at the end of a window, with what led to it.
pub fn pickle(window: &Window) -> Vec<u8> {
    let mut live: BTreeMap<usize, &WindowBlock> = window.at_start.iter().map(|block| (block.address, block)).collect();
    for event in &window.events {
        match event.is_taken {
            true => live.insert(event.block.address, &event.block),
            false => live.remove(&event.block.address),
        };
    }
    let segments = live.values().map(|block| segment(block)).collect();
    let event = |event: &bridge_memory::history::WindowEvent| {
        let action = |name| {
            Value::Dict(vec![
                ("action", Value::text(name)),
                ("addr", Value::Int(event.block.address as u64)),
                ("size", Value::Int(event.block.bytes as u64)),
                ("stream", Value::Int(0)),
                ("time_us", Value::Int((event.at * 1e6) as u64)),
                ("frames", frames(&event.block.owner)),
            ])
        };
        if event.is_taken { vec![action("alloc")] } else { vec![action("free_requested"), action("free_completed")] }
    };
    let events = window.events.iter().flat_map(event).collect();
    let snapshot = Value::Dict(vec![
        ("segments", Value::List(segments)),
        ("device_traces", Value::List(vec![Value::List(events)])),
        ("allocator_settings", Value::Dict(Vec::new())),
    ]);
    let mut out = vec![0x80, 2];
    put(&mut out, &snapshot);
    out.push(b'.');
    out
}

/// The owner, where PyTorch has the stack of the call.
fn frames(owner: &str) -> Value {
    let frame = [("name", Value::text(owner)), ("filename", Value::text("bridge")), ("line", Value::Int(0))];
    Value::List(vec![Value::Dict(frame.into())])
}

/// A block in use, as a segment of its own.
fn segment(block: &WindowBlock) -> Value {
    let (address, size) = (Value::Int(block.address as u64), Value::Int(block.bytes as u64));
    let inner = Value::Dict(vec![
        ("address", address.clone()),
        ("size", size.clone()),
        ("requested_size", size.clone()),
        ("state", Value::text("active_allocated")),
        ("frames", frames(&block.owner)),
    ]);
    Value::Dict(vec![
        ("device", Value::Int(0)),
        ("address", address),
        ("total_size", size.clone()),
        ("allocated_size", size.clone()),
        ("active_size", size.clone()),
        ("requested_size", size),
        ("stream", Value::Int(0)),
        ("segment_type", Value::text("large")),
        ("segment_pool_id", Value::Tuple([0, 0])),
        ("is_expandable", Value::Int(0)),
        ("frames", Value::List(Vec::new())),
        ("blocks", Value::List(vec![inner])),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of `pickletools.optimize(pickle.dumps(value, 2))` of Python 3.13, except for the
    /// short form of lists and dictionaries of one element.
    #[test]
    fn values_are_pickled_as_python_does() {
        let value = Value::Dict(vec![
            ("a", Value::List(vec![Value::Int(7), Value::Int(300), Value::Int(1 << 40)])),
            ("b", Value::Tuple([1, 2])),
        ]);
        let mut found = Vec::new();
        put(&mut found, &value);
        let expected = [
            &b"}(X\x01\0\0\0a]("[..],
            b"K\x07J\x2c\x01\0\0\x8a\x09\0\0\0\0\0\x01\0\0\0e",
            b"X\x01\0\0\0bK\x01K\x02\x86u",
        ];
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn the_table_names_owners_and_the_largest_blocks() {
        let block = |address, bytes, owner: &str| WindowBlock { address, bytes, owner: owner.to_owned() };
        let at_peak = vec![block(3, 900, "mlp-forward of layer 1"), block(1, 500, "w"), block(2, 500, "w")];
        let window =
            Window { at_start: Vec::new(), events: Vec::new(), is_cut: true, peak_bytes: 1900, peak_at: 0.5, at_peak };
        let text = table(&window);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[0].contains("1900 bytes in 3 blocks, 0.500000 s"), "{text}");
        assert_eq!(lines[4], "1000 bytes       2 blocks  w");
        assert_eq!(lines[5], "900 bytes       1 blocks  mlp-forward of layer 1");
        assert_eq!(lines[8], "900 bytes  mlp-forward of layer 1");
    }
}
