//! Attention on the projection that holds queries, keys and values together.

use bridge_kernels::dropout::DropoutKey;
use bridge_kernels::packed_attention::{PackedHeads, packed_attention, reference};
use bridge_kernels::rotary::{Positions, RotaryPairing};
use bridge_kernels::{AttentionOptions, Philox, RotaryTable, attention};
use burn::tensor::{Device, Tensor};

use crate::common::{assert_close, assert_same_on_any_threads, ints, run_all, tensor, values, wide};

struct Packed {
    b: usize,
    t: usize,
    heads: PackedHeads,
    /// Rotated dimensions of a head; none without rotary embedding.
    rotated: usize,
    pairing: RotaryPairing,
    with: &'static str,
}

impl Packed {
    fn options(&self) -> AttentionOptions {
        let Self { b, t, .. } = *self;
        let documents: Vec<i64> = (0..b * t).map(|i| (i % t / 9 + i / t) as i64).collect();
        let has = |name| self.with.contains(name);
        AttentionOptions {
            window: has("window").then_some(5),
            softcap: has("softcap").then_some(1.5),
            dropout: has("dropout").then_some((0.3, DropoutKey(Philox::new(5)))),
            document_ids: has("documents").then(|| ints(&documents, [b, t])),
            ..AttentionOptions::causal(self.heads.head_size)
        }
    }

    fn positions(&self) -> Positions {
        let Self { b, t, .. } = *self;
        match self.with.contains("explicit") {
            true => {
                let ids: Vec<i64> = (0..b * t).map(|i| ((i * 5 + i / t) % (t + 3)) as i64).collect();
                Positions::Explicit(ints(&ids, [b, t]))
            }
            false => Positions::From(3),
        }
    }

    /// Output and gradient of an operation on a projection of float32.
    fn run(&self, operation: Operation) -> Vec<Vec<f32>> {
        let Self { b, t, heads, .. } = *self;
        let frequencies: Vec<f32> = (0..self.rotated / 2).map(|i| 0.9 / (i + 1) as f32).collect();
        let table = RotaryTable::new(&frequencies, t + 3, self.pairing, &Device::flex());
        let positions = self.positions();
        let rotary = (self.rotated > 0).then_some((&table, &positions));
        let options = self.options();
        let mut inputs = vec![values(4, b * t * heads.width())];
        inputs.extend(self.with.contains("sinks").then(|| values(5, heads.groups * heads.queries_per_group)));
        run_all(&inputs, |x| {
            let options = AttentionOptions { sinks_h: x.get(1).cloned(), ..options.clone() };
            let y = operation(x[0].clone().reshape([b, t, heads.width()]), heads, rotary, &options);
            let count = y.shape().num_elements();
            assert_eq!(y.dims(), [b, t, heads.groups * heads.queries_per_group, heads.head_size]);
            y.reshape([count])
        })
    }
}

type Operation = fn(Tensor<3>, PackedHeads, Option<(&RotaryTable, &Positions)>, &AttentionOptions) -> Tensor<4>;

/// The operation with plain Burn operations only.
fn plain(
    qkv: Tensor<3>,
    heads: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
    options: &AttentionOptions,
) -> Tensor<4> {
    let [mut q, mut k, v] = heads.unpack(qkv);
    if let Some((table, positions)) = rotary {
        q = bridge_kernels::rotary::reference(q, table, positions);
        k = bridge_kernels::rotary::reference(k, table, positions);
    }
    attention::reference(q, k, v, options)
}

fn cases() -> Vec<Packed> {
    let heads = |groups, queries_per_group, head_size| PackedHeads { groups, queries_per_group, head_size };
    let halves = RotaryPairing::Halves;
    vec![
        Packed { b: 2, t: 7, heads: heads(3, 1, 5), rotated: 0, pairing: halves, with: "" },
        Packed { b: 2, t: 11, heads: heads(2, 3, 6), rotated: 6, pairing: halves, with: "explicit dropout" },
        Packed {
            b: 1,
            t: 131,
            heads: heads(2, 2, 17),
            rotated: 8,
            pairing: RotaryPairing::Interleaved,
            with: "window",
        },
        Packed { b: 3, t: 70, heads: heads(1, 4, 32), rotated: 32, pairing: halves, with: "documents softcap" },
        Packed { b: 2, t: 70, heads: heads(2, 3, 6), rotated: 4, pairing: halves, with: "sinks window" },
        Packed { b: 1, t: 1, heads: heads(2, 1, 4), rotated: 2, pairing: halves, with: "" },
    ]
}

#[test]
fn the_same_as_separate_tensors() {
    for case in cases() {
        let what = format!("{:?}, {} rotated, {}", case.heads, case.rotated, case.with);
        let (packed, separate, plain) = (case.run(packed_attention), case.run(reference), case.run(plain));
        // The same arithmetic in another place: the same bits, in the gradient too.
        assert_eq!(packed, separate, "{what}");
        assert_close(&format!("{what}: output"), &packed[0], &wide(&plain[0]), 2e-6);
        for (found, expected) in packed.iter().zip(&plain).skip(1) {
            assert_close(&format!("{what}: gradient"), found, &wide(expected), 2e-5);
        }
    }
}

#[test]
fn the_same_on_any_number_of_threads() {
    assert_same_on_any_threads("packed attention", || cases().iter().flat_map(|c| c.run(packed_attention)).collect());
}

#[test]
#[should_panic(expected = "packed attention: the projection is not as wide as PackedHeads { groups: 2")]
fn another_width_is_refused() {
    let heads = PackedHeads { groups: 2, queries_per_group: 1, head_size: 4 };
    let qkv = tensor(&[0.0; 23], [1, 1, 23], &Device::flex());
    packed_attention(qkv, heads, None, &AttentionOptions::causal(4));
}

#[test]
#[should_panic(expected = "rotary: positions up to 5 are beyond the table's 4")]
fn positions_beyond_the_table_are_refused() {
    let heads = PackedHeads { groups: 1, queries_per_group: 1, head_size: 2 };
    let table = RotaryTable::new(&[1.0], 4, RotaryPairing::Halves, &Device::flex());
    let qkv = tensor(&[0.0; 12], [1, 2, 6], &Device::flex());
    packed_attention(qkv, heads, Some((&table, &Positions::From(3))), &AttentionOptions::causal(2));
}
