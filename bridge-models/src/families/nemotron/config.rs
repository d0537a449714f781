//! Settings of Nemotron; absent ones have the values of `NemotronConfig`.

use crate::families::arcee::config::LAYERS;
use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { percent: Some(0.5), ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        c.norm.zero_centered_gamma = true;
    }),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.0134)),
    Setting::Number("norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Group(&FORM),
];
