//! The executor against the uncut graph: the same loss and the same gradients, to the bit.

use std::collections::BTreeMap;

use bridge_data::MicroBatch;
use bridge_kernels::Philox;
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::model::{
    Batch, Boundary, BoundaryTensor, ForwardContext, Mode, ModelChunk, ModuleChunk, ParameterRole, SegmentOutput,
    SegmentRole, Segments, run_segments,
};
use crate::plan::recompute::{GraphCuts, Recompute};
use crate::tests::{Closures, forward_backward, micro_batch, parameter, scope, source_and_target, toy, two_stacks};
use crate::train::engine::executor::Executor;

fn gradients(
    mut chunk: Box<dyn ModelChunk>,
    micro_batch: &MicroBatch,
    recompute: &Recompute,
    cuts: GraphCuts,
) -> (f32, BTreeMap<String, Vec<f32>>) {
    let batch = Batch::new(micro_batch, &Device::flex());
    let context = ForwardContext::new(&batch, Mode::Train(Philox::new(5)));
    let mut sums: BTreeMap<String, Tensor<1>> = BTreeMap::new();
    let mut on_gradient = |name: &str, gradient: Tensor<1>| {
        let sum = match sums.remove(name) {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        sums.insert(name.to_owned(), sum);
    };
    let mut hooks = Closures { objective: &mut |sum| sum * 0.5, on_gradient: &mut on_gradient };
    // Cuts between all segments, also with the last region recomputed.
    let executor = Executor::with_cuts(chunk.as_ref(), recompute, cuts);
    let executor = if cuts == GraphCuts::EachLayerRecomputed { executor.with_last_recomputed() } else { executor };
    let loss = forward_backward(&executor, chunk.as_mut(), &context, &mut hooks);
    let values = sums
        .into_iter()
        .map(|(name, g)| (name, g.cast(FloatDType::F32).into_data().try_to_vec::<f32>().unwrap()))
        .collect();
    (loss.into_data().try_to_vec::<f32>().unwrap()[0], values)
}

#[test]
fn recomputing_changes_nothing() {
    type Build = fn() -> Box<dyn ModelChunk>;
    let models: [(Build, usize); 3] = [
        (|| toy(5, FloatDType::F32), 21),
        (|| toy(5, FloatDType::BF16), 21),
        // Seven layers of four parameters, four products with the encoder's output, two mixes of
        // streams, five tables, a norm.
        (|| two_stacks(0..7), 40),
    ];
    for (build, parameters) in models {
        let micro_batch = source_and_target(3, 7, 11);
        let gradients = |recompute: &Recompute, cuts| gradients(build(), &micro_batch, recompute, cuts);
        let (loss, expected) = gradients(&Recompute::Off, GraphCuts::AsNeeded);
        assert!(loss.is_finite() && loss > 0.0);
        assert_eq!(expected.len(), parameters);
        assert!(expected.values().all(|g| g.iter().any(|v| *v != 0.0)));
        for (recompute, cuts) in [
            (Recompute::Uniform { layers: 1 }, GraphCuts::AsNeeded),
            (Recompute::Uniform { layers: 2 }, GraphCuts::AsNeeded),
            (Recompute::Uniform { layers: 9 }, GraphCuts::AsNeeded),
            (Recompute::Block { layers: 3 }, GraphCuts::AsNeeded),
            (Recompute::Block { layers: 3 }, GraphCuts::EachSegment),
            (Recompute::Selective(vec![SegmentRole::Mlp]), GraphCuts::AsNeeded),
            (Recompute::Off, GraphCuts::EachSegment),
            (Recompute::Off, GraphCuts::EachLayerRecomputed),
        ] {
            let (again, found) = gradients(&recompute, cuts);
            assert_eq!(loss.to_bits(), again.to_bits(), "{recompute:?}");
            for (name, gradient) in &expected {
                let norm = gradient.iter().map(|v| v * v).sum::<f32>().sqrt();
                let pairs = || gradient.iter().zip(&found[name]);
                // The gradients of a shared embedding, and of a tensor that more than its successor
                // reads, are summed in another order when the graph is cut.
                let same = match (name.as_str(), parameters) {
                    ("embedding", _) => pairs().all(|(a, b)| (a - b).abs() <= 0.02 * a.abs().max(1e-3)),
                    (_, 21) => pairs().all(|(a, b)| a.to_bits() == b.to_bits()),
                    _ => pairs().map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt() <= 1e-6 * norm,
                };
                assert!(same, "{recompute:?}: gradient of {name}");
            }
        }
    }
}

#[test]
fn evaluation_needs_no_graph_and_no_dropout() {
    let mut chunk = toy(2, FloatDType::F32);
    let batch = Batch::new(&micro_batch(2, 5, 3), &Device::flex());
    let executor = Executor::new(chunk.as_ref(), &Recompute::Off);
    let mut run = |mode| {
        let context = ForwardContext::new(&batch, mode);
        let mut hooks = Closures { objective: &mut |sum| sum, on_gradient: &mut |_, _| {} };
        let output = executor.forward_inference(chunk.as_mut(), Boundary::default(), &context, &mut hooks).unwrap();
        output.loss_sum().unwrap().into_data().try_to_vec::<f32>().unwrap()[0]
    };
    let loss = run(Mode::Evaluate);
    assert_eq!(loss.to_bits(), run(Mode::Evaluate).to_bits());
    assert_ne!(loss, run(Mode::Train(Philox::new(1))));
}

/// Declares the residual stream and returns something else.
#[derive(Module, Debug)]
struct Wrong {
    weight: Param<Tensor<1>>,
}

impl Segments for Wrong {
    fn boundary(&self, index: usize, _batch: &Batch) -> Vec<BoundaryTensor> {
        if index == 1 { vec![BoundaryTensor::hidden_states([1, 2, 3], FloatDType::F32)] } else { Vec::new() }
    }

    fn forward_segment(&self, _index: usize, _input: Boundary, _context: &ForwardContext) -> SegmentOutput {
        let x = self.weight.val().reshape([1, 3, 2]);
        SegmentOutput::Boundary(Boundary::single("memory", x.clone()).with("hidden_states", x))
    }
}

#[test]
fn other_tensors_than_declared_are_an_error_that_lists_both() {
    let scope = scope(FloatDType::F32);
    let weight = parameter(&scope.segment(SegmentRole::Embedding, None), "weight", [6], ParameterRole::Weight);
    scope.segment(SegmentRole::Head, None);
    let mut chunk = ModuleChunk::new(Wrong { weight }, scope.finish()).expect("the weight is declared");
    let batch = Batch::new(&source_and_target(2, 5, 3), &Device::flex());
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let mut hooks = Closures { objective: &mut |sum| sum, on_gradient: &mut |_, _| {} };
    let executor = Executor::new(&chunk, &Recompute::Off);
    let error = executor.forward(&mut chunk, Boundary::default(), &context, &mut hooks).unwrap_err().to_string();
    assert_eq!(
        error,
        "before segment 1 of a model chunk: expected `hidden_states` [1, 2, 3] F32 as the model declares, found `hidden_states` [1, 3, 2] \
         F32, `memory` [1, 3, 2] F32"
    );
    // A stage whose input comes from another stage.
    let mut chunk = two_stacks(4..7);
    let executor = Executor::new(chunk.as_ref(), &Recompute::Off);
    let sent = Boundary::hidden_states(Tensor::zeros([2, 8, 7], &Device::flex()));
    let error = executor.forward(chunk.as_mut(), sent, &context, &mut hooks).unwrap_err().to_string();
    assert!(
        error.starts_with("before segment 0 of a model chunk: expected `encoder` [2, 8, 7] F64, `hidden_states`"),
        "{error}"
    );
    assert!(error.ends_with("found `hidden_states` [2, 8, 7] F32"), "{error}");
}

#[test]
fn what_a_region_passes_on_is_no_part_of_its_graph() {
    let chunk = two_stacks(4..6);
    let batch = Batch::new(&source_and_target(2, 5, 3), &Device::flex());
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let declared = chunk.boundary(0, &batch);
    let zeros = |tensor: &BoundaryTensor| Tensor::zeros(tensor.shape, (&Device::flex(), tensor.dtype.into()));
    let input = declared.iter().fold(Boundary::default(), |all, tensor| all.with(tensor.name, zeros(tensor)));
    let made = |segments, input: &Boundary| {
        let SegmentOutput::Boundary(output) =
            run_segments(chunk.as_ref(), segments, input.clone().map(|tensor| tensor), &context).unwrap()
        else {
            panic!("no head in this stage");
        };
        output.made().map(|(name, _)| name).collect::<Vec<_>>()
    };
    // Layer 1 of the decoder leaves the second stream alone, layer 2 changes it.
    assert_eq!(made(0..1, &input), ["hidden_states"]);
    assert_eq!(made(0..2, &input), ["hidden_states", "second"]);
}
