//! Interface of adapters, which change a model's declarations as blocks make them, and the products
//! of its linear layers.
//!
//! An adapter knows no kind of model: it sees each parameter and each linear layer where it is
//! declared. It may freeze parameters, and give a linear layer parameters of its own. They are
//! declared in the layer's scope, so ranks, stages, checkpoints and the optimizer treat them like
//! all others. A layer without an adapter computes the same bits as before.

use std::fmt;
use std::sync::Arc;

use bridge_kernels::{LinearWeight, LowRank, Philox, Quantization, low_rank_sum};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{Declaration, EightBitLayer, GradientScope, ModelBuildError, PassStream, Scope, TensorPartition};

/// Reads whole weights of a base by name. `None` if a weight cannot be read; the owner of the
/// function reports why.
pub type BaseRows<'a> = dyn FnMut(&str) -> Option<Vec<f32>> + 'a;

/// Changes the declarations of blocks. Results must be functions of the names and whole shapes
/// passed in, so that they are the same on all ranks.
pub trait Adapter: fmt::Debug + Send + Sync {
    /// True if a parameter that a block declares is trained. A frozen one has no gradient and no
    /// optimizer state; it is saved and exported like the others. Parameters of adapters are
    /// trained, and not queried here.
    fn trains(&self, declaration: &Declaration) -> bool;

    /// The adapter that this one wraps, which gives the answers that this one does not give. The
    /// default is `None`.
    fn inner(&self) -> Option<&dyn Adapter> {
        None
    }

    /// Quantization of a linear layer's weight if it is not trained; `None` keeps it as a tensor. A
    /// quantized weight shares no values with another parameter: its dequantized values are saved.
    fn quantization(&self, layer: &LinearLayer) -> Option<Quantization> {
        self.inner()?.quantization(layer)
    }

    /// Quantization of a table of the vocabulary (the word embedding, the head) if it is not
    /// trained, see [`Self::quantization`].
    fn table_quantization(&self, table: &str) -> Option<Quantization> {
        self.inner()?.table_quantization(table)
    }

    /// 8-bit computation of the linear layers of layer `number` (global; `None` outside of layers);
    /// `None` computes in the parameters' dtype.
    fn eight_bits(&self, number: Option<usize>) -> Option<EightBitLayer> {
        self.inner()?.eight_bits(number)
    }

    /// Layer that replaces the model's output projection; `None` keeps the projection.
    fn last_layer(&self) -> Option<LinearForLastLayer> {
        self.inner()?.last_layer()
    }

    /// Checks that everything that the settings name was found in the outline of the whole model.
    ///
    /// # Errors
    /// The first name that nothing has.
    fn check_met(&self) -> Result<(), ModelBuildError> {
        self.inner().map_or(Ok(()), Adapter::check_met)
    }

    /// The whole values that a parameter of the adapter begins with, if they follow from weights of
    /// the base, of which `weight` gives the values by name, row-major.
    fn begins(&self, parameter: &str, weight: &mut BaseRows<'_>) -> Option<Vec<f32>> {
        self.inner()?.begins(parameter, weight)
    }

    /// Adaptation of a linear layer's product; `None` keeps the layer unchanged. `scope` is the
    /// layer's: parameters declared there have names below its own.
    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        self.inner()?.adapt(layer, scope)
    }
}

/// A head of a few outputs in place of the output projection, `[b, t, c]` -> `[b, t, output_size]`
/// in float32 (`LinearForLastLayer` upstream). Each tensor-parallel rank has all of it. The model
/// then has no loss of its own: the forward step must bring one
/// ([`ForwardStep::custom_loss`](crate::train::ForwardStep::custom_loss)), which finds the outputs
/// where logits are ([`ModelOutputs::logits`](super::ModelOutputs::logits)).
///
/// [`ModelRegistry::replace_last_layer`](super::ModelRegistry::replace_last_layer) gives it to all
/// models that are built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearForLastLayer {
    /// Outputs of the layer, at least 1.
    pub output_size: usize,
    /// True if the layer adds a bias.
    pub bias: bool,
    /// Rate of the dropout on the layer's input, in `[0, 1)`.
    pub dropout: f64,
}

impl LinearForLastLayer {
    /// A value head: one output for each token, without bias or dropout.
    pub const VALUE_HEAD: Self = Self { output_size: 1, bias: false, dropout: 0.0 };
}

/// A linear layer, `x w^T + bias`, as it is declared. Sizes are those of the whole layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearLayer {
    /// Dotted name, without `.weight`.
    pub name: String,
    /// Size of the input: columns of the weight.
    pub inputs: usize,
    /// Size of the output: rows of the weight.
    pub outputs: usize,
    /// Sharding of the weight.
    pub cut: TensorPartition,
}

impl LinearLayer {
    /// Sharding of a matrix `[any, inputs]` that reads the layer's input, so that it matches the
    /// rank's part of the input.
    pub fn cut_by_inputs(&self) -> TensorPartition {
        match self.cut {
            TensorPartition::Columns | TensorPartition::Replicated(_) => self.cut,
            TensorPartition::Rows
            | TensorPartition::Blocks(_)
            | TensorPartition::Sections(_)
            | TensorPartition::KeyValueGroups { .. }
            | TensorPartition::GatedQueries { .. }
            | TensorPartition::KeyHeads { .. }
            | TensorPartition::VocabularyRows => TensorPartition::Replicated(GradientScope::OwnPart),
        }
    }

    /// Sharding of a matrix `[outputs, any]` or a vector `[outputs]` for the layer's output, so
    /// that it matches the rank's part of the output.
    pub fn cut_by_outputs(&self) -> TensorPartition {
        match self.cut {
            TensorPartition::Columns => TensorPartition::Replicated(GradientScope::OwnPart),
            TensorPartition::Replicated(_)
            | TensorPartition::Rows
            | TensorPartition::Blocks(_)
            | TensorPartition::Sections(_)
            | TensorPartition::KeyValueGroups { .. }
            | TensorPartition::GatedQueries { .. }
            | TensorPartition::KeyHeads { .. }
            | TensorPartition::VocabularyRows => self.cut,
        }
    }
}

/// Operands of a rule: the input of a linear layer, and this rank's part of its parameters.
#[derive(Clone, Debug)]
pub struct LinearOperands<'a> {
    /// `[n, this rank's inputs]`.
    pub x_ni: Tensor<2>,
    /// This rank's part of the layer's weight, `[o, this rank's inputs]`.
    pub weight: LinearWeight,
    /// The matrices of the [`LinearAdaptation`], in its order.
    pub matrices: &'a [Tensor<2>],
    /// Vectors of the adapter, in its order.
    pub vectors: &'a [Tensor<1>],
    /// The stream of this layer's dropout masks in this pass; `None` in evaluation.
    pub dropout: Option<Philox>,
}

/// Computation of an adapted linear layer, on this rank.
pub trait LinearRule: fmt::Debug + Send + Sync {
    /// The change of the product.
    fn change(&self, operands: LinearOperands<'_>) -> LinearChange;
}

/// The product becomes `factors * (x w^T + added) + bias`. Where a layer's inputs are sharded this
/// is each rank's term of a sum, and the bias is added once.
#[derive(Clone, Debug)]
pub struct LinearChange {
    /// Term that is added.
    pub added: Added,
    /// `[o]`: one for each output, if the sum is scaled.
    pub factors_o: Option<Tensor<1>>,
}

/// Term that is added to the product of a linear layer.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub enum Added {
    /// These values, `[n, o]`.
    Made(Tensor<2>),
    /// Low-rank branches of the layer's input, which the product can include in one operation.
    LowRank(Vec<LowRank>),
}

impl Added {
    /// The values, `[n, o]`, for the layer's input `[n, i]`.
    pub fn values(self, x_ni: Tensor<2>, outputs: usize) -> Tensor<2> {
        match self {
            Self::Made(added_no) => added_no,
            Self::LowRank(branches) => low_rank_sum(x_ni, &branches, outputs),
        }
    }
}

/// The parameters that an adapter gives to a linear layer, and its rule.
#[derive(Module, Debug)]
pub struct LinearAdaptation {
    matrices: Vec<Param<Tensor<2>>>,
    vectors: Vec<Param<Tensor<1>>>,
    #[module(skip)]
    rule: Arc<dyn LinearRule>,
    #[module(skip)]
    pass: PassStream,
    /// Name of the layer, which its dropout masks depend on.
    #[module(skip)]
    layer: String,
}

impl LinearAdaptation {
    /// Parameters declared in the layer's scope, and the adaptation made of them.
    pub fn new(
        matrices: Vec<Param<Tensor<2>>>,
        vectors: Vec<Param<Tensor<1>>>,
        rule: impl LinearRule + 'static,
    ) -> Self {
        Self { matrices, vectors, rule: Arc::new(rule), pass: PassStream::default(), layer: String::new() }
    }

    /// The adaptation for the layer called `layer`, in the passes that `pass` reports.
    pub(super) fn of_layer(self, layer: &str, pass: PassStream) -> Self {
        Self { layer: layer.to_owned(), pass, ..self }
    }

    /// The same adaptation, bound to the current pass: for operations that run again in backward,
    /// in whichever pass.
    pub fn in_this_pass(&self) -> Self {
        Self { pass: self.pass.detached(), ..self.clone() }
    }

    /// The change of the product of `weight` and `x_ni`.
    pub fn change(&self, x_ni: Tensor<2>, weight: LinearWeight) -> LinearChange {
        let matrices: Vec<_> = self.matrices.iter().map(Param::val).collect();
        let vectors: Vec<_> = self.vectors.iter().map(Param::val).collect();
        self.rule.change(LinearOperands {
            x_ni,
            weight,
            matrices: &matrices,
            vectors: &vectors,
            dropout: self.pass.get().map(|stream| stream.derive_name(&self.layer)),
        })
    }
}
