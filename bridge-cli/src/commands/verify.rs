//! `bridge verify`: a Hugging Face folder, with or without an adapter, against reference values.

use std::path::PathBuf;

use bridge_core::train::select_device;
use bridge_models::verify::{Figure, verify, verify_adapter};
use clap::Args;

use crate::failure::Failure;
use crate::output::line;

/// The model and the reference values.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Folder with config.json and safetensors.
    hf_dir: PathBuf,
    /// Folder with an adapter of the model in peft's format.
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// File with the reference values (safetensors).
    #[arg(long)]
    reference: PathBuf,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command; returns 0 within the tolerances, 1 outside.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let (folder, reference) = (&arguments.hf_dir, &arguments.reference);
    let report = match &arguments.adapter {
        Some(adapter) => verify_adapter(folder, adapter, reference, &device),
        None => verify(folder, reference, &device),
    };
    let report = report.map_err(Failure::input)?;
    if arguments.json {
        line(&serde_json::to_string(&report).map_err(Failure::run)?);
    } else {
        print("logits, largest absolute difference", report.logits.as_ref());
        print("logits of merged weights, largest absolute", report.merged_logits.as_ref());
        print("loss, relative", report.loss.as_ref());
        print("gradients, worst relative difference in norm", report.gradients.as_ref());
        print("training losses, worst relative", report.step_losses.as_ref());
        print("training gradient norms, worst relative", report.step_grad_norms.as_ref());
        line(if report.passed { "passed" } else { "FAILED" });
    }
    Ok(if report.passed { 0 } else { 1 })
}

fn print(name: &str, figure: Option<&Figure>) {
    let Some(figure) = figure else { return };
    let difference = figure.difference.map_or("not a number".into(), |d| format!("{d:.2e}"));
    let worst = figure.worst.as_ref().map(|worst| format!("  ({worst})")).unwrap_or_default();
    let verdict = if figure.passed { "ok" } else { "FAILED" };
    line(&format!("{name:<46} {difference:>9}  tolerance {:.0e}  {verdict}{worst}", figure.tolerance));
}
