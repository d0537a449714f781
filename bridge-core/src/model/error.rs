//! Why a model cannot be built.

/// Why a model could not be built.
#[derive(thiserror::Error)]
pub enum ModelBuildError {
    /// No such kind in the registry.
    #[error("model.kind: expected one of {known}, found `{found}`")]
    UnknownKind {
        /// The kind asked for.
        found: String,
        /// The kinds there are.
        known: String,
    },
    /// A parameter of a module and the declarations made for it do not fit.
    #[error("parameter `{name}`: {message}")]
    Parameter {
        /// Name of the parameter, or path of the field without a declaration.
        name: String,
        /// Expected and found values.
        message: String,
    },
    /// The configuration cannot be built.
    #[error("{key}: {message}")]
    Invalid {
        /// Key path of the offending field.
        key: String,
        /// Description of the problem, with the expected value.
        message: String,
    },
}
