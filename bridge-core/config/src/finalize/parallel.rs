//! Stage 2: parallel sizes. The data-parallel size is never given; it follows from all other sizes.

use super::super::run_config::ParallelSizes;
use super::Draft;

/// Derives the layout of ranks, and checks that the sizes divide the world.
pub(super) fn resolve(draft: &mut Draft<'_>) -> ParallelSizes {
    let model = &draft.recipe.model;
    let tensor = model.tensor_model_parallel_size.max(1);
    let mut sizes = ParallelSizes {
        world_size: draft.world.size.max(1),
        tensor,
        pipeline: model.pipeline_model_parallel_size.max(1),
        virtual_pipeline: model.virtual_pipeline_model_parallel_size.unwrap_or(1).max(1),
        context: model.context_parallel_size.max(1),
        expert: model.expert_model_parallel_size.max(1),
        expert_tensor: model.expert_tensor_parallel_size.unwrap_or(tensor).max(1),
        data: 1,
    };
    dense_sizes_divide_world(draft, &mut sizes);
    expert_sizes_divide_world(draft, &sizes);
    let model = draft.recipe.model.clone();
    let sharing = sizes.tensor.saturating_mul(sizes.context);
    draft.require(
        !model.sequence_parallel || model.seq_length.is_multiple_of(sharing),
        "model.seq_length",
        format!("must be divisible by the {sharing} ranks over which a sequence is sharded (model.sequence_parallel)"),
    );
    draft.require(
        sizes.virtual_pipeline == 1 || sizes.pipeline > 1,
        "model.virtual_pipeline_model_parallel_size",
        "needs model.pipeline_model_parallel_size above 1",
    );
    sizes
}

fn dense_sizes_divide_world(draft: &mut Draft<'_>, sizes: &mut ParallelSizes) {
    let given = [
        ("model.tensor_model_parallel_size", sizes.tensor),
        ("model.pipeline_model_parallel_size", sizes.pipeline),
        ("model.context_parallel_size", sizes.context),
    ];
    match product(&given) {
        Some(ranks) if sizes.world_size.is_multiple_of(ranks) => sizes.data = sizes.world_size / ranks,
        _ => report(draft, &given, sizes.world_size),
    }
}

fn expert_sizes_divide_world(draft: &mut Draft<'_>, sizes: &ParallelSizes) {
    if sizes.expert == 1 && sizes.expert_tensor == sizes.tensor {
        return;
    }
    let given = [
        ("model.expert_model_parallel_size", sizes.expert),
        ("model.expert_tensor_parallel_size", sizes.expert_tensor),
        ("model.pipeline_model_parallel_size", sizes.pipeline),
    ];
    match product(&given) {
        Some(ranks) if sizes.world_size.is_multiple_of(ranks) => {}
        _ => report(draft, &given, sizes.world_size),
    }
}

fn product(given: &[(&str, usize)]) -> Option<usize> {
    given.iter().try_fold(1_usize, |product, (_, size)| product.checked_mul(*size))
}

fn report(draft: &mut Draft<'_>, given: &[(&str, usize)], world_size: usize) {
    let needed = product(given).map_or_else(String::new, |ranks| format!(" {ranks} or a multiple of it"));
    let factors: Vec<_> = given.iter().map(|(key, size)| format!("{key} = {size}")).collect();
    let factors = factors.join(", ");
    // Each size above 1 contributes to the problem, and any of them may be wrong.
    for (key, _) in given.iter().filter(|(_, size)| *size > 1) {
        let message = format!(
            "the product of {factors} does not divide {world_size} ranks: start{needed} with --ranks, or change the sizes"
        );
        draft.conflict(key, message);
    }
}
