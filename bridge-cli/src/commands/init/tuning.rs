//! A recipe that fine-tunes a model on examples: their splits, LoRA, the chat template. How
//! examples are read, the data crate knows.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::config::World;
use bridge_core::logging::{NoProgress, ProgressSink};
use bridge_core::train::RunData;
use bridge_data::chat::ChatTemplate;
use bridge_data::gpt::Split;
use bridge_data::sft::{ExampleKind, SplitCounts, divide, records};
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use bridge_data::{ExtraValues, PADDING};
use bridge_models::registry;

use super::model::Pretrained;
use super::recipe::{Beginning, Recipe, quoted};
use super::text::{ExampleFiles, at_line};
use super::trial;
use crate::failure::Failure;

/// Number of examples of which one is held out.
const HELD_OUT_OF: u64 = 20;
/// Fewest passes over the examples, and the most that a small set gets so that there are [`STEPS`].
const EPOCHS: [usize; 2] = [3, 10];
/// Steps that teach a new task.
const STEPS: usize = 1000;
/// Most passes over the examples, for any amount of time.
const MOST_EPOCHS: usize = 100;
/// Examples of a step.
const BATCH: usize = 16;
/// Sequences are not shorter than this, if the model has the positions: short examples share one.
const SHORTEST_PACK: usize = 512;
/// Turns between the marks that models of several families know.
const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Fine-tuning settings of a model.
pub struct Tuning {
    root: PathBuf,
    cache: PathBuf,
    /// The user's files that were divided into the splits; none if their folder has splits.
    files: Vec<PathBuf>,
    counts: SplitCounts,
    /// The template of conversations, where the tokenizer has none.
    template: Option<String>,
    /// Form of the examples.
    form: Form,
    /// Tokens of the training examples, ascending.
    lengths: Vec<usize>,
    /// True if several examples share a sequence.
    is_packed: bool,
    /// Tokens of a sequence with several examples.
    pack_length: usize,
}

/// Conversion of examples to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Conversations, by a template.
    Conversations,
    /// Prompts with their answers, by the model's template as conversations of two messages.
    PromptsAsConversations,
    /// Prompts with their answers, as they are.
    Prompts,
}

impl Tuning {
    /// Settings for `[model]`.
    pub const MODEL: &'static str = "calculate_per_token_loss = true    # each token of an answer counts the same\n";

    /// Divides the examples into splits below `data`, unless their folder has splits. A
    /// conversation needs a template: that of the model, or one that its tokenizer has the marks
    /// of. Fails on files that cannot be read; splits that exist, without `force`; a tokenizer
    /// without a template.
    pub fn prepare(examples: &ExampleFiles, model: &Pretrained, data: &Path, force: bool) -> Result<Self, Failure> {
        let has_template = ChatTemplate::load(&model.folder).map_err(Failure::input)?.is_some();
        let (form, template) = match (examples.kind, has_template) {
            (ExampleKind::Conversation, true) => (Form::Conversations, None),
            (ExampleKind::Conversation, false) => (Form::Conversations, Some(template_for(&model.folder)?)),
            (_, true) => (Form::PromptsAsConversations, None),
            (_, false) => (Form::Prompts, None),
        };
        let cache = data.join("cache");
        if let Some((root, counts)) = examples.root.clone() {
            return Ok(Self::new(root, cache, counts, template, form));
        }
        let root = data.join("examples");
        if root.exists() && !force {
            let place = root.display();
            return Err(Failure::input(format!("{place}: exists; --force replaces it, --name names another run")));
        }
        let counts = divide(&examples.files, HELD_OUT_OF, &root).map_err(Failure::input)?;
        let files = examples.files.clone();
        Ok(Self { files, ..Self::new(root, cache, counts, template, form) })
    }

    const fn new(root: PathBuf, cache: PathBuf, counts: SplitCounts, template: Option<String>, form: Form) -> Self {
        Self {
            root,
            cache,
            files: Vec::new(),
            counts,
            template,
            form,
            lengths: Vec::new(),
            is_packed: false,
            pack_length: 0,
        }
    }

    /// Length, batch and steps of the run by the examples. Fails on examples that cannot be read.
    pub fn choose(self, recipe: &mut Recipe) -> Result<(), Failure> {
        let SplitCounts { training, validation } = self.counts;
        let Beginning::Pretrained(model) = &recipe.beginning else { return Ok(()) };
        let (positions, has_learned_positions) = (model.positions, model.has_learned_positions);
        let can_pack = model.section.contains("kind = \"gpt\"");
        recipe.piece_bytes = None;
        if validation == 0 {
            recipe.valid_percent = 0;
        }
        let root = self.root.display().to_string();
        if self.template.is_some() {
            let remark =
                "the model has no chat template: conversations are written in ChatML, whose marks its tokenizer has";
            recipe.remarks.push(remark.to_owned());
        }
        // Lengths do not depend on batch and steps, which follow from them.
        (recipe.seq_length, recipe.micro_batch_size, recipe.global_batch_size) = (positions, 1, 1);
        recipe.train_iters = EPOCHS[0];
        recipe.tuning = Some(self);
        let lengths = lengths(recipe).map_err(|failure| explain(recipe, failure))?;
        let (count, total) = (lengths.len().max(1), lengths.iter().sum::<usize>());
        let longest = lengths.last().copied().unwrap_or(1);
        recipe.remarks.push(format!(
            "examples: {training} to train on, {validation} held out, in {root}; {total} tokens, the longest has {longest}"
        ));
        if training > lengths.len() as u64 {
            let number = training - lengths.len() as u64;
            recipe.remarks.push(format!(
                "{number} of {training} examples are not trained on: nothing of them that counts fits into the model's {positions} positions"
            ));
        }
        if !has_learned_positions {
            let needed = (longest + 1).next_multiple_of(64);
            recipe.seq_length = needed.max(SHORTEST_PACK).min(positions);
        }
        let is_packed = can_pack && 2 * total <= recipe.seq_length * count;
        let each = if is_packed { (recipe.seq_length * count / total.max(1)).max(1) } else { 1 };
        // Some fifty steps an epoch, if small sets have them.
        let batch = (count / 50).clamp(1, BATCH) / each;
        recipe.global_batch_size = 1 << batch.max(1).ilog2();
        recipe.micro_batch_size = recipe.global_batch_size.min(if recipe.seq_length * 8 <= 4096 { 8 } else { 1 });
        if let Some(tuning) = &mut recipe.tuning {
            (tuning.lengths, tuning.is_packed, tuning.pack_length) = (lengths, is_packed, recipe.seq_length);
            let steps = |epochs: usize| tuning.samples_of(epochs).div_ceil(recipe.global_batch_size);
            let [fewest, most] = EPOCHS.map(steps);
            recipe.train_iters = STEPS.clamp(fewest, most.max(fewest)).clamp(50, 1_000_000);
        }
        Ok(())
    }

    /// Sequences of about `epochs` passes over the examples.
    fn samples_of(&self, epochs: usize) -> usize {
        let total: usize = self.lengths.iter().sum();
        let each = if self.is_packed { total.div_ceil(self.pack_length.max(1)) } else { self.lengths.len() };
        epochs.saturating_mul(each.max(1))
    }

    /// Sets the length of sequences that several examples share.
    pub const fn set_pack_length(&mut self, length: usize) {
        self.pack_length = length;
    }

    /// The most steps that are worth a run.
    pub fn most_iterations(&self, batch: usize) -> usize {
        self.samples_of(MOST_EPOCHS).div_ceil(batch).max(50)
    }

    /// Tokens of about `samples` sequences.
    pub fn tokens(&self, samples: usize) -> usize {
        let total: usize = self.lengths.iter().sum();
        (total as f64 * samples as f64 / self.samples_of(1) as f64) as usize
    }

    /// Number of batches that the held-out examples fill, at most ten.
    pub fn validation_batches(&self, batch: usize) -> usize {
        let held_out = usize::try_from(self.counts.validation).unwrap_or(usize::MAX);
        let count = self.lengths.len().max(1);
        let samples = held_out * self.samples_of(1) / count;
        (samples / batch).clamp(1, 10)
    }

    /// The section `[dataset]`.
    pub fn section(&self) -> String {
        let [root, cache] = [&self.root, &self.cache].map(|path| quoted(&path.display().to_string()));
        let is_chat = self.form == Form::PromptsAsConversations;
        let mut kwargs = String::new();
        if is_chat || self.is_packed {
            kwargs.push_str("\n[dataset.dataset_kwargs]\n");
        }
        if is_chat {
            kwargs.push_str("chat = true    # prompt and answer are written by the model's chat template\n");
        }
        if self.is_packed {
            kwargs.push_str("pack_on_the_fly = true    # short examples share a sequence, without seeing each other\n");
        }
        format!(
            "\n[dataset]\n\
             kind = \"finetuning\"    # the loss is that of the answers\n\
             dataset_root = {root}    # training.jsonl, validation.jsonl: docs/data.md\n\
             path_to_cache = {cache}\n{kwargs}"
        )
    }

    /// Commands that use the trained model of a run.
    pub fn use_of(&self, name: &str) -> String {
        match self.form {
            Form::Prompts => format!("bridge generate {name} --prompt \"...\""),
            Form::Conversations | Form::PromptsAsConversations => format!("bridge chat {name}"),
        }
    }

    /// Error for a split of which no example counts for the loss. The report names the split.
    fn without_answers(&self, report: &str, positions: usize) -> Option<Failure> {
        let SplitCounts { training, validation } = self.counts;
        let (one, answer) = match self.form {
            Form::Conversations => ("conversation", "an answer of the assistant"),
            Form::Prompts | Form::PromptsAsConversations => ("prompt", "an answer"),
        };
        let place = self.files.first().unwrap_or(&self.root).display();
        let more = if self.files.len() > 1 { " and other files" } else { "" };
        let within = format!("within the model's {positions} positions");
        let message = if report.contains(" train examples") {
            format!("no {one} has {answer} to train on {within} ({} read)", training + validation)
        } else if report.contains(" valid examples") {
            let which = if self.files.is_empty() { String::new() } else { format!(" (every {HELD_OUT_OF}th)") };
            format!("none of the {validation} {one}s held out{which} has {answer} {within}")
        } else {
            return None;
        };
        Some(Failure::input(format!("{place}{more}: {message}")))
    }

    /// The message with the user's file and line in the place of those of a split.
    fn in_file_of_user(&self, message: &str) -> Option<String> {
        for name in ["training.jsonl", "validation.jsonl"] {
            let place = format!("{}: line ", self.root.join(name).display());
            let Some((_, rest)) = message.split_once(&place) else { continue };
            let (line, problem) = rest.split_once(": ")?;
            let line = line.parse::<u64>().ok().filter(|line| *line > 0)?;
            let number =
                if name == "training.jsonl" { line + (line - 1) / (HELD_OUT_OF - 1) } else { line * HELD_OUT_OF };
            let (file, line) = nth_record(&self.files, number)?;
            return Some(at_line(file, line, problem));
        }
        None
    }

    /// Settings for `[tokenizer]`.
    pub fn template(&self) -> String {
        let mut text = String::new();
        if let Some(template) = &self.template {
            let _ = writeln!(text, "chat_template = {}", quoted(template));
        }
        text
    }
}

/// The failure in terms of the user's files: recipe and splits are removed if no recipe is made.
pub fn explain(recipe: &Recipe, failure: Failure) -> Failure {
    let (Some(tuning), Beginning::Pretrained(model)) = (&recipe.tuning, &recipe.beginning) else { return failure };
    let explained = match &failure {
        Failure::Config(errors) => errors.iter().find_map(|error| {
            let report = error.message.strip_prefix("there are no examples to train on: ")?;
            tuning.without_answers(report, model.positions)
        }),
        Failure::Input(message) => tuning.in_file_of_user(message).map(Failure::Input),
        Failure::Run(message) => tuning.in_file_of_user(message).map(Failure::Run),
        Failure::Stopped(..) => None,
    };
    explained.unwrap_or(failure)
}

/// File and line (or row) of a record, counted from 1 over all files.
fn nth_record(files: &[PathBuf], number: u64) -> Option<(&Path, u64)> {
    let mut seen = 0;
    for file in files {
        for record in records(file.clone()) {
            let (line, _) = record.ok()?;
            seen += 1;
            if seen == number {
                return Some((file.as_path(), line));
            }
        }
    }
    None
}

/// Tokens of the training examples, ascending, as the run of a recipe reads them.
fn lengths(recipe: &Recipe) -> Result<Vec<usize>, Failure> {
    let config = trial::parse(recipe)?.finalize(&World::SINGLE)?;
    let progress: Arc<dyn ProgressSink> = Arc::new(NoProgress);
    let data = RunData::of_model(&Arc::new(config), &registry().datasets, &progress, None, Split::Train)?;
    let dataset = data.datasets().train.clone();
    let dataset = dataset.ok_or_else(|| Failure::input("the examples have no training split"))?;
    let length = |at| {
        let sample = dataset.get(at).map_err(Failure::input)?;
        // Samples are padded to a multiple of some tokens.
        let padding = match sample.extras.get(PADDING).map(|extra| &extra.values) {
            Some(ExtraValues::Ints(padding)) => padding.iter().filter(|pads| **pads != 0).count(),
            _ => 0,
        };
        Ok::<usize, Failure>(sample.tokens.len() + 1 - padding)
    };
    let mut lengths = (0..dataset.len()).map(length).collect::<Result<Vec<_>, _>>()?;
    lengths.sort_unstable();
    Ok(lengths)
}

/// Adds the number of examples that do not fit into the sequences of a finished recipe, and the
/// number of passes.
pub fn remark(recipe: &mut Recipe) {
    let Some(tuning) = &recipe.tuning else { return };
    let Beginning::Pretrained(model) = &recipe.beginning else { return };
    let (count, longest) = (tuning.lengths.len(), tuning.lengths.last().copied().unwrap_or(0));
    let passes = recipe.train_iters * recipe.global_batch_size;
    let passes = passes as f64 / tuning.samples_of(1) as f64;
    let cut = count - tuning.lengths.partition_point(|length| *length <= recipe.seq_length);
    let is_whole = recipe.seq_length >= model.positions;
    let at_limit = count - tuning.lengths.partition_point(|length| *length < model.positions);
    let mut remarks = vec![format!("each example is trained on about {passes:.1} times")];
    if is_whole && at_limit > 0 {
        remarks.push(format!(
            "{at_limit} of {count} examples fill or exceed the model's {} positions, and are cut there: divide them, or choose a model with more \
             positions",
            model.positions
        ));
    } else if cut > 0 {
        remarks.push(format!(
            "{cut} of {count} examples are longer than {} tokens, for want of memory, and are cut: model.seq_length = {longest} trains on \
             all of them",
            recipe.seq_length
        ));
    }
    recipe.remarks.extend(remarks);
}

/// Learning rate of LoRA branches: they begin at zero, so it is larger than that of weights, and
/// the larger the smaller the model is.
pub const fn learning_rate(parameters: usize) -> f64 {
    match parameters {
        0..50_000_000 => 1e-3,
        50_000_000..500_000_000 => 5e-4,
        _ => 2e-4,
    }
}

/// Reason of the learning rate, for the recipe.
pub const WHY_THIS_RATE: &str = "for the branches, which begin at zero; for all weights (without [peft]) a tenth";

/// The sections `[peft]` and `[ddp]`. Small models need a higher rank for a new task.
pub fn sections(parameters: usize, targets: &[&str]) -> String {
    let dim = if parameters < 50_000_000 { 64 } else { 16 };
    format!(
        "\n[peft]    # without this section all weights are trained\n\
         kind = \"lora\"\n\
         target_modules = {targets:?}\n\
         dim = {dim}\n\
         alpha = {}\n\
         dropout = 0.05\n\
         \n[ddp]\n\
         average_in_collective = false    # for calculate_per_token_loss\n",
        2 * dim
    )
}

/// The template of conversations for a folder without one.
fn template_for(folder: &Path) -> Result<String, Failure> {
    let tokenizer = HuggingFaceTokenizer::load(folder).map_err(Failure::input)?;
    let has_mark = |mark: &str| tokenizer.token_to_id(mark).is_some();
    if has_mark("<|im_start|>") && has_mark("<|im_end|>") {
        return Ok(CHAT_ML.to_owned());
    }
    let folder = folder.display();
    Err(Failure::input(format!(
        "{folder}: its tokenizer has no chat template, and not the marks of ChatML: add a chat_template.jinja to the folder, or give prompts with \
         their answers in the place of conversations"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_splits_are_named_by_files_of_users() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        std::fs::write(&files[0], "{}\n".repeat(30)).unwrap();
        // Blank lines are no records.
        std::fs::write(&files[1], format!("\n{}", "{}\n".repeat(30))).unwrap();
        let root = folder.path().join("examples");
        let counts = divide(&files, HELD_OUT_OF, &root).unwrap();
        let new = Tuning::new(root.clone(), PathBuf::new(), counts, None, Form::Conversations);
        let tuning = Tuning { files: files.to_vec(), ..new };
        let place = |split: &str, line: usize| {
            let split = root.join(split).display().to_string();
            tuning.in_file_of_user(&format!("{split}: line {line}: not JSON: x at line 1 column 2"))
        };
        let at = |file: usize, line: usize| Some(format!("{}:{line}: not JSON: x at column 2", files[file].display()));
        let found = [place("training.jsonl", 19), place("training.jsonl", 20), place("training.jsonl", 30)];
        assert_eq!(found, [at(0, 19), at(0, 21), at(1, 2)]);
        let found = [place("validation.jsonl", 1), place("validation.jsonl", 3), place("validation.jsonl", 4)];
        assert_eq!(found, [at(0, 20), at(1, 31), None]);
        let said = tuning.without_answers("x: 0 train examples", 8).unwrap().text();
        assert!(said.ends_with("a.jsonl and other files: no conversation has an answer of the assistant to train on within the model's 8 positions (60 read)"), "{said}");
        let said = tuning.without_answers("x: 0 valid examples", 8).unwrap().text();
        assert!(said.contains("none of the 3 conversations held out (every 20th) has an answer"), "{said}");
    }
}
