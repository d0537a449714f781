//! The optimizers that `optimizer.optimizer` chooses from, as recipes see them. The update of each
//! is a file of `bridge_core::optim::rules` that names its entry of this list.

/// An optimizer: its name, its settings, and what checks of a recipe ask of it.
#[derive(Debug, PartialEq, Eq)]
pub struct OptimizerRule {
    /// Value of `optimizer.optimizer` that chooses the rule.
    pub name: &'static str,
    /// Settings of `[optimizer]` that the rule reads besides learning rate and weight decay. They
    /// are refused beside another rule.
    pub settings: &'static [&'static str],
    /// Quantity that the size of an update follows.
    pub size: UpdateSize,
    /// Setting of the format of each state, such as `exp_avg_dtype`, in the order of the states;
    /// empty if states can only be float32.
    pub state_formats: &'static [&'static str],
}

impl OptimizerRule {
    /// True if the states can have other formats than float32.
    pub const fn keeps_formats(&self) -> bool {
        !self.state_formats.is_empty()
    }
}

/// Quantity that the size of a rule's update follows. With muP, learning rates of hidden matrices
/// depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateSize {
    /// The learning rate, however large gradients are.
    LearningRate,
    /// The gradient.
    Gradient,
}

/// Adam, with weight decay decoupled (AdamW) or in the gradient.
pub const ADAM: OptimizerRule = OptimizerRule {
    name: "adam",
    settings: &["adam_beta1", "adam_beta2", "adam_eps", "decoupled_weight_decay"],
    size: UpdateSize::LearningRate,
    state_formats: &["exp_avg_dtype", "exp_avg_sq_dtype"],
};

/// Stochastic gradient descent with momentum.
pub const SGD: OptimizerRule =
    OptimizerRule { name: "sgd", settings: &["sgd_momentum"], size: UpdateSize::Gradient, state_formats: &[] };

/// Lion.
pub const LION: OptimizerRule = OptimizerRule {
    name: "lion",
    settings: &["lion_beta1", "lion_beta2"],
    size: UpdateSize::LearningRate,
    state_formats: &[],
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
