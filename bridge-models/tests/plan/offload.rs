//! Activations offloaded to the host: bytes that leave the device, and bytes that return in
//! backward.

use bridge_core::plan::StagePlan;

use super::{MOE, tiny};

/// Bytes of the stream, of 2 x 64 tokens in float32.
const STREAM: u64 = 128 * 64 * 4;
/// Queries, and the output of attention; keys, and values.
const QUERIES: u64 = STREAM;
const KEYS: u64 = STREAM / 2;

/// On a GPU, of which no kernel runs.
fn stage(size: usize, overrides: &[&str]) -> StagePlan {
    tiny(size, &[&["device=cuda"], overrides].concat()).stages[0].clone()
}

fn modules(named: &str, more: &[&str]) -> StagePlan {
    let named = format!("model.offload_modules=[{named}]");
    stage(1, &[&["model.fine_grained_activation_offloading=true", named.as_str()], more].concat())
}

#[test]
fn modules_leave_the_device() {
    let all = stage(1, &[]);
    assert_eq!((all.host_activations, all.memory.returned), (0, 0));
    let cases = [
        ("\"core_attn\"", 2 * QUERIES + 2 * KEYS),
        // The input of `attn_proj` is attention's output, which is moved already.
        ("\"core_attn\", \"attn_proj\"", 2 * QUERIES + 2 * KEYS),
        ("\"qkv_linear\"", STREAM),
        ("\"attn_norm\", \"mlp_norm\"", 2 * STREAM),
    ];
    for (named, in_layer) in cases {
        let found = modules(named, &[]);
        // Two layers.
        assert_eq!(found.host_activations, 2 * in_layer, "{named}");
        assert_eq!(all.kept_activations - found.kept_activations, 2 * in_layer, "{named}");
        // A segment and the one before it, which are a layer; unless most is held when backward is
        // over.
        assert!([0, in_layer].contains(&found.memory.returned), "{named}");
        assert!(found.memory.total <= all.memory.total, "{named}");
    }
    let experts = |named: &str| modules(named, &MOE).host_activations;
    assert_eq!(experts("\"expert_fc1\""), 2 * 2 * STREAM);
    // Two experts a token, of half the width: the first layers' outputs, gates and values.
    assert_eq!(experts("\"moe_act\""), 2 * 2 * 128 * 2 * 96 * 4);
}

/// If graphs are cut, a segment's input is a leaf of its graph, and moving the norm's copy of it
/// frees nothing.
#[test]
fn inputs_of_regions_stay() {
    let norms =
        ["model.fine_grained_activation_offloading=true", "model.offload_modules=[\"attn_norm\", \"mlp_norm\"]"];
    let cut = ["ddp.overlap_grad_reduce=true", "ddp.use_distributed_optimizer=true"];
    assert_eq!(stage(2, &[&norms[..], &cut].concat()).host_activations, 0);
    assert_eq!(stage(2, &norms).host_activations, 4 * STREAM);
}

/// Tensors of 2^20 elements and more move with their layers, and on the CPU nothing does.
#[test]
fn layers_leave_the_device_where_they_are_large() {
    let layers = ["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1"];
    assert_eq!(stage(1, &layers).host_activations, 0);
    let large = ["model.seq_length=8192", "model.hidden_size=128"];
    let of = |overrides: &[&str]| stage(1, &[&large[..], overrides].concat());
    let (all, found) = (of(&[]), of(&layers));
    assert!(found.host_activations > 0);
    assert_eq!(found.memory.returned, found.host_activations, "one layer is a segment and the one before it");
    assert_eq!(all.kept_activations - found.kept_activations, found.host_activations);
    // Two norms, and two numbers for each query, stay; of half of the layers all else is away, but
    // the other layer keeps the same.
    let rows = 2 * 8192;
    let layer =
        (all.kept_activations - stage(1, &[&large[..], &["model.num_layers=1"]].concat()).kept_activations) as i64;
    assert_eq!(layer - found.host_activations as i64, rows * (2 + 2 * 8) * 4);
    let on_cpu = tiny(1, &layers).stages[0].clone();
    assert_eq!((on_cpu.host_activations, on_cpu.kept_activations), (0, tiny(1, &[]).stages[0].kept_activations));
}
