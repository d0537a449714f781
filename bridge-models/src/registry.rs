//! The kinds that programs start from.

use std::sync::Arc;

use bridge_core::model::ModelRegistry;
use bridge_core::train::Registry;

use crate::adapters::low_rank_adapter;
use crate::huggingface::HUGGING_FACE;
use crate::megatron::MEGATRON;
use crate::register_builtin;

/// The built-in kinds of models and datasets, and models of Hugging Face and Megatron as weights to
/// start from. Register your own beside them.
pub fn registry() -> Registry {
    let mut models = ModelRegistry::default();
    register_builtin(&mut models);
    models.adapt_by(|peft, model| Ok(Arc::new(low_rank_adapter(peft, model)?)));
    Registry { weights: vec![HUGGING_FACE, MEGATRON], ..Registry::new(models) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_recipes_may_name_can_be_built() {
        let registry = registry();
        let kinds = registry.kinds();
        for (kinds, factories) in
            [(&kinds.model, format!("{:?}", registry.models)), (&kinds.dataset, format!("{:?}", registry.datasets))]
        {
            let names: Vec<&str> = kinds.names().collect();
            assert!(names.len() > 3, "{names:?}");
            for name in names {
                let is_refused = kinds.get(name).unwrap().not_implemented.is_some();
                assert_ne!(factories.contains(&format!("{name:?}")), is_refused, "{name} in {factories}");
            }
        }
    }
}
