//! `model.cuda_graph_impl`: forward and backward of a micro-batch recorded as a graph, and features
//! that cannot be in one.

use super::super::choice::CudaGraphImpl;
use super::super::error::ErrorKind;
use super::super::field::OneOrMany;
use super::super::run_config::ParallelSizes;
use super::Draft;

const IMPL: &str = "model.cuda_graph_impl";
const SCOPE: &str = "model.cuda_graph_scope";

/// The scope that is built: forward and backward of a micro-batch, without the optimizer.
const WHOLE: &str = "full_iteration";

const WITHOUT_GRAPHS: &str = "has no effect without model.cuda_graph_impl = \"local\"";

/// Checks the settings of graphs.
pub(super) fn check(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    let model = draft.recipe.model.config.clone();
    let scopes = match &model.cuda_graph_scope {
        OneOrMany::One(scopes) => scopes.split(',').map(|scope| scope.trim().to_owned()).collect(),
        OneOrMany::Many(scopes) => scopes.clone(),
    };
    if model.cuda_graph_impl == CudaGraphImpl::None {
        let is_default = scopes.is_empty() || scopes == ["full"];
        draft.idle_unless(is_default, SCOPE, WITHOUT_GRAPHS);
        return;
    }
    if draft.is_refused(IMPL) {
        return;
    }
    if scopes != [WHOLE] {
        let message = "not implemented yet: graphs of layers, or of their parts, each by itself";
        draft.error(ErrorKind::NotImplemented, SCOPE, format!("{message}; expected \"{WHOLE}\""));
    }
    if parallel.data > 1 && draft.recipe.ddp.overlap_grad_reduce {
        let message =
            "excludes ddp.overlap_grad_reduce: gradients are reduced behind the graph, which ends with backward";
        draft.conflict(IMPL, message);
    }
}
