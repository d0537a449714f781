//! The pipeline layout language: `Et*3|(tt|)*29,m|L`. Parsing, and the check against a model.
//!
//! `E` is the embedding, `t` a transformer layer, `m` a multi-token-prediction layer, `L` output
//! layer and loss, `|` the end of a stage; `x*3` repeats an item or a group in parentheses; commas
//! and spaces are ignored. Stages are in the order of the chain: with `P` ranks, stage `s` is chunk
//! `s / P` of rank `s % P`.

use std::fmt;
use std::str::FromStr;

use super::{Placement, PlacementError, PlacementSpec, StageContent};

/// A layout with more stages or items than this has a mistake in a repeat count.
const MAX_ITEMS: usize = 1 << 20;

/// An item that a stage can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutItem {
    /// The embedding, `E`.
    Embedding,
    /// A transformer layer, `t`.
    Transformer,
    /// A multi-token-prediction layer, `m`.
    Mtp,
    /// The output layer and loss, `L`.
    Loss,
}

/// Content of each virtual stage of a pipeline, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineLayout {
    /// The items of each virtual stage. A stage may be empty.
    pub stages: Vec<Vec<LayoutItem>>,
}

/// A token of the flattened text: an item or the end of a stage.
#[derive(Clone, Copy)]
enum Token {
    Item(LayoutItem),
    EndOfStage,
}

impl FromStr for PipelineLayout {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let mut parser = Parser { text, chars: text.chars().collect(), position: 0 };
        let tokens = parser.sequence(Nesting::Top)?;
        let mut stages = vec![Vec::new()];
        for token in tokens {
            match token {
                Token::EndOfStage => stages.push(Vec::new()),
                Token::Item(item) => {
                    if let Some(stage) = stages.last_mut() {
                        stage.push(item);
                    }
                }
            }
        }
        Ok(Self { stages })
    }
}

impl fmt::Display for PipelineLayout {
    /// Writes the layout without repeats.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, stage) in self.stages.iter().enumerate() {
            if index > 0 {
                f.write_str("|")?;
            }
            for item in stage {
                f.write_str(match item {
                    LayoutItem::Embedding => "E",
                    LayoutItem::Transformer => "t",
                    LayoutItem::Mtp => "m",
                    LayoutItem::Loss => "L",
                })?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Top,
    Parentheses,
}

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    position: usize,
}

impl Parser<'_> {
    fn error(&self, position: usize, problem: impl Into<String>) -> PlacementError {
        PlacementError::Syntax { text: self.text.to_owned(), position: position + 1, problem: problem.into() }
    }

    fn sequence(&mut self, nesting: Nesting) -> Result<Vec<Token>, PlacementError> {
        let start = self.position;
        let mut tokens = Vec::new();
        while let Some(&char) = self.chars.get(self.position) {
            self.position += 1;
            let unit = match char {
                'E' => vec![Token::Item(LayoutItem::Embedding)],
                't' => vec![Token::Item(LayoutItem::Transformer)],
                'm' => vec![Token::Item(LayoutItem::Mtp)],
                'L' => vec![Token::Item(LayoutItem::Loss)],
                '|' => vec![Token::EndOfStage],
                ',' | ' ' => continue,
                '(' if nesting == Nesting::Top => self.sequence(Nesting::Parentheses)?,
                '(' => return Err(self.error(self.position - 1, "groups cannot be nested")),
                ')' if nesting == Nesting::Parentheses => return Ok(tokens),
                other => {
                    let problem = format!("unexpected `{other}`; expected one of E t m L | ( ) * and a count");
                    return Err(self.error(self.position - 1, problem));
                }
            };
            let count = self.repeat_count()?;
            if count * unit.len() + tokens.len() > MAX_ITEMS {
                return Err(self.error(self.position - 1, "the repeat count is too large"));
            }
            tokens.extend((0..count).flat_map(|_| unit.iter().copied()));
        }
        match nesting {
            Nesting::Top => Ok(tokens),
            Nesting::Parentheses => Err(self.error(start - 1, "this parenthesis is not closed")),
        }
    }

    /// `*n` if there is one, otherwise 1.
    fn repeat_count(&mut self) -> Result<usize, PlacementError> {
        if self.chars.get(self.position) != Some(&'*') {
            return Ok(1);
        }
        self.position += 1;
        let start = self.position;
        while self.chars.get(self.position).is_some_and(char::is_ascii_digit) {
            self.position += 1;
        }
        let digits: String = self.chars[start..self.position].iter().collect();
        match digits.parse::<usize>() {
            Ok(count) if (1..=MAX_ITEMS).contains(&count) => Ok(count),
            _ => Err(self.error(start, format!("expected a count between 1 and {MAX_ITEMS} after `*`"))),
        }
    }
}

impl PipelineLayout {
    /// Places a model's layers as the layout says.
    pub(super) fn place(&self, spec: &PlacementSpec) -> Result<Placement, PlacementError> {
        let ranks = spec.pipeline_model_parallel_size;
        self.check(spec)?;
        let mut placed: Vec<Vec<StageContent>> = vec![Vec::new(); ranks];
        let mut next = 0;
        for (index, stage) in self.stages.iter().enumerate() {
            let count = |item| stage.iter().filter(|other| **other == item).count();
            let layers = count(LayoutItem::Transformer);
            placed[index % ranks].push(StageContent {
                embedding: count(LayoutItem::Embedding) > 0,
                layers: next..next + layers,
                num_mtp_layers: count(LayoutItem::Mtp),
                loss: count(LayoutItem::Loss) > 0,
            });
            next += layers;
        }
        Ok(Placement { chunks: placed })
    }

    fn check(&self, spec: &PlacementSpec) -> Result<(), PlacementError> {
        let ranks = spec.pipeline_model_parallel_size;
        let stages = self.stages.len();
        if !stages.is_multiple_of(ranks) {
            let expected = format!("a multiple of pipeline_model_parallel_size ({ranks})");
            return Err(mismatch("the number of stages", expected, stages));
        }
        let chunks = stages / ranks;
        if let Some(expected) = spec.virtual_pipeline_model_parallel_size
            && expected != chunks
        {
            let found = format!("{stages} stages over {ranks} ranks, so {chunks}");
            return Err(mismatch("virtual_pipeline_model_parallel_size", expected, found));
        }
        let all: Vec<LayoutItem> = self.stages.concat();
        let totals = [
            ("transformer layers (t)", LayoutItem::Transformer, spec.num_layers),
            ("multi-token-prediction layers (m)", LayoutItem::Mtp, spec.mtp_num_layers),
            ("embeddings (E)", LayoutItem::Embedding, 1),
            ("losses (L)", LayoutItem::Loss, 1),
        ];
        for (what, item, expected) in totals {
            let found = all.iter().filter(|other| **other == item).count();
            if found != expected {
                return Err(mismatch(&format!("the number of {what}"), expected, found));
            }
        }
        self.check_order(&all)
    }

    fn check_order(&self, all: &[LayoutItem]) -> Result<(), PlacementError> {
        let place = |item: &LayoutItem| match item {
            LayoutItem::Embedding => 0,
            LayoutItem::Transformer => 1,
            LayoutItem::Mtp => 2,
            LayoutItem::Loss => 3,
        };
        if !all.is_sorted_by_key(place) {
            return Err(mismatch("the order of the items", "E, then t, then m, then L", self));
        }
        let with_mtp = self.stages.iter().filter(|stage| stage.contains(&LayoutItem::Mtp)).count();
        if with_mtp > 1 {
            return Err(mismatch("the number of stages with m", "at most 1", with_mtp));
        }
        let first = self.stages.first().is_some_and(|stage| stage.contains(&LayoutItem::Embedding));
        let last = self.stages.last().is_some_and(|stage| stage.contains(&LayoutItem::Loss));
        if !(first && last) {
            return Err(mismatch("the ends", "E in the first stage and L in the last", self));
        }
        Ok(())
    }
}

fn mismatch(problem: &str, expected: impl fmt::Display, found: impl fmt::Display) -> PlacementError {
    PlacementError::Layout { problem: problem.to_owned(), expected: expected.to_string(), found: found.to_string() }
}
