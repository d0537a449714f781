//! Settings of Cohere; absent ones have the values of `CohereConfig`.

use crate::families::cohere2::config::LAYERS;
use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { theta: 500_000.0, interleaved: true, ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys {
        read: |fields, c| {
            if fields.bool("use_qk_norm")?.unwrap_or(false) {
                (c.qk_layernorm, c.qk_layernorm_scope) = (true, QkNormScope::EachHead);
            }
            Ok(())
        },
        write: |c, settings| {
            settings.insert("use_qk_norm".into(), json!(c.qk_layernorm));
        },
    },
    Setting::Group(&FORM),
];
