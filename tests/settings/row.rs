//! Row of the table: a setting, its context, its values, and the facets that they must and must not
//! move.

use super::run::Run;

/// Placeholder for the value that the context has without the row's own override.
pub const AS_IT_IS: &str = "";

/// Facets that may move or stay when another facet moves, because they are computed from it later.
pub const FOLLOW: [(&str, &[&str]); 9] = [
    ("params", &LATER),
    ("grad_norm_1", &LATER),
    ("loss_1", &LATER),
    ("valid.loss", &["valid.bits_per_byte"]),
    ("test.loss", &["test.bits_per_byte"]),
    ("output", &["indices", "stderr"]),
    ("iteration", &["*"]),
    ("exit", &["*"]),
    // The flight recorder writes at the time of a failure, which varies.
    ("flight", &["*"]),
];

const LATER: [&str; 20] = [
    "grad_norm_1",
    "loss",
    "grad_norm",
    "params",
    "moments",
    "params_norm",
    "num_zeros",
    "valid.loss",
    "valid.bits_per_byte",
    "test.loss",
    "test.bits_per_byte",
    "scalars",
    "tokens_per_expert",
    "tokens_per_expert_max",
    "tokens_per_expert_min",
    "mtp_1_loss",
    "mtp_2_loss",
    "ce_loss",
    "kd_loss",
    "hidden_loss",
];
/// Facets that only rows about them compare: how much of them is seen depends on when one looks.
pub const GLIMPSES: [&str; 3] = ["threads", "maps", "early"];

/// One trial of a setting.
#[derive(Clone, Debug)]
pub struct Row {
    /// The setting, as recipes spell it.
    pub key: &'static str,
    /// Values; the first one is the baseline of the comparison. `a & x.y=b` overrides more than the
    /// setting.
    pub values: Vec<String>,
    /// Run of the row.
    pub run: Run,
    /// The facets that change with the value. All others stay, except facets that [`FOLLOW`] from
    /// these.
    pub moves: Vec<&'static str>,
    /// The ones whose numbers stay within a relative distance of 1e-4.
    pub nearly: Vec<&'static str>,
    /// Required content of a facet: the value's place, the facet, a part of its text.
    pub holds: Vec<(usize, &'static str, &'static str)>,
    /// Measures that the second value makes smaller by a tenth at least, and no facet moves.
    pub lowers: Vec<&'static str>,
}

/// A trial of `key` in `run`.
pub fn row(key: &'static str, run: &Run, values: &[&str]) -> Row {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    Row { key, values, run: run.clone(), moves: Vec::new(), nearly: Vec::new(), holds: Vec::new(), lowers: Vec::new() }
}

/// A row for a switch that is off in `run`.
pub fn switch(key: &'static str, run: &Run) -> Row {
    row(key, run, &[AS_IT_IS, "true"])
}

/// A row for a switch that is on in `run`.
pub fn switch_off(key: &'static str, run: &Run) -> Row {
    row(key, run, &[AS_IT_IS, "false"])
}

impl Row {
    /// Names the facets that move, separated by spaces. Every other facet must stay.
    pub fn moves(mut self, facets: &'static str) -> Self {
        self.moves.extend(facets.split_whitespace());
        self
    }

    /// Names facets that follow from those that move, by rounding at most.
    pub fn nearly(mut self, facets: &'static str) -> Self {
        self.nearly.extend(facets.split_whitespace());
        self
    }

    /// Requires that a facet contains `text` for the value at this place.
    pub fn holds(mut self, place: usize, facet: &'static str, text: &'static str) -> Self {
        self.holds.push((place, facet, text));
        self
    }

    /// Names a measure that the second value makes smaller.
    pub fn lowers(mut self, measure: &'static str) -> Self {
        self.lowers.push(measure);
        self
    }

    /// Runs of the row, value by value.
    pub fn runs(&self) -> Vec<Run> {
        (0..self.values.len()).map(|place| self.run_of(place)).collect()
    }

    /// Run with the value of a place.
    pub fn run_of(&self, place: usize) -> Run {
        let value = &self.values[place];
        if value == AS_IT_IS {
            return self.run.clone();
        }
        let mut parts = value.split(" & ");
        let own = format!("{}={}", self.key, parts.next().unwrap_or_default());
        let overrides: Vec<String> = std::iter::once(own).chain(parts.map(str::to_owned)).collect();
        self.run.with(&overrides.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
