//! `cargo xtask models`: writes docs/models.md, the table of Hugging Face families, from the
//! folders of the families and from the results of `bridge verify` on their reference values.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::build::build_bridge;

/// The page that is written.
const PAGE: &str = "docs/models.md";
const FAMILIES: &str = "bridge-models/src/families";
const CASES: &str = "bridge-models/tests/fixtures/golden";
/// Further cases, which are too large for the repository: without them their families have none.
const MORE_CASES: &str = "../shared/golden2026";

/// The figures of a verification: key of the report, head of the column.
const FIGURES: [(&str, &str); 5] = [
    ("logits", "logits"),
    ("loss", "loss"),
    ("gradients", "gradients"),
    ("step_losses", "losses of ten steps"),
    ("step_grad_norms", "their gradient norms"),
];

const INTRODUCTION: &str = "\
# Models

Families of Hugging Face models that Bridge imports, trains and exports. `cargo xtask models` writes this page; do not edit it.
[Adding a model](adding_a_model.md) says how a family is added.

";

const HOW: &str = "
## How a family is verified

A case is a tiny random model of the family with values that transformers computed in float32: logits, loss, the gradient of every parameter, and
losses and gradient norms of ten AdamW steps. `make_moe.py` beside the folders computed those of `bailing_moe_v2` and `solar_open` in float64. Each is
a folder in `bridge-models/tests/fixtures/golden`, and for each the tests check that

- `bridge verify` agrees within its tolerances (below, what was found);
- import and export give every tensor back bit for bit, on one rank and on several (tensor, pipeline and data parallel);
- `config.json` is read, written and read again without a change, and the `[model]` section of an import gives the same decoder;
- each setting that the family has no key for is refused by name in an export.

";

/// A family's folder.
struct Family {
    model_type: String,
    architecture: String,
    /// The first sentence about it.
    about: String,
}

/// A folder with reference values.
struct Case {
    name: String,
    folder: PathBuf,
    model_type: String,
}

/// Writes the page.
pub fn run() -> Result<ExitCode> {
    let bridge = build_bridge([])?;
    let families = families()?;
    let cases = cases(&families)?;
    let mut page = String::from(INTRODUCTION);
    page.push_str("| `model_type` | architecture | what it is | cases |\n| --- | --- | --- | --- |\n");
    for family in &families {
        let of_family = cases.iter().filter(|case| case.model_type == family.model_type);
        let names: Vec<String> = of_family.map(|case| format!("`{}`", case.name)).collect();
        ensure!(!names.is_empty(), "{} has no case in {CASES}", family.model_type);
        let Family { model_type, architecture, about } = family;
        writeln!(page, "| `{model_type}` | `{architecture}` | {about} | {} |", names.join(", "))?;
    }
    page.push_str(HOW);
    let heads: String = FIGURES.iter().map(|(_, head)| format!(" {head} |")).collect();
    writeln!(page, "| case |{heads}\n| --- |{}", " --- |".repeat(FIGURES.len()))?;
    for case in &cases {
        writeln!(page, "| `{}` |{}", case.name, figures(&bridge, case)?)?;
    }
    page.push_str("\nLogits: the largest absolute difference. All others are relative, gradients in norm and of the worst parameter. Bold is outside the tolerance: in a step of this case rounding decides which of two experts a token goes to.\n");
    fs::write(PAGE, page).with_context(|| PAGE.to_owned())?;
    println!("wrote {PAGE}");
    Ok(ExitCode::SUCCESS)
}

/// The entries of a folder, sorted.
fn entries(folder: &str) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| folder.to_owned())?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn families() -> Result<Vec<Family>> {
    let mut families = Vec::new();
    for folder in entries(FAMILIES)?.into_iter().filter(|path| path.is_dir()) {
        let path = folder.join("mod.rs");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('"'));
            let value = line.and_then(|rest| Some(rest.split_once('"')?.0.to_owned()));
            value.with_context(|| format!("{} has no {name}", path.display()))
        };
        let about = text.lines().take_while(|line| line.starts_with("//!"));
        let about = about.map(|line| line.trim_start_matches("//!").trim()).collect::<Vec<_>>().join(" ");
        let about = about.split_once(". ").map_or(about.trim_end_matches('.'), |(first, _)| first);
        families.push(Family {
            model_type: field("model_type:")?,
            architecture: field("architecture:")?,
            about: about.replace('|', "\\|"),
        });
    }
    Ok(families)
}

/// The cases of these families: those of the repository, and those beside it.
fn cases(families: &[Family]) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    let beside = if Path::new(MORE_CASES).exists() { entries(MORE_CASES)? } else { Vec::new() };
    for folder in entries(CASES)?.into_iter().chain(beside) {
        if cases.iter().any(|case| case.folder.file_name() == folder.file_name()) {
            continue;
        }
        let path = folder.join("config.json");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        // Python writes infinity, which JSON does not have.
        let text = text.replace("Infinity", "null");
        let settings: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        // A multimodal folder is a case of its language model's family.
        let of_text = settings["text_config"]["model_type"].as_str();
        let model_type = of_text.or(settings["model_type"].as_str()).unwrap_or_default().to_owned();
        if families.iter().any(|family| family.model_type == model_type) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            cases.push(Case { name, folder, model_type });
        }
    }
    Ok(cases)
}

/// The cells of a case.
fn figures(bridge: &Path, case: &Case) -> Result<String> {
    let mut command = Command::new(bridge);
    command
        .arg("verify")
        .arg(&case.folder)
        .arg("--reference")
        .arg(case.folder.join("golden.safetensors"))
        .arg("--json");
    let output = command.output().context("bridge could not be started")?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: {}", case.name, String::from_utf8_lossy(&output.stderr)))?;
    let cell = |key: &str| match (report[key]["difference"].as_f64(), report[key]["passed"].as_bool()) {
        (Some(found), Some(true)) => format!(" {found:.0e} |"),
        (Some(found), _) => format!(" **{found:.0e}** |"),
        (None, _) => " - |".to_owned(),
    };
    Ok(FIGURES.iter().map(|(key, _)| cell(key)).collect())
}
