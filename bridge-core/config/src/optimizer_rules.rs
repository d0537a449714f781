//! The optimizers that `optimizer.optimizer` chooses from, as recipes see them. The update of each
//! is a file of `bridge_core::optim::rules` that names its entry of this list.

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
};

/// Stochastic gradient descent with momentum.
pub const SGD: OptimizerRule =
    OptimizerRule { name: "sgd", settings: &["sgd_momentum"], size: UpdateSize::Gradient, keeps_formats: false };

/// Lion.
pub const LION: OptimizerRule = OptimizerRule {
    name: "lion",
    settings: &["lion_beta1", "lion_beta2"],
    size: UpdateSize::LearningRate,
    keeps_formats: false,
};

/// All rules, the default first.
pub const RULES: &[OptimizerRule] = &[ADAM, SGD, LION];

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
