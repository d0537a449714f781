//! Choices of `[model]`, of number formats and of adapters.

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
        UInt8 = "uint8" | "fp8" | "torch.uint8",
    }

    /// Form in which positions reach attention.
    pub enum PositionEmbeddingType {
        /// A learned vector per position, added to the token embedding.
        LearnedAbsolute = "learned_absolute",
        Rope = "rope",
        /// Rotary embedding with YaRN extension.
        Yarn = "yarn",
        /// Rotary embedding with LongRoPE extension (ours).
        LongRope = "longrope",
        /// Multimodal rotary embedding.
        Mrope = "mrope",
        /// A learned number for each head and distance, added to attention scores.
        Relative = "relative",
        None = "none",
    }

    /// The normalization layer.
    pub enum Normalization {
        /// Mean and variance, with bias.
        LayerNorm = "LayerNorm",
        /// Root mean square, no bias.
        RmsNorm = "RMSNorm",
        /// Mean and variance, no bias (ours).
        LayerNormNoBias = "LayerNormNoBias",
    }

    /// Place of the norms in a layer (ours).
    pub enum NormPlacement {
        /// `x + block(norm(x))`: pre-norm.
        Before = "before",
        /// `x + norm(block(x))`, as in OLMo 2 (arXiv:2501.00656, section 3.2).
        Output = "output",
        /// `x + norm(block(norm(x)))`, as in Gemma 2 (arXiv:2408.00118, section 2).
        Sandwich = "sandwich",
        /// `norm(x + block(x))`: post-norm (Vaswani et al., arXiv:1706.03762, section 3.1).
        Sum = "sum",
    }

    /// The order of a layer's blocks (ours).
    pub enum BlockOrder {
        /// The MLP reads the residual stream after attention.
        Sequential = "sequential",
        /// Both read the stream before the layer, each by its own norm.
        Parallel = "parallel",
        /// Both read the same norm of the stream before the layer.
        ParallelSharedNorm = "parallel_shared_norm",
    }

    /// Scope of one norm of queries, or of keys (ours).
    pub enum QkNormScope {
        /// Each head separately, all with the same weights.
        Head = "head",
        /// All heads together, as in OLMo 2 (arXiv:2501.00656, section 3.2): a root mean square
        /// over the whole projection, and a weight for each element.
        Projection = "projection",
        /// Each head separately, with weights of its own and without biases.
        EachHead = "each_head",
    }

    /// Form of the gates on attention's output (ours).
    pub enum OutputGateForm {
        /// A gate for each element, made by the query-key-value projection.
        Fused = "fused",
        /// A gate for each element, made by a linear layer of its own.
        Element = "element",
        /// A gate for each head, made by a linear layer of its own.
        Head = "head",
    }

    /// Attention that is no softmax over all keys.
    pub enum AttentionVariant {
        /// Gated DeltaNet (arXiv:2412.06464): a state for each head, with one decay a token.
        GatedDeltaNet = "gated_delta_net",
        /// Softmax attention to the keys that an indexer chooses.
        Dsa = "dsa",
        /// Kimi Delta Attention (arXiv:2510.26692): one decay a token and channel (ours).
        KimiDeltaAttention = "kimi_delta_attention",
    }

    /// The MLP's non-linearity. Upstream takes a function; the names are ours, with Hugging Face's
    /// spellings.
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
        /// xIELU, with trained slopes on both sides of zero (arXiv:2411.13010).
        Xielu = "xielu",
    }

    /// 8-bit float format.
    pub enum Fp8Format {
        /// Four exponent bits everywhere.
        E4m3 = "e4m3",
        /// Four forward, five backward.
        Hybrid = "hybrid",
    }

    /// Choice of 8-bit scales.
    pub enum Fp8Recipe {
        /// Current tensor-wise scaling.
        Tensorwise = "tensorwise",
        /// Scales from the history.
        Delayed = "delayed",
        /// Microscaling.
        Mxfp8 = "mxfp8",
        /// Scales per block.
        Blockwise = "blockwise",
        /// The scaling is chosen by a factory in code.
        Custom = "custom",
    }

    /// Reduction of a history of maxima to one value.
    pub enum AmaxAlgo {
        MostRecent = "most_recent",
        Max = "max",
    }

    /// Scope of activation recompute.
    pub enum RecomputeGranularity {
        Full = "full",
        /// Chosen modules inside layers.
        Selective = "selective",
    }

    /// The pipeline schedule in training (ours; upstream has no such setting).
    pub enum PipelineSchedule {
        /// All forwards, then all backwards.
        GPipe = "gpipe",
        /// One forward, one backward; interleaved if a rank has several chunks.
        OneForwardOneBackward = "1f1b",
        /// 1F1B with weight gradients deferred into the bubble.
        ZeroBubbleH1 = "zb_h1" | "zb-h1",
    }

    /// Choice of layers by full recompute.
    pub enum RecomputeMethod {
        /// Chunks of `recompute_num_layers` layers.
        Uniform = "uniform",
        /// The first `recompute_num_layers` layers of each stage.
        Block = "block",
    }

    /// Graph capture.
    pub enum CudaGraphImpl {
        None = "none",
        /// Bridge's own capture.
        Local = "local",
        TransformerEngine = "transformer_engine",
    }

    /// Function that turns the product of a mixture-of-experts router into scores.
    #[derive(Default)]
    pub enum RouterScoreFunction {
        /// The softmax over all experts.
        #[default]
        Softmax = "softmax",
        /// Each expert on its own.
        Sigmoid = "sigmoid",
        /// Each expert on its own: the root of the softplus.
        SqrtSoftplus = "sqrtsoftplus",
        /// One expert after the other, weighted by the softmax over the scores close to its own
        /// (ours): SparseMixer (arXiv:2409.12136) without sampling.
        SparseMixer = "sparsemixer",
    }

    /// Balancing of the load of experts.
    pub enum LoadBalancing {
        /// A loss of each micro-batch.
        AuxLoss = "aux_loss",
        SeqAuxLoss = "seq_aux_loss",
        /// A loss of the global batch.
        GlobalAuxLoss = "global_aux_loss",
        /// Scores that are evened out before the choice.
        Sinkhorn = "sinkhorn",
        None = "none",
    }

    /// Number format in which a router computes, where it is not that of the parameters.
    pub enum RouterDType {
        Fp32 = "fp32",
        Fp64 = "fp64",
    }

    /// Dispatch of tokens to the ranks of their experts. The result is the same.
    pub enum TokenDispatcher {
        /// All tokens go to all ranks.
        AllGather = "allgather",
        /// Each token is sent to the ranks of its experts, and back.
        AllToAll = "alltoall",
        /// Dispatch by a vendor's library; here the same as [`AllToAll`](Self::AllToAll).
        Flex = "flex",
    }

    /// Tokens that an expert over capacity drops.
    #[derive(Default)]
    pub enum TokenDropPolicy {
        /// Tokens with the smallest weights.
        #[default]
        Probs = "probs",
        /// The last tokens.
        Position = "position",
    }

    /// Place of adapter dropout.
    pub enum DropoutPosition {
        Pre = "pre",
        Post = "post",
    }

    /// Initialization of adapter matrices.
    pub enum AdapterInit {
        Xavier = "xavier",
        /// Normal, deviation 0.2.
        Normal = "normal",
        Kaiming = "kaiming",
        Uniform = "uniform",
        Zero = "zero",
    }

    /// Storage of the base of an adapter.
    pub enum BaseQuantization {
        /// In the model's dtype.
        None = "none",
        /// In 8-bit integers.
        Int8 = "int8",
        /// In 4 bits, as quantiles of a normal distribution.
        Nf4 = "nf4",
        /// In 4 bits, evenly apart from the least to the largest of a block.
        Int4 = "int4",
    }

    /// Comparison of hidden states of a model and its teacher.
    pub enum HiddenLoss {
        /// The mean of squared differences.
        Mse = "mse",
        /// One minus the cosine of the angle between them.
        Cosine = "cosine",
    }

    /// Effect of an adapter's branches on a weight.
    pub enum PeftKind {
        /// The branch's product is added to the weight (Hu et al., arXiv:2106.09685).
        Lora = "lora",
        /// The branch's product is added to the weight, and the rows of the sum have learned
        /// lengths (Liu et al., arXiv:2402.09353).
        Dora = "dora",
    }
}
