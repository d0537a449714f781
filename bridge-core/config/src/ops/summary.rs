//! The summary printed before a run: settings that differ from the defaults, then the other
//! sections.

use super::super::node::{Entry, Node};
use super::super::run_config::RunConfig;
use super::super::section::Section;
use super::super::sections::RecipeConfig;

/// Sections of which only the differences are shown.
const COMPARED: [&str; 3] = ["optimizer", "ddp", "model"];

/// Sections that are shown as they are.
const SHOWN: [&str; 8] = ["train", "validation", "scheduler", "dataset", "checkpoint", "logger", "tokenizer", "rng"];

/// Width of the rules between parts.
const WIDTH: usize = 70;

impl RunConfig {
    /// Upstream's summary of settings, line by line: for optimizer, ddp and model the values that
    /// differ from the defaults, for the other sections all values that are not null.
    pub fn log_non_default_values(&self) -> String {
        let root = self.recipe().to_node().redacted();
        let defaults = RecipeConfig::default().to_node();
        let (thick, thin) = ("=".repeat(WIDTH), "-".repeat(WIDTH));
        let title = "Configuration Summary (Non-Default Values vs Defaults)";
        let mut lines = vec![String::new(), thick.clone(), title.into(), thick.clone()];
        for name in COMPARED {
            let compared = differences(root.get(name), defaults.get(name));
            if !compared.is_empty() {
                lines.push(String::new());
                lines.push(format!("[{name}] Non-default values (vs defaults):"));
                lines.extend(compared);
            }
        }
        lines.extend([thin.clone(), "Other Configuration Values:".into(), thin]);
        for name in SHOWN {
            lines.push(format!("[{name}]:"));
            lines.extend(values(root.get(name)));
        }
        lines.push(thick);
        lines.join("\n")
    }
}

fn differences(section: Option<&Node>, defaults: Option<&Node>) -> Vec<String> {
    let null = Node::null();
    lines(section, |entry| {
        let default = defaults.and_then(|d| d.get(&entry.key)).unwrap_or(&null);
        let text = || format!("  {}: {}  (default: {})", entry.key, entry.node.to_inline(), default.to_inline());
        (entry.node != *default).then(text)
    })
}

fn values(section: Option<&Node>) -> Vec<String> {
    let text = |entry: &Entry| format!("  {}: {}", entry.key, entry.node.to_inline());
    lines(section, |entry| (!entry.node.is_null()).then(|| text(entry)))
}

/// Lines about the entries of a section, in alphabetical order.
fn lines(section: Option<&Node>, line: impl Fn(&Entry) -> Option<String>) -> Vec<String> {
    let entries = section.and_then(Node::entries).unwrap_or_default();
    let mut lines: Vec<_> = entries.iter().filter_map(line).collect();
    lines.sort();
    lines
}
