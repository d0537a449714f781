//! `bridge config explain`: one setting or section, in words or as JSON.

use bridge_core::config::{Explanation, Node, explain};
use bridge_models::registry;
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::line;

/// Setting to explain.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A dotted key such as `model.num_layers`, a section such as `train`, or a name from another
    /// program.
    key: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let explanation = explain(arguments.key.trim(), &registry().kinds()).map_err(Failure::input)?;
    if arguments.json {
        line(&json!(explanation).to_string());
        return Ok(0);
    }
    if let Some(asked) = &explanation.asked {
        line(asked);
    }
    if explanation.settings.is_empty() {
        print_setting(&explanation);
    } else {
        print_section(&explanation);
    }
    Ok(0)
}

fn print_setting(setting: &Explanation) {
    line(&setting.key);
    line(&format!("  {}", setting.doc));
    row("values", &setting.values);
    row("default", &setting.default.to_inline());
    row("range", setting.range.as_deref().unwrap_or_default());
    if setting.status != "accepted" {
        row("status", &format!("{}: {}", setting.status, setting.reason.as_deref().unwrap_or_default()));
        row("accepted", &list(setting.accepted.iter().map(Node::to_inline)));
    }
    row("changes", setting.changes);
    row("upstream", &upstream(setting));
    row("elsewhere", &list(setting.elsewhere.iter().cloned()));
    let mut title = "rules";
    for rule in &setting.rules {
        row(title, rule);
        title = "";
    }
}

fn row(title: &str, text: &str) {
    if !text.is_empty() {
        line(&format!("  {title:<10} {text}"));
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

fn upstream(setting: &Explanation) -> String {
    if setting.upstream.is_empty() { "none: only Bridge has it".into() } else { list(setting.upstream.iter().cloned()) }
}

fn print_section(section: &Explanation) {
    line(&format!("[{}]", section.key));
    line(&format!("  {}", section.doc));
    if let Some(reason) = &section.reason {
        row("status", reason);
    }
    row("upstream", &upstream(section));
    let width = section.settings.iter().map(|setting| setting.key.len()).max().unwrap_or(0);
    for setting in &section.settings {
        let status = if setting.status == "accepted" { String::new() } else { format!(" ({})", setting.status) };
        line(&format!("  {:<width$}  {} [{}]{status}", setting.key, setting.doc, setting.default.to_inline()));
    }
}
