//! Refusals of a run whose program has replaced the model's output projection.

use crate::config::RunConfig;
use crate::model::{Adapter, Declarations, ModelBuildError};
use crate::train::run::error::TrainError;

/// Refuses a replaced output projection if the model does not support the replacement, or a setting
/// of the recipe needs the projection.
pub(in crate::train) fn check(
    config: &RunConfig,
    adapter: Option<&dyn Adapter>,
    declarations: &Declarations,
) -> Result<(), TrainError> {
    if adapter.and_then(Adapter::last_layer).is_none() {
        return Ok(());
    }
    let refused = |key: &str, message: String| Err(ModelBuildError::Invalid { key: key.into(), message }.into());
    if !declarations.parameters().iter().any(|info| info.of_last_layer) {
        let message = format!("`{}` has no output projection that a program can replace", config.model.kind);
        return refused("model.kind", message);
    }
    for (section, is_there) in [("dpo", config.dpo.is_some()), ("distillation", config.distillation.is_some())] {
        if is_there {
            return refused(section, "needs logits, and the program has put another layer in their place".to_owned());
        }
    }
    Ok(())
}
