//! The choice of an optimizer among the rules of [`crate::optimizer_rules`].

use std::fmt;
use std::sync::LazyLock;

use crate::field::Field;
use crate::node::{Data, Node};
use crate::optimizer_rules::{self as rules, OptimizerRule};
use crate::reader::Reader;
use crate::spec::TypeSpec;

/// Upstream's optimizers. A name without a rule is known, but refused.
const UPSTREAM: [&str; 7] = ["adam", "sgd", "muon", "dist_muon", "adaptive_muon", "lion", "soap"];

static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let others = UPSTREAM.into_iter().filter(|name| !rules::NAMES.contains(name));
    rules::NAMES.iter().copied().chain(others).collect()
});

/// The name of an optimizer: of a rule, or of one of upstream's that have none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptimizerName(&'static str);

impl OptimizerName {
    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The rule of this name, if there is one.
    pub fn rule(self) -> Option<&'static OptimizerRule> {
        rules::named(self.0)
    }
}

impl Default for OptimizerName {
    fn default() -> Self {
        Self(rules::NAMES[0])
    }
}

impl fmt::Display for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Field for OptimizerName {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        let named = match &node.data {
            Data::String(text) => NAMES.iter().find(|name| *name == text),
            _ => None,
        };
        named.map_or_else(|| reader.wrong_type(node, &Self::spec()), |name| Some(Self(name)))
    }

    fn write(&self) -> Node {
        Node::string(self.0)
    }

    fn spec() -> TypeSpec {
        TypeSpec::Choice(&NAMES)
    }
}

choices! {
    /// Polynomials of Muon's iteration.
    pub enum MuonCoefficients {
        /// The polynomial of Muon's first implementation at every step.
        Simple = "simple",
        /// Five polynomials, repeated from the first.
        Quintic = "quintic",
        /// Polar Express (Amsel et al., arXiv:2505.16932).
        PolarExpress = "polar_express",
        /// Chebyshev-type polynomials (Grishina et al., arXiv:2506.10935).
        Cans = "cans",
        /// Four polynomials for inputs that were scaled row by row, repeated from the first.
        Aol = "aol",
        /// Eight steps of "simple", then steps that converge.
        DeepseekV4 = "deepseekv4",
        /// Five cubic polynomials (arXiv:2606.00371).
        Cubic5 = "cubic5",
    }

    /// Factor of Muon's update by the shape of a matrix.
    pub enum MuonScaleMode {
        /// Root of rows by columns, 1 at least.
        ShapeScaling = "shape_scaling",
        /// Root of the larger side.
        Spectral = "spectral",
        /// Root of rows by columns.
        UnitRmsNorm = "unit_rms_norm",
    }

    /// Precision of float32 products.
    pub enum MatmulPrecision {
        /// float32.
        Highest = "highest",
        /// float32, or faster products that are nearly as precise.
        High = "high",
        /// bfloat16, where devices are faster at it.
        Medium = "medium",
    }

    /// Optimizer of the parameters that Muon does not take.
    pub enum MuonScalarOptimizer {
        /// Adam.
        Adam = "adam",
        /// Lion.
        Lion = "lion",
    }

    /// Role of a parameter in its block.
    pub enum ParameterRuleRole {
        /// Matrices of products.
        Weight = "weight",
        /// Biases.
        Bias = "bias",
        /// Factors of norms.
        Norm = "norm",
        /// Factors of norms of queries and keys.
        QueryKeyNorm = "query_key_norm",
        /// Tables of vectors.
        Embedding = "embedding",
        /// The output projection.
        Output = "output",
        /// Taps of convolutions and decay rates.
        Channels = "channels",
    }

    /// Second moment of adaptive Muon.
    pub enum Moment2Method {
        /// A moment for each element (arXiv:2507.11005).
        Adamuon = "adamuon",
        /// A moment for each row or column (arXiv:2510.05491).
        Normuon = "normuon",
        /// A moment for the whole matrix (arXiv:2602.17080).
        Namo = "namo",
    }
}
