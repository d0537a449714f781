//! Configurations that Megatron Bridge saves: mapped settings, omitted and listed settings, and
//! refusals with their locations.

use super::super::{
    Activation, ConfigErrors, DType, ErrorKind, Format, Kinds, Node, PeftKind, PositionEmbeddingType, RunConfig,
    Section, World, load_text,
};

/// A whole configuration, every field at its default.
const DEFAULTS: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/upstream_defaults.yaml"));

/// The least that runs, with `_target_` at its top; more sections may follow.
const LEAST: &str = "\
_target_: megatron.bridge.training.config.ConfigContainer
train:
  micro_batch_size: 1
  global_batch_size: 2
  train_iters: 4
optimizer:
  lr: 0.001
tokenizer:
  tokenizer_type: NullTokenizer
  vocab_size: 999
";

/// No data, which upstream makes up.
const DATA: &str = "\
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  random_seed: 1234
";

/// A model in front of which lines may be put.
const MODEL: &str = "  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  num_query_groups: 4
  seq_length: 32
  vocab_size: 1000
";

const GPT: &str = "  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n";

fn yaml(text: &str, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    load_text(text, Format::Yaml, &overrides, &Kinds::builtin(), &World::SINGLE)
}

/// The least configuration with lines in `model` and after it.
fn with(model: &str, rest: &str) -> Result<RunConfig, ConfigErrors> {
    let data = if rest.contains("dataset:") { "" } else { DATA };
    yaml(&format!("{LEAST}model:\n{GPT}{MODEL}{model}{rest}{data}"), &[])
}

/// Key, kind and line of each problem.
fn problems(result: Result<RunConfig, ConfigErrors>) -> Vec<(String, ErrorKind, Option<usize>)> {
    let errors = result.expect_err("refused");
    let line = |error: &super::super::ConfigError| error.location.as_ref().and_then(|at| at.line);
    errors.iter().map(|error| (error.key.clone(), error.kind, line(error))).collect()
}

/// The keys that the first remark lists.
fn left_out(run: &RunConfig) -> Vec<&str> {
    let lines = run.warnings().iter().find(|text| text.starts_with("a configuration of Megatron Bridge"));
    let lines = lines.map_or("", String::as_str).lines().skip(1);
    lines.map(|line| line.trim().split([' ', ':']).next().unwrap_or_default()).collect()
}

#[test]
fn a_configuration_at_its_defaults_runs_and_lists_only_what_differs() {
    let run = yaml(DEFAULTS, &[]).expect("accepted");
    let expected = [
        "model.gradient_accumulation_fusion",
        "model.transformer_impl",
        "optimizer.muon_tp_mode",
        "checkpoint.ckpt_format",
        "profiling.memory_snapshot_path",
        "profiling.profile_ranks",
    ];
    let found = left_out(&run);
    // A setting that is built one day is listed no more.
    assert!(found.iter().all(|key| expected.contains(key)), "{found:?}");
    assert!(found.contains(&"checkpoint.ckpt_format") && found.contains(&"model.transformer_impl"), "{found:?}");
    let listed = run.warnings().join("\n");
    for field in ["model.softmax_type", "model.qk_clip_alpha", "ddp.num_buckets", "env_vars"] {
        assert!(listed.contains(field), "{field} in {listed}");
    }
    assert!(!listed.contains("timers"), "objects of a running program are nothing to list: {listed}");
    assert_eq!(run.recipe().dataset.kind, "mock", "without data upstream makes some up");
    assert_eq!(run.recipe().model.kind, "gpt");
    assert_eq!(run.recipe().model.activation_func, Activation::Gelu);
    assert_eq!(run.recipe().train.micro_batch_size, Some(1));
}

#[test]
fn what_is_left_out_is_shown_with_value_place_and_reason() {
    let run = yaml(DEFAULTS, &[]).expect("accepted");
    let line = DEFAULTS.lines().position(|line| line.trim() == "ckpt_format: torch_dist").expect("there") + 1;
    let expected = format!("checkpoint.ckpt_format = \"torch_dist\" (recipe:{line}:16): no counterpart here: ");
    assert!(run.warnings()[0].contains(&expected), "{}", run.warnings()[0]);
}

#[test]
fn objects_become_values() {
    let function = |name: &str| format!("  activation_func:\n    _call_: false\n    _target_: {name}\n");
    for (name, expected) in [
        ("torch.nn.functional.silu", Activation::Silu),
        ("torch._C._nn.gelu", Activation::Gelu),
        ("torch.nn.functional.gelu", Activation::Gelu),
        ("torch.nn.functional.relu", Activation::Relu),
        ("megatron.core.activations.squared_relu", Activation::SquaredRelu),
        ("megatron.core.activations.fast_gelu", Activation::GeluTanh),
        ("torch._C._nn.gelu\n    _partial_: true\n    approximate: tanh", Activation::GeluTanh),
    ] {
        let run = with(&function(name), "").unwrap_or_else(|errors| panic!("{name}: {errors}"));
        assert_eq!(run.recipe().model.activation_func, expected, "{name}");
    }
    let run = with("  activation_func: silu\n", "").expect("newer versions write the name");
    assert_eq!(run.recipe().model.activation_func, Activation::Silu);

    let dtype = "  bf16: true\n  params_dtype: &half\n    _call_: false\n    _target_: torch.bfloat16\n  pipeline_dtype: *half\n";
    let run = with(dtype, "").expect("accepted");
    assert_eq!(run.recipe().model.params_dtype, DType::BFloat16);

    let class = "megatron.core.transformer.enums.AttnBackend";
    for (fields, expected) in
        [("_args_: [4]\n    _name_: local", "local"), ("_args_: [4]", "local"), ("_args_: [5]", "auto")]
    {
        let enumeration = format!("  attention_backend:\n    _call_: true\n    _target_: {class}\n    {fields}\n");
        let run = with(&enumeration, "").expect("accepted");
        assert_eq!(run.recipe().model.value("attention_backend"), Some(Node::string(expected)), "{fields}");
    }
}

#[test]
fn what_stands_for_nothing_is_refused_where_it_stands() {
    let first = LEAST.lines().count() + 1 + GPT.lines().count() + MODEL.lines().count() + 1;
    let of = |key: &str, kind| vec![(format!("model.{key}"), kind, Some(first + 1))];
    let activation = "  activation_func:\n    _call_: false\n    _target_: mine.swoosh\n";
    assert_eq!(problems(with(activation, "")), of("activation_func", ErrorKind::WrongType));
    // A backend changes no result, so it is left out.
    let backend = "  attention_backend:\n    _target_: mine.Backends\n    _args_: [3]\n";
    assert!(with(backend, "").is_ok());
    let layers = "  transformer_layer_spec:\n    _target_: mine.layers\n    _call_: false\n";
    assert_eq!(problems(with(layers, "")), of("transformer_layer_spec", ErrorKind::UnknownKey));
    let initial = "  init_method:\n    _target_: torch.nn.init.xavier_uniform_\n    _partial_: true\n";
    assert_eq!(problems(with(initial, "")), of("init_method", ErrorKind::UnknownKey));
    // On the line of the key.
    let of = |key: &str, kind| vec![(format!("model.{key}"), kind, Some(first))];
    assert_eq!(problems(with("  softmax_type: off-by-one\n", "")), of("softmax_type", ErrorKind::UnknownKey));
    assert_eq!(problems(with("  attention_chunk_size: 8192\n", "")), of("attention_chunk_size", ErrorKind::UnknownKey));
    assert_eq!(
        problems(with("  fp16_lm_cross_entropy: true\n", "")),
        of("fp16_lm_cross_entropy", ErrorKind::NotImplemented)
    );
    assert_eq!(problems(with("  hidden_dropout: lots\n", "")), of("hidden_dropout", ErrorKind::WrongType));
}

#[test]
fn a_class_without_counterpart_is_refused_with_those_that_have_one() {
    let model = "model:\n  _target_: megatron.bridge.models.mimo.mimo_provider.MimoModelProvider\n";
    let errors = yaml(&format!("{LEAST}{model}{MODEL}{DATA}"), &[]).expect_err("refused");
    assert_eq!(errors.len(), 1, "{errors}");
    let error = errors.iter().next().expect("one");
    assert_eq!((error.key.as_str(), error.kind), ("model._target_", ErrorKind::NotImplemented));
    assert_eq!(error.location.as_ref().and_then(|at| at.line), Some(LEAST.lines().count() + 2));
    assert!(error.expected.as_ref().is_some_and(|text| text.contains("LlamaModelProvider")), "{error}");
    // A class of that name in a user's own package may do anything.
    let own = "model:\n  _target_: mine.GPTModelProvider\n";
    assert!(yaml(&format!("{LEAST}{own}{MODEL}{DATA}"), &[]).expect_err("refused").names("model._target_"));
    let sft = "dataset:\n  _target_: megatron.bridge.training.config.GPTSFTDatasetConfig\n  seq_length: 32\n";
    assert!(with("", sft).expect_err("no data").names("dataset.dataset_root"));
    let lora = "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8\n  some_hook: x\n";
    assert!(with("", lora).expect_err("refused").names("checkpoint.pretrained_checkpoint"));
    let dora =
        "peft:\n  _target_: megatron.bridge.peft.dora.DoRA\n  dim: 8\ncheckpoint:\n  pretrained_checkpoint: base\n";
    let run = with("", dora).expect("accepted");
    let peft = run.peft.as_ref().expect("there is a section");
    assert_eq!((peft.kind, peft.dim, peft.scale_numerator()), (PeftKind::Dora, 8, 64));
}

#[test]
fn what_a_class_sets_is_filled_in_and_said() {
    let llama = "model:\n  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider8B\n";
    let run = yaml(&format!("{LEAST}{llama}{MODEL}  hidden_dropout: 0.25\n{DATA}"), &[]).expect("accepted");
    let model = &run.recipe().model;
    assert_eq!(model.activation_func, Activation::Silu);
    assert_eq!(model.position_embedding_type, PositionEmbeddingType::Rope);
    assert!(model.rope_scaling && model.rope_scaling_factor == 8.0);
    assert_eq!((model.hidden_dropout, model.attention_dropout), (0.25, 0.0));
    let remark = &run.warnings()[0];
    assert!(remark.contains("activation_func = silu") && !remark.contains("hidden_dropout"), "{remark}");
    assert!(remark.contains("further defaults of Llama31ModelProvider8B"), "{remark}");

    let qwen = "model:\n  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3ModelProvider\n";
    let run = yaml(&format!("{LEAST}{qwen}{MODEL}{DATA}"), &[]).expect("accepted");
    let remark = run.warnings().join("\n");
    assert!(remark.contains("further defaults of Qwen3ModelProvider are not known here"), "{remark}");
}

#[test]
fn older_names_of_rope_scaling_are_known() {
    let rope = "  position_embedding_type: rope\n  scale_factor: 32.0\n  low_freq_factor: 1.0\n  high_freq_factor: 2.0\n  \
                old_context_len: 4096\n";
    let run = with(rope, "").expect("accepted");
    let model = &run.recipe().model;
    assert!(model.rope_scaling);
    assert_eq!((model.rope_scaling_factor, model.rope_scaling_high_freq_factor), (32.0, 2.0));
    assert_eq!(model.rope_scaling_original_max_position_embeddings, 4096);
}

#[test]
fn newer_model_classes_keep_the_transformer_inside() {
    let model = "model:\n  _target_: megatron.bridge.models.gpt.gpt_builder.GPTModelConfig\n  \
                 _builder_: megatron.bridge.models.gpt.gpt_builder.GPTModelBuilder\n  seq_length: 32\n  vocab_size: 1000\n  \
                 transformer:\n    _target_: megatron.bridge.models.transformer_config.TransformerConfig\n    \
                 num_layers: 3\n    hidden_size: 64\n    num_attention_heads: 4\n";
    let run = yaml(&format!("{LEAST}{model}{DATA}"), &[]).expect("accepted");
    assert_eq!((run.recipe().model.num_layers, run.recipe().model.seq_length), (3, 32));
}

#[test]
fn overlap_is_copied_where_the_file_is_open_and_past_where_it_is_not() {
    let overlap = "comm_overlap:\n  _target_: megatron.bridge.training.comm_overlap.CommOverlapConfig\n  \
                   tp_comm_overlap: true\n  overlap_grad_reduce: true\n  bucket_size: 1000\n";
    // The outcome in the model's section says that there was nothing to overlap.
    let run = with("  tp_comm_overlap: false\n", overlap).map(|run| run.recipe().ddp.overlap_grad_reduce);
    // On one rank the reduction may have nothing to do, which is then said of the setting that it
    // became.
    match run {
        Ok(is_overlapped) => assert!(is_overlapped),
        Err(errors) => assert!(errors.iter().all(|error| error.key.starts_with("ddp.")), "{errors}"),
    }
    if let Ok(run) = with("", overlap) {
        assert!(
            run.warnings().iter().any(|text| text.contains("model.tp_comm_overlap = true")),
            "{:?}",
            run.warnings()
        );
    }
}

#[test]
fn what_upstream_derives_is_left_to_bridge() {
    let model = "  expert_tensor_parallel_size: 1\n  microbatch_group_size_per_vp_stage: 1\n  ffn_hidden_size: 256\n  \
                 kv_channels: 16\n  recompute_modules:\n  - core_attn\n";
    let rest = "scheduler:\n  lr_decay_steps: 8\n  wd_incr_steps: 8\ndataset:\n  \
                _target_: megatron.bridge.training.config.GPTDatasetConfig\n  sequence_length: 32\n  mock: false\n  \
                split: 9,1\n  data_path: a b\n  blend:\n  - - a\n    - b\n  - null\n  tokenizer:\n    _target_: x.Y\n    _call_: true\n";
    let run = with(model, rest).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().dataset.kind, "gpt");
    assert_eq!(run.recipe().model.recompute_modules, None);
    assert!(left_out(&run).is_empty(), "{:?}", run.warnings());
}

#[test]
fn what_another_setting_replaces_upstream_is_left_out() {
    let both = LEAST.replace("  lr: 0.001\n", "  lr: 0.001\n  weight_decay: 0.1\n");
    let decay = "scheduler:\n  start_weight_decay: 0.033\n  end_weight_decay: 0.033\n";
    let run =
        yaml(&format!("{both}model:\n{GPT}{MODEL}{decay}{DATA}"), &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.scheduler.schedule.start_wd, 0.033);
    let run = yaml(&format!("{both}model:\n{GPT}{MODEL}{DATA}"), &[]).expect("accepted");
    assert_eq!(run.scheduler.schedule.start_wd, 0.1);
}

#[test]
fn the_command_line_speaks_of_settings_here() {
    let refused = yaml(DEFAULTS, &["checkpoint.ckpt_format=torch_dist"]).expect_err("asked for by name");
    assert!(refused.names("checkpoint.ckpt_format"), "{refused}");
    let refused = yaml(DEFAULTS, &["train.train_itres=8"]).expect_err("misspelt");
    assert!(refused.iter().any(|error| error.nearest.as_deref() == Some("train_iters")), "{refused}");
    let run = yaml(DEFAULTS, &["train.train_iters=8", "model.num_layers=3"]).expect("accepted");
    assert_eq!((run.recipe().train.train_iters, run.recipe().model.num_layers), (Some(8), 3));
}

#[test]
fn a_recipe_without_classes_is_read_as_it_stands() {
    let recipe = "train:\n  micro_batch_size: 1\n  timers: null\n";
    let errors = yaml(recipe, &[]).expect_err("incomplete");
    assert!(errors.names("train.timers"), "{errors}");
}

#[test]
fn fields_of_speed_and_memory_are_listed_in_one_line() {
    let model = "  hf_model_id: meta-llama/Llama-3.2-1B\n  tp_comm_overlap: true\n  cuda_graph_impl: transformer_engine\n  \
                 overlap_moe_expert_parallel_comm: true\n  cp_comm_type: p2p\n  fp8_param: true\n  \
                 variable_seq_lengths: true\n  async_tensor_model_parallel_allreduce: true\n  \
                 tp_comm_overlap_cfg:\n    _target_: megatron.bridge.training.comm_overlap.TransformerLayerTPOverlapCfg\n";
    let run = with(model, "").unwrap_or_else(|errors| panic!("{errors}"));
    let line = run.warnings().iter().find(|text| text.contains("only ask for speed or memory")).expect("listed");
    for key in ["hf_model_id", "tp_comm_overlap", "cp_comm_type", "async_tensor_model_parallel_allreduce"] {
        assert!(line.contains(&format!("model.{key} = ")), "{key}: {line}");
    }
    assert_eq!(run.recipe().model.value("hf_model_id"), Some(Node::null()));
}

#[test]
fn latent_attention_keeps_its_own_names() {
    let latent = "  multi_latent_attention: true\n  kv_channels: 16\n  kv_lora_rank: 16\n  q_lora_rank: null\n  \
                  qk_head_dim: 16\n  qk_pos_emb_head_dim: 8\n  v_head_dim: 16\n  qk_layernorm: true\n  rope_type: yarn\n  \
                  position_embedding_type: rope\n  rotary_scaling_factor: 40\n  original_max_position_embeddings: 4096\n  \
                  beta_fast: 32\n  beta_slow: 1\n  mscale: 0.707\n  mscale_all_dim: 0.707\n";
    let class = "  _target_: megatron.bridge.models.mla_provider.MLAModelProvider\n";
    let run = yaml(&format!("{LEAST}model:\n{class}{MODEL}{latent}{DATA}"), &[]);
    let run = run.unwrap_or_else(|errors| panic!("{errors}"));
    let model = &run.recipe().model;
    assert_eq!(model.position_embedding_type, PositionEmbeddingType::Yarn);
    assert_eq!(model.yarn_rotary_scaling_factor, Some(40.0));
    let growth = 0.1 * 0.707 * 40.0_f64.ln() + 1.0;
    assert!(model.softmax_scale.is_some_and(|scale| (scale - growth * growth / 24.0_f64.sqrt()).abs() < 1e-12));
    assert!(model.rotary_interleaved);
}

#[test]
fn rules_of_a_class_become_settings() {
    let gemma = "  window_size: 33\n  interleaved_attn_pattern:\n  - 5\n  - 1\n  rotary_base:\n  - 10000\n  - 1000000\n  \
                 rope_scaling_factor: 8.0\n  position_embedding_type: rope\n  normalization: RMSNorm\n";
    let class = "  _target_: megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider\n";
    let run = yaml(&format!("{LEAST}model:\n{class}{MODEL}{gemma}{DATA}"), &[]);
    let run = run.unwrap_or_else(|errors| panic!("{errors}"));
    let model = &run.recipe().model;
    assert_eq!((model.embedding_multiplier, model.window_size), (8.0, Some([32, 0])));
    assert_eq!((model.rotary_base, model.rotary_base_local), (1e6, Some(1e4)));
    assert_eq!((model.rope_scaling, model.seq_len_interpolation_factor), (false, Some(8.0)));
    let run = with("  softmax_type: learnable\n", "").expect("accepted");
    assert!(run.recipe().model.attention_sinks);

    let lora = "peft:\n  _target_: megatron.bridge.peft.canonical_lora.CanonicalLoRA\n  target_modules:\n  - linear_q\n  \
                - linear_v\n  - linear_proj\ncheckpoint:\n  pretrained_checkpoint: base\n";
    let run = with("", lora).unwrap_or_else(|errors| panic!("{errors}"));
    let mapping = &run.peft.as_ref().expect("there is a section").canonical_mapping;
    assert_eq!(mapping.get("linear_qkv").map(String::as_str), Some("linear_q, linear_v"));
    assert!(mapping.contains_key("linear_proj"));
}

#[test]
fn models_that_do_not_exist_here_are_named() {
    for (class, expected) in [
        ("qwen.qwen_provider.Qwen3NextModelProvider", "gated delta"),
        ("qwen_vl.qwen3_vl_provider.Qwen3VLModelProvider", "only text models"),
    ] {
        let model = format!("model:\n  _target_: megatron.bridge.models.{class}\n");
        let errors = yaml(&format!("{LEAST}{model}{MODEL}{DATA}"), &[]).expect_err("refused");
        assert!(errors.to_string().contains(expected), "{errors}");
    }
}

#[test]
fn data_of_the_hub_needs_a_folder() {
    let data = "dataset:\n  _target_: megatron.bridge.data.builders.hf_dataset.HFDatasetConfig\n  dataset_name: squad\n  \
                seq_length: 32\n  dataset_kwargs:\n    pad_to_max_length: true\n";
    let errors = with("", data).expect_err("refused");
    assert!(errors.names("dataset.dataset_name"), "{errors}");
    let text = format!("{LEAST}model:\n{GPT}{MODEL}{data}");
    let run = yaml(&text, &["dataset.kind=mock"]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().dataset.kind, "mock");
}

#[test]
fn fields_of_released_recipes_that_ask_for_nothing_are_accepted() {
    let model = "  moe_flex_dispatcher_num_sms: 24\n  moe_grouped_gemm: true\n  moe_router_dtype: fp32\n  \
                 moe_router_enable_expert_bias: true\n  mtp_hybrid_override_pattern: '*E'\n  mtp_use_repeated_layer: true\n  \
                 keep_mtp_spec_in_bf16: true\n  recompute_granularity: full\n  recompute_method: uniform\n  \
                 recompute_num_layers: 1\n  recompute_modules:\n  - core_attn\n";
    let rest = "checkpoint:\n  stream_ckpt_dequant: true\nddp:\n  data_parallel_sharding_strategy: optim_grads_params\n  \
                check_for_large_grads: true\n  delay_wgrad_compute: true\n  reuse_grad_buf_for_mxfp8_param_ag: true\n\
                validation:\n  eval_interval: 0\n  eval_iters: 0\n\
                env_vars:\n  NCCL_NVLS_ENABLE: 0\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\n";
    let run = with(model, rest).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().validation.eval_interval, None);
    assert_eq!(run.recipe().model.moe_router_dtype, None);
    let warnings = run.warnings().join("\n");
    for listed in ["env_vars = ", "ddp.delay_wgrad_compute = true"] {
        assert!(warnings.contains(listed), "{listed}: {warnings}");
    }
    // A variable may also be read by code that Bridge has.
    let errors = with("", "env_vars:\n  MY_SWITCH: 1\n").expect_err("refused");
    assert!(errors.names("env_vars"), "{errors}");
    let experts = "  num_moe_experts: 4\n  moe_mlp_glu_interleave_size: 32\n";
    assert!(with(experts, "").expect_err("refused").names("model.moe_mlp_glu_interleave_size"));
}

#[test]
fn stages_as_lists_of_layers_become_letters() {
    let layout = "  pipeline_model_parallel_size: 2\n  pipeline_model_parallel_layout:\n  - - embedding\n    - decoder\n  \
                  - - decoder\n    - loss\n";
    let overrides: Vec<String> = Vec::new();
    let text = format!("{LEAST}model:\n{GPT}{MODEL}{layout}{DATA}");
    let run = load_text(&text, Format::Yaml, &overrides, &Kinds::builtin(), &World { size: 2 });
    let run = run.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().model.value("pipeline_model_parallel_layout"), Some(Node::string("Et|tL")));
}

#[test]
fn the_vocabulary_is_the_tokenizers_where_upstream_takes_it_from_there() {
    let tokenizer = "tokenizer:\n  _target_: megatron.bridge.training.tokenizers.config.TokenizerConfig\n  \
                     tokenizer_type: NullTokenizer\n  vocab_size: 1024\n  null_tokenizer_eod_id: null\n  pad_vocab_size: false\n";
    let (head, _) = LEAST.split_once("tokenizer:").expect("there");
    let text = format!("{head}{tokenizer}model:\n{GPT}{MODEL}{DATA}").replace("vocab_size: 1000", "vocab_size: 1024");
    let run = yaml(&text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().tokenizer.vocab_size, Some(1023), "the last of 1024 tokens ends documents");
    let text = text.replace("pad_vocab_size: false", "use_tokenizer_vocab_size: true");
    let text = text.replace("  vocab_size: 1024\n  null", "  vocab_size: 500\n  null");
    let run = yaml(&text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((run.recipe().tokenizer.vocab_size, run.recipe().model.vocab_size), (Some(499), None));
}

#[test]
fn shared_branches_of_experts_are_refused() {
    let experts = "  num_moe_experts: 4\n  moe_grouped_gemm: true\n";
    let lora = |rest: &str| {
        format!(
            "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8\n  params_to_save: !!set\n    a.b: null\n{rest}\
             checkpoint:\n  pretrained_checkpoint: base\n"
        )
    };
    let shares = lora("  share_expert_adapters: true\n");
    assert!(with("", &shares).is_ok(), "there are no experts");
    let errors = with(experts, &shares).expect_err("refused");
    assert!(errors.names("peft.share_expert_adapters"), "{errors}");
    assert!(with(experts, &lora("")).expect_err("the default").names("peft.share_expert_adapters"));
    assert!(with(experts, &lora("  share_expert_adapters: false\n")).is_ok());
    let attention = lora("  share_expert_adapters: true\n  target_modules:\n  - linear_qkv\n  - linear_proj\n");
    assert!(with(experts, &attention).is_ok(), "experts have no branches");
}

#[test]
fn data_of_the_hub_is_one_problem() {
    let data = "dataset:\n  _target_: megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig\n  hf_dataset:\n    \
                _target_: megatron.bridge.data.sources.hf.HFDatasetSourceConfig\n    dataset_name: squad\n  \
                enable_offline_packing: true\n  hf_validation_proportion: 0.1\n  offline_packing_specs:\n    \
                _target_: megatron.bridge.data.packing.config.PackedSequenceSpecs\n    packed_sequence_size: 64\n    \
                tokenizer_model_name: x\n  preprocessing:\n    \
                _target_: megatron.bridge.data.sft_processing.ChatSFTPreprocessingConfig\n  seq_length: 32\n";
    let keys: Vec<_> = problems(with("", data)).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, ["dataset.hf_dataset", "dataset.dataset_root"]);
    let text = format!("{LEAST}model:\n{GPT}{MODEL}{data}");
    let errors =
        yaml(&text, &["dataset.dataset_root=records"]).err().map(|errors| errors.to_string()).unwrap_or_default();
    assert!(!errors.contains("tokenizer_model_name"), "a name for folders is left out: {errors}");
}

#[test]
fn codes_are_gathered_only_where_parameters_are_sharded() {
    let fp8 = "  bf16: true\n  fp8: e4m3\n  fp8_recipe: tensorwise\n  params_dtype: torch.bfloat16\n";
    let gather = "ddp:\n  fp8_param_gather: true\n";
    let run = with(fp8, gather).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(!run.recipe().ddp.fp8_param_gather);
    assert!(run.warnings().join("\n").contains("ddp.fp8_param_gather = true"), "{:?}", run.warnings());
}

#[test]
fn multi_token_prediction_of_a_hybrid_model_is_one_problem() {
    let class = "  _target_: megatron.bridge.models.hybrid.hybrid_provider.HybridModelProvider\n";
    let mtp = "  hybrid_layer_pattern: M-/*-/*-\n  mtp_num_layers: 2\n  mtp_hybrid_override_pattern: '*-'\n  \
               mtp_use_repeated_layer: true\n  keep_mtp_spec_in_bf16: true\n";
    let text = format!("{LEAST}model:\n{class}{MODEL}{mtp}{DATA}");
    let keys: Vec<_> = problems(yaml(&text, &[])).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, ["model.mtp_num_layers"]);
    let run = yaml(&text, &["model.mtp_num_layers=null"]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.recipe().model.value("hybrid_override_pattern"), Some(Node::string("M-")));
}
