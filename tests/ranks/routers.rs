//! Biases of experts, which routers move after each step: on any layout, and through a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{CheckpointStore, HostTensor, Verification};
use bridge_tests::{assert_close, losses, run_in};

const RATE: f32 = 0.000_976_562_5;
const MODEL: [&str; 11] = [
    "model.num_layers=4",
    "model.mtp_num_layers=1",
    "model.num_moe_experts=4",
    "model.moe_layer_freq=[0, 1, 0, 1]",
    "model.moe_ffn_hidden_size=32",
    "model.moe_router_score_function=sigmoid",
    "model.moe_router_enable_expert_bias=true",
    "model.moe_router_bias_update_rate=0.0009765625",
    "train.train_iters=7",
    "validation.eval_interval=null",
    "checkpoint.save=saved",
];
const SHARDED: [&str; 4] =
    ["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];

fn train(folder: &Path, arguments: &[&str]) {
    run_in(folder, &[&MODEL[..], arguments].concat());
}

/// The biases that a folder's last checkpoint has, by name.
fn biases(folder: &Path) -> BTreeMap<String, HostTensor> {
    let store = CheckpointStore::open(folder.join("saved")).expect("checkpoints");
    let checkpoint = store.open_iteration(7, Verification::Sizes).expect("the last one");
    let names = checkpoint.names_in("model").filter(|name| name.ends_with("expert_bias"));
    names.map(|name| (name.to_owned(), checkpoint.load_tensor(name).expect("a tensor"))).collect()
}

fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    biases(folder).into_iter().map(|(name, tensor)| (name, tensor.bytes().to_vec())).collect()
}

#[test]
fn biases_of_experts_move_alike_on_every_layout() {
    let one = tempfile::tempdir().unwrap();
    train(one.path(), &[]);
    let (expected, expected_losses) = (bytes(one.path()), losses(one.path()));
    assert_eq!(expected.len(), 3);
    for (name, tensor) in &biases(one.path()) {
        let biases: Vec<f32> = tensor.to_vec().expect("float32");
        assert!(biases.iter().any(|bias| *bias != 0.0), "{name} moves");
        assert!(
            biases.iter().all(|bias| (bias / RATE).fract() == 0.0 && bias.abs() <= 7.0 * RATE),
            "{name}: {biases:?}"
        );
    }
    let layouts: [&[&str]; 5] = [
        &["--ranks", "2", "model.expert_model_parallel_size=2"],
        &["--ranks", "2", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "2", "model.context_parallel_size=2"],
        &SHARDED,
    ];
    for layout in layouts {
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), layout);
        assert_close(&losses(folder.path()), &expected_losses, &layout.join(" "));
        assert_eq!(bytes(folder.path()), expected, "{layout:?}");
    }
}

#[test]
fn biases_of_experts_go_on_where_they_were() {
    for layout in [&[][..], &SHARDED] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(whole.path(), layout);
        train(parts.path(), &[layout, &["train.exit_interval=3"]].concat());
        train(parts.path(), layout);
        assert_eq!(losses(parts.path()), losses(whole.path()), "{layout:?}");
        assert_eq!(bytes(parts.path()), bytes(whole.path()), "{layout:?}");
    }
}

/// Expert biases are float32 in 16-bit runs, too: saved values have more digits than 16 bits, and a
/// resumed run has the same bits.
#[test]
fn biases_of_experts_are_float32_between_parameters_of_16_bits() {
    // With a scale of the loss that makes no step overflow.
    for precision in ["mixed_precision=bf16_mixed", "mixed_precision={fp16 = true, initial_loss_scale = 256.0}"] {
        let settings = [precision, "model.moe_router_bias_update_rate=0.0012345678"];
        for layout in [&[][..], &SHARDED] {
            let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let layout = [&settings[..], layout].concat();
            train(whole.path(), &layout);
            train(parts.path(), &[&layout[..], &["train.exit_interval=3"]].concat());
            train(parts.path(), &layout);
            assert_eq!(losses(parts.path()), losses(whole.path()), "{layout:?}");
            assert_eq!(bytes(parts.path()), bytes(whole.path()), "{layout:?}");
            let mut exact = 0;
            for (name, tensor) in biases(whole.path()) {
                let biases: Vec<f32> = tensor.to_vec().expect("float32 in every run");
                // Sums of at most seven steps, in float32.
                let steps = |bias: f32| f64::from(bias) / 0.001_234_567_8;
                assert!(
                    biases.iter().all(|bias| (steps(*bias) - steps(*bias).round()).abs() < 1e-4),
                    "{name}: {biases:?}"
                );
                // A float of 16 bits has zeros in its last 13 bits at least.
                exact += biases.iter().filter(|bias| bias.to_bits() & 0x1fff != 0).count();
            }
            assert!(exact > 0, "{layout:?}: no bias has more digits than 16 bits have");
        }
    }
}
