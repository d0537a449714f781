//! Layers of multi-token prediction in files: required and optional tensors, and their results.

use bridge_core::model::{Auxiliary, Batch, ForwardContext, LayerMetrics, Mode, loss_sum};
use bridge_data::MicroBatch;

use super::*;

/// Three layers, of which the last has experts, and two after them.
const MODEL: &str = "deepseek_v3_mtp";

#[test]
fn losses_of_further_tokens_are_those_of_the_paper() {
    let reference = HfCheckpoint::open_file(&golden(MODEL).join("golden.safetensors")).unwrap();
    let (shape, tokens) = reference.read_ints("input_ids").unwrap();
    let (batch_size, seq_length) = (shape[0], shape[1]);
    let places = || (0..batch_size).flat_map(|_| 0..seq_length);
    let micro_batch = MicroBatch {
        labels: tokens.chunks(seq_length).flat_map(|row| row[1..].iter().copied().chain([0])).collect(),
        loss_mask: places().map(|place| if place + 1 < seq_length { 1.0 } else { 0.0 }).collect(),
        position_ids: places().map(|place| place as i64).collect(),
        tokens,
        batch_size,
        seq_length,
        ..MicroBatch::default()
    };
    let chunk = HfModel::open(&golden(MODEL)).unwrap().build(&device()).unwrap();
    let (batch, metrics) = (Batch::new(&micro_batch, &device()), LayerMetrics::default());
    let auxiliary = Auxiliary { metrics: Some(&metrics), ..Auxiliary::default() };
    let context = ForwardContext { auxiliary, ..ForwardContext::new(&batch, Mode::Evaluate) };
    loss_sum(chunk.as_ref(), &context).unwrap();
    let expected = reference.read_doubles("mtp_losses").unwrap();
    let mut found = metrics.take();
    for (depth, expected) in expected.iter().enumerate() {
        let values = found.remove(&("mtp_loss", 3 + depth)).expect("a loss and its tokens");
        assert_eq!(values[1] as usize, batch_size * (seq_length - 2 - depth));
        assert!((values[0] / values[1] - expected).abs() < 2e-6 * expected, "{depth}: {values:?}, expected {expected}");
    }
    for of_router in ["tokens_per_expert", "z_loss"] {
        let layers: Vec<usize> = found.keys().filter(|(name, _)| *name == of_router).map(|(_, layer)| *layer).collect();
        assert_eq!(layers, [2, 3, 4], "{of_router}");
    }
}

#[test]
fn a_reference_without_their_gradients_is_of_the_model_without_them() {
    let mut tensors = raw_tensors(&golden(MODEL).join("golden.safetensors"));
    tensors.retain(|raw| ["input_ids", "logits", "ce_loss", "loss"].contains(&raw.name.as_str()));
    let file = tempfile::NamedTempFile::new().unwrap();
    write_raw(file.path(), &tensors);
    let report = crate::verify(&golden(MODEL), file.path(), &device()).unwrap();
    assert!(report.passed && report.loss.is_some(), "{report:?}");
}

#[test]
fn copies_of_embedding_and_output_may_be_missing_and_must_be_equal() {
    let copies = ["model.layers.3.embed_tokens.weight", "model.layers.4.shared_head.head.weight"];
    let without = changed_copy(MODEL, |tensors| tensors.retain(|raw| !copies.contains(&raw.name.as_str())));
    assert_eq!(HfModel::open(without.path()).unwrap().config().mtp_num_layers, 2);
    for copy in copies {
        let other = changed_copy(MODEL, |tensors| {
            let raw = tensors.iter_mut().find(|raw| raw.name == copy).unwrap();
            raw.bytes[..4].copy_from_slice(&7.5_f32.to_le_bytes());
        });
        let error = HfModel::open(other.path()).unwrap_err().to_string();
        assert!(error.contains(copy), "{error}");
    }
}

#[test]
fn a_folder_that_lost_them_is_the_model_without_them() {
    let is_behind = |name: &str| ["model.layers.3.", "model.layers.4."].iter().any(|layer| name.starts_with(layer));
    let lost = changed_copy(MODEL, |tensors| tensors.retain(|raw| !is_behind(&raw.name)));
    let model = HfModel::open(lost.path()).unwrap();
    assert_eq!((model.config().mtp_num_layers, model.mtp_tensors().count()), (0, 0));
    let one = changed_copy(MODEL, |tensors| tensors.retain(|raw| raw.name != "model.layers.4.enorm.weight"));
    let error = HfModel::open(one.path()).unwrap_err().to_string();
    assert!(error.contains("model.layers.4.enorm.weight"), "{error}");
}
