//! A new recipe as a file with comments. Its values are chosen in other files.

use std::fmt::Write;

use super::model::{Pretrained, Size};
use super::text::Text;
use super::tuning::{self, Tuning};

/// Start of a run.
pub enum Beginning {
    /// Random weights, and a tokenizer of this many tokens trained on the text.
    Scratch(Size, usize),
    /// A trained model, read from its folder.
    Pretrained(Pretrained),
}

/// Everything that a new recipe says.
pub struct Recipe {
    /// Name of the run.
    pub name: String,
    /// Compute device.
    pub device: String,
    /// The data.
    pub text: Text,
    /// Fine-tuning settings, if the data are examples.
    pub tuning: Option<Tuning>,
    /// The largest id of token files that come without a tokenizer.
    pub largest_id: Option<i64>,
    /// Start of the run.
    pub beginning: Beginning,
    /// Tokens of a sample.
    pub seq_length: usize,
    /// Samples of a forward pass.
    pub micro_batch_size: usize,
    /// True if memory limits the samples of a forward pass.
    pub is_batch_limited: bool,
    /// Samples of a step.
    pub global_batch_size: usize,
    /// Steps.
    pub train_iters: usize,
    /// Percent of the data that are kept for validation.
    pub valid_percent: usize,
    /// Size of pieces that documents are cut into.
    pub piece_bytes: Option<u64>,
    /// Recompute activations in backward, for want of memory.
    pub recompute: bool,
    /// Remarks on time and memory, a line each.
    pub remarks: Vec<String>,
}

/// A text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Steps between evaluations.
fn eval_interval(train_iters: usize) -> usize {
    (train_iters / 10).clamp(10, 1000).min(train_iters).max(1)
}

/// Evaluations of a run: one after each interval, and one after training.
pub(super) fn num_evaluations(train_iters: usize) -> usize {
    train_iters / eval_interval(train_iters) + 1
}

fn list(texts: &[String]) -> String {
    match texts {
        [one] => quoted(one),
        many => format!("[\n{}]", many.iter().map(|text| format!("    {},\n", quoted(text))).collect::<String>()),
    }
}

impl Recipe {
    /// Tokens of a step.
    pub fn tokens_per_step(&self) -> usize {
        self.global_batch_size * self.seq_length
    }

    /// Tokens that the data has, roughly.
    pub fn tokens_of_data(&self) -> u64 {
        let bytes_per_token = match &self.beginning {
            _ if !self.text.tokens.is_empty() => 2,
            Beginning::Scratch(..) => 3,
            Beginning::Pretrained(..) => 4,
        };
        self.text.bytes / bytes_per_token
    }

    /// The file.
    pub fn to_text(&self) -> String {
        let mut text = self.head();
        if let (Some(_), Beginning::Pretrained(model)) = (&self.tuning, &self.beginning) {
            text.push_str(&tuning::sections(model.parameters, &model.targets));
        }
        let warmup = match &self.beginning {
            Beginning::Scratch(..) => (self.train_iters / 15).min(500),
            Beginning::Pretrained(..) => (self.train_iters / 20).min(100),
        };
        let (lr, why) = match &self.beginning {
            Beginning::Scratch(size, _) => {
                (size.learning_rate(), "for a model of this width that begins with random weights")
            }
            Beginning::Pretrained(model) if self.tuning.is_some() => {
                (tuning::learning_rate(model.parameters), tuning::WHY_THIS_RATE)
            }
            Beginning::Pretrained(model) => {
                (model.learning_rate(), "a fraction of what trained the model: a larger one undoes what it has learned")
            }
        };
        let _ = write!(
            text,
            "\n[train]\n\
             micro_batch_size = {}    # samples at once: {}\n\
             global_batch_size = {}    # samples of a step\n\
             train_iters = {}    # about {} tokens\n",
            self.micro_batch_size,
            self.batch_limit(),
            self.global_batch_size,
            self.train_iters,
            match &self.tuning {
                Some(tuning) => tuning.tokens(self.train_iters * self.global_batch_size),
                None => self.tokens_per_step() * self.train_iters,
            },
        );
        text.push_str(&self.validation());
        // Branches that begin at zero need none.
        let decay = if self.tuning.is_some() { "0.0" } else { "0.1" };
        let _ = write!(
            text,
            "\n[optimizer]\n\
             lr = {lr:e}    # {why}\n\
             min_lr = {:.1e}\n\
             adam_beta2 = 0.95\n\
             weight_decay = {decay}\n\n\
             [scheduler]\n\
             lr_decay_style = \"cosine\"    # from lr to min_lr, over all iterations\n\
             lr_warmup_iters = {warmup}\n",
            lr / 10.0,
        );
        text.push_str(&self.data());
        let _ = write!(text, "\n[logger]\nlog_interval = {}\n", (self.train_iters / 100).clamp(1, 10));
        text.push_str(&self.checkpoint());
        text
    }

    fn head(&self) -> String {
        let mut text = match &self.beginning {
            Beginning::Scratch(size, _) => {
                format!("# A new model of the size {:?}, trained on your text.\n", size.name)
            }
            Beginning::Pretrained(model) if self.tuning.is_some() => {
                format!("# Fine-tunes the model of {} on your examples, by LoRA.\n", model.folder.display())
            }
            Beginning::Pretrained(model) => {
                format!("# Continues to train the model of {} on your text.\n", model.folder.display())
            }
        };
        let name = &self.name;
        let _ = writeln!(text, "#   bridge train {name}.toml      trains it; the same command again resumes it");
        let use_of = match &self.tuning {
            Some(tuning) => tuning.use_of(name),
            None => format!("bridge generate {name} --prompt \"...\""),
        };
        let _ = writeln!(text, "#   {use_of}");
        for remark in self.text.notes.iter().chain(&self.remarks) {
            // A name may have a line break.
            let _ = writeln!(text, "# {}", remark.replace(['\n', '\r'], " "));
        }
        let _ = writeln!(text, "name = {}", quoted(name));
        if self.device != "flex" {
            let _ = writeln!(text, "device = {}", quoted(&self.device));
        }
        text.push_str("\n[model]\n");
        match &self.beginning {
            Beginning::Scratch(size, _) => text.push_str(&size.section()),
            Beginning::Pretrained(model) => {
                text.push_str("# As the model's config.json has them: what is changed here, the weights do not fit.\n");
                text.push_str(&model.section);
            }
        }
        let most = if self.tuning.is_some() { "most " } else { "" };
        let _ = writeln!(text, "seq_length = {}    # {most}tokens of a sample", self.seq_length);
        if self.tuning.is_some() {
            text.push_str(Tuning::MODEL);
        }
        if self.recompute {
            text.push_str("recompute_granularity = \"full\"    # activations are computed again in backward: less memory, a third more time\n");
            text.push_str("recompute_method = \"uniform\"\nrecompute_num_layers = 1\n");
        }
        text
    }

    /// Reason for the number of samples at once.
    fn batch_limit(&self) -> &'static str {
        match () {
            () if self.is_batch_limited => "as many as memory holds",
            () if self.micro_batch_size == self.global_batch_size => "all of a step",
            () => "a rule of thumb, not a limit of memory",
        }
    }

    /// Batches of each evaluation; 0 without validation.
    pub fn eval_iters(&self) -> usize {
        if self.valid_percent == 0 {
            return 0;
        }
        let held_out = self.tokens_of_data() as usize * self.valid_percent / 100;
        match &self.tuning {
            Some(tuning) => tuning.validation_batches(self.global_batch_size),
            None => (held_out / self.tokens_per_step()).clamp(1, 10),
        }
    }

    fn validation(&self) -> String {
        if self.valid_percent == 0 {
            return "\n[validation]\neval_iters = 0    # there is too little text to keep some of it for validation\n"
                .to_owned();
        }
        let (interval, iters) = (eval_interval(self.train_iters), self.eval_iters());
        format!("\n[validation]\neval_interval = {interval}\neval_iters = {iters}    # batches of each evaluation\n")
    }

    fn data(&self) -> String {
        let mut text = match &self.tuning {
            Some(tuning) => tuning.section(),
            None => self.text_section(),
        };
        text.push_str("\n[tokenizer]\n");
        match &self.beginning {
            Beginning::Pretrained(model) => {
                let folder = quoted(&model.folder.display().to_string());
                let _ = writeln!(text, "tokenizer_type = \"HuggingFaceTokenizer\"\ntokenizer_model = {folder}");
                text.push_str(&self.tuning.as_ref().map(Tuning::template).unwrap_or_default());
            }
            Beginning::Scratch(_, vocab) => match self.largest_id {
                Some(id) => {
                    let _ = writeln!(
                        text,
                        "# The token files come without a tokenizer: ids are all that is known.\ntokenizer_type = \"NullTokenizer\"\nvocab_size = {id}"
                    );
                }
                None => {
                    let _ = writeln!(
                        text,
                        "tokenizer_type = \"ByteLevelBPE\"    # trained on the text\nbpe_vocab_size = {vocab}"
                    );
                }
            },
        }
        text
    }

    fn text_section(&self) -> String {
        let mut text = "\n[dataset]\nkind = \"gpt\"\n".to_owned();
        if self.text.tokens.is_empty() {
            let _ = writeln!(text, "source = {}", list(&self.text.source));
            if !self.text.exclude.is_empty() {
                let _ = writeln!(text, "source_exclude = [{}]", list_items(&self.text.exclude));
            }
            if let Some(key) = &self.text.jsonl_key {
                let _ = writeln!(text, "source_format = \"jsonl\"\nsource_jsonl_key = {}", quoted(key));
            }
            if let Some(bytes) = self.piece_bytes {
                let _ = writeln!(
                    text,
                    "source_piece_bytes = {bytes}    # long files are cut at blank lines, so that the split can divide them"
                );
            }
            if self.text.files > 1 && !self.text.is_read_in_order {
                text.push_str("source_shuffle_seed = 1234    # files of all subjects come to both splits\n");
            }
        } else {
            let _ = writeln!(text, "data_path = [{}]", list_items(&self.text.tokens));
        }
        let _ = writeln!(
            text,
            "split = \"{},{},0\"    # percent for training, for validation, for a test",
            100 - self.valid_percent,
            self.valid_percent
        );
        text
    }

    fn checkpoint(&self) -> String {
        let mut text = "\n[checkpoint]\n".to_owned();
        if let Beginning::Pretrained(model) = &self.beginning {
            let _ = writeln!(
                text,
                "pretrained_checkpoint = {}    # read by the first start of the run",
                quoted(&model.folder.display().to_string())
            );
        }
        let _ = write!(
            text,
            "save = {}\nsave_interval = {}\nmost_recent_k = 2    # older ones are deleted\n",
            quoted(&format!("runs/{}/checkpoints", self.name)),
            (self.train_iters / 5).clamp(1, 1000)
        );
        text
    }
}

fn list_items(texts: &[String]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")
}
