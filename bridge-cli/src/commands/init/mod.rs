//! `bridge init`: from text to a recipe that runs here. `text` finds the text; models are in
//! `model`, examples to fine-tune on in `tuning`, the file in `recipe`, its trial in `trial`; this
//! file chooses.

mod arguments;
mod ask;
mod model;
mod recipe;
mod text;
mod trial;
mod tuning;

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use bridge_core::train::{available_memory, check_device_name, select_device};
use bridge_data::indexed::{BinAccess, IndexedDataset};
use serde_json::json;

pub use arguments::Arguments;

use crate::failure::Failure;
use crate::speech::Speech;
use model::{Pretrained, SIZES, Size};
use recipe::{Beginning, Recipe, num_evaluations};
use text::Text;
use trial::Outcome;
use tuning::Tuning;

/// Runs the command.
pub fn run(arguments: &Arguments, speech: &Speech) -> Result<u8, Failure> {
    let asked;
    let arguments = if arguments.data.is_empty() {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::input(
                "expected files or folders with text, found none (on a terminal, they are asked for)",
            ));
        }
        asked = ask::complete(arguments)?;
        &asked
    } else {
        arguments
    };
    check_device_name(&arguments.device).map_err(Failure::input)?;
    let text = text::find(&arguments.data, arguments.kind)?;
    let names = Names::new(arguments)?;
    let import = arguments.model.clone().or_else(|| text.model.clone().filter(|_| arguments.size.is_none()));
    let pretrained = import.map(|folder| Pretrained::open(&folder)).transpose()?;
    if let (Some(examples), None) = (&text.examples, &pretrained) {
        let (first, size) = (examples.files[0].display(), arguments.size.map_or("", |_| ", not a size"));
        let message = "these are examples to fine-tune a model on: name the model with --model FOLDER";
        return Err(Failure::input(format!("{first}: {message}{size} (--kind text trains a new one on them as text)")));
    }
    let data = names.data()?;
    let is_new = !data.exists();
    let made = make(arguments, &names, text, pretrained, &data);
    if made.is_err() && is_new {
        // Remove data of a recipe that is not written.
        let _ = std::fs::remove_dir_all(&data);
    }
    let (recipe, told) = made?;
    names.write(&recipe.to_text(), arguments.force)?;
    let path = &names.recipe;
    speech.result(
        || {
            let told: Vec<&str> = recipe.text.notes.iter().chain(&recipe.remarks).map(String::as_str).collect();
            format!("wrote {}\n{}\nnext: bridge train {}", path.display(), told.join("\n"), path.display())
        },
        || json!({ "recipe": path, "name": names.name, "seconds": told.seconds, "memory_bytes": told.memory, "notes": recipe.text.notes }),
    );
    Ok(0)
}

/// The names that a new recipe uses.
struct Names {
    name: String,
    recipe: PathBuf,
}

impl Names {
    fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let of_data = || {
            let first = std::path::absolute(&arguments.data[0]).unwrap_or_default();
            let stem = if first.is_dir() { first.file_name() } else { first.file_stem() };
            let name: String = stem.unwrap_or_default().to_string_lossy().chars().map(usable).collect();
            if name.trim_matches('-').is_empty() { "model".to_owned() } else { name.trim_matches('-').to_owned() }
        };
        if let Some(name) =
            arguments.name.as_ref().filter(|name| name.is_empty() || name.chars().any(|c| usable(c) != c))
        {
            return Err(Failure::input(format!("--name: expected letters, digits, `-` and `_`, found {name:?}")));
        }
        let wanted = arguments.name.clone().unwrap_or_else(of_data);
        let is_taken = |name: &str| Path::new("runs").join(name).exists() && !arguments.force;
        let mut name = wanted.clone();
        let file = |name: &str| arguments.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
        if file(&name).exists() && !arguments.force {
            let path = file(&name);
            return Err(Failure::input(format!(
                "{}: exists; --force replaces it, --output names another file",
                path.display()
            )));
        }
        if is_taken(&name) && arguments.name.is_some() {
            return Err(Failure::input(format!(
                "--name: there is a run {name:?} (runs/{name}); --force uses its folders"
            )));
        }
        let mut number = 2;
        // A new recipe must not resume another one's run.
        while is_taken(&name) || (name != wanted && file(&name).exists() && arguments.output.is_none()) {
            name = format!("{wanted}-{number}");
            number += 1;
        }
        Ok(Self { recipe: file(&name), name })
    }

    /// Folder of examples that are divided into splits, and of their cache.
    fn data(&self) -> Result<PathBuf, Failure> {
        std::path::absolute(Path::new("data").join(&self.name)).map_err(Failure::run)
    }

    fn write(&self, text: &str, force: bool) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::run(format!("{}: {error}", self.recipe.display()));
        if let Some(folder) = self.recipe.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).truncate(true);
        let file =
            if force { options.create(true).open(&self.recipe) } else { options.create_new(true).open(&self.recipe) };
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(failed)
    }
}

fn usable(character: char) -> char {
    if character.is_alphanumeric() || "-_".contains(character) { character } else { '-' }
}

/// Cost of a recipe on this machine.
struct Told {
    seconds: f64,
    memory: u64,
}

/// Chooses everything, and tries it.
fn make(
    arguments: &Arguments,
    names: &Names,
    text: Text,
    pretrained: Option<Pretrained>,
    data: &Path,
) -> Result<(Recipe, Told), Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let rate = model::training_rate(&device);
    let tuning = match (&text.examples, &pretrained) {
        (Some(examples), Some(model)) => Some(Tuning::prepare(examples, model, data, arguments.force)?),
        _ => None,
    };
    let largest_id =
        if text.tokens.is_empty() || pretrained.is_some() { None } else { Some(largest_id(&text.tokens)?) };
    let mut recipe = first_choice(arguments, names, text, largest_id, pretrained, rate);
    if let Some(tuning) = tuning {
        tuning.choose(&mut recipe)?;
    }
    let vocab = vocabulary(&recipe);
    let memory = fit_into_memory(&mut recipe, vocab)?;
    let seq_length = recipe.seq_length;
    if let Some(tuning) = &mut recipe.tuning {
        tuning.set_pack_length(seq_length);
    }
    let seconds = loop {
        match trial::first_steps(&recipe, vocab).map_err(|failure| tuning::explain(&recipe, failure))? {
            Outcome::Runs(seconds) => break seconds,
            Outcome::TooShort(problem) => shorten(&mut recipe, &problem)?,
        }
    };
    let step = seconds * (recipe.global_batch_size / recipe.micro_batch_size) as f64;
    let pace = Pace { step, evaluation: step * EVALUATION_SHARE * recipe.eval_iters() as f64 };
    let limit = arguments.time.or((arguments.size.is_none()).then_some(3600.0));
    if let Some(limit) = limit {
        let fits = pace.steps_in(limit, least_iterations(&recipe));
        let wanted = match &recipe.tuning {
            // A requested time is filled.
            Some(tuning) if arguments.time.is_some() => tuning.most_iterations(recipe.global_batch_size),
            _ => recipe.train_iters,
        };
        recipe.train_iters = wanted.min(fits);
    }
    tuning::remark(&mut recipe);
    let total = pace.total(recipe.train_iters);
    recipe.remarks.push(pace.remark(recipe.train_iters, limit));
    Ok((recipe, Told { seconds: total, memory }))
}

/// Share of a training step that its forward passes take: an evaluation has no others.
const EVALUATION_SHARE: f64 = 1.0 / 3.0;

/// Speed of a run on this machine.
struct Pace {
    /// Seconds of a step, measured.
    step: f64,
    /// Seconds of an evaluation, estimated; 0 without validation.
    evaluation: f64,
}

impl Pace {
    /// Seconds of a run with its evaluations.
    fn total(&self, train_iters: usize) -> f64 {
        train_iters as f64 * self.step + num_evaluations(train_iters) as f64 * self.evaluation
    }

    /// Steps of a run that takes at most `limit` seconds, or `least` if it has time for fewer.
    fn steps_in(&self, limit: f64, least: usize) -> usize {
        let mut steps = ((limit / self.step) as usize).max(least);
        while steps > least && self.total(steps) > limit {
            let fewer = (steps as f64 * limit / self.total(steps)) as usize;
            steps = fewer.clamp(least, steps - 1);
        }
        steps
    }

    /// Remark on the time of a run, and on a limit in seconds that it exceeds.
    fn remark(&self, train_iters: usize, limit: Option<f64>) -> String {
        let total = self.total(train_iters);
        let mut remark =
            format!("time: about {} here: {train_iters} steps of {:.2} s, measured", duration(total), self.step);
        if self.evaluation > 0.0 {
            let count = num_evaluations(train_iters);
            remark.push_str(&format!(", and {count} evaluations of {:.2} s, estimated", self.evaluation));
        }
        if let Some(limit) = limit.filter(|limit| total > *limit) {
            let limit = duration(limit);
            remark.push_str(&format!(
                "; this exceeds the {limit} of --time, because fewer than {train_iters} steps are not worth a run (train.train_iters sets fewer)"
            ));
        }
        remark
    }
}

/// The fewest steps that are worth a run.
fn least_iterations(recipe: &Recipe) -> usize {
    match recipe.beginning {
        Beginning::Scratch(..) => 20,
        Beginning::Pretrained(..) => 50,
    }
}

/// Vocabulary size for the plan; 1 if the pretrained `[model]` has the size.
fn vocabulary(recipe: &Recipe) -> usize {
    match (&recipe.beginning, recipe.largest_id) {
        (_, Some(id)) => usize::try_from(id).unwrap_or(0) + 1,
        (Beginning::Scratch(_, vocab), None) => *vocab,
        // The model's section has the vocabulary size.
        (Beginning::Pretrained(..), None) => 1,
    }
}

/// Sizes by rules of thumb: data, model, device rate and time decide.
fn first_choice(
    arguments: &Arguments,
    names: &Names,
    text: Text,
    largest_id: Option<i64>,
    pretrained: Option<Pretrained>,
    rate: f64,
) -> Recipe {
    let time = arguments.time.or((arguments.size.is_none()).then_some(3600.0)).unwrap_or(f64::INFINITY);
    let vocab = match text.bytes {
        0..100_000 => 512,
        100_000..1_000_000 => 1024,
        1_000_000..10_000_000 => 4096,
        10_000_000..100_000_000 => 8192,
        _ => 16384,
    };
    let rows = largest_id.map_or(vocab, |id| usize::try_from(id).unwrap_or(0) + 1);
    let data_tokens = (text.bytes / if text.tokens.is_empty() { 3 } else { 2 }) as f64;
    let tokens_in_time = |parameters: usize| time * rate / (6.0 * parameters as f64);
    let learns = |size: &&Size| {
        let parameters = size.parameters(rows);
        // Ten tokens a parameter, from at most eight passes over the data.
        let needed = 10.0 * parameters as f64;
        needed <= tokens_in_time(parameters) && needed <= 8.0 * data_tokens
    };
    let (beginning, parameters, longest) = match pretrained {
        Some(model) => {
            let (parameters, positions) = (model.parameters, model.positions);
            let longest = if model.has_learned_positions { positions } else { positions.min(512) };
            (Beginning::Pretrained(model), parameters, longest)
        }
        None => {
            let size = arguments.size.or_else(|| SIZES.iter().rev().find(learns).copied()).unwrap_or(SIZES[0]);
            (Beginning::Scratch(size, vocab), size.parameters(rows), 256)
        }
    };
    let is_new = matches!(beginning, Beginning::Scratch(..));
    let valid_percent = match text.bytes {
        0..1_000_000 => 10,
        1_000_000..100_000_000 => 5,
        _ => 1,
    };
    let held_out = data_tokens as usize * valid_percent / 100;
    let has_all_positions = matches!(&beginning, Beginning::Pretrained(model) if model.has_learned_positions);
    let seq_length = if has_all_positions { longest } else { power_of_two(held_out / 2).clamp(16, longest) };
    let passes = if is_new { 8.0 } else { 1.0 };
    let wanted = if is_new { 20.0 * parameters as f64 } else { f64::INFINITY };
    let tokens = wanted.min(passes * data_tokens).min(tokens_in_time(parameters));
    let usual = match parameters {
        _ if !is_new => 8192,
        0..2_000_000 => 2048,
        2_000_000..20_000_000 => 4096,
        20_000_000..200_000_000 => 16384,
        _ => 65536,
    };
    let tokens_per_step = power_of_two((tokens / 100.0) as usize).clamp(4 * seq_length, usual.max(4 * seq_length));
    let global_batch_size = (tokens_per_step / seq_length).max(1);
    let most_at_once = if parameters < 20_000_000 { 8 } else { 2 };
    let piece_bytes = text.tokens.is_empty() && text.files < 40;
    let mut recipe = Recipe {
        name: names.name.clone(),
        device: arguments.device.clone(),
        largest_id,
        piece_bytes: piece_bytes.then(|| piece_size(text.bytes)),
        text,
        tuning: None,
        beginning,
        seq_length,
        micro_batch_size: power_of_two(global_batch_size).min(most_at_once),
        is_batch_limited: false,
        global_batch_size,
        train_iters: 0,
        valid_percent,
        recompute: false,
        remarks: Vec::new(),
    };
    let least = least_iterations(&recipe);
    recipe.global_batch_size -= recipe.global_batch_size % recipe.micro_batch_size;
    recipe.train_iters = ((tokens / recipe.tokens_per_step() as f64) as usize).clamp(least, 1_000_000);
    recipe
}

/// The largest power of two that is not above `number`, at least 1.
const fn power_of_two(number: usize) -> usize {
    if number < 2 { 1 } else { 1 << number.ilog2() }
}

/// Size of the pieces of long files: enough of them that splits come near to their shares.
fn piece_size(bytes: u64) -> u64 {
    if bytes < 1_000_000 { (bytes / 50).max(128) } else { (bytes / 500).min(256 << 10) }
}

/// Reduces the size of steps until the planned memory fits into the free memory. Returns the
/// figure.
fn fit_into_memory(recipe: &mut Recipe, vocab: usize) -> Result<u64, Failure> {
    // Text, tokenizer and the buffers of checkpoint writing need memory too.
    const SHARE: f64 = 0.75;
    let free = available_memory().filter(|_| recipe.device == "flex");
    loop {
        let needed = trial::memory(recipe, vocab)?;
        let Some(free) = free else {
            recipe.remarks.push(format!("memory: {} by the plan", bytes(needed)));
            return Ok(needed);
        };
        if needed as f64 <= SHARE * free as f64 {
            recipe.remarks.push(format!("memory: {} by the plan, of {} that are free", bytes(needed), bytes(free)));
            return Ok(needed);
        }
        let is_fixed = matches!(&recipe.beginning, Beginning::Pretrained(model) if model.has_learned_positions);
        if recipe.micro_batch_size > 1 {
            recipe.micro_batch_size /= 2;
            recipe.is_batch_limited = true;
        } else if !recipe.recompute {
            recipe.recompute = true;
        } else if recipe.seq_length > 64 && !is_fixed {
            recipe.seq_length /= 2;
        } else {
            let (needed, free) = (bytes(needed), bytes(free));
            return Err(Failure::input(format!(
                "the model does not fit: training it takes {needed} with the smallest batch, {free} are free; choose a smaller one (--size)"
            )));
        }
    }
}

/// Changes a recipe whose data does not fill a sample of each split.
fn shorten(recipe: &mut Recipe, problem: &str) -> Result<(), Failure> {
    let is_fixed = matches!(&recipe.beginning, Beginning::Pretrained(model) if model.has_learned_positions);
    if recipe.tuning.is_some() {
        if recipe.valid_percent == 0 {
            return Err(Failure::input(problem));
        }
        recipe.valid_percent = 0;
        recipe.remarks.push("the examples held out do not fill a batch: there is no validation".to_owned());
        return Ok(());
    }
    if recipe.piece_bytes.is_none() && recipe.text.tokens.is_empty() {
        recipe.piece_bytes = Some(piece_size(recipe.text.bytes));
    } else if recipe.seq_length > 16 && !is_fixed {
        recipe.seq_length /= 2;
    } else if recipe.valid_percent > 0 {
        recipe.valid_percent = 0;
        recipe.remarks.push("there is too little text to keep some of it for validation".to_owned());
    } else {
        return Err(Failure::input(format!(
            "there is too little text for a sample of {} tokens:\n{problem}",
            recipe.seq_length
        )));
    }
    Ok(())
}

/// The largest id of token files, from which their vocabulary size follows.
fn largest_id(prefixes: &[String]) -> Result<i64, Failure> {
    let mut largest = 0;
    for prefix in prefixes {
        let dataset = IndexedDataset::open(Path::new(prefix), BinAccess::Mmap).map_err(Failure::input)?;
        for sequence in 0..dataset.len() {
            let ids = dataset.sequence(sequence).map_err(Failure::input)?;
            largest = largest.max(ids.into_iter().max().unwrap_or(0));
        }
    }
    Ok(largest)
}

fn bytes(number: u64) -> String {
    match number as f64 {
        small if small < 1e9 => format!("{:.0} MB", (small / 1e6).max(1.0)),
        large => format!("{:.1} GB", large / 1e9),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        short if short < 90.0 => format!("{short:.0} s"),
        short if short < 5400.0 => format!("{:.0} min", short / 60.0),
        long if long < 172_800.0 => format!("{:.1} h", long / 3600.0),
        long => format!("{:.1} days", long / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded() {
        assert_eq!([duration(45.0), duration(1800.0), duration(9000.0)], ["45 s", "30 min", "2.5 h"]);
        assert_eq!([power_of_two(0), power_of_two(1), power_of_two(9)], [1, 1, 8]);
    }

    #[test]
    fn time_has_room_for_evaluations() {
        let pace = Pace { step: 6.5, evaluation: 17.0 };
        let steps = pace.steps_in(720.0, 50);
        assert!(steps < 110 && pace.total(steps) <= 720.0 && pace.total(steps + 5) > 720.0, "{steps}");
        let told = pace.remark(steps, Some(720.0));
        assert!(told.contains("evaluations of 17.00 s, estimated") && !told.contains("--time"), "{told}");
        // 50 steps and 6 evaluations.
        let slow = Pace { step: 16.0, evaluation: 10.0 };
        assert_eq!((slow.steps_in(720.0, 50), slow.total(50)), (50, 860.0));
        let told = slow.remark(50, Some(720.0));
        assert!(told.starts_with("time: about 14 min here: 50 steps of 16.00 s") && told.contains("12 min of --time"));
        let unvalidated = Pace { step: 2.0, evaluation: 0.0 };
        assert_eq!(unvalidated.steps_in(720.0, 50), 360);
        assert_eq!(unvalidated.remark(360, None), "time: about 12 min here: 360 steps of 2.00 s, measured");
    }
}
