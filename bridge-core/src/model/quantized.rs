//! Weights of frozen linear layers that are held quantised: the parameter of the module keeps its shape and has no memory, its values are here.

use std::sync::{Arc, PoisonError, RwLock};

use bridge_kernels::{LinearWeight, Quantization, QuantizedMatrix};
use burn::module::Param;
use burn::tensor::Tensor;

use super::{Declaration, ModelBuildError, ModelChunk};

/// The values of a parameter that is held quantised. Clones share them.
#[derive(Clone, Debug)]
pub struct QuantizedValues {
    quantization: Quantization,
    matrix: Arc<RwLock<Option<Arc<QuantizedMatrix>>>>,
}

impl QuantizedValues {
    /// None yet.
    pub(super) fn new(quantization: Quantization) -> Self {
        Self { quantization, matrix: Arc::default() }
    }

    /// How they are quantised.
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// The matrix.
    ///
    /// # Panics
    /// If it has no values.
    pub fn matrix(&self) -> Arc<QuantizedMatrix> {
        let matrix = self.matrix.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(matrix.as_ref().expect("a quantised parameter is read before it has values"))
    }

    /// What a product is made with.
    ///
    /// # Panics
    /// As [`Self::matrix`].
    pub fn weight(&self) -> LinearWeight {
        LinearWeight::Quantized(self.matrix())
    }

    /// Quantises `values`, row-major, or leaves nothing.
    pub(super) fn set(&self, values: Option<Tensor<1>>, shape: [usize; 2]) {
        let matrix = values.map(|values| {
            let values: Vec<f32> = values.into_data().iter::<f32>().collect();
            Arc::new(QuantizedMatrix::new(&values, shape, self.quantization))
        });
        *self.matrix.write().unwrap_or_else(PoisonError::into_inner) = matrix;
    }
}

/// The weight of a linear layer as its scope makes it.
#[derive(Debug)]
pub struct LinearParameter {
    /// The parameter, `[outputs, inputs]`. One that is held quantised has a shape, and no values here.
    pub param: Param<Tensor<2>>,
    /// Where the values of a quantised one are.
    pub quantized: Option<QuantizedValues>,
}

/// Refuses cuts through the blocks of a quantised weight, whose values would depend on the ranks.
///
/// # Errors
/// With the name of the first weight that is cut so.
pub(crate) fn check_blocks(chunks: &[Box<dyn ModelChunk>]) -> Result<(), ModelBuildError> {
    let cut = |parameter: &Declaration| {
        let (quantization, shard) = (parameter.quantization?, parameter.placement.shard.as_ref()?);
        let size = quantization.block_size;
        let is_border = |column: usize| column == shard.size || column.is_multiple_of(size);
        let is_cut = shard.dim == 1 && shard.parts.iter().any(|part| !is_border(part.start) || !is_border(part.end));
        is_cut.then(|| {
            let (name, inputs) = (&parameter.name, shard.parts[0].len());
            format!(
                "expected blocks that end where ranks divide the inputs of `{name}`, found blocks of {size} and ranks \
                 with {inputs} inputs each: a size that divides {inputs} would fit"
            )
        })
    };
    match chunks.iter().flat_map(|chunk| chunk.parameters()).find_map(cut) {
        Some(message) => Err(ModelBuildError::Invalid { key: "peft.base_quantization_block_size".into(), message }),
        None => Ok(()),
    }
}
