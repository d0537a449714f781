//! Parameter groups: which parameters share a learning rate and a weight decay.

use std::fmt;

use super::parameter_rules::UnmatchedRule;
use crate::config::OptimizerConfig;
use crate::model::{Declaration, ParameterRole};
use crate::schedule::{GroupSettings, OptimizerParamSchedulerConfig};

/// Configuration and model that the settings of parameters may depend on.
pub struct OverrideContext<'a> {
    /// Settings of the optimizer.
    pub optimizer: &'a OptimizerConfig,
    /// Schedules of learning rate and weight decay.
    pub scheduler: &'a OptimizerParamSchedulerConfig,
    /// Parameters of the whole model.
    pub parameters: &'a [Declaration],
    /// Names that other programs have for a parameter.
    pub other_names: &'a dyn Fn(&str) -> Vec<String>,
}

/// Decides the settings of each parameter. Parameters with equal settings are a group.
pub trait OverrideProvider: fmt::Debug + Send + Sync {
    /// Reads the context, before the settings of any parameter are asked for.
    ///
    /// # Errors
    /// If a rule matches no parameter.
    fn prepare(&mut self, _context: &OverrideContext<'_>) -> Result<(), UnmatchedRule> {
        Ok(())
    }

    /// Lines for people about parameters with settings of their own.
    fn lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// The settings of one parameter.
    fn override_for(&self, parameter: &Declaration) -> GroupSettings;
}

/// The usual rules: no decay on biases and one-dimensional parameters, and settings by the role of
/// the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardOverrides {
    /// Embeddings and the output layer (`optimizer.decoupled_lr`).
    pub embeddings_and_output: GroupSettings,
    /// Matrices inside the model, which grow with its width on both sides (`model.use_mup`).
    pub hidden_matrices: GroupSettings,
    /// True if the norms of queries and keys keep their decay
    /// (`optimizer.apply_wd_to_qk_layernorm`).
    pub decay_qk_layernorm: bool,
    /// Rule of the parameters that are not matrices inside the model, beside a rule of matrices.
    pub scalar_rule: Option<&'static str>,
}

impl OverrideProvider for StandardOverrides {
    fn override_for(&self, parameter: &Declaration) -> GroupSettings {
        let settings = match parameter.role {
            ParameterRole::Embedding | ParameterRole::Output => self.embeddings_and_output,
            ParameterRole::Weight | ParameterRole::Channels if parameter.shape.len() > 1 => self.hidden_matrices,
            _ => GroupSettings::default(),
        };
        let keeps_decay = self.decay_qk_layernorm && parameter.role == ParameterRole::QueryKeyNorm;
        let decays = keeps_decay || !(parameter.shape.len() == 1 || parameter.role == ParameterRole::Bias);
        let rule = self.scalar_rule.filter(|_| !parameter.is_hidden_matrix());
        GroupSettings { rule, wd_mult: if decays { settings.wd_mult } else { 0.0 }, ..settings }
    }
}

/// Parameters that share settings.
#[derive(Clone, Debug)]
pub struct ParameterGroup {
    /// Shared settings.
    pub settings: GroupSettings,
    /// Names of the members, in model order.
    pub names: Vec<String>,
}

/// Sorts trainable parameters into groups, in order of first appearance.
pub(super) fn group<'a>(
    parameters: impl Iterator<Item = &'a Declaration>,
    provider: &dyn OverrideProvider,
) -> Vec<ParameterGroup> {
    let mut groups: Vec<ParameterGroup> = Vec::new();
    for parameter in parameters.filter(|p| p.trainable) {
        let settings = provider.override_for(parameter);
        match groups.iter_mut().find(|group| group.settings == settings) {
            Some(group) => group.names.push(parameter.name.clone()),
            None => groups.push(ParameterGroup { settings, names: vec![parameter.name.clone()] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Component, TensorPartition};

    #[derive(Debug)]
    struct NoOverrides;

    impl OverrideProvider for NoOverrides {
        fn override_for(&self, _parameter: &Declaration) -> GroupSettings {
            GroupSettings::default()
        }
    }

    fn parameter(name: &str, shape: &[usize], role: ParameterRole) -> Declaration {
        Declaration {
            name: name.into(),
            shape: shape.to_vec(),
            partition: TensorPartition::Rows,
            placement: Default::default(),
            role,
            component: Component::Mlp,
            segments: vec![0],
            layer: None,
            trainable: !name.starts_with("frozen"),
            of_adapter: false,
            of_last_layer: false,
            has_cast: false,
            quantization: None,
        }
    }

    #[test]
    fn decay_and_decoupled_rate_make_groups() {
        let parameters = [
            parameter("embedding.weight", &[7, 3], ParameterRole::Embedding),
            parameter("norm.weight", &[3], ParameterRole::Norm),
            parameter("linear.weight", &[5, 3], ParameterRole::Weight),
            parameter("linear.bias", &[5], ParameterRole::Bias),
            parameter("q_layernorm.weight", &[3], ParameterRole::QueryKeyNorm),
            parameter("frozen.weight", &[5, 3], ParameterRole::Weight),
        ];
        let provider = StandardOverrides {
            embeddings_and_output: GroupSettings { max_lr: Some(0.5), min_lr: Some(0.25), ..GroupSettings::default() },
            decay_qk_layernorm: true,
            ..StandardOverrides::default()
        };
        let groups = group(parameters.iter(), &provider);
        let names: Vec<_> = groups.iter().map(|g| g.names.clone()).collect();
        assert_eq!(
            names,
            [vec!["embedding.weight"], vec!["norm.weight", "linear.bias"], vec!["linear.weight", "q_layernorm.weight"],]
        );
        assert_eq!(groups[0].settings.max_lr, Some(0.5));
        assert_eq!(groups[1].settings.wd_mult, 0.0);
        assert_eq!(groups[2].settings.wd_mult, 1.0);
        assert_eq!(group(parameters.iter(), &NoOverrides).len(), 1);
        let hidden_matrices =
            GroupSettings { max_lr: Some(0.125), min_lr: Some(0.0625), eps_mult: 0.25, ..GroupSettings::default() };
        let groups = group(parameters.iter(), &StandardOverrides { hidden_matrices, ..provider });
        let of_matrices = groups.iter().find(|group| group.settings.max_lr == Some(0.125)).expect("a group");
        assert_eq!(
            (of_matrices.settings.min_lr, of_matrices.settings.eps_mult, of_matrices.names.as_slice()),
            (Some(0.0625), 0.25, &["linear.weight".to_owned()][..])
        );
        assert_eq!(groups[0].settings.eps_mult, 1.0);
        assert_eq!(groups[0].settings.max_lr, Some(0.5), "embeddings have rates of their own");
    }
}
