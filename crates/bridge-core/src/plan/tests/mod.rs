//! The plan against hand-computed cases.

