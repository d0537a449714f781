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
    /// Formats in which states are kept between steps. Unless this is `Declared`, master weights
    /// have a format too (`optimizer.use_precision_aware_optimizer`).
    pub formats: KeptFormats,
    /// Rule of the parameters that are not matrices of hidden layers.
    pub scalars: ScalarRule,
}

/// Formats in which a rule keeps its states between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptFormats {
    /// Float32, or the dtypes that the rule declares.
    Declared,
    /// The dtypes that settings name (`optimizer.exp_avg_dtype`), with one scale a tensor.
    Dtypes,
    /// Codes with one scale a block.
    Blocks,
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
    /// Setting that is the decay of the rule's momentum.
    pub fn momentum<'a>(&self, settings: &'a mut OptimizerConfig) -> Option<&'a mut f64> {
        Some(match self.name {
            "adam" | "adamw_8bit" | "adamw_4bit" | "ademamix" | "soap" | "schedule_free_adamw" => {
                &mut settings.adam_beta1
            }
            "sgd" => &mut settings.sgd_momentum,
            "lion" => &mut settings.lion_beta2,
            "muon" | "adaptive_muon" => &mut settings.muon_momentum,
            _ => return None,
        })
    }

    /// Setting that is the rule's epsilon.
    pub fn epsilon<'a>(&self, settings: &'a mut OptimizerConfig) -> Option<&'a mut f64> {
        Some(match self.name {
            "adam" | "adamw_8bit" | "adamw_4bit" | "ademamix" | "soap" | "schedule_free_adamw" => {
                &mut settings.adam_eps
            }
            "adafactor" => &mut settings.adafactor_eps,
            "adaptive_muon" => &mut settings.adaptive_muon_eps,
            _ => return None,
        })
    }

    /// Rule of the parameters that are not matrices of hidden layers, if it is another one.
    pub fn scalar_rule(&self, settings: &OptimizerConfig) -> Option<&'static Self> {
        match (self.scalars, settings.muon_scalar_optimizer) {
            (ScalarRule::Same, _) => None,
            (ScalarRule::Adam, _) | (ScalarRule::Muon, MuonScalarOptimizer::Adam) => Some(&ADAM),
            (ScalarRule::Muon, MuonScalarOptimizer::Lion) => Some(&LION),
        }
    }

    /// True if an update needs the whole parameter, which is gathered on one rank.
    pub fn is_whole(&self) -> bool {
        self.scalars != ScalarRule::Same || self.name == ADAFACTOR.name
    }

    /// True if states may be kept in less than 32 bits.
    pub const fn keeps_formats(&self) -> bool {
        !matches!(self.formats, KeptFormats::Declared)
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

/// A rule of parameters of any shape with states in float32, whose steps have the size of the
/// learning rate: what most rules are.
const STEPS_OF_RATE: OptimizerRule = OptimizerRule {
    name: "",
    settings: &[],
    size: UpdateSize::LearningRate,
    formats: KeptFormats::Declared,
    scalars: ScalarRule::Same,
};

/// Adam, with weight decay decoupled (AdamW) or in the gradient.
pub const ADAM: OptimizerRule = OptimizerRule {
    name: "adam",
    settings: &["adam_beta1", "adam_beta2", "adam_eps", "decoupled_weight_decay"],
    formats: KeptFormats::Dtypes,
    ..STEPS_OF_RATE
};

/// AdamW with moments in 8 bits, by blocks.
pub const ADAMW_8BIT: OptimizerRule = OptimizerRule { name: "adamw_8bit", formats: KeptFormats::Blocks, ..ADAM };

/// AdamW with moments in 4 bits, by blocks.
pub const ADAMW_4BIT: OptimizerRule = OptimizerRule { name: "adamw_4bit", formats: KeptFormats::Blocks, ..ADAM };

/// Stochastic gradient descent with momentum.
pub const SGD: OptimizerRule =
    OptimizerRule { name: "sgd", settings: &["sgd_momentum"], size: UpdateSize::Gradient, ..STEPS_OF_RATE };

/// Lion.
pub const LION: OptimizerRule =
    OptimizerRule { name: "lion", settings: &["lion_beta1", "lion_beta2"], ..STEPS_OF_RATE };

/// Settings of the rules of Muon's family, and more.
macro_rules! muon_settings {
    ($($more:literal),*) => {
        &[
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
            $($more),*
        ]
    };
}

/// Momentum orthogonalized by Newton-Schulz iterations.
pub const MUON: OptimizerRule =
    OptimizerRule { name: "muon", settings: muon_settings!(), scalars: ScalarRule::Muon, ..STEPS_OF_RATE };

/// [`MUON`] whose update is divided by a second moment.
pub const ADAPTIVE_MUON: OptimizerRule = OptimizerRule {
    name: "adaptive_muon",
    settings: muon_settings!("adaptive_muon_moment2_method", "adaptive_muon_beta2", "adaptive_muon_eps"),
    ..MUON
};

/// Adam in the eigenbasis of Shampoo's preconditioners.
pub const SOAP: OptimizerRule = OptimizerRule {
    name: "soap",
    settings: &[
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "decoupled_weight_decay",
        "soap_shampoo_beta",
        "soap_precondition_frequency",
        "soap_use_kl_shampoo",
    ],
    scalars: ScalarRule::Adam,
    ..STEPS_OF_RATE
};

/// AdEMAMix: Adam with a second, slower momentum.
pub const ADEMAMIX: OptimizerRule = OptimizerRule {
    name: "ademamix",
    settings: &[
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "ademamix_beta3",
        "ademamix_alpha",
        "ademamix_alpha_warmup",
        "ademamix_beta3_warmup",
    ],
    ..STEPS_OF_RATE
};

/// Schedule-free AdamW, whose average of weights is evaluated.
pub const SCHEDULE_FREE_ADAMW: OptimizerRule = OptimizerRule {
    name: "schedule_free_adamw",
    settings: &["adam_beta1", "adam_beta2", "adam_eps", "schedule_free_warmup_steps"],
    ..STEPS_OF_RATE
};

/// Adafactor: a second moment by rows and columns, and no momentum.
pub const ADAFACTOR: OptimizerRule = OptimizerRule {
    name: "adafactor",
    settings: &["adafactor_decay_rate", "adafactor_clip_threshold", "adafactor_eps", "adafactor_scale_parameter"],
    ..STEPS_OF_RATE
};

/// All rules, the default first.
pub const RULES: &[OptimizerRule] =
    &[ADAM, SGD, LION, MUON, ADAPTIVE_MUON, SOAP, ADEMAMIX, ADAMW_8BIT, ADAMW_4BIT, SCHEDULE_FREE_ADAMW, ADAFACTOR];

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
