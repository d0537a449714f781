//! The optimizers that `optimizer.optimizer` chooses from, as recipes see them. The update of each
//! is a file of `bridge_core::optim::rules` that names its entry of this list.

use crate::choice::MuonScalarOptimizer;
use crate::sections::OptimizerConfig;

/// An optimizer: its name, its settings, and properties for checks of a recipe.
#[derive(Debug, PartialEq, Eq)]
pub struct OptimizerRule {
    /// Value of `optimizer.optimizer` that chooses the rule.
    pub name: &'static str,
    /// Settings of `[optimizer]` that the rule reads besides learning rate and weight decay. Other
    /// rules refuse these settings.
    pub settings: &'static [&'static str],
    /// Quantity that the size of an update follows.
    pub size: UpdateSize,
    /// True if states and master weights can have other formats than float32
    /// (`optimizer.use_precision_aware_optimizer`).
    pub keeps_formats: bool,
    /// Rule of the parameters that are not matrices of hidden layers.
    pub scalars: ScalarRule,
}

/// Rule of embeddings, output layers, norms and vectors, beside a rule of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarRule {
    /// The same rule: it updates parameters of any shape.
    Same,
    /// Adam.
    Adam,
    /// The choice of `optimizer.muon_scalar_optimizer`.
    Muon,
}

impl OptimizerRule {
    /// Rule of the parameters that are not matrices of hidden layers, if it is another one.
    pub fn scalar_rule(&self, settings: &OptimizerConfig) -> Option<&'static Self> {
        match (self.scalars, settings.muon_scalar_optimizer) {
            (ScalarRule::Same, _) => None,
            (ScalarRule::Adam, _) | (ScalarRule::Muon, MuonScalarOptimizer::Adam) => Some(&ADAM),
            (ScalarRule::Muon, MuonScalarOptimizer::Lion) => Some(&LION),
        }
    }
}

/// Quantity that the size of a rule's update follows. With muP, learning rates of hidden matrices
/// depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateSize {
    /// The learning rate, however large gradients are.
    LearningRate,
    /// The gradient's magnitude.
    Gradient,
}

/// Adam, with weight decay decoupled (AdamW) or in the gradient.
pub const ADAM: OptimizerRule = OptimizerRule {
    name: "adam",
    settings: &["adam_beta1", "adam_beta2", "adam_eps", "decoupled_weight_decay"],
    size: UpdateSize::LearningRate,
    keeps_formats: true,
    scalars: ScalarRule::Same,
};

/// Stochastic gradient descent with momentum.
pub const SGD: OptimizerRule = OptimizerRule {
    name: "sgd",
    settings: &["sgd_momentum"],
    size: UpdateSize::Gradient,
    keeps_formats: false,
    scalars: ScalarRule::Same,
};

/// Lion.
pub const LION: OptimizerRule = OptimizerRule {
    name: "lion",
    settings: &["lion_beta1", "lion_beta2"],
    size: UpdateSize::LearningRate,
    keeps_formats: false,
    scalars: ScalarRule::Same,
};

/// Momentum orthogonalized by Newton-Schulz iterations.
pub const MUON: OptimizerRule = OptimizerRule {
    name: "muon",
    settings: &[
        "muon_momentum",
        "muon_split_qkv",
        "muon_nesterov",
        "muon_scale_mode",
        "muon_fp32_matmul_prec",
        "muon_coefficient_type",
        "muon_num_ns_steps",
        "muon_extra_scale_factor",
        "muon_scalar_optimizer",
        "decoupled_weight_decay",
    ],
    size: UpdateSize::LearningRate,
    keeps_formats: false,
    scalars: ScalarRule::Muon,
};

/// [`MUON`] whose update is divided by a second moment.
pub const ADAPTIVE_MUON: OptimizerRule = OptimizerRule {
    name: "adaptive_muon",
    settings: &[
        "muon_momentum",
        "muon_split_qkv",
        "muon_nesterov",
        "muon_scale_mode",
        "muon_fp32_matmul_prec",
        "muon_coefficient_type",
        "muon_num_ns_steps",
        "muon_extra_scale_factor",
        "muon_scalar_optimizer",
        "decoupled_weight_decay",
        "adaptive_muon_moment2_method",
        "adaptive_muon_beta2",
        "adaptive_muon_eps",
    ],
    ..MUON
};

/// All rules, the default first.
pub const RULES: &[OptimizerRule] = &[ADAM, SGD, LION, MUON, ADAPTIVE_MUON];

/// The names of all rules, in their order.
pub const NAMES: &[&str] = &{
    let mut names = [""; RULES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = RULES[index].name;
        index += 1;
    }
    names
};

/// The rule of a name.
pub fn named(name: &str) -> Option<&'static OptimizerRule> {
    RULES.iter().find(|rule| rule.name == name)
}
