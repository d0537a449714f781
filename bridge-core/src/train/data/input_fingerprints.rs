//! Inputs of a run besides token files, so that a resumed run can report changes: examples, the
//! chat template and the special tokens of its tokenizer, the model that an objective compares
//! with. Their place does not matter.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_data::ExamplesReport;
use bridge_data::chat::ChatTemplate;
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::config::RunConfig;
use crate::train::resume::checkpointing::AdapterBase;

/// Fingerprints of the inputs of a run, as its checkpoints have them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::train) struct InputFingerprints {
    /// The examples of each split.
    #[serde(default)]
    examples: BTreeMap<String, Examples>,
    /// Checksum of the tokenizer's chat template.
    #[serde(default)]
    chat_template: Option<String>,
    /// Ids of the tokenizer's special tokens.
    #[serde(default)]
    special_tokens: BTreeMap<String, i64>,
    /// Models besides the run's own, by their roles.
    #[serde(default)]
    models: BTreeMap<String, AdapterBase>,
}

/// Fingerprint of the examples of one split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::train) struct Examples {
    examples: u64,
    bytes: u64,
    /// Checksum of the records in their order.
    digest: String,
}

impl Examples {
    /// Fingerprint of the examples that `report` counts.
    pub fn from_report(report: &ExamplesReport) -> Self {
        Self { examples: report.examples, bytes: report.bytes, digest: report.digest.clone() }
    }

    fn said(&self) -> String {
        format!("{} of {} bytes (checksum {})", self.examples, self.bytes, self.digest)
    }
}

/// Checkpoint that a run resumes from.
#[derive(Clone, Copy)]
pub(in crate::train) struct Resumed<'a> {
    /// Iteration of the checkpoint.
    pub iteration: u64,
    /// Samples that it has consumed.
    pub consumed: u64,
    /// Tokenizer of the checkpoint.
    pub tokenizer: Option<&'a HuggingFaceTokenizer>,
}

impl InputFingerprints {
    /// Fingerprints of `examples` by split, and of `tokenizer`.
    pub fn from_examples(examples: BTreeMap<String, Examples>, tokenizer: Option<&dyn Tokenizer>) -> Self {
        let special = |tokenizer: &dyn Tokenizer| {
            let ids = [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eod()), ("pad_token", tokenizer.pad())];
            ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id?))).collect()
        };
        Self {
            examples,
            chat_template: tokenizer.and_then(template_of).map(|template| digest(&template)),
            special_tokens: tokenizer.map(special).unwrap_or_default(),
            models: BTreeMap::new(),
        }
    }

    /// With the models that a run reads besides its own.
    pub fn with_models(mut self, models: [(&'static str, Option<AdapterBase>); 2]) -> Self {
        self.models = models.into_iter().filter_map(|(name, model)| Some((name.to_owned(), model?))).collect();
        self
    }

    /// Warnings about examples and tokenizer, if the run resumed one that read `before`.
    pub fn changed(&self, before: &Self, base: Resumed<'_>, tokenizer: Option<&dyn Tokenizer>) -> Vec<String> {
        let Resumed { iteration, consumed, .. } = base;
        let mut said = Vec::new();
        for (split, now) in &self.examples {
            let Some(then) = before.examples.get(split).filter(|then| *then != now) else { continue };
            let follows = match split.as_str() {
                "train" => format!("the run goes on with sample {consumed} of those that are there now"),
                _ => "their losses do not compare with those before".to_owned(),
            };
            said.push(format!(
                "the {split} examples have changed since the checkpoint of iteration {iteration}: {} then, {} now; {follows}",
                then.said(),
                now.said()
            ));
        }
        if self.chat_template != before.chat_template && tokenizer.is_some() {
            let name =
                |digest: &Option<String>| digest.clone().map_or("none".to_owned(), |it| format!("checksum {it}"));
            let lines = self.changed_lines(before, base, tokenizer).unwrap_or_default();
            said.push(format!(
                "the chat template has changed since the checkpoint of iteration {iteration}: {} then, {} now{lines}",
                name(&before.chat_template),
                name(&self.chat_template)
            ));
        }
        let changed: Vec<String> = self
            .special_tokens
            .iter()
            .filter_map(|(name, now)| Some((name, before.special_tokens.get(name).filter(|then| *then != now)?, now)))
            .map(|(name, then, now)| format!("{name} {then} -> {now}"))
            .collect();
        if !changed.is_empty() {
            said.push(format!(
                "the tokenizer's special tokens have changed since the checkpoint of iteration {iteration}: {}",
                changed.join(", ")
            ));
        }
        said
    }

    /// First line in which the chat templates differ.
    fn changed_lines(&self, before: &Self, base: Resumed<'_>, own: Option<&dyn Tokenizer>) -> Option<String> {
        let (then, now) = (template_of(base.tokenizer?)?, template_of(own?)?);
        // The template beside the checkpoint may belong to another folder.
        if Some(digest(&then)) != before.chat_template {
            return None;
        }
        let (mut then, mut now) = (then.lines(), now.lines());
        loop {
            let (then, now) = (then.next(), now.next());
            if then.is_none() && now.is_none() {
                return None;
            }
            if then != now {
                let [then, now] = [then, now].map(|line| excerpt(line.unwrap_or_default()));
                return Some(format!("; {then:?} -> {now:?}"));
            }
        }
    }

    /// Warnings about other models, if the run resumed one that read `before`.
    pub fn changed_models(&self, before: &Self, iteration: u64) -> Vec<String> {
        let said = |AdapterBase { path, iteration, checksum }: &AdapterBase| {
            format!("{} (iteration {iteration}, checksum {checksum})", path.display())
        };
        let changed = self.models.iter().filter_map(|(name, now)| {
            let then = before.models.get(name).filter(|then| then.checksum != now.checksum)?;
            let (then, now) = (said(then), said(now));
            Some(format!(
                "the {name} is another model since the checkpoint of iteration {iteration}: {then} then, {now} now; losses do not compare \
                 with those before"
            ))
        });
        changed.collect()
    }
}

/// Warning about a teacher that the run itself writes.
pub(in crate::train) fn own_teacher(config: &RunConfig) -> Option<String> {
    let teacher = config.distillation.as_ref()?.teacher.as_deref()?;
    let save = config.checkpoint.save.as_deref()?;
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    (real(teacher)? == real(save)?).then(|| {
        format!(
            "distillation.teacher = {:?} is checkpoint.save, where the run saves itself: whenever it resumes, its own newest checkpoint teaches it",
            teacher.display().to_string()
        )
    })
}

fn template_of(tokenizer: &dyn Tokenizer) -> Option<String> {
    // One that does not parse is an error where it is used.
    ChatTemplate::from_tokenizer(tokenizer).ok().flatten().map(|template| template.written().to_owned())
}

fn digest(text: &str) -> String {
    format!("{:016x}", XxHash3_64::oneshot(text.as_bytes()))
}

/// The beginning of a line.
fn excerpt(line: &str) -> String {
    const LONGEST: usize = 120;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Resumed<'static> = Resumed { iteration: 4, consumed: 16, tokenizer: None };

    fn examples(examples: u64, digest: &str) -> BTreeMap<String, Examples> {
        let of = |name: &str| (name.to_owned(), Examples { examples, bytes: 90, digest: digest.to_owned() });
        [of("train"), of("valid")].into()
    }

    fn model(path: &str, checksum: &str) -> [(&'static str, Option<AdapterBase>); 2] {
        let teacher = AdapterBase { path: path.into(), iteration: 2, checksum: checksum.to_owned() };
        [("teacher", Some(teacher)), ("reference", None)]
    }

    #[test]
    fn other_examples_are_said_of_each_split() {
        let before = InputFingerprints::from_examples(examples(38, "aa"), None);
        assert_eq!(before.changed(&before, BASE, None), Vec::<String>::new());
        let said = InputFingerprints::from_examples(examples(38, "bb"), None).changed(&before, BASE, None);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("38 of 90 bytes (checksum aa) then, 38 of 90 bytes (checksum bb) now"), "{said:?}");
        assert!(said[0].contains("sample 16 ") && said[1].contains("the valid examples"), "{said:?}");
        // A checkpoint of an earlier release says nothing of examples.
        assert_eq!(
            InputFingerprints::from_examples(examples(38, "bb"), None).changed(
                &InputFingerprints::default(),
                BASE,
                None
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_model_is_known_by_its_weights_not_its_place() {
        let before = InputFingerprints::default().with_models(model("a", "1"));
        let changed = |path, sum| InputFingerprints::default().with_models(model(path, sum)).changed_models(&before, 4);
        assert_eq!(changed("b", "1"), Vec::<String>::new());
        let said = changed("a", "2");
        assert!(said.len() == 1 && said[0].contains("the teacher is another model since"), "{said:?}");
        assert!(said[0].contains("checksum 1") && said[0].contains("checksum 2"), "{said:?}");
    }

    #[test]
    fn ids_that_mean_something_else_are_named() {
        let with = |id: i64| InputFingerprints {
            special_tokens: [("eos_token".to_owned(), id)].into(),
            ..InputFingerprints::default()
        };
        let said = with(7).changed(&with(2), BASE, None);
        assert!(said.len() == 1 && said[0].ends_with("eos_token 2 -> 7"), "{said:?}");
    }
}
