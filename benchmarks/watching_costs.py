"""What watching a run costs: seconds of a step with and without it, in two runs at once.

    python benchmarks/watching_costs.py --bridge target/release/bridge --rounds 6

On a machine that does nothing else. A variant and the plain run train beside each other, each on a core of its own, and then again with the cores changed:
what slows the machine for a while slows both. Of each run the steps behind the first few count, in means of ten of which the middle one is taken, without the last ten (the
slower run makes them alone), of each pair of runs the ratio, of
a round the geometric mean of both ratios, and of the rounds the median, with the range that 90 of 100 resampled sets of rounds have. `plain again` is the plain
run beside itself: what it differs from 1 by is noise. A limit is kept if the whole range is below it, missed if the range is above it, and else not decided.

Prints a line of JSON a variant; exits with 1 if a limit is missed, with 3 if one is not decided.
"""

import argparse
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# About 4 million parameters: steps of some tenths of a second on a core.
MODEL = [
    "model.num_layers=4", "model.hidden_size=256", "model.num_attention_heads=8", "model.ffn_hidden_size=688",
    "model.seq_length=256", "train.micro_batch_size=2", "train.global_batch_size=4", "validation.eval_iters=0",
    "logger.plot=false", "logger.log_interval=10",
]
SKIPPED = 5


def variants(steps):
    last = steps - 1
    return {
        "plain again": ([], [], None),
        "profiling": ([f"profiling.use_pytorch_profiler=true", "profiling.profile_step_start=0", f"profiling.profile_step_end={steps}"], [], 1.02),
        # All that can watch is there, and has nothing to do in the steps that are timed.
        "idle": (
            [
                "profiling.use_pytorch_profiler=true", f"profiling.profile_step_start={last}", f"profiling.profile_step_end={steps}",
                "tensor_inspect.enabled=true", f"tensor_inspect.features={{a={{LogTensorStats={{tensors=['weight'],stats=['max'],freq={10 * steps}}}}}}}",
                "dist.flight_recorder_dump_path=flight/calls-", "logger.prometheus_addr='127.0.0.1:0'",
                "straggler.log_straggler=true", "straggler.enable_straggler_on_startup=false", "straggler.straggler_ctrlr_port=0",
            ],
            [],
            1.01,
        ),
        "statistics": (
            ["tensor_inspect.enabled=true", "tensor_inspect.features={a={LogTensorStats={tensors='all',stats='all',freq=10}}}"],
            [],
            1.03,
        ),
        "heartbeats and scores": (
            ["ft.enable_ft_package=true", "checkpoint.save=saved", "nvrx_straggler.enabled=true", "nvrx_straggler.report_time_interval=5"],
            ["--max-restarts", "1"],
            1.02,
        ),
        "attention scores": (["logger.log_max_attention_logit=true"], [], 1.01),
        "memory history": (
            ["profiling.record_memory_history=true", "profiling.profile_step_start=0", f"profiling.profile_step_end={steps}"], [], None,
        ),
    }


def start(bridge, core, steps, overrides, arguments, folder):
    """A run on one core."""
    command = [bridge, "train", str(ROOT / "recipes/tiny.toml"), *MODEL, "train.num_threads=1", f"train.train_iters={steps}", *overrides, *arguments]
    bound = lambda: os.sched_setaffinity(0, {core})
    return subprocess.Popen(command, cwd=folder, preexec_fn=bound, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def seconds_of(process, folder):
    """Seconds of the middle step of a run that has been started."""
    _, said = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args)}\n{said}")
    lines = (pathlib.Path(folder) / "runs/tiny/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    # Statistics come every tenth step: a mean of whole tens has their share, a median would not.
    seconds = [r["seconds"] for r in records if r["kind"] == "train"][SKIPPED:]
    tens = [statistics.fmean(seconds[i : i + 10]) for i in range(0, len(seconds) - 9, 10)]
    return statistics.median(tens[:-1])


def beside(bridge, steps, cores, variant):
    """The ratio of a variant to the plain run, both at once, each on a core."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        plain = start(bridge, cores[0], steps, [], [], first)
        watched = start(bridge, cores[1], steps, *variant[:2], second)
        try:
            seconds = seconds_of(plain, first)
            return seconds_of(watched, second) / seconds
        finally:
            # Where one failed: the other, and what it started.
            for process in (plain, watched):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def interval(ratios, rng):
    """The median of the ratios, and where that of resampled ones lies."""
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[100], medians[1899]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", default=str(ROOT / "target/release/bridge"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=55)
    parser.add_argument("--only", nargs="*", help="names of variants")
    arguments = parser.parse_args()
    chosen = {n: v for n, v in variants(arguments.steps).items() if not arguments.only or n in arguments.only or n == "plain again"}
    ratios = {name: [] for name in chosen}
    bridge = str(pathlib.Path(arguments.bridge).resolve())
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two cores are needed, one for each of two runs")
    for turn in range(arguments.rounds):
        for name, variant in chosen.items():
            pair = [beside(bridge, arguments.steps, order, variant) for order in (cores, cores[::-1])]
            ratios[name].append(math.sqrt(pair[0] * pair[1]))
        print(f"round {turn + 1}: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in ratios.items()), file=sys.stderr)
    rng = random.Random(1)
    results = {name: interval(values, rng) for name, values in ratios.items()}
    code = 0
    for name, (middle, low, high) in results.items():
        limit = chosen[name][2]
        verdict = None if limit is None else "kept" if high <= limit else "missed" if low > limit else "undecided"
        code = 1 if verdict == "missed" else code or (3 if verdict == "undecided" else 0)
        print(json.dumps({"variant": name, "ratio": round(middle, 4), "range": [round(low, 4), round(high, 4)], "limit": limit, "verdict": verdict}))
    sys.exit(code)


if __name__ == "__main__":
    main()
