//! A recipe that fine-tunes a model on examples: their splits, LoRA, the chat template. How examples are read, the data crate knows.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use bridge_data::chat::ChatTemplate;
use bridge_data::sft::{ExampleKind, SplitCounts, divide};
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};

use super::model::Pretrained;
use super::recipe::{Beginning, Recipe, quoted};
use super::text::ExampleFiles;
use crate::failure::Failure;

/// Of so many examples one is held out.
const HELD_OUT_OF: u64 = 20;
/// How often each example is trained on.
const EPOCHS: u64 = 3;
/// Turns between the marks that models of several families know.
const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What a model is fine-tuned on.
pub struct Tuning {
    root: PathBuf,
    cache: PathBuf,
    counts: SplitCounts,
    /// The template of conversations, where the tokenizer has none.
    template: Option<String>,
    /// How examples are written.
    form: Form,
}

/// How examples become text.
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
    /// A learning rate for branches of low rank: they begin at zero, so it is larger than that of weights.
    pub const LEARNING_RATE: f64 = 2e-4;
    /// Why this rate.
    pub const WHY_THIS_RATE: &'static str =
        "for the branches, which begin at zero; for all weights (without [peft]) 1e-5";
    /// What `[model]` needs.
    pub const MODEL: &'static str = "calculate_per_token_loss = true    # each token of an answer counts the same\n";
    /// The sections that say how it is trained.
    pub const SECTIONS: &'static str = "\n[peft]    # without this section all weights are trained\n\
        kind = \"lora\"\n\
        dim = 16\n\
        alpha = 32\n\
        dropout = 0.05\n\
        \n[ddp]\n\
        average_in_collective = false    # for calculate_per_token_loss\n";

    /// Divides the examples into splits below `data`, unless their folder has splits. A conversation needs a template: that of the model, or one
    /// that its tokenizer has the marks of.
    ///
    /// # Errors
    /// Files that cannot be read; splits that exist, without `force`; a tokenizer without a template.
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
            return Ok(Self { root, cache, counts, template, form });
        }
        let root = data.join("examples");
        if root.exists() && !force {
            let place = root.display();
            return Err(Failure::input(format!("{place}: exists; --force replaces it, --name names another run")));
        }
        let counts = divide(&examples.files, HELD_OUT_OF, &root).map_err(Failure::input)?;
        Ok(Self { root, cache, counts, template, form })
    }

    /// Batch and length of the run by the number of examples.
    pub fn choose(self, recipe: &mut Recipe) {
        let SplitCounts { training, validation } = self.counts;
        let examples = usize::try_from(training).unwrap_or(usize::MAX).max(1);
        // Some fifty steps an epoch, as far as small sets have them.
        let batch = (examples / 50).clamp(1, 16);
        recipe.global_batch_size = 1 << batch.ilog2();
        recipe.micro_batch_size = recipe.micro_batch_size.min(recipe.global_batch_size);
        let steps = examples.saturating_mul(EPOCHS as usize).div_ceil(recipe.global_batch_size);
        recipe.train_iters = steps.clamp(50, 1_000_000);
        if let Beginning::Pretrained(model, _) = &recipe.beginning {
            let longest = if model.has_learned_positions { usize::MAX } else { 512 };
            recipe.seq_length = model.positions.min(longest);
        }
        recipe.piece_bytes = None;
        if validation == 0 {
            recipe.valid_percent = 0;
        }
        recipe
            .remarks
            .push(format!("examples: {training} to train on, {validation} held out, in {}", self.root.display()));
        if self.template.is_some() {
            let remark =
                "the model has no chat template: conversations are written in ChatML, whose marks its tokenizer has";
            recipe.remarks.push(remark.to_owned());
        }
        recipe.tuning = Some(self);
    }

    /// How many batches the held-out examples fill, at most ten.
    pub fn validation_batches(&self, batch: usize) -> usize {
        let held_out = usize::try_from(self.counts.validation).unwrap_or(usize::MAX);
        (held_out / batch).clamp(1, 10)
    }

    /// The section `[dataset]`.
    pub fn section(&self) -> String {
        let [root, cache] = [&self.root, &self.cache].map(|path| quoted(&path.display().to_string()));
        let kwargs = match self.form {
            Form::PromptsAsConversations => {
                "\n[dataset.dataset_kwargs]\nchat = true    # prompt and answer are written by the model's chat template\n"
            }
            Form::Conversations | Form::Prompts => "",
        };
        format!(
            "\n[dataset]\n\
             kind = \"finetuning\"    # the loss is that of the answers\n\
             dataset_root = {root}    # training.jsonl, validation.jsonl: docs/data.md\n\
             path_to_cache = {cache}\n{kwargs}"
        )
    }

    /// What is done with the trained model of a run.
    pub fn use_of(&self, name: &str) -> String {
        match self.form {
            Form::Prompts => format!("bridge generate {name} --prompt \"...\""),
            Form::Conversations | Form::PromptsAsConversations => format!("bridge chat {name}"),
        }
    }

    /// What `[tokenizer]` needs.
    pub fn template(&self) -> String {
        let mut text = String::new();
        if let Some(template) = &self.template {
            let _ = writeln!(text, "chat_template = {}", quoted(template));
        }
        text
    }
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
