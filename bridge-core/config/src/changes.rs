//! Differences between the recipe of a checkpoint and that of a run that resumes from it, with
//! their effect. The run decides on the consequence.

use super::catalogue::row;
use super::field::OneOrMany;
use super::kinded::ModelConfig;
use super::node::{Data, Node};
use super::ops::diff;
use super::run_config::FinalTransformer;
use super::sections::{RecipeConfig, TransformerConfig};
use super::spec::Concerns;

/// Prefix of the keys of section `[model]`.
pub const MODEL: &str = "model.";
/// The section whose settings say which adapter there is, with the dot.
pub const PEFT: &str = "peft.";
/// Name in `checkpoint.allow_model_changes` that is not in `[model]`.
pub const TOKENIZER: &str = "tokenizer";

/// A setting whose value is not that of the checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Dotted path.
    pub key: String,
    /// The value that the checkpoint was trained with.
    pub before: Node,
    /// The value of the run.
    pub now: Node,
    /// Effect of the difference.
    pub concerns: Concerns,
}

/// The settings in which the recipe `now` differs from the one of a checkpoint, in the order of the
/// sections. Values of `[model]` are compared by their meaning: a size that is derived equals the
/// same size written down, and numbers are equal that are in float32, in which files of other
/// programs have them.
pub fn changes(before: &RecipeConfig, now: &RecipeConfig) -> Vec<Change> {
    let (mut before, mut now) = (before.clone(), now.clone());
    // A kind may give the settings another meaning, and need not have those that are derived.
    if let (Some(model_before), Some(model_now)) = (in_one_form(&before.model), in_one_form(&now.model)) {
        (before.model.config, now.model.config) = (model_before, model_now);
    }
    for peft in [&mut before.peft, &mut now.peft].into_iter().flatten() {
        peft.alpha = Some(peft.scale_numerator());
    }
    let null = || Node::null();
    let differences = diff(&before, &now).into_iter();
    differences
        .map(|difference| Change {
            concerns: concerns(&difference.key),
            before: difference.left.unwrap_or_else(null),
            now: difference.right.unwrap_or_else(null),
            key: difference.key,
        })
        // A section that only one recipe has differs in the settings that it sets, not in those
        // that are null.
        .filter(|change| change.before.data != change.now.data)
        .filter(|change| !change.key.starts_with(MODEL) || !are_same(&change.before, &change.now))
        .collect()
}

/// True if two values, or all elements of two lists, are equal in float32.
fn are_same(before: &Node, now: &Node) -> bool {
    match (&before.data, &now.data) {
        (Data::Float(before), Data::Float(now)) => *before as f32 == *now as f32,
        (Data::List(before), Data::List(now)) => {
            before.len() == now.len() && before.iter().zip(now).all(|(before, now)| are_same(before, now))
        }
        (before, now) => before == now,
    }
}

/// Effect of a setting, from its row or from the row of its section. Outside `[model]` and `[peft]`
/// no setting changes the function; settings of `[model]` that only a kind knows do.
pub(super) fn concerns(key: &str) -> Concerns {
    let (section, name) = key.split_once('.').unwrap_or((key, ""));
    let Some(section) = row(section).map(|row| row.field.concerns) else { return Concerns::Training };
    let setting = row(key).filter(|_| !name.is_empty() && !name.contains('.')).map(|row| row.field.concerns);
    match setting.unwrap_or(Concerns::Function) {
        _ if section == Concerns::Execution => Concerns::Execution,
        Concerns::Function if !key.starts_with(MODEL) && !key.starts_with(PEFT) => Concerns::Training,
        concerns => concerns,
    }
}

/// A model section with everything that is derived written down; `None` if it is not a model on its
/// own.
fn in_one_form(model: &ModelConfig) -> Option<TransformerConfig> {
    model.config.finalize().ok().map(|resolved| resolved.in_one_form())
}

impl FinalTransformer {
    fn in_one_form(&self) -> TransformerConfig {
        let usual_scale = self.config.usual_softmax_scale(self.kv_channels);
        let is_windowed = self.windowed_layers.contains(&true);
        TransformerConfig {
            softmax_scale: self.config.softmax_scale.filter(|scale| *scale != usual_scale),
            embedding_init_method_std: Some(self.embedding_init_method_std),
            window_size: self.window_size.filter(|_| is_windowed).map(|[left, _]| [left, 0]),
            window_attn_skip_freq: listed(&self.windowed_layers),
            no_rope_freq: listed(&self.no_rope_layers),
            moe_layer_freq: listed(&self.moe_layers).unwrap_or(OneOrMany::One(1)),
            ..self.config.clone()
        }
    }
}

/// Flags of layers as a list; `None` if all layers are alike.
fn listed(layers: &[bool]) -> Option<OneOrMany<usize>> {
    let is_mixed = layers.contains(&true) && layers.contains(&false);
    is_mixed.then(|| OneOrMany::Many(layers.iter().map(|flag| usize::from(*flag)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn model() -> RecipeConfig {
        let mut raw = RawConfig::default();
        raw.model.num_layers = 4;
        raw.model.hidden_size = 64;
        raw.model.num_attention_heads = 4;
        raw.recipe().clone()
    }

    fn keys(change: impl FnOnce(&mut RecipeConfig)) -> Vec<(String, Concerns)> {
        let mut now = model();
        change(&mut now);
        changes(&model(), &now).into_iter().map(|change| (change.key, change.concerns)).collect()
    }

    #[test]
    fn what_is_derived_equals_what_is_written() {
        let same = keys(|now| {
            now.model.num_query_groups = Some(4);
            now.model.kv_channels = Some(16);
            now.model.ffn_hidden_size = Some(256);
            now.model.softmax_scale = Some(0.25);
            now.model.window_size = Some([-1, 0]);
        });
        // A window without an end is refused, so such a recipe is compared as it is written.
        assert!(same.iter().any(|(key, _)| key == "model.window_size"), "{same:?}");
        let same = keys(|now| {
            now.model.num_query_groups = Some(4);
            now.model.kv_channels = Some(16);
            now.model.ffn_hidden_size = Some(256);
            now.model.softmax_scale = Some(0.25);
        });
        assert_eq!(same, []);
    }

    #[test]
    fn numbers_from_files_of_float32_are_the_written_ones() {
        assert_eq!(keys(|now| now.model.layernorm_epsilon = f64::from(1e-5_f32)), []);
        assert_eq!(keys(|now| now.model.layernorm_epsilon = 1.00001e-5).len(), 1);
    }

    #[test]
    fn each_setting_says_what_it_concerns() {
        let found = keys(|now| {
            now.model.layernorm_epsilon = 1e-6;
            now.model.hidden_dropout = 0.0;
            now.model.tensor_model_parallel_size = 2;
            now.optimizer.adam_beta2 = 0.95;
            now.dataset.num_workers = 0;
            now.logger.log_interval = 7;
        });
        let expected = [
            ("model.layernorm_epsilon", Concerns::Function),
            ("model.hidden_dropout", Concerns::Training),
            ("model.tensor_model_parallel_size", Concerns::Execution),
            ("optimizer.adam_beta2", Concerns::Training),
            ("dataset.num_workers", Concerns::Execution),
            ("logger.log_interval", Concerns::Execution),
        ];
        let found: Vec<_> = found.iter().map(|(key, concerns)| (key.as_str(), *concerns)).collect();
        for pair in expected {
            assert!(found.contains(&pair), "{pair:?} in {found:?}");
        }
    }

    #[test]
    fn a_new_section_differs_in_what_it_sets() {
        let found = keys(|now| {
            let specs = now.dataset.packed_sequence_specs.get_or_insert_default();
            specs.packed_sequence_size = 64;
        });
        let names: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
        assert!(names.contains(&"dataset.packed_sequence_specs.packed_sequence_size"), "{names:?}");
        assert!(!names.iter().any(|name| name.ends_with("tokenizer_model_name")), "null -> null: {names:?}");
    }

    #[test]
    fn settings_of_a_kind_alone_change_the_function() {
        let found = keys(|now| drop(now.model.extra.insert("width".into(), toml::Value::Integer(3))));
        assert_eq!(found, [("model.width".to_owned(), Concerns::Function)]);
    }

    #[test]
    fn layers_are_compared_one_by_one() {
        let every_second = |model: &mut RecipeConfig, layers| {
            model.model.window_size = Some([8, 0]);
            model.model.window_attn_skip_freq = Some(layers);
        };
        let (mut number, mut list) = (model(), model());
        every_second(&mut number, OneOrMany::One(2));
        every_second(&mut list, OneOrMany::Many(vec![1, 0, 1, 0]));
        assert_eq!(changes(&number, &list), []);
        let [change, ..] = &changes(&model(), &list)[..] else { panic!("a window is a change") };
        assert_eq!((change.key.as_str(), &change.before.data), ("model.window_size", &Data::Null));
    }
}
