//! Each rule of `finalize`: derived values, and refusals with their keys.

use super::super::{
    Activation, ConfigErrors, ErrorKind, Format, Kind, Kinds, RunConfig, TransformerConfig, World, load_text,
};
use super::{TEXT, TINY, run_toml, tiny, tiny_errors};

fn on_ranks(size: usize, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World { size })
}

#[test]
fn model_sizes_are_derived() {
    let transformer = TransformerConfig {
        num_layers: 3,
        hidden_size: 96,
        num_attention_heads: 6,
        vocab_size: Some(1000),
        should_pad_vocab: true,
        ..TransformerConfig::default()
    };
    let model = transformer.finalize().expect("accepted");
    assert_eq!(model.ffn_hidden_size, 384);
    assert_eq!(model.kv_channels, 16);
    assert_eq!(model.num_query_groups, 6);
    assert_eq!(model.softmax_scale, 0.25);
    assert_eq!(model.embedding_init_method_std, 0.02);
    assert_eq!(model.padded_vocab_size(900).expect("fits"), 1024);
    assert!(model.padded_vocab_size(1001).is_err());
    assert_eq!(transformer.ffn_hidden_size, None, "nothing is written back");
    let errors = TransformerConfig::default().finalize().expect_err("no sizes");
    assert_eq!(errors.len(), 3, "{errors}");
}

#[test]
fn vocabulary_follows_the_tokenizer_when_open() {
    let run = tiny(&["model.vocab_size=null"]).expect("accepted");
    assert_eq!(run.model.padded_vocab_size(512).expect("fits"), 512);
    assert_eq!(run.model.padded_vocab_size(513).expect("fits"), 640);
    // The padded size does not depend on ranks, so that checkpoints fit any layout.
    let spread = on_ranks(2, &["model.vocab_size=null", "model.tensor_model_parallel_size=2"]).expect("accepted");
    assert_eq!(spread.model.padded_vocab_size(513).expect("fits"), 640);
    let run = tiny(&[]).expect("accepted");
    assert_eq!(run.model.padded_vocab_size(300).expect("fits"), 512);
}

#[test]
fn layers_are_chosen_by_frequency_or_list() {
    let run = tiny(&[
        "model.num_layers=4",
        "model.window_size=[8, 0]",
        "model.window_attn_skip_freq=2",
        "model.no_rope_freq=4",
    ])
    .expect("accepted");
    assert_eq!(run.model.windowed_layers, [true, false, true, false]);
    assert_eq!(run.model.no_rope_layers, [false, false, false, true]);
    let run = tiny(&["model.window_size=[8, 0]", "model.no_rope_freq=[1, 0]"]).expect("accepted");
    assert_eq!(run.model.windowed_layers, [true, true]);
    assert_eq!(run.model.no_rope_layers, [true, false]);
}

#[test]
fn activation_names_of_hugging_face_are_known() {
    for (name, expected) in [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("silu", Activation::Silu),
        ("relu", Activation::Relu),
        ("squared_relu", Activation::SquaredRelu),
    ] {
        let run = tiny(&[&format!("model.activation_func={name}")]).expect("accepted");
        assert_eq!(run.model.activation_func, expected);
    }
}

#[test]
fn scheduler_lengths_are_in_samples() {
    let steps = tiny(&[]).expect("accepted").scheduler.schedule.clone();
    assert_eq!((steps.lr_warmup_steps, steps.lr_decay_steps, steps.wd_incr_steps), (8.0, 80, 80));
    let run = run_toml(TEXT, &[]).expect("accepted");
    let steps = &run.scheduler.schedule;
    assert_eq!((steps.lr_warmup_steps, steps.lr_decay_steps), (16.0, 1600));
    assert_eq!((steps.wsd_decay_steps, run.train.train_iters), (Some(400), 100));
    let run = tiny(&["scheduler.lr_warmup_iters=50", "scheduler.lr_decay_iters=10"]).expect("accepted");
    assert_eq!(run.scheduler.schedule.lr_warmup_steps, 39.0);
    assert_eq!(run.warnings().len(), 1);
    let run = tiny(&["scheduler.lr_warmup_iters=0", "scheduler.lr_warmup_fraction=0.01"]).expect("accepted");
    assert_eq!(run.scheduler.schedule.lr_warmup_steps, 0.8);
}

#[test]
fn weight_decay_ends_default_to_the_optimizers() {
    let run = tiny(&[]).expect("accepted");
    assert_eq!((run.scheduler.schedule.start_wd, run.scheduler.schedule.end_wd), (0.1, 0.1));
    let run = tiny(&["scheduler.start_weight_decay=0", "scheduler.weight_decay_incr_style=linear"]).expect("accepted");
    assert_eq!((run.scheduler.schedule.start_wd, run.scheduler.schedule.end_wd), (0.0, 0.1));
}

#[test]
fn evaluation_falls_back_to_training_batches() {
    let run = tiny(&[]).expect("accepted");
    assert_eq!((run.validation.eval_global_batch_size, run.validation.eval_micro_batch_size), (4, 2));
    // (20 / 10 + 1) evaluations of 2 batches of 4.
    assert_eq!((run.samples.train, run.samples.valid, run.samples.test), (80, 24, 8));
    let run = tiny(&["validation.eval_interval=null"]).expect("accepted");
    assert_eq!(run.samples.valid, 8, "one evaluation, at the end");
    let run = tiny(&["validation.eval_iters=0"]).expect("accepted");
    assert_eq!((run.samples.valid, run.samples.test), (0, 0));
    let run = tiny(&["train.eval_interval=5", "validation.eval_interval=null"]).expect("accepted");
    assert_eq!((run.validation.eval_interval, run.train.eval_interval), (Some(5), None));
}

#[test]
fn ramp_up_from_the_full_batch_is_none() {
    let run = tiny(&["train.rampup_batch_size=[4, 2, 100]"]).expect("accepted");
    assert_eq!(run.train.rampup_batch_size, None);
    let run = tiny(&["train.rampup_batch_size=[2, 2, 100]"]).expect("accepted");
    assert_eq!(run.train.rampup_batch_size, Some([2, 2, 100]));
}

#[test]
fn data_parallel_size_is_what_remains() {
    let run = on_ranks(2, &[]).expect("accepted");
    assert_eq!((run.parallel.data, run.train.num_microbatches), (2, 1));
    assert_eq!(run.samples_per_microstep(), 4);
    let errors = on_ranks(4, &[]).expect_err("batch of 4, unit of 8");
    assert!(errors.names("train.global_batch_size"), "{errors}");
    let errors = on_ranks(4, &["model.tensor_model_parallel_size=3"]).expect_err("3 of 4");
    assert!(errors.iter().any(|e| e.kind == ErrorKind::Conflict && e.key == "model.tensor_model_parallel_size"));
}

#[test]
fn a_sample_is_refused_where_no_rank_has_the_whole_model() {
    let sampled = |size, overrides: &[&str]| on_ranks(size, &[&["generate.prompt=1 2"], overrides].concat());
    for (size, overrides) in [
        (2, &["model.tensor_model_parallel_size=2"][..]),
        (2, &["model.pipeline_model_parallel_size=2"]),
        (2, &["model.num_moe_experts=4", "model.expert_model_parallel_size=2"]),
        (2, &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"]),
    ] {
        let errors = sampled(size, overrides).expect_err("no rank can sample");
        let error = errors.iter().find(|error| error.key == "generate.prompt").expect("named");
        assert!(error.message.contains("bridge generate"), "{error}");
    }
    sampled(2, &["model.context_parallel_size=2"]).expect("each rank has all of it");
    sampled(2, &["ddp.use_distributed_optimizer=true"]).expect("likewise");
}

#[test]
fn stages_are_checked_and_chunks_counted() {
    let pipeline = |overrides: &[&str]| {
        let two = ["model.pipeline_model_parallel_size=2", "model.num_layers=4", "train.global_batch_size=8"];
        on_ranks(2, &[&two[..], overrides].concat())
    };
    let run = pipeline(&[]).expect("accepted");
    assert_eq!((run.parallel.pipeline, run.parallel.virtual_pipeline, run.parallel.data), (2, 1, 1));
    let run = pipeline(&["model.pipeline_model_parallel_layout=Et|t|t|tL"]).expect("a layout says how many chunks");
    assert_eq!(run.parallel.virtual_pipeline, 2);
    let predicting = ["model.mtp_num_layers=1", "model.pipeline_model_parallel_layout=Et|t|t|tmL"];
    assert!(pipeline(&predicting).is_ok());
    let list = "model.pipeline_model_parallel_layout=['Et', 't*3', '', 'L']";
    assert_eq!(pipeline(&[list]).expect("a list of stages").parallel.virtual_pipeline, 2);
    assert!(pipeline(&["model.num_layers_in_last_pipeline_stage=1"]).is_ok());
    for (overrides, key) in [
        (&["model.num_layers=3"][..], "model.pipeline_model_parallel_size"),
        (&["model.virtual_pipeline_model_parallel_size=3"], "model.virtual_pipeline_model_parallel_size"),
        (&["model.num_layers_in_first_pipeline_stage=5"], "model.num_layers_in_first_pipeline_stage"),
        (&["model.account_for_loss_in_pipeline_split=true"], "model.account_for_loss_in_pipeline_split"),
        (&["model.pipeline_model_parallel_layout=Et|tx"], "model.pipeline_model_parallel_layout"),
        (
            &["model.mtp_num_layers=1", "model.pipeline_model_parallel_layout=Ett|tt|m|L"],
            "model.pipeline_model_parallel_layout",
        ),
        (
            &["model.pipeline_model_parallel_layout=Ett|ttL", "model.num_layers_in_first_pipeline_stage=2"],
            "model.num_layers_in_first_pipeline_stage",
        ),
        (
            &["model.virtual_pipeline_model_parallel_size=2", "model.microbatch_group_size_per_vp_stage=1"],
            "model.microbatch_group_size_per_vp_stage",
        ),
        (&["model.virtual_pipeline_model_parallel_size=2", "model.pipeline_schedule=gpipe"], "model.pipeline_schedule"),
        (&["model.virtual_pipeline_model_parallel_size=2", "train.global_batch_size=2"], "train.global_batch_size"),
    ] {
        let errors = pipeline(overrides).expect_err(key);
        assert!(errors.names(key), "{overrides:?} should name {key}:\n{errors}");
    }
}

#[test]
fn blends_are_read_as_upstream_reads_them() {
    let blend = |path: &str| {
        let path = format!("dataset.data_path={path}");
        let run = tiny(&["dataset.kind=gpt", "dataset.split=1,1,1", &path])?;
        Ok::<_, ConfigErrors>(run.dataset.blend.clone().expect("set"))
    };
    let weighted = blend("0.3 a 0.7 b").expect("accepted");
    assert_eq!((weighted.paths, weighted.weights), (vec!["a".into(), "b".into()], Some(vec![0.3, 0.7])));
    assert_eq!(blend("a b").expect("accepted").weights, None);
    assert_eq!(blend("[\"a\", \"b\", \"c\"]").expect("accepted").paths.len(), 3);
    assert!(blend("0.3 a b c").expect_err("half weighted").names("dataset.data_path"));
    assert!(blend("-1 a 2 b").expect_err("negative").names("dataset.data_path"));
}

#[test]
fn splits_become_shares() {
    let text = ["dataset.kind=gpt", "dataset.data_path=a", "dataset.split=98,2"];
    let run = tiny(&text).expect("accepted");
    assert_eq!(run.dataset.split_shares, Some([0.98, 0.02, 0.0]));
    for split in ["null", "1,1,1", "5:5:5"] {
        let run = tiny(&[&format!("dataset.split={split}")]).expect("accepted");
        assert_eq!(run.dataset.split_shares, Some([1.0 / 3.0; 3]));
    }
}

#[test]
fn an_evaluation_without_data_is_warned_of() {
    let data = ["dataset.kind=gpt", "dataset.data_path=a"];
    let warnings = |more: &[&str]| tiny(&[&data, more].concat()).expect("accepted").warnings().to_vec();
    let found = warnings(&["dataset.split=100,0,0"]);
    assert_eq!(found, ["dataset.split leaves the validation split empty: validation.eval_iters will evaluate nothing"]);
    assert!(warnings(&["dataset.split=99,1,0"]).is_empty());
    assert!(warnings(&["dataset.split=100,0,0", "validation.eval_iters=null"]).is_empty());
    let blends = ["dataset.kind=gpt", "dataset.blend_per_split=[[['a']], 'null', 'null']"];
    assert_eq!(tiny(&blends).expect("accepted").warnings().len(), 1);
}

#[test]
fn a_trained_tokenizer_is_as_large_as_the_model_allows() {
    let run = run_toml(TEXT, &[]).expect("accepted");
    assert_eq!(run.tokenizer.bpe_vocab_size, Some(1024));
    let run = run_toml(TEXT, &["tokenizer.bpe_vocab_size=500"]).expect("accepted");
    assert_eq!(run.tokenizer.bpe_vocab_size, Some(500));
}

#[test]
fn what_is_implemented_is_accepted() {
    for overrides in [
        vec!["model.attention_backend=local", "model.qk_layernorm=true", "model.add_qkv_bias=true"],
        vec!["model.add_qkv_bias=true", "model.add_proj_bias=true", "model.add_mlp_bias=true"],
        vec!["model.window_size=[8, 0]", "model.rotary_base_local=500"],
        vec!["model.position_embedding_type=none"],
        // Settings that state Bridge's fixed behaviour.
        vec!["model.deterministic_mode=true", "model.apply_rope_fusion=true", "model.bias_activation_fusion=true"],
        vec!["model.overlap_p2p_comm=true", "model.batch_p2p_comm=false", "model.use_cpu_initialization=true"],
        vec!["model.position_embedding_type=learned_absolute"],
        vec!["model.rope_scaling=true", "model.rope_scaling_factor=8.0"],
        vec!["optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.5", "optimizer.decoupled_lr=0.1"],
        vec!["model.calculate_per_token_loss=true", "ddp.check_for_nan_in_grad=true"],
        vec!["rerun_state_machine.rerun_mode=validate_results", "rerun_state_machine.error_injection_rate=10"],
        vec![
            "checkpoint.save=x",
            "checkpoint.save_interval=5",
            "checkpoint.async_save=true",
            "checkpoint.most_recent_k=2",
        ],
        vec!["dataset.dataloader_type=cyclic", "dataset.num_workers=0", "dataset.data_sharding=false"],
        vec![
            "dataset.drop_last=false",
            "dataset.add_extra_token_to_sequence=false",
            "validation.full_validation=true",
            "validation.eval_iters=0",
        ],
        vec!["model.qk_layernorm=true", "optimizer.apply_wd_to_qk_layernorm=true"],
        vec![
            "tokenizer.tokenizer_type=HuggingFaceTokenizer",
            "tokenizer.tokenizer_model=x",
            "tokenizer.vocab_size=null",
            "tokenizer.special_tokens=['<|prefix|>', '<|suffix|>']",
            "dataset.allow_ambiguous_pad_tokens=true",
        ],
        vec![
            "dataset.kind=gpt",
            "dataset.data_path=0.5 a 0.5 b",
            "dataset.split=9,1",
            "dataset.mid_level_dataset_surplus=0.1",
            "dataset.mmap_bin_files=false",
            "dataset.num_dataset_builder_threads=2",
        ],
        vec!["model.should_pad_vocab=true", "model.make_vocab_size_divisible_by=64"],
        vec!["model.vocab_size=null", "model.make_vocab_size_divisible_by=64"],
        vec!["model.perform_initialization=false", "model.embedding_init_method_std=0.02"],
        vec!["model.num_moe_experts=4", "model.recompute_granularity=selective", "model.recompute_modules=['moe']"],
        vec![
            "model.num_moe_experts=4",
            "model.moe_layer_freq=[0, 1]",
            "model.recompute_granularity=selective",
            "model.recompute_modules=['moe', 'mlp']",
        ],
        vec!["model.make_vocab_size_divisible_by=128"],
        vec![
            "checkpoint.save=x",
            "checkpoint.on_damaged=error",
            "checkpoint.load_optim=false",
            "checkpoint.load_rng=false",
        ],
        vec!["checkpoint.pretrained_checkpoint=x", "checkpoint.on_damaged=error"],
        vec!["checkpoint.load=x", "scheduler.override_opt_param_scheduler=true", "checkpoint.finetune=true"],
        vec!["checkpoint.save=x", "scheduler.use_checkpoint_opt_param_scheduler=true"],
        vec!["train.iterations_to_skip=[20]", "scheduler.lr_warmup_init=1e-5"],
        vec!["ddp.overlap_grad_reduce=true", "ddp.bucket_size=1000", "model.use_cpu_initialization=true"],
        vec![
            "logger.log_throughput=true",
            "logger.log_memory_interval=5",
            "logger.log_throughput_to_tensorboard=true",
            "logger.throughput_window_size=10",
        ],
        vec!["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=65536", "optimizer.hysteresis=1"],
        vec!["train.exit_interval=5", "train.exit_duration_in_mins=1.5", "train.num_threads=2"],
        vec!["device=cuda:1", "logger.progress=plain", "generate.prompt=1 2 3"],
        vec!["peft=null", "profiling={}", "straggler={}"],
        vec!["train.max_consecutive_skipped_iterations=1"],
        vec!["checkpoint.save=x", "train.exit_signal_deadline_s=3e38"],
    ] {
        tiny(&overrides).unwrap_or_else(|errors| panic!("{overrides:?}\n{errors}"));
    }
}

#[test]
fn what_is_true_anyway_is_accepted() {
    let overrides = [
        "checkpoint.fully_parallel_load=true",
        "checkpoint.fully_parallel_save=true",
        "checkpoint.dist_ckpt_optim_fully_reshardable=true",
    ];
    tiny(&overrides).unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn missing_files_are_found_apart_from_finalize() {
    let run = tiny(&["checkpoint.pretrained_checkpoint=no/such/folder"]).expect("accepted");
    let errors = run.check_paths().expect_err("missing");
    assert!(errors.names("checkpoint.pretrained_checkpoint"));
    assert!(tiny(&[]).expect("accepted").check_paths().is_ok());
}

#[test]
fn errors_say_what_where_and_instead() {
    let errors = tiny_errors(&["optimizer.adam_beta2=1.0"]);
    let text = errors.to_string();
    assert_eq!(
        text,
        "error: optimizer.adam_beta2: out of range\n  \
         --> command line: optimizer.adam_beta2=1.0\n  \
         found:    float 1.0\n  \
         expected: a number of at least 0 and less than 1\n\n\
         1 configuration error"
    );
    let json = errors.to_json();
    assert_eq!(json[0]["key"], "optimizer.adam_beta2");
    assert_eq!(json[0]["kind"], "out_of_range");
    assert_eq!(json[0]["location"]["source"], "command line: optimizer.adam_beta2=1.0");
}

#[test]
fn a_registered_kind_of_data_may_bring_tokenizer_and_loader() {
    let mut kinds = Kinds::builtin();
    kinds.dataset.register("letters", Kind::default());
    let load = |overrides: &[&str]| {
        let common = ["dataset.kind=letters", "tokenizer.tokenizer_type=null", "tokenizer.vocab_size=null"];
        let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
        load_text(TINY, Format::Toml, &overrides, &kinds, &World::SINGLE)
    };
    load(&["model.vocab_size=null", "generate.prompt=abc"]).expect("its tokenizer may say how large the vocabulary is");
    load(&["dataset.dataloader_type=external"]).expect("it may load itself");
    let errors = load(&["dataset.source=a.txt"]).expect_err("text is packed before the data is built");
    assert!(errors.names("tokenizer.tokenizer_type"), "{errors}");
}

#[test]
fn a_flight_recorder_that_would_never_write_is_refused() {
    let neither = ["dist.flight_recorder_dump_on_timeout=false", "dist.flight_recorder_extra_dump_on_exec=false"];
    let key = "dist.flight_recorder_dump_path";
    super::assert_refused(&["dist.flight_recorder_dump_path=x", neither[0], neither[1]], key);
    for one in neither {
        tiny(&["dist.flight_recorder_dump_path=x", one]).unwrap_or_else(|errors| panic!("{one}\n{errors}"));
    }
}

#[test]
fn a_chat_template_has_places_that_are_filled_in_or_is_a_file() {
    let with = |template: &str| {
        let template = format!("tokenizer.chat_template='{template}'");
        let tokenizer = ["tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=hf"];
        tiny(&[tokenizer[0], tokenizer[1], "tokenizer.vocab_size=null", "model.vocab_size=512", template.as_str()])
    };
    for template in ["{{ messages }}", "{% for m in messages %}x{% endfor %}", "chat_template.jinja", "folder/any.txt"]
    {
        let errors = with(template).err();
        assert!(errors.is_none_or(|errors| !errors.names("tokenizer.chat_template")), "{template}");
    }
    for template in ["chatml", "{ messages }", "Be brief"] {
        let errors = with(template).expect_err(template);
        assert!(errors.names("tokenizer.chat_template"), "{template}: {errors}");
        assert!(errors.to_string().contains("is no template"), "{errors}");
    }
}

#[test]
fn settings_without_effect_are_warnings_and_errors_if_strict() {
    let config = tiny(&["scheduler.lr_decay_style=constant", "optimizer.min_lr=1e-5"]).expect("it trains");
    let told: Vec<&String> = config.warnings().iter().filter(|warning| warning.contains("optimizer.min_lr")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("has no effect with scheduler.lr_decay_style"), "{told:?}");
    assert!(config.strict().expect_err("strict").names("optimizer.min_lr"));
    let used = tiny(&["optimizer.min_lr=1e-5"]).expect("it trains");
    assert!(used.strict().is_ok());
}

#[test]
fn iterations_of_a_schedule_do_not_depend_on_the_batch() {
    let ramp = tiny(&["train.rampup_batch_size=[1,1,16]", "train.global_batch_size=4", "train.micro_batch_size=1"]);
    let ramp = ramp.expect("accepted");
    assert_eq!((ramp.schedule_steps(1), ramp.schedule_steps(4)), (4, 4));
    let samples = [
        "train.train_iters=null",
        "train.train_samples=80",
        "train.global_batch_size=8",
        "scheduler.lr_warmup_iters=0",
    ];
    let samples = tiny(&samples).expect("accepted");
    assert_eq!((samples.schedule_steps(8), samples.train.train_iters), (8, 10));
    // Five iterations of a run that had batches of 4: 60 samples are left.
    assert_eq!(samples.continued_after(5, 20).expect("other batches").train.train_iters, 5 + 7);
    assert!(samples.continued_after(5, 40).is_none());
}
