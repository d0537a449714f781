//! Choices of schedule, data, tokenizer and logs.

pub use bridge_data::sft::{BadLine, PackingAlgorithm, TruncationMethod};
pub use bridge_data::tokenizer::TiktokenPattern;

use crate::field::Field;
use crate::node::{Data, Node};
use crate::reader::Reader;
pub use crate::schedule::{LrDecayStyle, WeightDecayIncrStyle, WsdDecayStyle};
use crate::spec::TypeSpec;

/// Makes the curves of [`crate::schedule`] settings.
macro_rules! curves {
    ($($Curve:ty),+) => {$(
        impl Field for $Curve {
            fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
                let named = match &node.data {
                    Data::String(text) => Self::ALL.iter().find(|curve| curve.to_string() == *text),
                    _ => None,
                };
                named.map_or_else(|| reader.wrong_type(node, &Self::spec()), |curve| Some(*curve))
            }
            fn write(&self) -> Node {
                Node::string(self.to_string())
            }
            fn spec() -> TypeSpec {
                TypeSpec::Choice(Self::NAMES)
            }
        }
    )+};
}
curves!(LrDecayStyle, WsdDecayStyle, WeightDecayIncrStyle);

settings! {
    TruncationMethod { Right = "right", Left = "left" }
    BadLine { Error = "error", Skip = "skip" }
    PackingAlgorithm { FirstFitDecreasing = "first_fit_decreasing", FirstFitShuffle = "first_fit_shuffle" }
    TiktokenPattern { V1 = "v1", V2 = "v2" }
}

choices! {
    /// Rule of weight decay besides the usual one.
    pub enum WeightDecayRule {
        /// Query and key norms keep their decay.
        Qwen3Next = "qwen3_next",
    }

    /// Sampler.
    pub enum DataloaderType {
        /// In order, once.
        Single = "single",
        /// Shuffled, without end.
        Cyclic = "cyclic",
        /// Whole global batches, for fine-tuning.
        Batch = "batch",
        /// The dataset brings its own.
        External = "external",
    }

    /// Format of a text source.
    pub enum SourceFormat {
        /// One document per file.
        Text = "text",
        /// One document per line, in a JSON object.
        Jsonl = "jsonl",
        /// Examples: documented Rust functions and the first paragraph of their documentation.
        RustDocs = "rust-docs",
    }

    /// The tokenizer. `ByteLevelBPE` is ours; all other names are upstream's.
    pub enum TokenizerType {
        BertWordPieceLowerCase = "BertWordPieceLowerCase",
        BertWordPieceCase = "BertWordPieceCase",
        Gpt2Bpe = "GPT2BPETokenizer",
        SentencePiece = "SentencePieceTokenizer",
        GptSentencePiece = "GPTSentencePieceTokenizer",
        /// A `tokenizer.json`.
        HuggingFace = "HuggingFaceTokenizer",
        Llama2 = "Llama2Tokenizer",
        TikToken = "TikTokenizer",
        Multimodal = "MultimodalTokenizer",
        NullMultimodal = "NullMultimodalTokenizer",
        /// Text consists of token ids as decimal numbers.
        Null = "NullTokenizer",
        /// Fine-tuning.
        Sft = "SFTTokenizer",
        /// Byte-level BPE, trained once on the dataset's source.
        ByteLevelBpe = "ByteLevelBPE",
    }

    /// Aggregation of timers over ranks.
    pub enum TimingLogOption {
        Max = "max",
        MinMax = "minmax",
        All = "all",
    }

    /// Unit of runtime estimates.
    pub enum TimeUnit {
        Seconds = "seconds",
        Minutes = "minutes",
        Hours = "hours",
        Days = "days",
    }

    /// Display of progress. Ours.
    #[derive(Default)]
    pub enum Progress {
        /// A bar if standard error is a terminal, plain lines otherwise.
        #[default]
        Auto = "auto",
        /// A bar.
        Bar = "bar",
        /// Plain lines.
        Plain = "plain",
        /// No display.
        None = "none",
    }

    /// A signal that ends training.
    pub enum Signal {
        Sigterm = "SIGTERM",
        Sigint = "SIGINT",
        Sigusr1 = "SIGUSR1",
        Sigusr2 = "SIGUSR2",
        Sighup = "SIGHUP",
    }
}

impl Signal {
    /// The number that POSIX (Linux) gives it; exit codes are 128 plus this.
    pub const fn number(self) -> i32 {
        match self {
            Self::Sigterm => 15,
            Self::Sigint => 2,
            Self::Sigusr1 => 10,
            Self::Sigusr2 => 12,
            Self::Sighup => 1,
        }
    }
}
