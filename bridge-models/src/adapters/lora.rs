//! Low-rank branches (Hu et al., arXiv:2106.09685): `y = w x + scale * b a x`, of whole layers or
//! of parts of fused ones.
//!
//! Shape legend: `n` rows of input, `i` a rank's inputs, `o` its outputs, `r` the rank of a branch.

use bridge_core::config::PeftKind;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::model::{
    Adapter, Added, BaseRows, Declaration, Initial, LinearAdaptation, LinearChange, LinearLayer, LinearOperands,
    LinearRule, ModelBuildError, ParameterRole, Scope, TensorPartition,
};
use bridge_dist::comm::Group;
use bridge_kernels::{
    DropoutKey, LinearWeight, LowRank, Quantization, QuantizedMatrix, dropout, linear, linear_weighted,
    low_rank_row_squares,
};
use burn::module::Param;
use burn::tensor::{Device, Tensor};

use super::dora;
use super::parts::Parts;

/// A branch of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Branch {
    /// Part of a fused layer that the branch is added to: 0 queries, 1 keys, 2 values; or 0 the
    /// gate, 1 the other half. `None` for the whole layer.
    pub part: Option<usize>,
    /// Rows of `a`.
    pub rank: usize,
    /// Factor on the branch's output.
    pub scale: f64,
}

/// Layers with branches. The answers must be functions of names and whole shapes.
pub trait Targets: fmt::Debug + Send + Sync {
    /// The branches of a layer: one for the whole, or one each for some of its parts. `place` is
    /// where the layer is declared.
    fn branches(&self, layer: &LinearLayer, place: &Scope) -> Vec<Branch>;

    /// True if a parameter of the base is trained in full.
    fn trains(&self, declaration: &Declaration) -> bool;

    /// Names that match nothing, in words; see [`Adapter::check_met`].
    fn unmatched(&self) -> Option<String> {
        None
    }
}

/// A layer, or a part of one.
type Rows = (LinearLayer, Option<usize>);

/// LoRA or DoRA at the layers that some targets name.
#[derive(Clone, Debug)]
pub struct LowRankAdapter {
    targets: Arc<dyn Targets>,
    method: PeftKind,
    initial: [fn(usize, usize) -> Initial; 2],
    dropout: Dropout,
    quantization: Option<Quantization>,
    /// Quantization of the word embedding and the head.
    table_quantization: Option<Quantization>,
    /// Magnitudes by name: the layers, and their parts, whose row lengths the magnitudes are.
    magnitudes: Arc<Mutex<BTreeMap<String, Rows>>>,
}

impl LowRankAdapter {
    /// Branches at these layers. `a` and `b` begin with `initial`, by their numbers of inputs and
    /// outputs.
    pub fn new(
        targets: Arc<dyn Targets>,
        method: PeftKind,
        initial: [fn(usize, usize) -> Initial; 2],
        dropout: Dropout,
    ) -> Self {
        Self {
            targets,
            method,
            initial,
            dropout,
            quantization: None,
            table_quantization: None,
            magnitudes: Arc::default(),
        }
    }

    /// The same on a base whose frozen weights of linear layers, and whose frozen tables, are held
    /// so.
    #[must_use]
    pub fn quantized(self, quantization: Option<Quantization>, of_tables: Option<Quantization>) -> Self {
        Self { quantization, table_quantization: of_tables, ..self }
    }

    /// Effect of branches on a weight.
    pub(super) fn method(&self) -> PeftKind {
        self.method
    }

    /// The branches of a layer.
    pub(super) fn branches(&self, layer: &LinearLayer, scope: &Scope) -> Vec<Branch> {
        self.targets.branches(layer, scope)
    }
}

/// The lengths of the rows of a matrix with `inputs` columns.
pub(super) fn row_lengths(values: &[f32], inputs: usize) -> Vec<f32> {
    let length = |row: &[f32]| row.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt() as f32;
    values.chunks(inputs).map(length).collect()
}

/// Dropout of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// The share that is dropped.
    pub rate: f64,
    /// Place of the dropout.
    pub place: DropoutPlace,
}

/// Tensor that dropout acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropoutPlace {
    /// The input of the branch.
    #[default]
    Input,
    /// Output of the branch.
    Output,
}

/// The child of a layer's scope in which an adapter declares.
const ADAPTER: &str = "adapter";

/// The names of a branch's parameters below those of the layer called `layer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BranchNames {
    /// `a`, `[r, i]`.
    pub a: String,
    /// `b`, `[o, r]`.
    pub b: String,
    /// The lengths of rows, `[o]`.
    pub magnitudes: String,
}

impl BranchNames {
    pub fn new(layer: &str, parts: Parts, part: Option<usize>) -> Self {
        let place = match part {
            None => format!("{layer}.{ADAPTER}"),
            Some(part) => format!("{layer}.{ADAPTER}.{}", parts.names(short_name(layer))[part]),
        };
        let [a, b, magnitudes] =
            ["linear_in.weight", "linear_out.weight", "weight_magnitude"].map(|name| format!("{place}.{name}"));
        Self { a, b, magnitudes }
    }
}

/// The last part of a dotted name.
pub(super) fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

impl Adapter for LowRankAdapter {
    fn trains(&self, declaration: &Declaration) -> bool {
        self.targets.trains(declaration)
    }

    fn check_met(&self) -> Result<(), ModelBuildError> {
        match self.targets.unmatched() {
            Some(message) => Err(ModelBuildError::Invalid { key: "peft".into(), message }),
            None => Ok(()),
        }
    }

    fn quantization(&self, _: &LinearLayer) -> Option<Quantization> {
        self.quantization
    }

    fn table_quantization(&self, _: &str) -> Option<Quantization> {
        self.table_quantization
    }

    /// Magnitudes begin as the lengths of the base's rows.
    fn begins(&self, parameter: &str, weight: &mut BaseRows<'_>) -> Option<Vec<f32>> {
        let of = self.magnitudes.lock().unwrap_or_else(PoisonError::into_inner).get(parameter).cloned();
        let (layer, part) = of?;
        let mut values = weight(&format!("{}.weight", layer.name))?;
        if let Some(quantization) = self.quantization {
            // Row lengths of the dequantized weight, which products use.
            values = QuantizedMatrix::new(&values, [layer.outputs, layer.inputs], quantization).values();
        }
        let lengths = row_lengths(&values, layer.inputs);
        let lengths_o1 = Tensor::<1>::from_floats(lengths.as_slice(), &Device::flex()).reshape([layer.outputs, 1]);
        let selected = part.map_or(lengths_o1.clone(), |part| Parts::from_layer(&layer).select(part, lengths_o1));
        Some(selected.into_data().try_into_vec().expect("they were made as float32"))
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let branches = self.targets.branches(layer, scope);
        if branches.is_empty() {
            return None;
        }
        let parts = Parts::from_layer(layer);
        let (mut matrices, mut vectors): (Vec<Param<Tensor<2>>>, Vec<Param<Tensor<1>>>) = Default::default();
        for Branch { part, rank, .. } in &branches {
            let home = scope.child(ADAPTER);
            let (place, rows, cut) = match part {
                None => (home, layer.outputs, layer.cut_by_outputs()),
                Some(part) => (
                    home.child(&parts.names(short_name(&layer.name))[*part]),
                    parts.rows(*part, layer.outputs),
                    parts.cut(*part, layer),
                ),
            };
            let matrix = |name, shape: [usize; 2], cut, initial: fn(usize, usize) -> Initial| {
                let initial = initial(shape[1], shape[0]);
                place.child(name).parameter("weight", shape, cut, initial, ParameterRole::Weight)
            };
            let [initial_a, initial_b] = self.initial;
            matrices.push(matrix("linear_in", [*rank, layer.inputs], layer.cut_by_inputs(), initial_a));
            matrices.push(matrix("linear_out", [rows, *rank], cut, initial_b));
            if self.method == PeftKind::Dora {
                let (ones, role) = (Initial::Ones, ParameterRole::Norm);
                vectors.push(place.parameter("weight_magnitude", [rows], cut, ones, role));
                let mut magnitudes = self.magnitudes.lock().unwrap_or_else(PoisonError::into_inner);
                magnitudes.insert(place.name("weight_magnitude"), (layer.clone(), *part));
            }
        }
        let ranks = scope.group().filter(|group| layer.cut == TensorPartition::Columns && group.size() > 1).cloned();
        let parts = parts.on_rank(scope.num_ranks());
        let rule = LowRankRule { branches, parts, method: self.method, dropout: self.dropout, ranks };
        Some(LinearAdaptation::new(matrices, vectors, rule))
    }
}

/// Computation with the branches of one layer, on this rank.
#[derive(Clone, Debug)]
pub(super) struct LowRankRule {
    pub branches: Vec<Branch>,
    pub parts: Parts,
    pub method: PeftKind,
    pub dropout: Dropout,
    /// The ranks that have the columns of a row together.
    pub ranks: Option<Group>,
}

impl LowRankRule {
    /// The number of the part that a branch belongs to, also where there is one.
    fn place(branch: &Branch) -> usize {
        branch.part.unwrap_or(0)
    }

    /// The parts that a branch of this layer can belong to.
    fn parts_of(&self, branch: &Branch) -> Parts {
        if branch.part.is_some() { self.parts } else { Parts::One }
    }

    /// Joins the outputs of branches, part by part.
    pub fn join(&self, of_branches: Vec<Tensor<2>>, outputs: usize, fill: f64) -> Tensor<2> {
        let mut parts = [None, None, None];
        let count = if self.branches[0].part.is_none() { 1 } else { self.parts.names("").len() };
        for (branch, value) in self.branches.iter().zip(of_branches) {
            parts[Self::place(branch)] = Some(value);
        }
        self.parts_of(&self.branches[0]).join(parts.into_iter().take(count).collect(), outputs, fill)
    }

    /// `scale * b a` of a branch, `[rows of its part, i]`.
    pub fn product(&self, index: usize, matrices: &[Tensor<2>]) -> Tensor<2> {
        let [a_ri, b_or] = [0, 1].map(|i| matrices[2 * index + i].clone());
        (b_or * self.branches[index].scale).matmul(a_ri)
    }

    /// The branches as a fused product takes them up.
    fn low_rank(&self, matrices: &[Tensor<2>], outputs: usize) -> Vec<LowRank> {
        let branches = self.branches.iter().zip(matrices.chunks_exact(2)).map(|(branch, matrices)| LowRank {
            a_ri: matrices[0].clone(),
            b_pr: matrices[1].clone(),
            scale: branch.scale,
            outputs: self.parts_of(branch).places(Self::place(branch), outputs),
        });
        branches.collect()
    }

    /// Factors of the rows that each branch belongs to.
    pub fn factors(&self, weight: &LinearWeight, (matrices, vectors): Parameters<'_>) -> Vec<Tensor<1>> {
        let [outputs, _] = weight.dims();
        let squares_o = low_rank_row_squares(weight.clone(), &self.low_rank(matrices, outputs));
        let lengths_o1 = dora::row_lengths(squares_o, self.ranks.as_ref()).reshape([outputs, 1]);
        let of_branch = |(branch, magnitudes_p): (&Branch, &Tensor<1>)| {
            let [rows] = magnitudes_p.dims();
            let lengths_p1 = self.parts_of(branch).select(Self::place(branch), lengths_o1.clone());
            dora::factors(lengths_p1.reshape([rows]), magnitudes_p.clone())
        };
        self.branches.iter().zip(vectors).map(of_branch).collect()
    }

    /// Product of a branch's input with the weight rows that the branch belongs to.
    fn part_of_base(&self, branch: &Branch, x_ni: Tensor<2>, weight: &LinearWeight) -> Tensor<2> {
        let select = |rows| self.parts_of(branch).select(Self::place(branch), rows);
        match weight {
            LinearWeight::Whole(weight_oi) => linear(x_ni, select(weight_oi.clone()), None),
            LinearWeight::Quantized(_) => select(linear_weighted(x_ni, weight, None, None).transpose()).transpose(),
        }
    }

    /// Output of a branch for its input.
    fn branch(&self, index: usize, x_ni: Tensor<2>, matrices: &[Tensor<2>], key: Option<DropoutKey>) -> Tensor<2> {
        let [a_ri, b_or] = [0, 1].map(|i| matrices[2 * index + i].clone());
        let y_no = linear(linear(x_ni, a_ri, None) * self.branches[index].scale, b_or, None);
        match key {
            Some(key) if self.dropout.place == DropoutPlace::Output => dropout(y_no, self.dropout.rate, key),
            Some(_) | None => y_no,
        }
    }
}

/// Matrices and vectors of a layer.
pub(super) type Parameters<'a> = (&'a [Tensor<2>], &'a [Tensor<1>]);

impl LinearRule for LowRankRule {
    fn change(&self, operands: LinearOperands<'_>) -> LinearChange {
        let LinearOperands { x_ni, weight, matrices, vectors, dropout: stream } = operands;
        let outputs = weight.dims()[0];
        let key = |index: usize| {
            let stream = stream.filter(|_| self.dropout.rate > 0.0)?;
            Some(DropoutKey(stream.derive(Self::place(&self.branches[index]) as u64)))
        };
        let input = |index: usize| match key(index) {
            Some(key) if self.dropout.place == DropoutPlace::Input => dropout(x_ni.clone(), self.dropout.rate, key),
            Some(_) | None => x_ni.clone(),
        };
        let all = || 0..self.branches.len();
        let added = |index: usize| self.branch(index, input(index), matrices, key(index));
        let factors = || -> Vec<Tensor<2>> {
            let factors = self.factors(&weight, (matrices, vectors)).into_iter();
            factors.map(|factors_p| factors_p.unsqueeze_dim(0)).collect()
        };
        let made = |of_branches| Added::Made(self.join(of_branches, outputs, 0.0));
        match self.method {
            PeftKind::Lora if key(0).is_none() => {
                LinearChange { added: Added::LowRank(self.low_rank(matrices, outputs)), factors_o: None }
            }
            PeftKind::Lora => LinearChange { added: made(all().map(added).collect()), factors_o: None },
            PeftKind::Dora if key(0).is_none() => LinearChange {
                added: Added::LowRank(self.low_rank(matrices, outputs)),
                factors_o: Some(self.join(factors(), outputs, 1.0).reshape([outputs])),
            },
            // With dropout `w x + (f - 1) w drop(x) + f b a drop(x)`: the length of a row changes
            // only what the branch sees.
            PeftKind::Dora => {
                let of_branch = |(index, factors_1o): (usize, Tensor<2>)| {
                    let branch = &self.branches[index];
                    let of_base = self.part_of_base(branch, input(index), &weight) * (factors_1o.clone() - 1.0);
                    of_base + added(index) * factors_1o
                };
                LinearChange {
                    added: made(factors().into_iter().enumerate().map(of_branch).collect()),
                    factors_o: None,
                }
            }
        }
    }
}
