//! The `choices!` macro and every enumeration of the configuration. No rules here.

/// Declares an enum whose variants are written as names; further names after `|` are accepted too.
macro_rules! choices {
    ($(
        $(#[doc = $doc:literal])+
        pub enum $Name:ident {
            $( $(#[doc = $variant_doc:literal])+ $Variant:ident = $text:literal $(| $other:literal)* , )+
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $Name {
            $( $(#[doc = $variant_doc])+ $Variant, )+
        }

        impl $Name {
            /// Every canonical name.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The canonical name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$Variant => $text, )+ }
            }

            /// The variant of a name, canonical or alternative.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $text $(| $other)* => Some(Self::$Variant), )+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::config::field::Field for $Name {
            fn read(
                node: &$crate::config::node::Node,
                reader: &mut $crate::config::section::Reader<'_>,
            ) -> Option<Self> {
                let named = match &node.data {
                    $crate::config::node::Data::String(text) => Self::from_name(text),
                    _ => None,
                };
                match named {
                    Some(choice) => Some(choice),
                    None => reader.wrong_type(node, &Self::spec()),
                }
            }
            fn write(&self) -> $crate::config::node::Node {
                $crate::config::node::Node::string(self.as_str())
            }
            fn spec() -> $crate::config::field::TypeSpec {
                $crate::config::field::TypeSpec::Choice(Self::NAMES)
            }
        }
    )+};
}

choices! {
    /// A number format of tensors.
    pub enum DType {
        /// 32-bit IEEE float.
        Float32 = "float32" | "fp32" | "torch.float32",
        /// 16-bit IEEE float.
        Float16 = "float16" | "fp16" | "torch.float16",
        /// 16-bit brain float.
        BFloat16 = "bfloat16" | "bf16" | "torch.bfloat16",
        /// Bytes that hold 8-bit floats.
        UInt8 = "uint8" | "torch.uint8",
    }

    /// How positions reach attention.
    pub enum PositionEmbeddingType {
        /// A learned vector per position, added to the token embedding.
        LearnedAbsolute = "learned_absolute",
        /// Rotary embedding.
        Rope = "rope",
        /// Rotary embedding with YaRN extension.
        Yarn = "yarn",
        /// Multimodal rotary embedding.
        Mrope = "mrope",
        /// None at all.
        None = "none",
    }

    /// The normalization layer.
    pub enum Normalization {
        /// Mean and variance, with bias.
        LayerNorm = "LayerNorm",
        /// Root mean square, no bias.
        RmsNorm = "RMSNorm",
    }

    /// The MLP's non-linearity. Upstream takes a function; the names are ours, with Hugging Face's spellings.
    pub enum Activation {
        /// Exact GELU, by the error function.
        Gelu = "gelu",
        /// GELU by the tanh approximation.
        GeluTanh = "gelu_tanh" | "gelu_new" | "gelu_pytorch_tanh",
        /// `x * sigmoid(x)`; with a gated unit this is SwiGLU.
        Silu = "silu" | "swish",
        /// `max(x, 0)`.
        Relu = "relu",
        /// `x * sigmoid(1.702 x)`.
        QuickGelu = "quick_gelu",
        /// `max(x, 0)^2`.
        SquaredRelu = "squared_relu" | "relu2",
    }

    /// The attention implementation asked for.
    pub enum AttentionBackend {
        /// Flash attention.
        Flash = "flash",
        /// The vendor's fused attention.
        Fused = "fused",
        /// Plain operations.
        Unfused = "unfused",
        /// Our own implementation.
        Local = "local",
        /// Whatever fits, which is our own.
        Auto = "auto",
    }

    /// The layer implementation asked for.
    pub enum TransformerImpl {
        /// Our own layers.
        Local = "local",
        /// Transformer Engine.
        TransformerEngine = "transformer_engine",
        /// Inference kernels.
        InferenceOptimized = "inference_optimized",
    }

    /// Start-up backend of tensor-parallel overlap.
    pub enum BootstrapBackend {
        /// NCCL.
        Nccl = "nccl",
        /// MPI.
        Mpi = "mpi",
        /// Gloo.
        Gloo = "gloo",
    }

    /// 8-bit float format.
    pub enum Fp8Format {
        /// Four exponent bits everywhere.
        E4m3 = "e4m3",
        /// Four forward, five backward.
        Hybrid = "hybrid",
    }

    /// How 8-bit scales are chosen.
    pub enum Fp8Recipe {
        /// Current tensor-wise scaling.
        Tensorwise = "tensorwise",
        /// Scales from the history.
        Delayed = "delayed",
        /// Microscaling.
        Mxfp8 = "mxfp8",
        /// Scales per block.
        Blockwise = "blockwise",
        /// By a factory in code.
        Custom = "custom",
    }

    /// How a history of maxima becomes one.
    pub enum AmaxAlgo {
        /// The last.
        MostRecent = "most_recent",
        /// The largest.
        Max = "max",
    }

    /// 4-bit float format.
    pub enum Fp4Format {
        /// Two exponent bits, one mantissa bit.
        E2m1 = "e2m1",
    }

    /// How 4-bit scales are chosen.
    pub enum Fp4Recipe {
        /// NVFP4.
        Nvfp4 = "nvfp4",
        /// By a factory in code.
        Custom = "custom",
    }

    /// Backend of the fused loss.
    pub enum CrossEntropyImpl {
        /// Our own.
        Native = "native",
        /// Transformer Engine.
        Te = "te",
    }

    /// What activation recompute covers.
    pub enum RecomputeGranularity {
        /// Whole layers.
        Full = "full",
        /// Chosen modules inside layers.
        Selective = "selective",
    }

    /// The order of work of a pipeline rank in training (ours; upstream has no such setting).
    pub enum PipelineSchedule {
        /// All forwards, then all backwards.
        GPipe = "gpipe",
        /// One forward, one backward; interleaved where a rank has several chunks.
        OneForwardOneBackward = "1f1b",
        /// 1F1B with the gradients of weights moved into the bubble.
        ZeroBubbleH1 = "zb_h1" | "zb-h1",
    }

    /// How full recompute chooses layers.
    pub enum RecomputeMethod {
        /// Chunks of `recompute_num_layers` layers.
        Uniform = "uniform",
        /// The first `recompute_num_layers` layers of each stage.
        Block = "block",
    }

    /// Graph capture.
    pub enum CudaGraphImpl {
        /// None.
        None = "none",
        /// Our own capture.
        Local = "local",
        /// Transformer Engine's.
        TransformerEngine = "transformer_engine",
    }

    /// Gate of a mixture-of-experts router.
    pub enum RouterScoreFunction {
        /// Over all experts.
        Softmax = "softmax",
        /// Each expert on its own.
        Sigmoid = "sigmoid",
    }

    /// Router arithmetic.
    pub enum RouterDType {
        /// 32 bits.
        Fp32 = "fp32",
        /// 64 bits.
        Fp64 = "fp64",
    }

    /// How tokens reach their experts.
    pub enum TokenDispatcher {
        /// Gather all tokens everywhere.
        AllGather = "allgather",
        /// Exchange only what is needed.
        AllToAll = "alltoall",
        /// A vendor's library.
        Flex = "flex",
    }

    /// Library of the flex dispatcher.
    pub enum FlexBackend {
        /// DeepEP.
        DeepEp = "deepep",
        /// HybridEP.
        HybridEp = "hybridep",
    }

    /// Which tokens are dropped over capacity.
    pub enum TokenDropPolicy {
        /// The least probable.
        Probs = "probs",
        /// The last.
        Position = "position",
    }

    /// The optimizer.
    pub enum OptimizerKind {
        /// Adam, with decoupled weight decay by default.
        Adam = "adam",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// Muon.
        Muon = "muon",
        /// Muon, distributed.
        DistMuon = "dist_muon",
        /// Muon with second moments.
        AdaptiveMuon = "adaptive_muon",
        /// Lion.
        Lion = "lion",
        /// SOAP.
        Soap = "soap",
    }

    /// Learning-rate curve after warm-up.
    pub enum LrDecayStyle {
        /// No decay.
        Constant = "constant",
        /// Straight line.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// One over the square root.
        InverseSquareRoot = "inverse-square-root",
        /// Warm-up, stable, decay.
        Wsd = "WSD",
    }

    /// Annealing curve of WSD.
    pub enum WsdDecayStyle {
        /// Halving.
        Exponential = "exponential",
        /// Straight line.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// One minus a square root.
        MinusSqrt = "minus_sqrt",
    }

    /// Weight-decay curve.
    pub enum WeightDecayIncrStyle {
        /// No change.
        Constant = "constant",
        /// Straight line.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
    }

    /// Rule that frees parameters of weight decay.
    pub enum NoWeightDecayCond {
        /// Qwen3-Next's.
        Qwen3Next = "qwen3_next",
    }

    /// Sampler.
    pub enum DataloaderType {
        /// In order, once.
        Single = "single",
        /// Shuffled, for ever.
        Cyclic = "cyclic",
        /// Whole global batches, for fine-tuning.
        Batch = "batch",
        /// The dataset brings its own.
        External = "external",
    }

    /// Format of a text source.
    pub enum SourceFormat {
        /// One document a file.
        Text = "text",
        /// One document a line, in a JSON object.
        Jsonl = "jsonl",
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

    /// How progress is shown on the terminal. Ours.
    pub enum Progress {
        /// A bar on a terminal, lines elsewhere.
        Auto = "auto",
        /// A bar.
        Bar = "bar",
        /// Lines.
        Plain = "plain",
        /// Nothing.
        None = "none",
    }

    /// What to do with a damaged checkpoint. Ours.
    pub enum OnDamaged {
        /// Stop.
        Error = "error",
        /// Use the newest intact one before it, and say so.
        Fallback = "fallback",
    }

    /// Format of a checkpoint. `safetensors` is ours and the only one implemented.
    pub enum CkptFormat {
        /// Safetensors shards with metadata.
        Safetensors = "safetensors",
        /// Upstream's plain format.
        Torch = "torch",
        /// Upstream's distributed format.
        TorchDist = "torch_dist",
        /// PyTorch DCP.
        TorchDcp = "torch_dcp",
        /// Megatron FSDP.
        FsdpDtensor = "fsdp_dtensor",
    }

    /// Kind of a temporary checkpoint.
    pub enum NonPersistentType {
        /// Shared storage.
        Global = "global",
        /// Local storage.
        Local = "local",
        /// Memory.
        InMemory = "in_memory",
    }

    /// Layout of local checkpoints.
    pub enum LocalCkptAlgo {
        /// Split over ranks.
        FullyParallel = "fully_parallel",
        /// One file.
        Atomic = "atomic",
    }

    /// How loaded pieces are exchanged.
    pub enum ExchangeAlgo {
        /// Broadcast.
        Broadcast = "broadcast",
        /// Gather in rounds.
        GatherRounds = "gather_rounds",
        /// Gather objects.
        GatherObject = "gather_object",
    }

    /// Group that shares checkpoint work.
    pub enum CkptGroup {
        /// Data parallel.
        Dp = "dp",
        /// Expert data parallel.
        EpDp = "ep_dp",
    }

    /// Background saving implementation.
    pub enum AsyncStrategy {
        /// Resiliency extension.
        Nvrx = "nvrx",
        /// Core.
        Mcore = "mcore",
    }

    /// How background writers start.
    pub enum AsyncMpMode {
        /// Fork.
        Fork = "fork",
        /// Spawn.
        Spawn = "spawn",
        /// Fork server.
        ForkServer = "forkserver",
    }

    /// What unexpected or missing checkpoint keys do.
    pub enum DistCkptStrictness {
        /// Assume none.
        AssumeOkUnexpected = "assume_ok_unexpected",
        /// Log the unexpected.
        LogUnexpected = "log_unexpected",
        /// Log all.
        LogAll = "log_all",
        /// Fail on the unexpected.
        RaiseUnexpected = "raise_unexpected",
        /// Fail on all.
        RaiseAll = "raise_all",
        /// Return the unexpected.
        ReturnUnexpected = "return_unexpected",
        /// Return all.
        ReturnAll = "return_all",
        /// Ignore all.
        IgnoreAll = "ignore_all",
    }

    /// What fully sharded data parallelism shards.
    pub enum ShardingStrategy {
        /// Nothing.
        NoShard = "no_shard",
        /// Optimizer states.
        Optim = "optim",
        /// And gradients.
        OptimGrads = "optim_grads",
        /// And parameters.
        OptimGradsParams = "optim_grads_params",
    }

    /// Collective library.
    pub enum DistributedBackend {
        /// NCCL.
        Nccl = "nccl",
        /// Gloo.
        Gloo = "gloo",
    }

    /// Group that uses in-network reduction.
    pub enum SharpGroup {
        /// Data parallel.
        Dp = "dp",
        /// Replicas.
        DpReplica = "dp_replica",
    }

    /// Injected fault.
    pub enum ErrorInjectionType {
        /// A correct result that looks unexpected.
        CorrectResult = "correct_result",
        /// Gone at the first rerun.
        TransientError = "transient_error",
        /// Gone only on another device.
        PersistentError = "persistent_error",
    }

    /// Mode of the rerun state machine.
    pub enum RerunMode {
        /// A rejected result fails at once.
        Disabled = "disabled",
        /// A rejected result is computed again.
        ValidateResults = "validate_results",
        /// Everything is computed twice.
        ReportDeterminismStats = "report_determinism_stats" | "report_stats",
    }

    /// Simulated process fault.
    pub enum SimulatedFault {
        /// Stopped.
        RankHung = "rank_hung",
        /// Killed.
        RankKilled = "rank_killed",
        /// Either.
        Random = "random",
    }

    /// Unit of an in-process restart.
    pub enum RestartGranularity {
        /// Node.
        Node = "node",
        /// Rank.
        Rank = "rank",
    }

    /// Where adapter dropout acts.
    pub enum DropoutPosition {
        /// Before the adapter.
        Pre = "pre",
        /// After it.
        Post = "post",
    }

    /// Initialization of adapter matrices.
    pub enum AdapterInit {
        /// Xavier normal.
        Xavier = "xavier",
        /// Normal, deviation 0.2.
        Normal = "normal",
        /// Kaiming uniform.
        Kaiming = "kaiming",
        /// Uniform.
        Uniform = "uniform",
        /// Zero.
        Zero = "zero",
    }

    /// Adapter method.
    pub enum PeftKind {
        /// Low-rank adaptation.
        Lora = "lora",
        /// Weight-decomposed low-rank adaptation.
        Dora = "dora",
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
