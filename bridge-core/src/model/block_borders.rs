//! Borders at which ranks may divide quantized weights.

use super::{Declaration, ModelBuildError, ModelChunk};

/// Refuses cuts through the blocks of a quantised weight, whose values would depend on the ranks.
/// Fails with the name of the first weight that is cut so.
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
