//! Losses of many ranks against those of one: the same, whatever carries and divides gradients, state and parameters.

use super::support::{assert_close, losses, run, run_in};

#[test]
fn data_parallel_ranks_train_like_one() {
    let single = run(&[]);
    assert_eq!(single.len(), 20 + 3 + 1);
    assert_close(&run(&["--ranks", "2"]), &single, "2 ranks");
    assert_close(&run(&["--ranks", "4"]), &single, "4 ranks");
    let averaged = run(&["--ranks", "2", "ddp.average_in_collective=true"]);
    assert_close(&averaged, &single, "averaged in the collective");
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
    let single = run(&[]);
    let found = run(&[&["--ranks", "2", "train.micro_batch_size=1"], &sharded[..]].concat());
    assert_close(&found, &single, "2 ranks, sharded gradients");
    let instances = ["--ranks", "4", "train.micro_batch_size=1", "ddp.num_distributed_optimizer_instances=2"];
    for strategy in ["optim", "optim_grads", "optim_grads_params"] {
        let strategy = format!("ddp.data_parallel_sharding_strategy={strategy}");
        let found = run(&[&instances[..], &["ddp.use_megatron_fsdp=true", &strategy]].concat());
        assert_close(&found, &single, &format!("two instances, {strategy}"));
    }
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
