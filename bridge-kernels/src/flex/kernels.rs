//! Kernels of operations whose public functions are generic. Those are compiled in the crates that
//! call them, with their settings; these functions are compiled in this one.

use half::bf16;

use crate::activation::{Activation, GatedUnit, cpu as activation};
use crate::cpu::element::Element;
use crate::cpu::gemm::Matrix;
use crate::cross_entropy::cpu::{self as cross_entropy, LossAndGradients, Problem, WantedGradients};
use crate::dropout::cpu::{self as dropout, Mask};
use crate::embedding::cpu as embedding;
use crate::linear::cpu as linear;
use crate::norm::cpu::{self as norm, NormGradients, Normed, Saved, Statistics};
use crate::vocab_parallel_cross_entropy::{VocabularyShard, cpu as vocab_parallel_cross_entropy};

/// Declares the trait, and implements it for each element by functions that are generic over it.
macro_rules! kernels {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $function:path;)*) => {
        /// An element with its kernels.
        pub(crate) trait Kernels: Element {
            $(fn $name($($argument: $type),*) $(-> $result)?;)*
        }

        impl Kernels for f32 {
            $(fn $name($($argument: $type),*) $(-> $result)? { $function($($argument),*) })*
        }

        impl Kernels for bf16 {
            $(fn $name($($argument: $type),*) $(-> $result)? { $function($($argument),*) })*
        }
    };
}

kernels! {
    fn linear(
        x: Matrix<'_, Self>,
        weight: Matrix<'_, Self>,
        bias: Option<&[f32]>,
        residual: Option<&[Self]>
    ) -> Vec<Self> = linear::forward;
    fn grad_input(dy: Matrix<'_, Self>, weight: Matrix<'_, Self>) -> Vec<Self> = linear::grad_input;
    fn grad_weight(dy: Matrix<'_, Self>, x: Matrix<'_, Self>) -> Vec<Self> = linear::grad_weight;
    fn column_sums(x: &[Self], columns: usize) -> Vec<f32> = linear::column_sums;
    fn activation(x: &[Self], kind: Activation) -> Vec<Self> = activation::forward;
    fn activation_backward(dy: &mut [Self], x: &[Self], kind: Activation) = activation::backward;
    fn glu(x: &[Self], width: usize, unit: GatedUnit) -> Vec<Self> = activation::glu;
    fn glu_backward(dy: &[Self], x: &[Self], width: usize, unit: GatedUnit) -> Vec<Self> = activation::glu_backward;
    fn rms_norm(x: &[Self], weight: &[f32], epsilon: f64) -> Normed<Self> = norm::rms_norm;
    fn rms_norm_again(x: &[Self], weight: &[f32], statistics: &Statistics) -> Vec<Self> = norm::rms_norm_again;
    fn rms_norm_backward(
        dy: &[Self],
        saved: Saved<'_, Self>,
        residual: Option<Vec<Self>>
    ) -> NormGradients<Self> = norm::rms_norm_backward;
    fn layer_norm(x: &[Self], weight: &[f32], bias: Option<&[f32]>, epsilon: f64) -> Normed<Self> = norm::layer_norm;
    fn layer_norm_again(
        x: &[Self],
        weight: &[f32],
        bias: Option<&[f32]>,
        statistics: &Statistics
    ) -> Vec<Self> = norm::layer_norm_again;
    fn layer_norm_backward(
        dy: &[Self],
        saved: Saved<'_, Self>,
        residual: Option<Vec<Self>>
    ) -> NormGradients<Self> = norm::layer_norm_backward;
    fn dropout(x: &[Self], mask: Mask) -> Vec<Self> = dropout::apply;
    fn embedding(table: &[Self], columns: usize, ids: &[usize]) -> Vec<Self> = embedding::forward;
    fn embedding_backward(dy: &[Self], columns: usize, ids: &[usize], rows: usize) -> Vec<Self> = embedding::backward;
    fn cross_entropy(problem: Problem<'_, Self>, wanted: WantedGradients) -> LossAndGradients = cross_entropy::solve;
    fn vocab_parallel_cross_entropy(
        problem: Problem<'_, Self>,
        wanted: WantedGradients,
        shard: &VocabularyShard<'_>
    ) -> LossAndGradients = vocab_parallel_cross_entropy::solve;
}
