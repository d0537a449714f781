//! The largest attention score of the model and of each layer (`logger.log_max_attention_logit`),
//! over all ranks and micro-batches of a step.

use std::collections::BTreeMap;

use crate::logging::{Figure, MetricValue};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, is_reported_every};
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

const KEY: &str = "logger.log_max_attention_logit";

#[derive(Default)]
pub(super) struct AttentionLogits {
    /// Number of layers of the model, including layers without attention.
    num_layers: usize,
}

impl Subsystem for AttentionLogits {
    fn name(&self) -> &str {
        "largest attention scores"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let numbers = run.chunks().iter().flat_map(|chunk| chunk.segments()).filter_map(|segment| segment.layer);
        let mut count = [numbers.max().map_or(0.0, |last| (last + 1) as f64)];
        agreement::max(run.groups.world(), &mut count)?;
        // Multi-token prediction layers are part of the head's segment and numbered after all other
        // layers.
        self.num_layers = count[0] as usize + run.state.config.model.mtp_num_layers.unwrap_or(0);
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        if !is_reported_every(&run.state.config, 1, step.iteration) {
            return Ok(());
        }
        let mut by_layer = vec![f64::NEG_INFINITY; self.num_layers];
        for (layer, score) in &step.own_attention_logits {
            by_layer[*layer] = *score;
        }
        agreement::max(run.groups.world(), &mut by_layer)?;
        let by_layer: BTreeMap<usize, f64> =
            by_layer.into_iter().enumerate().filter(|(_, score)| *score > f64::NEG_INFINITY).collect();
        let Some(largest) = by_layer.values().copied().reduce(f64::max) else {
            let message =
                format!("no layer of model.kind = {:?} here has attention scores", run.state.config.model.kind);
            return Err(CommonError::setting(KEY, message).into());
        };
        step.figures.extend(figures(largest, &by_layer));
        Ok(())
    }
}

/// The largest score of all, and of each layer.
fn figures(largest: f64, by_layer: &BTreeMap<usize, f64>) -> Vec<Figure> {
    let all = Figure::new("max_attention_logit", "", "Largest attention score", largest)
        .file_as(largest as f32)
        .board("max-attention-logit")
        .line(105, format!("max attention logit: {largest:.3}"))
        .json(112, "max_attention_logit");
    let numbers = by_layer.iter().map(|(layer, score)| (layer.to_string(), *score as f32)).collect();
    let help = "Largest attention score by layer";
    let each = Figure::new("max_attention_logits", "", help, MetricValue::Numbers(numbers)).file();
    let of_layer = |(layer, score): (&usize, &f64)| {
        Figure::new("layer_max_attention_logit", "", "Largest attention score of a layer", *score)
            .label("layer", layer.to_string())
            .board(format!("max-attention-logit/layer_{layer}"))
    };
    [all, each].into_iter().chain(by_layer.iter().map(of_layer)).collect()
}
