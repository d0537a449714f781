//! Declarations and modules must agree, and released parameters are never read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bridge_kernels::Philox;
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use super::*;
use crate::testing::check_segments;
use crate::tests::{HIDDEN, micro_batch, toy};

#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

impl Segments for Two {
    fn boundary(&self, _index: usize, _batch: &Batch) -> Vec<BoundaryTensor> {
        Vec::new()
    }

    /// The first segment reads the first vector, the second both.
    fn forward_segment(&self, index: usize, _input: Boundary, _context: &ForwardContext) -> SegmentOutput {
        match index {
            0 => SegmentOutput::Boundary(Boundary::hidden_states(self.first.val().unsqueeze())),
            _ => SegmentOutput::LossSum((self.first.val() + self.second.val()).sum()),
        }
    }
}

const WHOLE: TensorPartition = TensorPartition::Replicated(GradientScope::ResidualStream);

fn scope() -> (ChunkScope, Scope) {
    let chunk = ChunkScope::new(&BuildContext {
        device: Device::flex().autodiff(),
        seed: 3,
        params_dtype: FloatDType::F32,
        padded_vocab_size: 5,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    });
    let segment = chunk.segment(SegmentRole::Head, None).child("part");
    (chunk, segment)
}

fn vector(scope: &Scope, name: &str) -> Param<Tensor<1>> {
    scope.parameter(name, [3], WHOLE, Initial::Zeros, ParameterRole::Weight)
}

#[test]
fn a_field_without_a_declaration_is_refused_by_its_path() {
    let (chunk, scope) = scope();
    let undeclared = Param::from_tensor(Tensor::zeros([3], &Device::flex().autodiff()));
    let error = ModuleChunk::new(Two { first: vector(&scope, "a"), second: undeclared }, chunk.finish()).unwrap_err();
    assert!(error.to_string().starts_with("parameter `second`: expected a declaration"), "{error}");
}

#[test]
fn a_declaration_without_a_field_is_refused_by_its_name() {
    let (chunk, scope) = scope();
    let two = Two { first: vector(&scope, "a"), second: vector(&scope, "b") };
    drop(vector(&scope, "forgotten"));
    let error = ModuleChunk::new(two, chunk.finish()).unwrap_err();
    assert!(error.to_string().starts_with("parameter `part.forgotten`: expected a field"), "{error}");
}

#[test]
fn a_name_is_declared_once_and_before_it_is_used_again() {
    let (_chunk, scope) = scope();
    drop(vector(&scope, "a"));
    assert!(catch_unwind(AssertUnwindSafe(|| vector(&scope, "a"))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| scope.uses("part.b"))).is_err());
    scope.uses("part.a");
}

#[test]
fn values_follow_from_seed_and_name_and_slices_are_those_of_the_whole() {
    let (_chunk, scope) = scope();
    let drawn: Param<Tensor<2>> = scope.parameter("drawn", [5, 7], WHOLE, Initial::Normal(0.5), ParameterRole::Weight);
    let drawn: Vec<f32> = drawn.val().into_data().iter().collect();
    assert_eq!(drawn, Philox::new(3).derive_name("part.drawn").normal(35, 0.5));
    // Six rows of two blocks over three ranks: the last has rows 2 and 5.
    let place = RankPlace { tensor: Member { rank: 2, size: 3 }, ..RankPlace::SINGLE };
    let runs =
        |cut: TensorPartition, shape: &[usize]| cut.placement(shape, &place, ReplicaGroup::Dense).held_runs(shape);
    assert_eq!(runs(TensorPartition::Blocks(2), &[6, 5]), [10..15, 25..30]);
    assert_eq!(runs(TensorPartition::Columns, &[2, 9]), [6..9, 15..18]);
    assert_eq!(runs(TensorPartition::VocabularyRows, &[7, 2]), std::iter::once(10..14).collect::<Vec<_>>());
    assert_eq!(runs(WHOLE, &[2, 3]), std::iter::once(0..6).collect::<Vec<_>>());
}

#[test]
fn a_released_parameter_is_not_read() {
    let mut chunk = toy(2, FloatDType::F32);
    chunk.replace_parameters([("layers.1.up", Replacement::Released)].into());
    let batch = Batch::new(&micro_batch(1, 4, 0), &Device::flex().autodiff());
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let input = || Boundary::hidden_states(Tensor::<3>::ones([1, 4, HIDDEN], &Device::flex().autodiff()));
    // The other layer's parameters are present.
    chunk.forward_segment(1, input(), &context);
    for chunk in [&chunk, &chunk.inference()] {
        let read = catch_unwind(AssertUnwindSafe(|| chunk.forward_segment(2, input(), &context)));
        let message = *read.expect_err("it has no value").downcast::<String>().expect("a message");
        assert!(message.contains("`layers.1.up` was released"), "{message}");
    }
    let value = Tensor::<1>::zeros([11 * HIDDEN], &Device::flex());
    chunk.replace_parameters([("layers.1.up", value.into())].into());
    chunk.forward_segment(2, input(), &context);
}

#[test]
fn a_segment_that_reads_what_it_does_not_declare_is_named_with_the_parameter() {
    let batch = micro_batch(1, 4, 0);
    check_segments(toy(2, FloatDType::F32).as_mut(), &batch).expect("the toy declares what it reads");
    let two = |declares: bool| {
        let (chunk, first) = scope();
        let first = (vector(&first, "a"), chunk.segment(SegmentRole::Head, None));
        if declares {
            first.1.uses("part.a");
        }
        let two = Two { first: first.0, second: vector(&first.1, "b") };
        ModuleChunk::new(two, chunk.finish()).expect("each field is declared")
    };
    check_segments(&mut two(true), &batch).expect("the use is declared");
    let error = check_segments(&mut two(false), &batch).unwrap_err();
    assert!(error.starts_with("segment 1") && error.contains("reads `part.a`"), "{error}");
}
