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
use bridge_data::sft::{ExampleKind, SplitCounts, divide};
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use bridge_data::{ExtraValues, PADDING};
use bridge_models::registry;

use super::model::Pretrained;
use super::recipe::{Beginning, Recipe, quoted};
use super::text::ExampleFiles;
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
    /// of.
    ///
    /// # Errors
    /// Files that cannot be read; splits that exist, without `force`; a tokenizer without a
    /// template.
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
        Ok(Self::new(root, cache, counts, template, form))
    }

    const fn new(root: PathBuf, cache: PathBuf, counts: SplitCounts, template: Option<String>, form: Form) -> Self {
        Self { root, cache, counts, template, form, lengths: Vec::new(), is_packed: false, pack_length: 0 }
    }

    /// Length, batch and steps of the run by the examples.
    ///
    /// # Errors
    /// Examples that cannot be read.
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
        let lengths = lengths(recipe)?;
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

    /// Settings for `[tokenizer]`.
    pub fn template(&self) -> String {
        let mut text = String::new();
        if let Some(template) = &self.template {
            let _ = writeln!(text, "chat_template = {}", quoted(template));
        }
        text
    }
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
