//! `[distillation]`: settings that contradict each other, or have no effect.

use super::assert_refused;

const REFUSED: &[(&[&str], &str)] = &[
    (&["distillation.alpha=0.2"], "distillation.teacher"),
    (&["distillation.teacher=x", "dpo.beta=0.2"], "dpo"),
    (&["distillation.teacher=x", "distillation.alpha=0"], "distillation.alpha"),
    (&["distillation.teacher=x", "distillation.alpha=0", "distillation.temperature=2"], "distillation.temperature"),
    (&["distillation.teacher=x", "distillation.alpha=0", "distillation.top_k=2"], "distillation.top_k"),
    (&["distillation.teacher=x", "distillation.alpha=1.5"], "distillation.alpha"),
    (&["distillation.teacher=x", "distillation.temperature=0"], "distillation.temperature"),
    (&["distillation.teacher=x", "distillation.hidden_loss=cosine"], "distillation.hidden_loss"),
    (&["distillation.teacher=x", "distillation.cache=y"], "distillation.cache"),
    (
        &["distillation.teacher=x", "distillation.cache=y", "distillation.top_k=2", "distillation.hidden_weight=1"],
        "distillation.hidden_weight",
    ),
    (&["distillation.teacher=x", "model.mtp_num_layers=1"], "model.mtp_num_layers"),
    (&["distillation.teacher=x", "model.kind=t5"], "model.kind"),
    (
        &["distillation.teacher=x", "distillation.cache=y", "distillation.top_k=2", "model.context_parallel_size=2"],
        "model.context_parallel_size",
    ),
];

#[test]
fn what_has_no_effect_or_no_teacher_is_refused() {
    for (overrides, key) in REFUSED {
        assert_refused(overrides, key);
    }
}
