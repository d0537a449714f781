//! Projections taken apart into heads, and their gradients put together.

use bridge_kernels::packed_attention::{cube, reference};
use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable, apply_rotary};
use bridge_kernels::{AttentionOptions, PackedHeads, packed_attention};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, ints, values};

const TOKENS: [usize; 2] = [2, 5];

fn table(pairing: RotaryPairing, device: &Device) -> RotaryTable {
    RotaryTable::new(&[1.0, 0.1, 0.013], 17, pairing, &device.clone().without_autodiff())
}

fn positions(given: bool, device: &Device) -> Positions {
    match given {
        true => Positions::Explicit(ints(&[16, 0, 3, 3, 7, 1, 2, 15, 4, 0], TOKENS, device)),
        false => Positions::From(4),
    }
}

/// All heads of a token side by side: queries, then keys, then values.
fn side_by_side(heads: [Tensor<4>; 3]) -> Tensor<1> {
    let [b, t] = TOKENS;
    let rows = heads.map(|x| {
        let [_, _, h, d] = x.dims();
        x.reshape([b, t, h * d])
    });
    let all = Tensor::cat(rows.into(), 2);
    let size = all.shape().num_elements();
    all.reshape([size])
}

fn projection(x: &[Tensor<1>], packed: PackedHeads) -> Tensor<3> {
    let [b, t] = TOKENS;
    x[0].clone().reshape([b, t, packed.width()])
}

/// Rotated whole, in part, and not at all; in groups of several queries and of one.
#[test]
fn heads_and_gradients() {
    for (groups, queries_per_group, head_size) in [(2, 3, 6), (3, 1, 11)] {
        let packed = PackedHeads { groups, queries_per_group, head_size };
        for (pairing, given) in [
            (None, false),
            (Some(RotaryPairing::Halves), false),
            (Some(RotaryPairing::Halves), true),
            (Some(RotaryPairing::Interleaved), true),
        ] {
            let rotary = |device: &Device| pairing.map(|pairing| (table(pairing, device), positions(given, device)));
            Case {
                name: &format!("{packed:?}, {pairing:?}, explicit positions: {given}"),
                inputs: vec![values(1, TOKENS[0] * TOKENS[1] * packed.width())],
                fused: &|x, device| {
                    let rotary = rotary(device);
                    let rotary = rotary.as_ref().map(|(table, positions)| (table, positions));
                    side_by_side(cube::unpack(&projection(x, packed), packed, rotary).expect("it applies"))
                },
                reference: &|x, device| {
                    let [mut q, mut k, v] = packed.unpack(projection(x, packed));
                    if let Some((table, positions)) = rotary(device) {
                        [q, k] = [q, k].map(|x| apply_rotary(x, &table, &positions));
                    }
                    side_by_side([q, k, v])
                },
            }
            .check();
        }
    }
}

/// Heads that do not contribute to the loss have zero gradients.
#[test]
fn heads_that_nobody_reads() {
    let packed = PackedHeads { groups: 2, queries_per_group: 2, head_size: 6 };
    for only in 0..3 {
        let part = |heads: [Tensor<4>; 3]| {
            let x = heads[only].clone();
            let size = x.shape().num_elements();
            x.reshape([size])
        };
        Case {
            name: &format!("heads {only}"),
            inputs: vec![values(1, TOKENS[0] * TOKENS[1] * packed.width())],
            fused: &|x, device| {
                let (table, positions) = (table(RotaryPairing::Halves, device), positions(false, device));
                let heads = cube::unpack(&projection(x, packed), packed, Some((&table, &positions)));
                part(heads.expect("it applies"))
            },
            reference: &|x, device| {
                let (table, positions) = (table(RotaryPairing::Halves, device), positions(false, device));
                let [q, k, v] = packed.unpack(projection(x, packed));
                let [q, k] = [q, k].map(|x| apply_rotary(x, &table, &positions));
                part([q, k, v])
            },
        }
        .check();
    }
}

/// Gradients come as attention makes them, by token or by head.
#[test]
fn attention_of_a_projection() {
    let packed = PackedHeads { groups: 2, queries_per_group: 2, head_size: 6 };
    let options = AttentionOptions::causal(6);
    let attended = |x: Tensor<4>| {
        let size = x.shape().num_elements();
        x.reshape([size])
    };
    Case {
        name: "packed attention",
        inputs: vec![values(1, TOKENS[0] * TOKENS[1] * packed.width())],
        fused: &|x, device| {
            let (table, positions) = (table(RotaryPairing::Halves, device), positions(true, device));
            attended(packed_attention(projection(x, packed), packed, Some((&table, &positions)), &options))
        },
        reference: &|x, device| {
            let (table, positions) = (table(RotaryPairing::Halves, device), positions(true, device));
            attended(reference(projection(x, packed), packed, Some((&table, &positions)), &options))
        },
    }
    .check();
}

/// A gradient whose memory is by head is read where it is.
#[test]
fn gradients_that_lie_by_head() {
    let packed = PackedHeads { groups: 3, queries_per_group: 1, head_size: 5 };
    // The factor's memory is ordered by head, and so is the memory of its gradients.
    let by_head = |device: &Device| -> Tensor<4> {
        let [b, t] = TOKENS;
        let factor = crate::common::tensor(&values(5, b * t * 3 * 5), [b, 3, t, 5], device);
        factor.permute([0, 2, 1, 3])
    };
    let weighted = |heads: [Tensor<4>; 3], device: &Device| side_by_side(heads.map(|x| x * by_head(device)));
    Case {
        name: "by head",
        inputs: vec![values(1, TOKENS[0] * TOKENS[1] * packed.width())],
        fused: &|x, device| weighted(cube::unpack(&projection(x, packed), packed, None).expect("it applies"), device),
        reference: &|x, device| weighted(packed.unpack(projection(x, packed)), device),
    }
    .check();
}
