//! A tensor as `torch.save` writes it: a ZIP archive whose files are stored as they are, with a
//! pickle that describes the bytes (PyTorch, caffe2/serialize/inline_container.h; PKWARE, APPNOTE
//! 4.3).

use half::{bf16, f16};

use super::pickle::{Id, Pickle, Value};

/// The end of the directory has this size, and a comment of at most 65535 bytes.
const END: usize = 22;
const END_64_LOCATOR: usize = 20;
const NONE_32: u64 = 0xffff_ffff;
const NONE_16: u64 = 0xffff;

/// The values of a tensor of floating-point numbers, row-major, and its shape. Fails on a fault of
/// the archive, or another sort of tensor.
pub fn tensor(archive: &[u8]) -> Result<(Vec<usize>, Vec<f32>), String> {
    let files = files(archive).ok_or("it is no ZIP archive")?;
    let file = |end: &str| files.iter().find(|(name, _)| name.ends_with(end)).map(|(_, content)| *content);
    if file("/byteorder").is_some_and(|order| order != b"little") {
        return Err("its numbers are big-endian".into());
    }
    let pickle = Pickle::read(file("/data.pkl").ok_or("it has no data.pkl")?).map_err(|error| error.to_string())?;
    let parts = Parts::from_pickle(&pickle).ok_or("its data.pkl describes no tensor")?;
    let content = file(&format!("/data/{}", parts.key)).ok_or("the tensor's values are missing")?;
    let bytes = match parts.storage {
        "FloatStorage" => 4,
        "DoubleStorage" => 8,
        "HalfStorage" | "BFloat16Storage" => 2,
        other => return Err(format!("expected floating-point numbers, found a {other}")),
    };
    let count = parts.shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    let range = count.and_then(|count| {
        let begin = parts.offset.checked_mul(bytes)?;
        Some(begin..begin.checked_add(count.checked_mul(bytes)?)?)
    });
    let content = range.and_then(|range| content.get(range)).ok_or("the tensor has fewer values than its shape")?;
    if !is_contiguous(&parts.shape, &parts.strides) {
        return Err("its rows do not follow each other".into());
    }
    let values = match parts.storage {
        "FloatStorage" => content.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
        "DoubleStorage" => content.as_chunks().0.iter().map(|value| f64::from_le_bytes(*value) as f32).collect(),
        "HalfStorage" => content.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value).to_f32()).collect(),
        _ => content.as_chunks().0.iter().map(|value| bf16::from_le_bytes(*value).to_f32()).collect(),
    };
    Ok((parts.shape, values))
}

/// Arguments of `torch._utils._rebuild_tensor_v2`.
struct Parts<'a> {
    storage: &'a str,
    key: &'a str,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<'a> Parts<'a> {
    fn from_pickle(pickle: &'a Pickle) -> Option<Self> {
        let mut tensor = pickle.root;
        // A parameter is a tensor, and whether it is trained.
        if pickle.class(tensor)? == ("torch._utils", "_rebuild_parameter") {
            tensor = *pickle.arguments(tensor)?.first()?;
        }
        if pickle.class(tensor)? != ("torch._utils", "_rebuild_tensor_v2") {
            return None;
        }
        let [storage, offset, shape, strides, ..]: [Id; 4] = *pickle.arguments(tensor)?.first_chunk()?;
        let Value::Persistent(storage) = pickle.get(storage) else { return None };
        let [_, class, key, ..]: [Id; 3] = *pickle.parts(*storage)?.first_chunk()?;
        Some(Self {
            storage: pickle.global(class)?.1,
            key: pickle.text(key)?,
            offset: pickle.size(offset)?,
            shape: pickle.sizes(shape)?,
            strides: pickle.sizes(strides)?,
        })
    }
}

fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut step = 1_usize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *size <= 1 || *stride == step;
            step = step.saturating_mul(*size);
            fits
        })
}

/// Name and content of each file; `None` if this is not an archive, or has compressed files.
fn files(archive: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    let from = archive.len().checked_sub(END)?;
    let end =
        (from.saturating_sub(NONE_16 as usize)..=from).rev().find(|at| archive[*at..].starts_with(b"PK\x05\x06"))?;
    let (mut count, mut begin) = (number(archive, end + 10, 2)?, number(archive, end + 16, 4)?);
    if count == NONE_16 || begin == NONE_32 {
        let locator = end.checked_sub(END_64_LOCATOR).filter(|at| archive[*at..].starts_with(b"PK\x06\x07"))?;
        let end_64 = usize::try_from(number(archive, locator + 8, 8)?).ok()?;
        archive.get(end_64..)?.strip_prefix(b"PK\x06\x06")?;
        (count, begin) = (number(archive, end_64 + 32, 8)?, number(archive, end_64 + 48, 8)?);
    }
    let mut at = usize::try_from(begin).ok()?;
    let mut files = Vec::new();
    for _ in 0..count {
        archive.get(at..)?.strip_prefix(b"PK\x01\x02")?;
        let field = |offset: usize, bytes: usize| number(archive, at + offset, bytes);
        let [name, extra, comment] = [28, 30, 32].map(|offset| field(offset, 2));
        let (name_length, extra_length, comment) = (name? as usize, extra? as usize, comment? as usize);
        let (method, mut packed, mut size, mut header) = (field(10, 2)?, field(20, 4)?, field(24, 4)?, field(42, 4)?);
        let name = std::str::from_utf8(archive.get(at + 46..at + 46 + name_length)?).ok()?;
        let extra = archive.get(at + 46 + name_length..at + 46 + name_length + extra_length)?;
        widen(extra, [&mut size, &mut packed, &mut header]);
        if method != 0 || packed != size {
            return None;
        }
        let header = usize::try_from(header).ok()?;
        archive.get(header..)?.strip_prefix(b"PK\x03\x04")?;
        let before = number(archive, header + 26, 2)? as usize + number(archive, header + 28, 2)? as usize;
        let content = header.checked_add(30 + before)?;
        files.push((name, archive.get(content..content.checked_add(usize::try_from(size).ok()?)?)?));
        at += 46 + name_length + extra_length + comment;
    }
    Some(files)
}

/// Takes numbers that exceed 32 bits from the zip64 extra field, which stores only these, in order.
fn widen(mut extra: &[u8], numbers: [&mut u64; 3]) {
    while let (Some(id), Some(length)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let Some(field) = extra.get(4..4 + length as usize) else { return };
        if id == 1 {
            let wide = numbers.into_iter().filter(|number| **number == NONE_32);
            for (index, narrow) in wide.enumerate() {
                if let Some(value) = number(field, 8 * index, 8) {
                    *narrow = value;
                }
            }
            return;
        }
        extra = &extra[4 + length as usize..];
    }
}

/// A little-endian number.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}
