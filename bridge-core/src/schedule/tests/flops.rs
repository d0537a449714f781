//! The FLOP count against the reference's worked example and by hand.

use crate::schedule::*;

fn tiny() -> FlopsShape {
    FlopsShape {
        num_layers: 2,
        mtp_num_layers: 0,
        hidden_size: 64,
        ffn_hidden_size: 256,
        mlp: GateKind::Plain,
        num_attention_heads: 4,
        attention: grouped(GateKind::Plain, None),
        moe: None,
        padded_vocab_size: 1024,
    }
}

fn grouped(output_gate: GateKind, window: Option<WindowFlops>) -> AttentionFlops {
    AttentionFlops::Grouped { num_query_groups: 4, kv_channels: 16, output_gate, window }
}

fn flops(shape: &FlopsShape) -> f64 {
    shape.flops_per_batch(1, 128).unwrap()
}

#[test]
fn worked_example() {
    assert_eq!(flops(&tiny()), 138_412_032.0);
    assert_eq!(tiny().flops_per_batch(3, 128).unwrap(), 3.0 * 138_412_032.0);
}

#[test]
fn every_gate_costs_a_third_matrix() {
    let gated = FlopsShape { mlp: GateKind::Gated, ..tiny() };
    assert_eq!(flops(&gated) - flops(&tiny()), 128.0 * 6.0 * 64.0 * 256.0 * 2.0);
    let gated_attention = FlopsShape { attention: grouped(GateKind::Gated, None), ..tiny() };
    assert_eq!(flops(&gated_attention) - flops(&tiny()), 128.0 * 6.0 * 2.0 * 64.0 * 64.0);
}

#[test]
fn windows_shorten_the_context_of_their_layers() {
    let saved_per_layer = 128.0 * 6.0 * 64.0 * (128.0 - 32.0);
    let span = WindowSpan::Sides(Some(31), Some(0));
    for (layers, num_windowed) in [
        (WindowedLayers::All, 2.0),
        (WindowedLayers::FullEvery(2), 1.0),
        (WindowedLayers::FullEvery(1), 0.0),
        (WindowedLayers::Pattern(vec![false, true]), 1.0),
        (WindowedLayers::Pattern(vec![true]), 2.0),
    ] {
        let attention = grouped(GateKind::Plain, Some(WindowFlops { span, layers: layers.clone() }));
        let windowed = FlopsShape { attention, ..tiny() };
        assert_eq!(flops(&tiny()) - flops(&windowed), num_windowed * saved_per_layer, "{layers:?}");
    }
    for span in [WindowSpan::Positions(4096), WindowSpan::Sides(None, Some(0))] {
        let attention = grouped(GateKind::Plain, Some(WindowFlops { span, layers: WindowedLayers::All }));
        assert_eq!(flops(&FlopsShape { attention, ..tiny() }), flops(&tiny()), "{span:?}");
    }
    let none = grouped(GateKind::Plain, Some(WindowFlops { span, layers: WindowedLayers::Pattern(vec![]) }));
    assert!(FlopsShape { attention: none, ..tiny() }.flops_per_batch(1, 128).is_err());
}

#[test]
fn experts_count_as_often_as_they_are_visited() {
    let moe = MoeFlops {
        moe_layers: vec![false, true],
        moe_ffn_hidden_size: 32,
        moe_router_topk: 3,
        moe_shared_expert_intermediate_size: 48,
        moe_latent_size: None,
    };
    let shape = FlopsShape { mlp: GateKind::Gated, moe: Some(moe.clone()), ..tiny() };
    let dense = FlopsShape { mlp: GateKind::Gated, ..tiny() };
    let per_width = 128.0 * 6.0 * 64.0 * 3.0;
    assert_eq!(flops(&shape) - flops(&dense), per_width * (32.0 * 3.0 + 48.0 - 256.0));

    let latent = MoeFlops { moe_latent_size: Some(16), ..moe.clone() };
    let latent = FlopsShape { mlp: GateKind::Gated, moe: Some(latent), ..tiny() };
    let routed = 32.0 * 3.0 * 3.0 * 16.0 / 64.0 + 2.0 * 16.0;
    assert_eq!(flops(&latent) - flops(&shape), 128.0 * 6.0 * 64.0 * (routed - 32.0 * 3.0 * 3.0));

    let wrong = MoeFlops { moe_layers: vec![true], ..moe };
    let wrong = FlopsShape { moe: Some(wrong), ..tiny() };
    assert_eq!(wrong.flops_per_batch(1, 128), Err(FlopsError::MoePattern { found: 1, expected: 2 }));
}

#[test]
fn multi_token_prediction_adds_a_layer_a_mixer_and_a_head() {
    let shape = FlopsShape { mtp_num_layers: 1, ..tiny() };
    let per_layer = 6.0 * 64.0 * 512.0 + 6.0 * (4.0 * 64.0 * 64.0 + 64.0 * 128.0);
    let mixer = 6.0 * (3.0 * 64.0 + 2.0 * 64.0 * 64.0);
    assert_eq!(flops(&shape) - flops(&tiny()), 128.0 * (per_layer + mixer + 6.0 * 64.0 * 1024.0));
}

#[test]
fn multi_latent_attention() {
    let without_attention = flops(&tiny()) - 128.0 * 294_912.0;
    let mla = |q_lora_rank| {
        let mla = MlaFlops { q_lora_rank, kv_lora_rank: 24, qk_head_dim: 16, qk_pos_emb_head_dim: 8, v_head_dim: 12 };
        flops(&FlopsShape { attention: AttentionFlops::MultiLatent(mla), ..tiny() }) - without_attention
    };
    let rest = 24.0 * (64.0 + 4.0 * 28.0 + 1.0)
        + 64.0 * 8.0
        + 4.0 * 12.0 * 64.0
        + 128.0 * 4.0 * 24.0 / 2.0
        + 128.0 * 4.0 * 12.0 / 2.0;
    assert_eq!(mla(None), 128.0 * 6.0 * 2.0 * (64.0 * 4.0 * 24.0 + rest));
    assert_eq!(mla(Some(20)), 128.0 * 6.0 * 2.0 * (20.0 * (64.0 + 4.0 * 24.0 + 1.0) + rest));
}

#[test]
fn ragged_batches_sum_their_sequences() {
    let ragged = tiny().flops_for(SequenceLengths::ragged([100, 28])).unwrap();
    let parts = tiny().flops_per_batch(1, 100).unwrap() + tiny().flops_per_batch(1, 28).unwrap();
    assert_eq!(ragged, parts);
    assert!(ragged < flops(&tiny()));
}

#[test]
fn rates_are_per_device() {
    assert_eq!(tflops_per_device(8e12, 2.0, 4), 1.0);
    assert_eq!(tflops_per_device(8e12, 0.0, 4), 0.0);
}
