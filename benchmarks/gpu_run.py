"""What `on_a_gpu.sh` measures, in parts, the most important first; each has a limit, and all together have one.

    python3 gpu_run.py [--device cuda] [--total 470] FOLDER OUT [PART ...]

FOLDER is what `pack_for_gpu.sh` made. OUT gets `results.jsonl` (a line for each program that ran), `summary.txt`, a table of
kernels for each profile, and `logs.tar.gz` with what the programs said. On another device than `cuda` the sizes are tiny: that
only shows that the parts run.
"""

import argparse
import gzip
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_times

HERE = Path(__file__).resolve().parent
# Name of a model's part -> preset, tokens a sequence, sequences.
MODELS = {"gpt2": ("gpt2-124m", 1024, 16), "llama1b": ("llama-1b", 2048, 4), "llama8b": ("llama-8b-4l", 2048, 2)}
TINY = {"gpt2": ("nano-gpt2", 16, 1), "llama1b": ("nano-llama", 16, 1), "llama8b": ("nano-llama", 16, 2)}
# Tests at once: each is a process with its own context on the device.
AT_ONCE = 6


def cuda_environment():
    """Where programs that load CUDA's libraries and headers by name find them: a toolkit, or the packages that PyTorch came with."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in spec.submodule_search_locations] if spec else []
    toolkits = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ]
    toolkits += [Path("/usr/local/cuda"), Path("/opt/cuda"), *(part for folder in packages if folder.is_dir() for part in sorted(folder.iterdir()))]
    libraries = []
    for name in ("libnvrtc.so*", "libcublasLt.so*"):
        folders = [toolkit / lib for toolkit in toolkits for lib in ("lib64", "lib") if any((toolkit / lib).glob(name))]
        libraries += [str(folder) for folder in folders[:1] if str(folder) not in libraries]
    # CubeCL's compiler links the mathematical functions of libdevice.
    toolkits.sort(key=lambda toolkit: not (toolkit / "nvvm/libdevice/libdevice.10.bc").exists())
    with_headers = [str(toolkit) for toolkit in toolkits if (toolkit / "include/cuda_fp16.h").exists()]
    paths = [*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    found = {"CUDA_PATH": with_headers[0]} if with_headers else {}
    return {**found, "LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else found


class Session:
    """Runs programs within the time that is left, and notes what became of them."""

    def __init__(self, options):
        self.folder, self.out, self.device = options.folder.resolve(), options.out.resolve(), options.device
        self.is_cuda = self.device.startswith("cuda")
        self.models = MODELS if self.is_cuda else TINY
        self.steps, self.warmup = (10, 3) if self.is_cuda else (1, 1)
        self.end = time.monotonic() + options.total
        self.part_end = self.end
        # Outside of any repository: CubeCL would keep its choices in a target folder.
        self.work = Path(tempfile.mkdtemp(prefix="on-a-gpu-"))
        self.logs = self.work / "logs"
        self.logs.mkdir()
        self.compiled = [self.work / "inductor", self.work / "triton"]
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        caches = {name: str(folder) for name, folder in zip(names, self.compiled)}
        self.environment = {**os.environ, "RUST_BACKTRACE": "0", "XDG_CACHE_HOME": str(self.work / "cache"), **caches}
        # Not for PyTorch, which has its own.
        self.cuda = cuda_environment() if self.is_cuda else {}
        self.results = []

    def begin(self, limit):
        self.part_end = min(self.end, time.monotonic() + limit)

    def left(self):
        return self.part_end - time.monotonic()

    def note(self, **result):
        self.results.append(result)
        with open(self.out / "results.jsonl", "a") as file:
            file.write(json.dumps(result) + "\n")
        said = {key: value for key, value in result.items() if key not in ("report", "kernels", "said")}
        print(json.dumps(said), flush=True)
        return result

    def run(self, part, label, command, limit, folder=None, environment=None):
        """A program's end, its seconds and its last line of output, which is JSON where it reports."""
        seconds = min(limit, self.left())
        if seconds < 5:
            return {"part": part, "label": label, "rc": None, "said": "no time was left"}
        begun, log = time.monotonic(), self.logs / f"{part}-{label}".replace("/", "_").replace(":", "_")
        with open(f"{log}.out", "w") as out, open(f"{log}.err", "w") as err:
            try:
                program = subprocess.Popen(
                    [str(word) for word in command], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                    cwd=folder or self.work, env=self.environment_of(command, environment), start_new_session=True,
                )
            except OSError as error:
                return {"part": part, "label": label, "rc": None, "said": str(error)}
            try:
                rc = program.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
                rc = "limit"
                if "--compile" in command:
                    # What it wrote last may be half a file, and PyTorch would load it.
                    for written in self.compiled:
                        shutil.rmtree(written, ignore_errors=True)
        lines = Path(f"{log}.out").read_text(errors="replace").splitlines()
        result = {"part": part, "label": label, "rc": rc, "seconds": round(time.monotonic() - begun, 1)}
        try:
            result["report"] = json.loads(lines[-1])
        except (IndexError, ValueError):
            pass
        if rc != 0:
            result["said"] = (Path(f"{log}.err").read_text(errors="replace") + "\n".join(lines[-40:]))[-1500:]
        return result

    def environment_of(self, command, more=None):
        is_ours = Path(command[0]).is_relative_to(self.folder)
        return {**self.environment, **(self.cuda if is_ours else {}), **(more or {})}

    def bridge(self, *words):
        return [self.folder / "bridge", *words]

    def ours(self, model, steps=None, warmup=None):
        preset, seq, batch = self.models[model]
        steps, warmup = steps or self.steps, warmup or self.warmup
        words = ["bench", "--json", "--device", self.device, "--dtype", "bf16", "--preset", preset, "--seq", seq]
        return self.bridge(*words, "--micro-batch", batch, "--steps", steps, "--warmup", warmup)

    def peer(self, model, what="step", *more):
        preset, seq, batch = self.models[model]
        device = self.device if self.is_cuda else "cpu"
        words = [sys.executable, HERE / "peer_torch.py", what, "--preset", preset, "--seq", seq, "--micro-batch", batch]
        return [*words, "--steps", self.steps, "--device", device, "--dtype", "bf16", *more]


def machine(session):
    torch = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available() and torch.cuda.get_device_name())"
    programs = {
        "bridge": session.bridge("--version"),
        "torch": [sys.executable, "-c", torch],
        "nvidia-smi": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"],
    }
    for label, command in programs.items():
        result = session.run("machine", label, command, 30)
        said = (session.logs / f"machine-{label}.out").read_text().strip() if result["rc"] == 0 else result.get("said", "")
        session.note(**{**result, "said": said[-500:]})
    session.note(part="machine", label="cuda", rc=0, said=json.dumps(session.cuda))


def steps_of(model):
    """A model's steps by both sides, in alternation."""

    def part(session):
        for turn in (1, 2):
            session.note(turn=turn, **session.run(model, f"bridge-{turn}", session.ours(model), 100))
            session.note(turn=turn, **session.run(model, f"eager-{turn}", session.peer(model), 60))
            session.note(turn=turn, **session.run(model, f"compile-{turn}", session.peer(model, "step", "--compile"), 100))
        if session.is_cuda:
            more = session.peer(model, "step", "--compile", "--masters")
            session.note(turn=1, **session.run(model, "masters-1", more, 100))

    return part


def tests_of(name, at_once, limit):
    """Each test of an executable in a process of its own."""

    def part(session):
        program = session.folder / "tests" / name
        if not program.exists():
            session.note(part=name, label="tests", rc=None, said=f"there is no {program}")
            return
        listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, timeout=60, env=session.environment_of([program]))
        tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
        environment = {"BRIDGE_UNDER_TEST": str(session.folder / "bridge"), "BRIDGE_SOURCES": str(session.folder / "sources")}
        if not tests:
            session.note(part=name, label="tests", rc=listed.returncode, said=f"no test is listed: {listed.stderr[-500:]}")

        def one(test):
            return session.run(name, test, [program, "--exact", test, "--nocapture"], limit, None, environment)

        with ThreadPoolExecutor(at_once) as pool:
            for result in pool.map(one, tests):
                session.note(**result)

    return part


def profile_of(model):
    def part(session):
        folder = session.work / f"profile-{model}"
        folder.mkdir()
        log = folder / "kernels.log"
        (folder / "cubecl.toml").write_text(f'[profiling]\nlogger = {{ level = "full", file = "{log}" }}\n')
        result = session.run(f"profile-{model}", "bridge", session.ours(model, 2, 1), 100, folder)
        if log.exists():
            with open(log, encoding="utf-8", errors="replace") as file:
                table, steps, unmeasured = kernel_times.report(file, 2, by_grid=True)
            with open(log, encoding="utf-8", errors="replace") as file:
                by_name, _, _ = kernel_times.report(file, 2)
            milliseconds = [r["report"]["step_ms"] for r in session.results if r["part"] == model and r["label"].startswith("bridge") and "report" in r]
            step_ms = min(milliseconds, default=None)
            texts = [kernel_times.text(rows, steps, unmeasured, 60, step_ms) for rows in (by_name, table)]
            (session.out / f"kernels-{model}.txt").write_text("\n\n".join(texts) + "\n")
            result["kernels"] = by_name[:40]
            with open(log, "rb") as raw, gzip.open(session.work / "logs" / f"kernels-{model}.log.gz", "wb") as packed:
                shutil.copyfileobj(raw, packed)
        session.note(**result)

    return part


def operations(session):
    for model in ("llama1b", "gpt2"):
        ours = session.ours(model)
        session.note(**session.run("ops", f"bridge-{model}", [*ours[:-2], "--ops"], 100))
        session.note(**session.run("ops", f"eager-{model}", session.peer(model, "ops"), 60))


def without_cublaslt(session):
    """The same steps where a library without functions stands in front of cuBLASLt, so that products are Burn's."""
    folder = session.folder / "lib/no_cublaslt"
    path = os.pathsep.join(filter(None, [str(folder), session.cuda.get("LD_LIBRARY_PATH")]))
    if not (folder / "libcublasLt.so").exists():
        session.note(part="no-cublaslt", label="all", rc=None, said=f"there is no {folder}/libcublasLt.so")
        return
    for model in ("gpt2", "llama1b"):
        result = session.run("no-cublaslt", f"bridge-{model}", session.ours(model), 120, None, {"LD_LIBRARY_PATH": path})
        session.note(**result)


# Name -> what runs, and its limit in seconds. In the order of importance.
PARTS = {
    "machine": (machine, 40),
    "gpt2": (steps_of("gpt2"), 130),
    "profile-gpt2": (profile_of("gpt2"), 60),
    "llama1b": (steps_of("llama1b"), 130),
    "kernels": (tests_of("kernels", AT_ONCE, 60), 90),
    "profile-llama1b": (profile_of("llama1b"), 60),
    "ops": (operations, 70),
    "runs": (tests_of("runs", 2, 80), 80),
    "no-cublaslt": (without_cublaslt, 80),
    "llama8b": (steps_of("llama8b"), 120),
}


def medians(session, model, key):
    """Of each side, the middle of its runs of a model."""
    found = {}
    for result in session.results:
        value = result.get("report", {}).get(key) if result["part"] == model else None
        if value is not None:
            found.setdefault(result["label"].rsplit("-", 1)[0], []).append(value)
    return {side: sorted(values)[len(values) // 2] for side, values in found.items()}


def summary(session):
    lines = []
    for result in session.results:
        if result["part"] == "machine":
            lines.append(f"{result['label']}: {result.get('said')}")
    for model in MODELS:
        speeds = medians(session, model, "tokens_per_second")
        if not speeds:
            continue
        lines += ["", f"{session.models[model]}, bf16 on {session.device}"]
        keys = ["step_ms", "peak_mib", "device_reserved_mib", "device_in_use_mib", "host_peak_mib", "first_step_seconds"]
        figures = {key: medians(session, model, key) for key in keys}
        for side, speed in speeds.items():
            ratio = speeds.get("bridge", 0.0) / speed
            rest = ", ".join(f"{key} {values[side]}" for key, values in figures.items() if side in values)
            lines.append(f"  {side:<8} {speed:>12.1f} tokens/s (bridge / it {ratio:.3f}), {rest}")
    for name in ("kernels", "runs"):
        tests = [result for result in session.results if result["part"] == name and result["label"] not in ("all", "tests")]
        if tests:
            ran = [test for test in tests if test["rc"] is not None]
            bad = [f"{test['label']} ({test['rc']})" for test in ran if test["rc"] != 0]
            lines += ["", f"tests of {name}: {len(ran) - len(bad)} of {len(ran)} passed, {len(tests) - len(ran)} not run"]
            lines += [f"  failed: {test}" for test in bad]
    for model in MODELS:
        path = session.out / f"kernels-{model}.txt"
        if path.exists():
            lines += ["", f"kernels of {model}", *(f"  {line}" for line in path.read_text().splitlines()[:16])]
    for model in ("llama1b", "gpt2"):
        reports = {r["label"].split("-")[0]: r["report"]["milliseconds"] for r in session.results if r["part"] == "ops" and r["label"].endswith(model) and "report" in r}
        ours, theirs = reports.get("bridge", {}), reports.get("eager", {})
        if ours:
            lines += ["", f"operations of {model}, forward and backward: ms, PyTorch's ms, speed / PyTorch"]
        for name, ms in ours.items():
            other = theirs.get(name)
            lines.append(f"  {name:<22} {ms:>9.3f}" + (f" {other:>9.3f} {other / ms:>6.2f}" if other else ""))
    for result in session.results:
        if result["part"] == "no-cublaslt" and "report" in result:
            lines += ["", f"without cuBLASLt, {result['label']}: {result['report']['tokens_per_second']} tokens/s"]
    failed = [r for r in session.results if r["rc"] not in (0, None) and r["part"] not in ("kernels", "runs")]
    lines += ["", *(f"failed: {r['part']} {r['label']} ({r['rc']}): {r.get('said', '')[-300:]}" for r in failed)]
    skipped = [f"{r['part']} {r['label']}" for r in session.results if r["rc"] is None and r["part"] not in ("kernels", "runs")]
    lines += [f"not run: {', '.join(skipped)}"] if skipped else []
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--total", type=float, default=470.0, help="seconds that all parts may take")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{', '.join(unknown)}: the parts are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options)
    for name, (part, limit) in PARTS.items():
        if options.parts and name not in options.parts:
            continue
        session.begin(limit)
        if session.left() < 5:
            session.note(part=name, label="all", rc=None, said="no time was left")
            continue
        try:
            part(session)
        except Exception as error:  # What is left is measured all the same.
            session.note(part=name, label="all", rc="error", said=repr(error))
    text = summary(session)
    (session.out / "summary.txt").write_text(text + "\n")
    with tarfile.open(session.out / "logs.tar.gz", "w:gz") as packed:
        packed.add(session.logs, "logs")
    shutil.rmtree(session.work, ignore_errors=True)
    print(text)


if __name__ == "__main__":
    main()
