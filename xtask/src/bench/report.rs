//! Ratios of paired runs, as a table, as JSON and as a dated file.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::peer::root;

/// Key of the memory that a side's allocator reserved on a GPU at most. `peak_mib` is the same
/// figure of Bridge, and of PyTorch the most in tensors.
const RESERVED: &str = "device_reserved_mib";

/// Runs of one preset, one per round.
pub struct StepRow {
    preset: String,
    /// Output of `bridge bench`.
    pub ours: Vec<Value>,
    /// Output of the peer; empty if it was not run.
    pub eager: Vec<Value>,
    /// Results under `torch.compile`.
    pub compiled: Vec<Value>,
}

/// One operation.
pub struct OpRow {
    /// Name, the same on both sides.
    pub name: String,
    /// Median of Bridge's times.
    pub ours_ms: Option<f64>,
    /// Median of PyTorch's times.
    pub theirs_ms: Option<f64>,
    /// Median of the rounds' ratios: Bridge's speed relative to PyTorch's.
    pub ratio: Option<f64>,
}

/// Device and precision of both sides.
pub struct Setting {
    /// Bridge's name of the device.
    pub device: String,
    /// The dtype's short name.
    pub dtype: String,
}

/// Rows to print.
pub struct Report {
    setting: Setting,
    rows: Rows,
}

enum Rows {
    Steps(Vec<StepRow>),
    Ops(Vec<OpRow>),
}

/// The median; `None` if there are no values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn medians(runs: &[Value], key: &str) -> Option<f64> {
    median(runs.iter().filter_map(|run| run[key].as_f64()).collect())
}

impl StepRow {
    /// A row without runs.
    pub fn new(preset: &str) -> Self {
        Self { preset: preset.to_owned(), ours: Vec::new(), eager: Vec::new(), compiled: Vec::new() }
    }

    /// Median over rounds of Bridge's value divided by the peer's.
    fn ratio(&self, theirs: &[Value], key: &str) -> Option<f64> {
        let pairs = self.ours.iter().zip(theirs);
        median(pairs.filter_map(|(ours, theirs)| Some(ours[key].as_f64()? / theirs[key].as_f64()?)).collect())
    }

    fn json(&self) -> Value {
        json!({
            "preset": self.preset,
            "rounds": self.ours.len(),
            "tokens_per_second": medians(&self.ours, "tokens_per_second"),
            "gflops": medians(&self.ours, "gflops"),
            "peak_mib": medians(&self.ours, "peak_mib"),
            "device_in_use_mib": medians(&self.ours, "device_in_use_mib"),
            "host_peak_mib": medians(&self.ours, "host_peak_mib"),
            "first_step_seconds": medians(&self.ours, "first_step_seconds"),
            "eager_tokens_per_second": medians(&self.eager, "tokens_per_second"),
            "eager_peak_mib": medians(&self.eager, "peak_mib"),
            "eager_device_reserved_mib": medians(&self.eager, RESERVED),
            "compiled_tokens_per_second": medians(&self.compiled, "tokens_per_second"),
            "compiled_peak_mib": medians(&self.compiled, "peak_mib"),
            "compiled_device_reserved_mib": medians(&self.compiled, RESERVED),
            "speed_over_eager": self.ratio(&self.eager, "tokens_per_second").map(hundredths),
            "speed_over_compiled": self.ratio(&self.compiled, "tokens_per_second").map(hundredths),
            "memory_over_eager": self.ratio(&self.eager, "peak_mib").map(hundredths),
            "memory_over_compiled": self.ratio(&self.compiled, "peak_mib").map(hundredths),
            "reserved_over_eager": self.ratio(&self.eager, RESERVED).map(hundredths),
            "reserved_over_compiled": self.ratio(&self.compiled, RESERVED).map(hundredths),
        })
    }
}

fn hundredths(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Number for a table; a dash without one.
fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

impl Report {
    /// A report on whole steps.
    pub fn steps(setting: Setting, rows: Vec<StepRow>) -> Self {
        Self { setting, rows: Rows::Steps(rows) }
    }

    /// A report on operations.
    pub fn ops(setting: Setting, rows: Vec<OpRow>) -> Self {
        Self { setting, rows: Rows::Ops(rows) }
    }

    /// The report, with a description of the machine.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = match &self.rows {
            Rows::Steps(rows) => rows.iter().map(StepRow::json).collect(),
            Rows::Ops(rows) => rows
                .iter()
                .map(|row| {
                    json!({
                        "operation": row.name,
                        "milliseconds": row.ours_ms,
                        "torch_milliseconds": row.theirs_ms,
                        "speed_over_torch": row.ratio.map(hundredths),
                    })
                })
                .collect(),
        };
        json!({
            "kind": self.kind(),
            "processor": processor(),
            "cores": cores(),
            "device": self.setting.device,
            "gpus": gpus(),
            "dtype": self.setting.dtype,
            "commit": commit(),
            "rows": rows,
        })
    }

    /// The report as Markdown.
    pub fn table(&self) -> String {
        let mut text = String::new();
        match &self.rows {
            Rows::Steps(rows) => {
                // For a GPU also the reserved memory of each side's allocator, which is more than
                // the memory in use.
                let is_gpu = rows.iter().any(|row| medians(&row.ours, RESERVED).is_some());
                text += "| preset | tokens/s | PyTorch eager | torch.compile | speed / eager | speed / compile | memory / eager | memory / compile |";
                text += if is_gpu { " reserved / eager | reserved / compile |\n" } else { "\n" };
                text += "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
                text += if is_gpu { " ---: | ---: |\n" } else { "\n" };
                for row in rows {
                    let speed = |runs: &[Value]| cell(medians(runs, "tokens_per_second"), 0);
                    let ratio = |runs: &[Value], key| cell(row.ratio(runs, key), 2);
                    let mut cells = vec![
                        speed(&row.ours),
                        speed(&row.eager),
                        speed(&row.compiled),
                        ratio(&row.eager, "tokens_per_second"),
                        ratio(&row.compiled, "tokens_per_second"),
                        ratio(&row.eager, "peak_mib"),
                        ratio(&row.compiled, "peak_mib"),
                    ];
                    if is_gpu {
                        cells.extend([ratio(&row.eager, RESERVED), ratio(&row.compiled, RESERVED)]);
                    }
                    let _ = writeln!(text, "| {} | {} |", row.preset, cells.join(" | "));
                }
            }
            Rows::Ops(rows) => {
                text += "| forward + backward | ms | PyTorch ms | speed / PyTorch |\n| --- | ---: | ---: | ---: |\n";
                for row in rows {
                    let cells = [cell(row.ours_ms, 3), cell(row.theirs_ms, 3), cell(row.ratio, 2)];
                    let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
                }
            }
        }
        text
    }

    /// Writes the table and the JSON to benchmarks/DATE-KIND.md and returns the path. Fails if the
    /// file cannot be written.
    pub fn save(&self) -> Result<PathBuf> {
        let date = output_of("date", &["+%Y-%m-%d"]).context("`date` gave no date")?;
        let path = root().join("benchmarks").join(format!("{date}-{}.md", self.kind()));
        let json = serde_json::to_string_pretty(&self.json())?;
        let title = format!("# {date}: {} against PyTorch", self.kind());
        let processor = processor().unwrap_or_else(|| "unknown".to_owned());
        let Setting { device, dtype } = &self.setting;
        let gpus = gpus().map(|gpus| format!(" {gpus}.")).unwrap_or_default();
        let machine = format!("{} cores of {processor}; {dtype} on {device}.{gpus}", cores());
        let text = format!("{title}\n\n{machine}\n\n{}\n```json\n{json}\n```\n", self.table());
        std::fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
        Ok(path)
    }

    fn kind(&self) -> &'static str {
        match self.rows {
            Rows::Steps(_) => "steps",
            Rows::Ops(_) => "operations",
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name")?;
    let wide = field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "avx512f"));
    Some(if wide { format!("{name} (AVX-512)") } else { name })
}

/// NVIDIA's GPUs, if there are any, a line each.
fn gpus() -> Option<String> {
    output_of("nvidia-smi", &["--query-gpu=name,driver_version", "--format=csv,noheader"])
}

fn commit() -> Option<String> {
    output_of("git", &["describe", "--always", "--dirty"])
}

fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens_per_second: f64, peak_mib: u64) -> Value {
        json!({ "tokens_per_second": tokens_per_second, "peak_mib": peak_mib })
    }

    fn setting() -> Setting {
        Setting { device: "flex".into(), dtype: "fp32".into() }
    }

    #[test]
    fn ratios_are_medians_over_rounds_of_paired_runs() {
        let mut row = StepRow::new("nano-gpt2");
        // The machine was three times as slow in the second round, for both.
        row.ours = vec![run(1200.0, 50), run(400.0, 60), run(900.0, 50)];
        row.eager = vec![run(1000.0, 100), run(320.0, 100), run(900.0, 100)];
        assert_eq!(row.json()["speed_over_eager"], 1.2);
        assert_eq!(row.json()["memory_over_eager"], 0.5);
        assert_eq!(row.json()["speed_over_compiled"], Value::Null);
        let table = Report::steps(setting(), vec![row]).table();
        assert!(table.ends_with("| nano-gpt2 | 900 | 900 | - | 1.20 | - | 0.50 | - |\n"), "{table}");
    }

    #[test]
    fn on_a_gpu_both_memories_are_compared() {
        let on_gpu =
            |peak: u64, reserved: u64| json!({ "tokens_per_second": 1.0, "peak_mib": peak, RESERVED: reserved });
        let mut row = StepRow::new("llama-1b");
        (row.ours, row.eager) = (vec![on_gpu(300, 300)], vec![on_gpu(200, 240)]);
        let json = row.json();
        assert_eq!((&json["memory_over_eager"], &json["reserved_over_eager"]), (&json!(1.5), &json!(1.25)));
        let table = Report::steps(Setting { device: "cuda".into(), dtype: "bf16".into() }, vec![row]).table();
        assert!(table.ends_with("| llama-1b | 1 | 1 | - | 1.00 | - | 1.50 | - | 1.25 | - |\n"), "{table}");
    }

    #[test]
    fn a_side_that_was_not_run_leaves_dashes() {
        let row = OpRow { name: "linear".into(), ours_ms: Some(1.5), theirs_ms: None, ratio: None };
        assert!(Report::ops(setting(), vec![row]).table().ends_with("| linear | 1.500 | - | - |\n"));
        assert_eq!(median(Vec::new()), None);
    }
}
