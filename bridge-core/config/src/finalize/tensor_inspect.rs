//! `[tensor_inspect]`: its rules, from a table or a file, and its folder.

use std::path::Path;

use toml::Value;

use super::super::field::AnyValue;
use super::super::run_config::{FinalLogger, FinalTensorInspect};
use super::super::sections::TensorInspectConfig;
use super::super::source;
use super::Draft;
use crate::tensor_features;

const FEATURES: &str = "tensor_inspect.features";

/// Statistics of tensors; `None` without any.
pub(super) fn resolve(draft: &mut Draft<'_>, logger: &FinalLogger) -> Option<FinalTensorInspect> {
    let settings: TensorInspectConfig = draft.recipe.tensor_inspect.clone()?;
    if !settings.enabled {
        return None;
    }
    let rules = specification(settings.features.as_ref()).and_then(|value| {
        tensor_features::rules(value.as_ref(), logger.log_interval.max(1) as u64).map_err(|e| e.to_string())
    });
    let rules = match rules {
        Ok(rules) => rules,
        Err(message) => {
            draft.conflict(FEATURES, message);
            Vec::new()
        }
    };
    let log_dir = settings.log_dir.unwrap_or_else(|| logger.log_dir.clone());
    draft.require(!log_dir.as_os_str().is_empty(), "tensor_inspect.log_dir", "is not the name of a folder");
    Some(FinalTensorInspect { rules, log_dir, init_training_step: settings.init_training_step as u64 })
}

/// The table that is given, or that of the file that is.
fn specification(features: Option<&AnyValue>) -> Result<Option<Value>, String> {
    match features.map(|AnyValue(value)| value) {
        None => Ok(None),
        Some(Value::String(path)) => match source::parse_file(Path::new(path)) {
            Ok(node) => Ok(Some(node.to_toml_value())),
            Err(errors) => Err(format!("cannot be read: {errors}")),
        },
        Some(table @ Value::Table(_)) => Ok(Some(table.clone())),
        Some(_) => Err("is neither a table nor the path of a file".into()),
    }
}
