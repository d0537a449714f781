//! Written recipes read back as the same configuration.

use super::super::{Detail, Format, Kinds, RawConfig, RunConfig, World, diff, load_text};
use super::{TEXT, TINY, run_toml, tiny};

fn assert_round_trip(run: &RunConfig) {
    for format in [Format::Toml, Format::Yaml, Format::Json] {
        for detail in [Detail::All, Detail::NonDefault] {
            let text = run.to_text(format, detail);
            let back = load_text(&text, format, &[], &Kinds::builtin(), &World::SINGLE)
                .unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            let differences = diff(run.recipe(), back.recipe());
            assert!(differences.is_empty(), "{differences:#?}\n{text}");
            // Remarks are about how things were written, so they are not compared.
            assert!(**run == *back, "derived values differ\n{text}");
        }
    }
}

#[test]
fn run_configurations_round_trip() {
    assert_round_trip(&run_toml(TEXT, &[]).expect("accepted"));
    for overrides in [
        vec![],
        vec!["mixed_precision=bf16_mixed"],
        vec!["mixed_precision={fp16 = true, loss_scale = 128}"],
        vec!["mixed_precision={bf16 = true}", "ddp.grad_reduce_in_fp32=false"],
        vec!["mixed_precision={}", "model.bf16=true"],
        vec![
            "mixed_precision={bf16 = true, grad_reduce_in_fp32 = false}",
            "optimizer.use_precision_aware_optimizer=true",
            "optimizer.exp_avg_dtype=fp8",
            "optimizer.main_params_dtype=float16",
        ],
        vec!["model.bf16=true"],
        vec!["train.train_iters=null", "train.train_samples=400", "scheduler.lr_warmup_iters=0"],
        vec!["train.eval_iters=2", "train.skip_train=true"],
        vec!["validation.eval_iters=null", "checkpoint.most_recent_k=null", "model.mtp_loss_scaling_factor=0.1"],
        vec!["model.recompute_granularity=selective", "model.recompute_modules=[\"mlp\"]"],
        vec!["model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=1"],
        vec!["model.window_size=[16, 0]", "model.window_attn_skip_freq=2", "model.no_rope_freq=[0, 1]"],
        vec!["dataset.kind=gpt", "dataset.data_path=0.3 a 0.7 b", "dataset.split=98,2,0"],
        vec!["dataset.kind=gpt", "dataset.blend=[['a', 'b']]", "dataset.split=98,2,0"],
        vec!["dataset.kind=gpt", "dataset.blend_per_split=[[['a']], [['b', 'c'], [0.5, 0.5]], 'null']"],
        vec!["train.decrease_batch_size_if_needed=true", "train.global_batch_size=5"],
        vec!["train.rampup_batch_size=[2, 2, 8]", "train.iterations_to_skip=[3, 4]"],
        vec![
            "scheduler.weight_decay_incr_style=linear",
            "optimizer.weight_decay=0.2",
            "scheduler.start_weight_decay=0.0",
        ],
        vec!["name='odd \"name\" with ünïcode'", "generate.prompt='''a\nb\tc'''"],
        vec!["ft={}", "comm_overlap={}"],
        vec!["comm_overlap={}", "ddp.use_distributed_optimizer=true"],
        vec!["comm_overlap={}", "ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=false"],
        vec![
            "comm_overlap={overlap_param_gather = false, data_parallel_size = 1}",
            "ddp.use_megatron_fsdp=true",
            "ddp.data_parallel_sharding_strategy=optim_grads_params",
        ],
        vec!["ddp.use_custom_fsdp=true", "ddp.data_parallel_sharding_strategy=optim", "ddp.overlap_grad_reduce=true"],
        vec!["mixed_precision={fp16 = true}", "optimizer.initial_loss_scale=65536", "optimizer.hysteresis=1"],
        vec!["optimizer.log_num_zeros_in_grad=true"],
        vec!["dist.use_decentralized_pg=true", "dist.use_gloo_process_groups=false", "dist.disable_jit_fuser=true"],
    ] {
        let run = tiny(&overrides).unwrap_or_else(|errors| panic!("{overrides:?}\n{errors}"));
        assert_round_trip(&run);
    }
}

#[test]
fn raw_configurations_write_what_differs() {
    let raw = RawConfig::from_text(TINY, Format::Toml, &[], &Kinds::builtin()).expect("reads");
    let back = RawConfig::from_text(&raw.to_toml(), Format::Toml, &[], &Kinds::builtin());
    assert_eq!(raw, back.expect("reads"));
    assert!(!raw.to_toml().contains("adam_beta1"));
}

#[test]
fn registered_kinds_round_trip_with_their_settings() {
    use super::super::{ExtraField, Kind, TypeSpec};
    let mut kinds = Kinds::builtin();
    kinds.model.register(
        "retnet",
        Kind::default().with([
            ExtraField {
                name: "decay".into(),
                spec: TypeSpec::Float,
                default: Some(toml::Value::Float(0.5)),
                doc: "Decay of the state.".into(),
            },
            ExtraField { name: "chunk".into(), spec: TypeSpec::Count, default: None, doc: "Chunk length.".into() },
        ]),
    );
    let load = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        load_text(TINY, Format::Toml, &overrides, &kinds, &World::SINGLE)
    };
    let run = load(&["model.chunk=16", "model.kind=retnet"]).expect("accepted");
    assert_eq!(run.model.kind, "retnet");
    assert_eq!(run.model.extra["decay"].as_float(), Some(0.5));
    assert_eq!(run.model.extra["chunk"].as_integer(), Some(16));
    let text = run.to_toml();
    let back = load_text(&text, Format::Toml, &[], &kinds, &World::SINGLE).expect("accepted");
    assert_eq!(*run, *back);
    let errors = load(&["model.kind=retnet", "model.chunk=-1"]).expect_err("negative");
    assert!(errors.names("model.chunk"));
    let errors = load(&["model.kind=retnet", "model.chunks=1"]).expect_err("misspelt");
    assert_eq!(errors.iter().next().and_then(|e| e.nearest.as_deref()), Some("chunk"));
    let errors = load(&["model.chunk=1"]).expect_err("a setting of another kind");
    assert!(errors.names("model.chunk"));
}
