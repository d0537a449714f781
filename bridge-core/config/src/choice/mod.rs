//! The macros of choices; the folder has every enumeration of the configuration. Rules do not
//! belong here.

/// Makes settings of enums whose variants are written as names; names after `|` are accepted too.
macro_rules! settings {
    ($( $Type:ty { $( $Variant:ident = $text:literal $(| $other:literal)* ),+ $(,)? } )+) => {$(
        impl $crate::field::Field for $Type {
            fn read(node: &$crate::node::Node, reader: &mut $crate::reader::Reader<'_>) -> Option<Self> {
                match node.text() {
                    $( Some($text $(| $other)*) => Some(Self::$Variant), )+
                    _ => reader.wrong_type(node, &Self::spec()),
                }
            }
            fn write(&self) -> $crate::node::Node {
                $crate::node::Node::string(match self { $( Self::$Variant => $text, )+ })
            }
            fn spec() -> $crate::spec::TypeSpec {
                $crate::spec::TypeSpec::Choice(&[$($text),+])
            }
        }
    )+};
}

/// Declares an enum whose variants are written as names; names after `|` are accepted too. Variants
/// with a self-explanatory name have no sentence.
macro_rules! choices {
    ($(
        $(#[$attribute:meta])+
        pub enum $Name:ident {
            $( $(#[$variant_attribute:meta])* $Variant:ident = $text:literal $(| $other:literal)* , )+
        }
    )+) => {$(
        $(#[$attribute])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $Name {
            $(
                $(#[$variant_attribute])*
                #[doc = concat!(" `", $text, "` in recipes.")]
                #[serde(rename = $text $(, alias = $other)*)]
                $Variant,
            )+
        }

        impl $Name {
            /// Every canonical name.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The canonical name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$Variant => $text, )+ }
            }

            /// The variant of a name, canonical or alternative.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $text $(| $other)* => Some(Self::$Variant), )+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        settings! { $Name { $( $Variant = $text $(| $other)* ),+ } }
    )+};
}

mod model;
mod optimizer;
mod running;
mod training;

pub use model::*;
pub use optimizer::{
    MatmulPrecision, Moment2Method, MuonCoefficients, MuonScalarOptimizer, MuonScaleMode, OptimizerName,
    ParameterRuleRole,
};
pub use running::*;
pub use training::*;
