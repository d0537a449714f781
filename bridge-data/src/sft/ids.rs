//! Records that are token ids already, with their loss weights.

use serde_json::Value;

use super::fields::Fields;

/// Lists that say how much each id counts, of which a record has at most one that is read.
const WEIGHTS: [&str; 4] = ["loss_weights", "loss_mask", "assistant_mask", "assistant_masks"];
const LABELS: &str = "labels";
const ATTENTION: &str = "attention_mask";
/// The label of an id that does not count.
const IGNORED: f64 = -100.0;

/// The ids of `input_ids` below `vocab_size`, and the weight of each in the loss. As in
/// `transformers`, labels are the ids themselves, or -100 for ids that do not count. Ids that
/// `attention_mask` excludes at both ends are padding, and are dropped.
///
/// # Errors
/// Ids that are unknown; lists of other lengths or with other values; labels that are other ids; a
/// hole in the attention mask. The error is a sentence.
pub(super) fn of_ids(fields: &mut Fields<'_>, vocab_size: usize) -> Result<(Vec<i64>, Vec<f32>), String> {
    let known = |id: &Value| id.as_i64().filter(|id| usize::try_from(*id).is_ok_and(|id| id < vocab_size));
    let ids = fields.take("input_ids").as_array().into_iter().flatten();
    let ids = ids.map(|id| known(id).ok_or_else(|| format!("input_ids: expected ids below {vocab_size}, found {id}")));
    let mut ids = ids.collect::<Result<Vec<_>, _>>()?;
    let mut weights = vec![1.0; ids.len()];
    for key in WEIGHTS {
        if let Some(list) = list(fields, key, ids.len())? {
            weights = list.iter().map(|value| weight(key, value)).collect::<Result<_, _>>()?;
            break;
        }
    }
    if let Some(labels) = list(fields, LABELS, ids.len())? {
        for (at, (label, id)) in labels.iter().zip(&ids).enumerate() {
            if !counts(at, label, *id)? {
                weights[at] = 0.0;
            }
        }
    }
    if let Some(mask) = list(fields, ATTENTION, ids.len())? {
        let kept = kept(mask)?;
        ids = ids[kept.clone()].to_vec();
        weights = weights[kept].to_vec();
    }
    Ok((ids, weights))
}

/// A list beside the ids; `None` if the record has no such field.
fn list<'r>(fields: &mut Fields<'r>, key: &str, length: usize) -> Result<Option<&'r Vec<Value>>, String> {
    if !fields.all().contains_key(key) {
        return Ok(None);
    }
    let value = fields.take(key);
    let list =
        value.as_array().ok_or_else(|| format!("{key}: expected a list as long as `input_ids`, found {value}"))?;
    if list.len() != length {
        return Err(format!("{key}: there are {length} `input_ids`, and {} {key}", list.len()));
    }
    Ok(Some(list))
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(f64::from))
}

fn weight(key: &str, value: &Value) -> Result<f32, String> {
    let number = number(value).filter(|number| *number >= 0.0 && *number <= f64::from(f32::MAX));
    let number = number.ok_or_else(|| format!("{key}: expected numbers that are not negative, found {value}"))?;
    Ok(number as f32)
}

/// True if an id counts by its label.
fn counts(at: usize, label: &Value, id: i64) -> Result<bool, String> {
    match label.as_f64() {
        Some(IGNORED) => Ok(false),
        Some(label) if label == id as f64 => Ok(true),
        _ => Err(format!(
            "{LABELS}[{at}]: expected -100 or the id at that place, {id}, found {label}; labels are not shifted: the loss of a token \
             stands at the token itself"
        )),
    }
}

/// The places that a mask leaves.
fn kept(mask: &[Value]) -> Result<std::ops::Range<usize>, String> {
    let read = |(at, value)| match number(value) {
        Some(0.0) => Ok(false),
        Some(1.0) => Ok(true),
        _ => Err(format!("{ATTENTION}[{at}]: expected 0 or 1, found {value}")),
    };
    let mask = mask.iter().enumerate().map(read).collect::<Result<Vec<bool>, String>>()?;
    let first = mask.iter().position(|kept| *kept).unwrap_or(mask.len());
    let end = mask.iter().rposition(|kept| *kept).map_or(first, |last| last + 1);
    match mask[first..end].iter().position(|kept| !*kept) {
        Some(at) => Err(format!(
            "{ATTENTION}[{}]: found 0 between tokens that are attended to: only padding at the ends can be left out",
            first + at
        )),
        None => Ok(first..end),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(record: &Value) -> Result<(Vec<i64>, Vec<f32>), String> {
        of_ids(&mut Fields::survey(record).unwrap(), 50)
    }

    #[test]
    fn labels_are_the_ids_or_do_not_count() {
        let ids = json!([7, 8, 9]);
        for labels in [json!([-100, 8, 9]), json!([-100.0, 8.0, 9.0])] {
            assert_eq!(read(&json!({ "input_ids": ids, "labels": labels })), Ok((vec![7, 8, 9], vec![0.0, 1.0, 1.0])));
        }
        let weighted = json!({ "input_ids": ids, "labels": [7, -100, 9], "loss_weights": [1, 1, 0.5] });
        assert_eq!(read(&weighted), Ok((vec![7, 8, 9], vec![1.0, 0.0, 0.5])));
        let refused = |labels: Value, reason: &str| {
            let error = read(&json!({ "input_ids": ids, "labels": labels })).unwrap_err();
            assert!(error.contains(reason), "{labels}: {error}");
        };
        // Labels shifted by one, to the next id.
        refused(
            json!([8, 9, -100]),
            "labels[0]: expected -100 or the id at that place, 7, found 8; labels are not shifted",
        );
        refused(json!([-100, 8, 3]), "labels[2]: expected -100 or the id at that place, 9, found 3");
        refused(json!([-100, null, 9]), "labels[1]");
        refused(json!([-100, true, 9]), "labels[1]");
        refused(json!([-100, 8]), "there are 3 `input_ids`, and 2 labels");
        refused(json!(null), "labels: expected a list as long as `input_ids`, found null");
    }

    #[test]
    fn what_is_not_attended_to_is_padding() {
        let masked = |mask: Value| read(&json!({ "input_ids": [0, 7, 8, 0], "attention_mask": mask }));
        assert_eq!(masked(json!([1, 1, 1, 0])), Ok((vec![0, 7, 8], vec![1.0; 3])));
        assert_eq!(masked(json!([0.0, 1.0, true, false])), Ok((vec![7, 8], vec![1.0; 2])));
        assert_eq!(masked(json!([0, 0, 0, 0])), Ok((vec![], vec![])));
        let hole = masked(json!([1, 0, 1, 1])).unwrap_err();
        assert!(hole.starts_with("attention_mask[1]: found 0 between tokens"), "{hole}");
        let hole = masked(json!([0, 1, 0, 1])).unwrap_err();
        assert!(hole.starts_with("attention_mask[2]: found 0 between tokens"), "{hole}");
        for other in [json!([1, 2, 1, 1]), json!([1, 0.5, 1, 1]), json!([1, null, 1, 1]), json!([1, -1, 1, 1])] {
            assert!(masked(other.clone()).unwrap_err().starts_with("attention_mask[1]: expected 0 or 1"), "{other}");
        }
        // Weights go with their ids.
        let weighted = json!({ "input_ids": [0, 7, 8], "attention_mask": [0, 1, 1], "loss_mask": [0, 0, 1] });
        assert_eq!(read(&weighted), Ok((vec![7, 8], vec![0.0, 1.0])));
    }
}
