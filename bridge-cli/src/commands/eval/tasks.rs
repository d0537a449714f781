//! `bridge eval --tasks`: questions with choices, and questions with one right continuation, judged
//! by log-likelihood.
//!
//! Tokens, scores and figures are those of lm-evaluation-harness (its `loglikelihood` requests and
//! `multiple_choice` tasks), so that results on the same items can be compared.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use bridge_core::logging::{ProgressSink, ProgressTask};
use bridge_data::chat::{Conversation, Ending};
use bridge_data::tokenizer::Tokenizer;
use bridge_data::untrusted_io;
use bridge_models::families;
use bridge_models::score::{Continuation, Score, ScoreError, Scorer};
use burn::tensor::Device;
use clap::Args;
use serde_json::{Map, Value, json};

use super::super::convert::origin_of;
use super::items::{Answer, Item, load};
use crate::failure::Failure;
use crate::model_source::LoadedModel;
use crate::output::line;

/// The tasks, and how their texts become tokens.
#[derive(Debug, Args)]
pub struct TaskArguments {
    /// Tasks to evaluate on instead of text: JSON lines with `query`, `choices` and `gold`, or with
    /// `query` and `target`.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["text", "recipe", "split"])]
    pub tasks: Vec<PathBuf>,
    /// Text before each answer that does not begin with white space: a blank by default, nothing
    /// with --chat.
    #[arg(long, value_name = "TEXT", requires = "tasks")]
    target_delimiter: Option<String>,
    /// Ask each query as a user's message, by the model's chat template.
    #[arg(long, requires = "tasks", conflicts_with = "add_bos")]
    chat: bool,
    /// Begin each query with the token that begins a document. Models of the Gemma family always
    /// do, as in lm-evaluation-harness.
    #[arg(long, requires = "tasks")]
    add_bos: bool,
    /// Write the log-likelihoods of each item to this file, as JSON lines.
    #[arg(long, value_name = "FILE", requires = "tasks")]
    log_samples: Option<PathBuf>,
}

impl TaskArguments {
    /// True if there are tasks.
    pub fn are_given(&self) -> bool {
        !self.tasks.is_empty()
    }
}

/// Evaluation of tasks.
pub struct Evaluation<'a> {
    /// The model.
    pub model: &'a LoadedModel,
    /// Tokenizer of the model.
    pub tokenizer: &'a dyn Tokenizer,
    /// Device of the model.
    pub device: &'a Device,
    /// Texts that go through it at once.
    pub batch_size: usize,
    /// Largest number of items of each file.
    pub max_items: Option<usize>,
    /// Prints one JSON object.
    pub is_json: bool,
}

impl Evaluation<'_> {
    /// Evaluates all tasks and prints the figures. Fails if a file or an item is not as it should
    /// be, before anything is computed; if the model cannot score.
    pub fn run(&self, arguments: &TaskArguments, progress: &dyn ProgressSink) -> Result<(), Failure> {
        let mut items = Vec::new();
        for path in &arguments.tasks {
            items.extend(load(path)?.into_iter().take(self.max_items.unwrap_or(usize::MAX)));
        }
        tasks_are_uniform(&items)?;
        let adds_bos = arguments.add_bos || forces_bos(self.model);
        match &self.model.chat_template {
            Some(_) if !arguments.chat => eprintln!(
                "the model has a chat template, and the tasks are evaluated without it: --chat asks them by the template"
            ),
            None if arguments.chat => {
                return Err(Failure::input(
                    "--chat: the model has no chat template (chat_template.jinja or tokenizer_config.json)",
                ));
            }
            _ => {}
        }
        let mut requests = Vec::new();
        for (number, item) in items.iter().enumerate() {
            for text in item.answer.texts() {
                let continuation = self.continuation(arguments, adds_bos, &item.context, text);
                let continuation = continuation.map_err(|failure| failure.about(&item.place))?;
                requests.push((number, continuation));
            }
        }
        let mut log = match &arguments.log_samples {
            Some(path) => {
                let created = untrusted_io::create(path);
                Some(created.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?)
            }
            None => None,
        };
        let scores = self.scores(&items, &requests, progress)?;
        let mut rest = scores.as_slice();
        let mut judged: BTreeMap<&str, Judged> = BTreeMap::new();
        let mut order = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let own;
            (own, rest) = rest.split_at(item.answer.texts().len());
            let verdict = Verdict::from_scores(item, own);
            if !judged.contains_key(item.task.as_str()) {
                order.push(item.task.as_str());
            }
            judged.entry(&item.task).or_default().add(&verdict);
            if let Some(log) = &mut log {
                let written = writeln!(log, "{}", record(number, item, own, &verdict));
                written.map_err(|error| Failure::run(format!("the log of samples: {error}")))?;
            }
        }
        let unseen = scores.iter().filter(|score| score.unseen > 0).count();
        if unseen > 0 {
            eprintln!(
                "{unseen} of {} queries are longer than the model's positions: their begin was left out",
                scores.len()
            );
        }
        self.print(&order, &judged);
        Ok(())
    }

    /// The tokens of a query and an answer: those of both together, cut where those of the query
    /// end.
    fn continuation(
        &self,
        arguments: &TaskArguments,
        adds_bos: bool,
        context: &str,
        answer: &str,
    ) -> Result<Continuation, Failure> {
        let encode = |text: &str| self.tokenizer.encode(text).map_err(Failure::input);
        let begins_with_space = answer.starts_with(char::is_whitespace);
        let usual = if arguments.chat { "" } else { " " };
        let delimiter = if begins_with_space { "" } else { arguments.target_delimiter.as_deref().unwrap_or(usual) };
        if let Some(template) = self.model.chat_template.as_ref().filter(|_| arguments.chat) {
            let conversation = json!({ "messages": [{ "role": "user", "content": context }] });
            let conversation = Conversation::from_json(&conversation).map_err(Failure::input)?;
            let prompt = template.render(&conversation, Ending::GenerationPrompt).map_err(Failure::input)?;
            // The template writes the white space before an answer.
            let (context, mut both) = (encode(&prompt)?, encode(&format!("{prompt}{delimiter}{answer}"))?);
            let tokens = both.split_off(context.len().min(both.len()));
            return Ok(Continuation { context, tokens });
        }
        // Tokens begin with white space, so that at the end of a query belongs to the answer.
        let query = context.trim_end();
        let answer = format!("{}{delimiter}{answer}", &context[query.len()..]);
        let begin = self.tokenizer.bos().or_else(|| self.tokenizer.eod());
        let mut continuation = if self.model.config.encoder.is_some() {
            let mut context = encode(query)?;
            context.extend(self.tokenizer.eod());
            Continuation { context, tokens: encode(&answer)? }
        } else if query.is_empty() {
            let mut tokens = encode(&answer)?;
            let context = begin.into_iter().collect();
            if tokens.len() > 1 && tokens.first() == begin.as_ref() {
                tokens.remove(0);
            }
            Continuation { context, tokens }
        } else {
            let (context, mut both) = (encode(query)?, encode(&format!("{query}{answer}"))?);
            let tokens = both.split_off(context.len().min(both.len()));
            Continuation { context, tokens }
        };
        if adds_bos && continuation.context.first() != begin.as_ref() {
            let begin =
                begin.ok_or_else(|| Failure::input("--add-bos: the tokenizer has no token that begins a document"))?;
            continuation.context.insert(0, begin);
        }
        Ok(continuation)
    }

    /// The score of each request. Requests are sorted by length, longest first, so that the
    /// remaining time is known early and a batch that does not fit into memory fails first.
    fn scores(
        &self,
        items: &[Item],
        requests: &[(usize, Continuation)],
        progress: &dyn ProgressSink,
    ) -> Result<Vec<Score>, Failure> {
        let scorer = Scorer::new(self.model.chunk.as_ref(), &self.model.config, self.device);
        let lengths = |number: &usize| {
            let continuation = &requests[*number].1;
            (continuation.context.len(), continuation.tokens.len())
        };
        let mut order: Vec<usize> = (0..requests.len()).collect();
        let reads = self.model.config.encoder.is_some();
        order.sort_by_key(|number| {
            let (context, tokens) = lengths(number);
            std::cmp::Reverse(if reads { (context, tokens) } else { (context + tokens, tokens) })
        });
        let mut bar = progress.start(ProgressTask::new("evaluating", requests.len() as u64, "answers"));
        let mut scores: Vec<Option<Score>> = vec![None; requests.len()];
        let mut done = 0;
        // An encoder's input has no padding, so a batch has only contexts of one length.
        for run in order.chunk_by(|a, b| !reads || lengths(a).0 == lengths(b).0) {
            for numbers in run.chunks(self.batch_size) {
                let batch: Vec<Continuation> = numbers.iter().map(|number| requests[*number].1.clone()).collect();
                let found = scorer.score(&batch).map_err(|(place, error)| {
                    let item = &items[requests[numbers[place]].0];
                    match error {
                        ScoreError::NoLogits | ScoreError::NotFinite => Failure::run(error),
                        _ => Failure::input(format!("{}: {error}", item.place)),
                    }
                })?;
                for (number, score) in numbers.iter().zip(found) {
                    scores[*number] = Some(score);
                }
                done += numbers.len();
                bar.set_position(done as u64);
            }
        }
        Ok(scores.into_iter().flatten().collect())
    }

    fn print(&self, order: &[&str], judged: &BTreeMap<&str, Judged>) {
        if self.is_json {
            let tasks: Map<String, Value> =
                order.iter().map(|name| ((*name).to_owned(), judged[name].to_json())).collect();
            line(&json!({ "tasks": tasks }).to_string());
            return;
        }
        let width = order.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
        line(&format!("{:width$}  {:>7}  {:11}  {:>8}  {:>7}", "task", "items", "figure", "value", "stderr"));
        for name in order {
            let (mut name, task) = (*name, &judged[name]);
            let mut items = task.items().to_string();
            for (figure, value, error) in task.figures() {
                let error = error.map_or_else(String::new, |error| format!("{error:.4}"));
                let row = format!("{name:width$}  {items:>7}  {figure:11}  {value:>8.4}  {error:>7}");
                line(row.trim_end());
                (name, items) = ("", String::new());
            }
        }
    }
}

/// True if lm-evaluation-harness begins every text with the beginning-of-sequence token for models
/// of this family, regardless of the arguments: `model_type` contains the name Gemma.
fn forces_bos(model: &LoadedModel) -> bool {
    let origin = model.checkpoint.as_ref().map(|checkpoint| origin_of(checkpoint, &model.config));
    let family = match origin {
        Some(origin) => origin.map(|(family, _)| family).ok(),
        None => families::find(&model.config, None).ok(),
    };
    family.is_some_and(|family| family.model_type().contains("gemma"))
}

/// A task's figures are of items with choices, or of items without.
fn tasks_are_uniform(items: &[Item]) -> Result<(), Failure> {
    let mut first: BTreeMap<&str, &Item> = BTreeMap::new();
    for item in items {
        let before = first.entry(&item.task).or_insert(item);
        if matches!(before.answer, Answer::Exact(_)) != matches!(item.answer, Answer::Exact(_)) {
            return Err(Failure::input(format!(
                "{}: task {} has items with choices and items without (first {}): name each kind by its `task`",
                item.place, item.task, before.place
            )));
        }
    }
    Ok(())
}

/// Result of an item.
enum Verdict {
    /// Choice question: true if the right choice, number `gold`, is the likeliest, by sum and per
    /// character.
    Choice { gold: usize, by_sum: bool, by_length: bool },
    /// Exact match: true if greedy generation gives the text, and its log-likelihood.
    Exact { is_greedy: bool, log_likelihood: f64 },
}

impl Verdict {
    fn from_scores(item: &Item, scores: &[Score]) -> Self {
        match &item.answer {
            Answer::Choice { texts, gold } => {
                let sums: Vec<f64> = scores.iter().map(|score| score.log_likelihood).collect();
                let lengths = texts.iter().map(|text| text.chars().count() as f64);
                let means: Vec<f64> = sums.iter().zip(lengths).map(|(sum, length)| sum / length).collect();
                let [by_sum, by_length] = [sums, means].map(|values| first_best(&values) == *gold);
                Self::Choice { gold: *gold, by_sum, by_length }
            }
            Answer::Exact(_) => {
                Self::Exact { is_greedy: scores[0].is_greedy, log_likelihood: scores[0].log_likelihood }
            }
        }
    }
}

/// The place of the highest value, the first of several.
fn first_best(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (place, value)| if *value > values[best] { place } else { best })
}

/// The verdicts on a task's items.
#[derive(Default)]
struct Judged {
    by_sum: Vec<f64>,
    by_length: Vec<f64>,
    exact: Vec<f64>,
    log_likelihoods: Vec<f64>,
}

impl Judged {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Choice { by_sum, by_length, .. } => {
                self.by_sum.push(f64::from(u8::from(*by_sum)));
                self.by_length.push(f64::from(u8::from(*by_length)));
            }
            Verdict::Exact { is_greedy, log_likelihood } => {
                self.exact.push(f64::from(u8::from(*is_greedy)));
                self.log_likelihoods.push(*log_likelihood);
            }
        }
    }

    fn items(&self) -> usize {
        self.by_sum.len() + self.exact.len()
    }

    /// Names, values and standard errors.
    fn figures(&self) -> Vec<(&'static str, f64, Option<f64>)> {
        if self.exact.is_empty() {
            return [("acc", &self.by_sum), ("acc_norm", &self.by_length)]
                .map(|(name, values)| (name, mean(values), standard_error(values)))
                .to_vec();
        }
        vec![
            ("exact_match", mean(&self.exact), standard_error(&self.exact)),
            ("perplexity", (-mean(&self.log_likelihoods)).exp(), None),
        ]
    }

    fn to_json(&self) -> Value {
        let mut object = json!({ "items": self.items() });
        for (name, value, error) in self.figures() {
            object[name] = json!(value);
            if name != "perplexity" {
                object[format!("{name}_stderr")] = json!(error);
            }
        }
        object
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard error of the mean; `None` for a single value.
fn standard_error(values: &[f64]) -> Option<f64> {
    let (n, mean) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt())
}

/// An item of the log of samples.
fn record(number: usize, item: &Item, scores: &[Score], verdict: &Verdict) -> Value {
    let answers = item.answer.texts().iter().zip(scores);
    let answers = answers.map(
        |(text, score)| json!({ "text": text, "log_likelihood": score.log_likelihood, "is_greedy": score.is_greedy }),
    );
    let answers: Vec<Value> = answers.collect();
    let mut record = json!({ "item": number, "task": item.task, "place": item.place.to_string(), "answers": answers });
    match verdict {
        Verdict::Choice { gold, by_sum, by_length } => {
            (record["gold"], record["acc"], record["acc_norm"]) = (json!(gold), json!(by_sum), json!(by_length));
        }
        Verdict::Exact { is_greedy, .. } => record["exact_match"] = json!(is_greedy),
    }
    record
}
