//! Operands of attention, by its shapes and the names of options.

use crate::common::values;

/// Shapes `[b, t, s, h, g, d]`.
pub type Shapes = [usize; 6];

/// Head size of values, which is that of queries and keys unless the options say otherwise.
pub fn width([.., d]: Shapes, with: &str) -> usize {
    match (with.contains("narrow values"), with.contains("wide values")) {
        (true, _) => d - 2,
        (_, true) => d + 4,
        _ => d,
    }
}

/// Queries, keys and values, and after them sinks, if there are some.
pub fn inputs([b, t, s, h, g, d]: Shapes, with: &str) -> Vec<Vec<f32>> {
    let width = width([b, t, s, h, g, d], with);
    let mut inputs = vec![values(1, b * t * h * d), values(2, b * s * g * d), values(3, b * s * g * width)];
    inputs.extend(with.contains("sinks").then(|| values(4, h)));
    inputs
}
