//! Choices of schedule, data, tokenizer and logs.

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

choices! {
    /// Rule that exempts parameters from weight decay.
    pub enum NoWeightDecayCond {
        /// Qwen3-Next's.
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

    /// End of a text that is cut off.
    pub enum TruncationMethod {
        /// The end of the text.
        Right = "right",
        /// The beginning of the text.
        Left = "left",
    }

    /// Reaction to a line that is not an example.
    pub enum BadLine {
        /// It ends the run.
        Error = "error",
        /// It is left out and counted.
        Skip = "skip",
    }

    /// In which order examples are put into the first sequence that has room.
    pub enum PackingAlgorithm {
        /// The longest first.
        FirstFitDecreasing = "first_fit_decreasing",
        /// Drawn from the seed.
        FirstFitShuffle = "first_fit_shuffle",
    }

    /// Format of a text source.
    pub enum SourceFormat {
        /// One document per file.
        Text = "text",
        /// One document per line, in a JSON object.
        Jsonl = "jsonl",
        /// Examples: documented Rust functions and what their documentation says first.
        RustDocs = "rust-docs",
    }

    /// The tokenizer. `ByteLevelBPE` is ours; the others are upstream's.
    pub enum TokenizerType {
        /// BERT, lower case.
        BertWordPieceLowerCase = "BertWordPieceLowerCase",
        /// BERT, cased.
        BertWordPieceCase = "BertWordPieceCase",
        /// GPT-2's.
        Gpt2Bpe = "GPT2BPETokenizer",
        /// SentencePiece.
        SentencePiece = "SentencePieceTokenizer",
        /// SentencePiece for GPT.
        GptSentencePiece = "GPTSentencePieceTokenizer",
        /// A `tokenizer.json`.
        HuggingFace = "HuggingFaceTokenizer",
        /// Llama 2's.
        Llama2 = "Llama2Tokenizer",
        /// TikToken.
        TikToken = "TikTokenizer",
        /// Multimodal.
        Multimodal = "MultimodalTokenizer",
        /// Multimodal, for tests.
        NullMultimodal = "NullMultimodalTokenizer",
        /// Text is numbers.
        Null = "NullTokenizer",
        /// Fine-tuning.
        Sft = "SFTTokenizer",
        /// Byte-level BPE, trained once on the dataset's source.
        ByteLevelBpe = "ByteLevelBPE",
    }

    /// TikToken pre-tokenizer.
    pub enum TiktokenPattern {
        /// First.
        V1 = "v1",
        /// Second.
        V2 = "v2",
    }

    /// Aggregation of timers over ranks.
    pub enum TimingLogOption {
        /// Largest.
        Max = "max",
        /// Smallest and largest.
        MinMax = "minmax",
        /// Every rank.
        All = "all",
    }

    /// Unit of runtime estimates.
    pub enum TimeUnit {
        /// Seconds.
        Seconds = "seconds",
        /// Minutes.
        Minutes = "minutes",
        /// Hours.
        Hours = "hours",
        /// Days.
        Days = "days",
    }

    /// Display of progress on the terminal. Ours.
    pub enum Progress {
        /// A bar on a terminal, lines elsewhere.
        Auto = "auto",
        /// A bar.
        Bar = "bar",
        /// Lines.
        Plain = "plain",
        /// No progress.
        None = "none",
    }

    /// A signal that ends training.
    pub enum Signal {
        /// Termination.
        Sigterm = "SIGTERM",
        /// Interrupt.
        Sigint = "SIGINT",
        /// User signal 1.
        Sigusr1 = "SIGUSR1",
        /// User signal 2.
        Sigusr2 = "SIGUSR2",
        /// Hang-up.
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
