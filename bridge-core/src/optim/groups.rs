//! Parameter groups: which parameters share a learning rate and a weight decay.

use std::fmt;

use crate::model::{Declaration, ParameterRole};

/// Values that a provider may change for one parameter; `None` keeps the optimizer's value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParameterOverride {
    /// Factor on the weight decay.
    pub wd_mult: Option<f64>,
    /// Peak learning rate.
    pub max_lr: Option<f64>,
    /// Floor of the learning rate.
    pub min_lr: Option<f64>,
    /// Factor on the epsilon of rules that have one.
    pub eps_mult: Option<f64>,
    /// True for the group whose rate is reported as the decoupled one.
    pub is_decoupled_lr: bool,
}

/// Decides the override of each parameter.
pub trait OverrideProvider: fmt::Debug + Send + Sync {
    /// The override for one parameter.
    fn override_for(&self, parameter: &Declaration) -> ParameterOverride;
}

/// The usual rules: no decay on biases and one-dimensional parameters, and, where set, a rate of
/// their own for the embeddings and the output layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardOverrides {
    /// `optimizer.decoupled_lr`.
    pub decoupled_lr: Option<f64>,
    /// `optimizer.decoupled_min_lr`.
    pub decoupled_min_lr: Option<f64>,
    /// `optimizer.apply_wd_to_qk_layernorm`: the norms of queries and keys keep their decay.
    pub decay_qk_layernorm: DecayQkLayernorm,
    /// `model.use_mup`: what hidden matrices have.
    pub hidden_matrices: Option<HiddenRates>,
}

/// Rates that muP gives the matrices inside a model, which grow with its width on both sides,
/// unlike embeddings, output layer, biases and norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HiddenRates {
    /// Peak of the learning rate.
    pub max_lr: f64,
    /// Floor of the learning rate.
    pub min_lr: f64,
    /// Factor on epsilon: their gradients shrink with the width, and so do the roots that it is
    /// added to (Yang et al., arXiv:2203.03466, appendix B.3).
    pub eps_mult: f64,
}

/// Weight decay of the norms of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayQkLayernorm {
    /// Like every one-dimensional parameter: no.
    #[default]
    No,
    /// Yes.
    Yes,
}

impl OverrideProvider for StandardOverrides {
    fn override_for(&self, parameter: &Declaration) -> ParameterOverride {
        let mut result = ParameterOverride::default();
        let keeps_decay =
            parameter.role == ParameterRole::QueryKeyNorm && self.decay_qk_layernorm == DecayQkLayernorm::Yes;
        if (parameter.shape.len() == 1 || parameter.role == ParameterRole::Bias) && !keeps_decay {
            result.wd_mult = Some(0.0);
        }
        if let Some(lr) = self.decoupled_lr
            && matches!(parameter.role, ParameterRole::Embedding | ParameterRole::Output)
        {
            result.max_lr = Some(lr);
            result.min_lr = self.decoupled_min_lr;
            result.is_decoupled_lr = true;
        }
        if let Some(rates) = self.hidden_matrices
            && parameter.role == ParameterRole::Weight
            && parameter.shape.len() > 1
        {
            (result.max_lr, result.min_lr) = (Some(rates.max_lr), Some(rates.min_lr));
            result.eps_mult = Some(rates.eps_mult);
        }
        result
    }
}

/// Settings that the members of a group share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupSettings {
    /// Factor on the weight decay.
    pub wd_mult: f64,
    /// Peak learning rate, if not the optimizer's.
    pub max_lr: Option<f64>,
    /// Floor of the learning rate, if not the optimizer's.
    pub min_lr: Option<f64>,
    /// Factor on the epsilon of rules that have one.
    pub eps_mult: f64,
    /// True for the group whose rate is reported as the decoupled one.
    pub is_decoupled_lr: bool,
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
        let wanted = provider.override_for(parameter);
        let settings = GroupSettings {
            wd_mult: wanted.wd_mult.unwrap_or(1.0),
            max_lr: wanted.max_lr,
            min_lr: wanted.min_lr,
            eps_mult: wanted.eps_mult.unwrap_or(1.0),
            is_decoupled_lr: wanted.is_decoupled_lr,
        };
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
    use crate::model::Component;

    #[derive(Debug)]
    struct NoOverrides;

    impl OverrideProvider for NoOverrides {
        fn override_for(&self, _parameter: &Declaration) -> ParameterOverride {
            ParameterOverride::default()
        }
    }

    fn parameter(name: &str, shape: &[usize], role: ParameterRole) -> Declaration {
        Declaration {
            name: name.into(),
            shape: shape.to_vec(),
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
            decoupled_lr: Some(0.5),
            decoupled_min_lr: Some(0.25),
            decay_qk_layernorm: DecayQkLayernorm::Yes,
            hidden_matrices: None,
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
        let rates = HiddenRates { max_lr: 0.125, min_lr: 0.0625, eps_mult: 0.25 };
        let groups = group(parameters.iter(), &StandardOverrides { hidden_matrices: Some(rates), ..provider });
        let of_matrices = groups.iter().find(|group| group.settings.max_lr == Some(rates.max_lr)).expect("a group");
        assert_eq!(
            (of_matrices.settings.min_lr, of_matrices.settings.eps_mult, of_matrices.names.as_slice()),
            (Some(0.0625), 0.25, &["linear.weight".to_owned()][..])
        );
        assert_eq!(groups[0].settings.eps_mult, 1.0);
        assert_eq!(groups[0].settings.max_lr, Some(0.5), "embeddings have rates of their own");
    }
}
