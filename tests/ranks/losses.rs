//! Losses of many ranks equal those of one, with any communicator and any sharding of gradients,
//! state and parameters.

use bridge_tests::{assert_close, bridge_on, figures_in, losses, recipe, records_in, run, run_in};

#[test]
fn data_parallel_ranks_train_like_one() {
    let single = run(&[]);
    assert_eq!(single.len(), 20 + 3 + 1);
    assert_close(&run(&["--ranks", "2"]), &single, "2 ranks");
    assert_close(&run(&["--ranks", "4"]), &single, "4 ranks");
    let averaged = run(&["--ranks", "2", "ddp.average_in_collective=true"]);
    assert_close(&averaged, &single, "averaged in the collective");
}

/// Random draws of the residual stream and of routers: a function of seed, step and token.
#[test]
fn what_is_drawn_is_the_same_on_every_layout() {
    let sequence = "model.sequence_parallel=true";
    let layouts = [
        &["--ranks", "2"][..],
        &["--ranks", "2", "model.context_parallel_size=2"],
        &["--ranks", "2", "model.tensor_model_parallel_size=2", sequence],
        &["--ranks", "4", "model.context_parallel_size=2", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "4", "model.context_parallel_size=2"],
    ];
    let recipes = ["tiny.toml", "tiny-moe.toml"].map(|name| recipe().with_file_name(name));
    for (recipe, draws) in [
        (&recipes[0], &["model.hidden_dropout=0.2"][..]),
        (&recipes[1], &["model.hidden_dropout=0.1", "model.moe_input_jitter_eps=0.3"]),
    ] {
        let run = |layout: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let common = ["train.train_iters=4", "train.micro_batch_size=1", "logger.log_dir=logs"];
            let output = bridge_on(recipe, folder.path(), &[&common[..], draws, layout].concat());
            assert!(output.status.success(), "{layout:?}: {}", String::from_utf8_lossy(&output.stderr));
            records_in(&folder.path().join("logs"), "train")
        };
        let single = run(&[]);
        for layout in layouts {
            assert_close(&run(layout), &single, &format!("{draws:?}, {layout:?}"));
        }
    }
}

/// Eight micro-batches a rank: sums in 16 bits would differ.
#[test]
fn a_model_in_bfloat16_adds_gradients_up_in_float32_with_and_without_the_preset() {
    let preset = run(&["mixed_precision=bf16_mixed"]);
    assert_eq!(run(&["model.bf16=true"]), preset);
    let two = ["--ranks", "2", "train.micro_batch_size=1"];
    let preset = run(&[&two[..], &["mixed_precision=bf16_mixed"]].concat());
    assert_eq!(run(&[&two[..], &["model.bf16=true"]].concat()), preset);
}

/// Losses and gradient norms of a run with fewer key/value heads than tensor-parallel ranks.
fn shared_heads(groups: usize, arguments: &[&str]) -> [Vec<f64>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let groups = format!("model.num_query_groups={groups}");
    let model = [&groups, "model.add_qkv_bias=true", "model.qk_layernorm=true"];
    let short = ["optimizer.clip_grad=0.5", "train.train_iters=6", "validation.eval_interval=3"];
    run_in(folder.path(), &[&model[..], &short, arguments].concat());
    [losses(folder.path()), figures_in(&folder.path().join("runs/tiny"), "train", "grad_norm")]
}

#[test]
fn ranks_that_hold_the_same_keys_and_values_train_like_one() {
    let optimizer = "ddp.use_distributed_optimizer=true";
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let four = ["--ranks", "4", "model.tensor_model_parallel_size=4"];
    let eight = ["--ranks", "8", "model.tensor_model_parallel_size=8"];
    let two_of_four = ["--ranks", "8", "model.tensor_model_parallel_size=4"];
    let stages = [&two_of_four[..], &["model.pipeline_model_parallel_size=2"]].concat();
    let sequence = "model.sequence_parallel=true";
    for (groups, layouts) in [
        (1, vec![eight.to_vec()]),
        (2, vec![four.to_vec(), [&two_of_four[..], &[optimizer]].concat(), [&two_of_four[..], &full].concat(), stages]),
        (4, vec![[&eight[..], &[sequence]].concat()]),
    ] {
        let [single, norms] = shared_heads(groups, &[]);
        for layout in layouts {
            let what = format!("{groups} key/value heads, {layout:?}");
            let [found, found_norms] = shared_heads(groups, &layout);
            assert_close(&found, &single, &what);
            for (step, (a, b)) in found_norms.iter().zip(&norms).enumerate() {
                assert!((a - b).abs() <= 1e-4 * b, "{what}, norm {step}: {a}, expected {b}");
            }
        }
    }
}

#[test]
fn sharded_optimizers_change_no_bit() {
    let plain = run(&["--ranks", "2"]);
    let sharded = "optimizer.use_distributed_optimizer=true";
    assert_eq!(run(&["--ranks", "2", sharded]), plain);
    let overlapped = ["ddp.overlap_grad_reduce=true", "ddp.overlap_param_gather=true", "ddp.bucket_size=20000"];
    assert_eq!(run(&[&["--ranks", "2", sharded], &overlapped[..]].concat()), plain);
}

#[test]
fn sharded_gradients_train_like_one() {
    let sharded = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads"];
    let found = run(&[&["--ranks", "2", "train.micro_batch_size=1"], &sharded[..]].concat());
    assert_close(&found, &run(&[]), "2 ranks, sharded gradients");
}

#[test]
fn instances_of_optimizers_train_like_one() {
    let single = run(&[]);
    let instances = ["train.micro_batch_size=1", "ddp.num_distributed_optimizer_instances=2"];
    for (ranks, strategy) in [("4", "optim"), ("4", "optim_grads"), ("4", "optim_grads_params"), ("2", "optim")] {
        let strategy = format!("ddp.data_parallel_sharding_strategy={strategy}");
        let found = run(&[&["--ranks", ranks], &instances[..], &["ddp.use_megatron_fsdp=true", &strategy]].concat());
        assert_close(&found, &single, &format!("{ranks} ranks in two instances, {strategy}"));
    }
}

/// The norm must not depend on sharding: a wrong factor on some gradients would show in it.
#[test]
fn experts_without_replicas_have_the_gradients_of_one_rank() {
    let norms = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let recipe = recipe().with_file_name("tiny-moe.toml");
        let log_dir = format!("logger.log_dir={:?}", folder.path());
        let common = [&log_dir, "optimizer.clip_grad=0.5"];
        let output = bridge_on(&recipe, folder.path(), &[&common[..], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        figures_in(folder.path(), "train", "grad_norm")
    };
    let single = norms(&[]);
    let experts = ["--ranks", "2", "model.expert_model_parallel_size=2"];
    assert_close(&norms(&experts), &single, "two halves of the experts");
    let averaged = [&experts[..], &["ddp.average_in_collective=true"]].concat();
    assert_close(&norms(&averaged), &single, "averaged in the collective");
    let instances = ["ddp.use_distributed_optimizer=true", "ddp.num_distributed_optimizer_instances=2"];
    let four = [&["--ranks", "4"], &experts[2..], &instances].concat();
    assert_close(&norms(&four), &single, "one shard of each expert in each instance");
}

#[test]
fn fully_sharded_ranks_train_like_one() {
    let sharded = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let found = run(&[&["--ranks", "2"], &sharded[..]].concat());
    assert_close(&found, &run(&[]), "2 ranks, fully sharded");
    let tied = "model.share_embeddings_and_output_weights=true";
    let found = run(&[&["--ranks", "2", tied], &sharded[..]].concat());
    assert_close(&found, &run(&[tied]), "2 ranks, fully sharded, tied");
    let stages = ["--ranks", "4", "model.pipeline_model_parallel_size=2", "train.micro_batch_size=1", tied];
    for schedule in ["1f1b", "gpipe", "zb_h1"] {
        let schedule = format!("model.pipeline_schedule={schedule}");
        let found = run(&[&stages[..], &sharded, &[&schedule]].concat());
        assert_close(&found, &run(&[tied]), &format!("2 stages of 2 ranks, {schedule}, fully sharded"));
    }
}

#[test]
fn checkpoints_go_on_at_another_number_of_ranks() {
    let sharded = "optimizer.use_distributed_optimizer=true";
    let fully = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let folder = tempfile::tempdir().unwrap();
    let go_on = |arguments: &[&str]| run_in(folder.path(), &[&["checkpoint.save=saved"], arguments].concat());
    go_on(&["--ranks", "2", sharded, "train.exit_interval=7"]);
    go_on(&[&["--ranks", "4", "train.exit_interval=11"], &fully[..]].concat());
    go_on(&[]);
    let steps = |losses: Vec<f64>| losses[..20].to_vec();
    assert_close(&steps(losses(folder.path())), &steps(run(&[])), "resumed");
}
