//! Settings of single parameters: the rules of `[[optimizer_config_override_provider.rules]]` over
//! the usual settings of groups.

use std::collections::BTreeSet;

use super::groups::{OverrideContext, OverrideProvider, StandardOverrides};
use crate::config::{ParameterRule, ParameterRuleRole};
use crate::model::{Declaration, ParameterRole};
use crate::schedule::GroupSettings;

/// Rule of a recipe that matches no trained parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "optimizer_config_override_provider.rules[{number}]: matches no trained parameter; expected names such as {example}"
)]
pub struct UnmatchedRule {
    number: usize,
    example: String,
}

/// The usual settings, changed by rules in their order.
#[derive(Clone, Debug, Default)]
pub struct RuleOverrides {
    standard: StandardOverrides,
    /// Rules, each with the parameters that it matches.
    rules: Vec<(ParameterRule, BTreeSet<String>)>,
}

impl RuleOverrides {
    /// The usual settings and the rules of a recipe, which match nothing before
    /// [`prepare`](OverrideProvider::prepare).
    pub fn new(standard: StandardOverrides, rules: &[ParameterRule]) -> Self {
        Self { standard, rules: rules.iter().map(|rule| (rule.clone(), BTreeSet::new())).collect() }
    }
}

impl OverrideProvider for RuleOverrides {
    fn prepare(&mut self, context: &OverrideContext<'_>) -> Result<(), UnmatchedRule> {
        for (number, (rule, names)) in self.rules.iter_mut().enumerate() {
            let trained = context.parameters.iter().filter(|parameter| parameter.trainable);
            let matching = trained.filter(|parameter| matches(rule, parameter, context.other_names));
            *names = matching.map(|parameter| parameter.name.clone()).collect();
            if names.is_empty() {
                let example = context.parameters.first().map(|parameter| parameter.name.clone()).unwrap_or_default();
                return Err(UnmatchedRule { number, example });
            }
        }
        Ok(())
    }

    fn override_for(&self, parameter: &Declaration) -> GroupSettings {
        let mut settings = self.standard.override_for(parameter);
        for (rule, _) in self.rules.iter().filter(|(_, names)| names.contains(&parameter.name)) {
            settings.rule = rule.optimizer.map(|name| name.as_str()).or(settings.rule);
            settings.max_lr = rule.lr.or(settings.max_lr);
            settings.min_lr = rule.min_lr.or(settings.min_lr);
            settings.lr_mult = rule.lr_mult.unwrap_or(settings.lr_mult);
            settings.epsilon = rule.eps.or(settings.epsilon);
            settings.momentum = rule.momentum.or(settings.momentum);
            if let Some(weight_decay) = rule.weight_decay {
                (settings.weight_decay, settings.wd_mult) = (Some(weight_decay), 1.0);
            }
        }
        settings
    }

    /// A line for each rule: what it sets, and the parameters that it matches.
    fn lines(&self) -> Vec<String> {
        const SHOWN: usize = 3;
        let line = |(number, (rule, names)): (usize, &(ParameterRule, BTreeSet<String>))| {
            let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            let more = if names.len() > SHOWN { ", ..." } else { "" };
            let (count, set) = (names.len(), rule.set().join(", "));
            format!("optimizer_config_override_provider.rules[{number}]: {set} for {count} parameters: {shown}{more}")
        };
        self.rules.iter().enumerate().map(line).collect()
    }
}

fn matches(rule: &ParameterRule, parameter: &Declaration, other_names: &dyn Fn(&str) -> Vec<String>) -> bool {
    let is_layer = rule.layers.is_empty() || parameter.layer.is_some_and(|layer| rule.layers.contains(&layer));
    let is_role = rule.roles.is_empty() || rule.roles.iter().any(|role| role_of(*role) == parameter.role);
    let is_named = || {
        let others = other_names(&parameter.name);
        std::iter::once(&parameter.name).chain(&others).any(|name| rule.matches_name(name))
    };
    is_layer && is_role && is_named()
}

fn role_of(role: ParameterRuleRole) -> ParameterRole {
    match role {
        ParameterRuleRole::Weight => ParameterRole::Weight,
        ParameterRuleRole::Bias => ParameterRole::Bias,
        ParameterRuleRole::Norm => ParameterRole::Norm,
        ParameterRuleRole::QueryKeyNorm => ParameterRole::QueryKeyNorm,
        ParameterRuleRole::Embedding => ParameterRole::Embedding,
        ParameterRuleRole::Output => ParameterRole::Output,
        ParameterRuleRole::Channels => ParameterRole::Channels,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::config::{Format, Kinds, OptimizerConfig, RawConfig};
    use crate::schedule::{LrDecayStyle, OptimizerParamSchedulerConfig, WeightDecayIncrStyle, WsdDecayStyle};
    use crate::tests::toy;

    fn rules(text: &str) -> Vec<ParameterRule> {
        let recipe = RawConfig::from_text(text, Format::Toml, &[], &Kinds::builtin()).expect("a recipe");
        recipe.optimizer_config_override_provider.rules.clone()
    }

    fn prepared(text: &str) -> Result<RuleOverrides, UnmatchedRule> {
        let chunk = toy(3, FloatDType::F32);
        let mut overrides = RuleOverrides::new(StandardOverrides::default(), &rules(text));
        let other_names = |name: &str| vec![name.replace("layers.", "model.layers.")];
        let scheduler = OptimizerParamSchedulerConfig {
            init_lr: 0.0,
            max_lr: 1.0,
            min_lr: 0.0,
            lr_warmup_steps: 0.0,
            lr_decay_steps: 1,
            lr_decay_style: LrDecayStyle::Constant,
            wsd_decay_steps: None,
            lr_wsd_decay_style: WsdDecayStyle::Linear,
            start_wd: 0.0,
            end_wd: 0.0,
            wd_incr_steps: 0,
            wd_incr_style: WeightDecayIncrStyle::Constant,
        };
        let context = OverrideContext {
            optimizer: &OptimizerConfig::default(),
            scheduler: &scheduler,
            parameters: chunk.parameters(),
            other_names: &other_names,
        };
        overrides.prepare(&context).map(|()| overrides)
    }

    #[test]
    fn rules_match_by_name_layer_and_role_and_the_last_holds() {
        let overrides = prepared(
            "[[optimizer_config_override_provider.rules]]\nmatch = \"model.layers.*\"\nlr_mult = 0.5\noptimizer = \"lion\"\n\
             [[optimizer_config_override_provider.rules]]\nmatch = \"/layers\\\\.[12]/\"\nlr_mult = 0.25\nweight_decay = 0.5\n\
             [[optimizer_config_override_provider.rules]]\nlayers = [2]\nmomentum = 0.5\neps = 1e-3\nlr = 0.125\nmin_lr = 0.0625\n\
             [[optimizer_config_override_provider.rules]]\nroles = [\"embedding\"]\noptimizer = \"sgd\"\n",
        )
        .expect("all rules match");
        let chunk = toy(3, FloatDType::F32);
        let of_layer = |layer: usize| {
            let parameter =
                chunk.parameters().iter().find(|parameter| parameter.layer == Some(layer)).expect("a layer");
            overrides.override_for(parameter)
        };
        let embedding = chunk.parameters().iter().find(|p| p.role == ParameterRole::Embedding).expect("an embedding");
        assert_eq!(overrides.override_for(embedding).rule, Some("sgd"));
        let found = [0, 1, 2].map(of_layer);
        assert_eq!(found.map(|settings| settings.lr_mult), [0.5, 0.25, 0.25]);
        assert_eq!(found.map(|settings| settings.weight_decay), [None, Some(0.5), Some(0.5)]);
        assert_eq!(found.map(|settings| settings.rule), [Some("lion"); 3]);
        assert_eq!(found.map(|settings| settings.momentum), [None, None, Some(0.5)]);
        assert_eq!((found[2].max_lr, found[2].min_lr, found[2].epsilon), (Some(0.125), Some(0.0625), Some(1e-3)));
        assert_eq!(overrides.lines().len(), 4);
        assert!(overrides.lines()[3].contains("optimizer = sgd for 1 parameters"), "{:?}", overrides.lines());
        let unmatched =
            prepared("[[optimizer_config_override_provider.rules]]\nmatch = \"heads.*\"\nlr = 1\n").unwrap_err();
        assert!(unmatched.to_string().contains("rules[0]"), "{unmatched}");
    }
}
