"""The PyTorch side of `cargo xtask bench`: training steps of the presets, or single operations.

Prints one JSON object. `step` trains a preset's model on random tokens: forward, backward, clipping, fused AdamW.
`ops` times forward and backward of single operations at the shapes of `bridge bench --ops`.

`--dtype bf16` is autocast over float32 parameters, or with `--masters` parameters of 16 bits with float32 copies that are
updated. `--dtype fp16` is autocast with a constant loss scale. On a CUDA device each time is between two moments at which it
has nothing to do, and memory is what the allocator counts: `peak_mib` is the most in tensors, `device_reserved_mib` the most
that was taken from the device.
"""

import argparse
import json
import resource
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Preset:
    gpt2: bool  # LayerNorm, learned positions, tanh GELU and biases; otherwise RMSNorm, rotary positions, SwiGLU
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    vocab: int
    seq: int
    batch: int
    tied: bool


PRESETS = {
    "nano-gpt2": Preset(True, 6, 384, 1536, 6, 6, 8192, 256, 8, False),
    "nano-llama": Preset(False, 6, 384, 1024, 6, 2, 8192, 256, 8, False),
    "smol-135m": Preset(False, 30, 576, 1536, 9, 3, 49152, 512, 1, True),
    "gpt2-124m": Preset(True, 12, 768, 3072, 12, 12, 50257, 256, 2, True),
    "llama-1b": Preset(False, 16, 2048, 8192, 32, 8, 128256, 2048, 4, True),
    "llama-8b-4l": Preset(False, 4, 4096, 14336, 32, 8, 128256, 2048, 2, False),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# As `bridge bench` has it.
LOSS_SCALE = 4096.0


def rotary_tables(length, head_size):
    frequencies = 10000.0 ** (-torch.arange(0, head_size, 2) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def swiglu(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Layer(nn.Module):
    def __init__(self, p):
        super().__init__()
        norm = nn.LayerNorm if p.gpt2 else RmsNorm
        self.preset, self.head_size = p, p.hidden // p.heads
        self.norm_attention, self.norm_mlp = norm(p.hidden), norm(p.hidden)
        self.qkv = nn.Linear(p.hidden, (p.heads + 2 * p.groups) * self.head_size, bias=p.gpt2)
        self.projection = nn.Linear(p.hidden, p.hidden, bias=p.gpt2)
        self.fc1 = nn.Linear(p.hidden, p.ffn if p.gpt2 else 2 * p.ffn, bias=p.gpt2)
        self.fc2 = nn.Linear(p.ffn, p.hidden, bias=p.gpt2)

    def forward(self, x, tables):
        p = self.preset
        b, t, c = x.shape
        heads = self.qkv(self.norm_attention(x)).view(b, t, -1, self.head_size).transpose(1, 2)
        q, k, v = heads.split((p.heads, p.groups, p.groups), dim=1)
        if tables is not None:
            q, k = rotate(q, *tables), rotate(k, *tables)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=p.groups != p.heads)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
        h = self.fc1(self.norm_mlp(x))
        return x + self.fc2(F.gelu(h, approximate="tanh") if p.gpt2 else swiglu(h))


class Model(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.tokens = nn.Embedding(p.vocab, p.hidden)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Embedding(p.seq, p.hidden) if p.gpt2 else None
        self.layers = nn.ModuleList(Layer(p) for _ in range(p.layers))
        self.norm = nn.LayerNorm(p.hidden) if p.gpt2 else RmsNorm(p.hidden)
        self.output = nn.Linear(p.hidden, p.vocab, bias=False)
        if p.tied:
            self.output.weight = self.tokens.weight
        if not p.gpt2:
            cos, sin = rotary_tables(p.seq, p.hidden // p.heads)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

    def forward(self, tokens, labels):
        x = self.tokens(tokens)
        tables = None
        if self.positions is None:
            tables = (self.cos, self.sin)
        else:
            x = x + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, tables)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), labels.flatten())


class Machine:
    """Where it runs, and its clock and memory."""

    def __init__(self, name):
        self.device = torch.device(name)
        self.is_cuda = self.device.type == "cuda"

    def settle(self):
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def now(self):
        self.settle()
        return time.perf_counter()

    def memory(self):
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if not self.is_cuda:
            return {"peak_mib": host}
        mib = lambda count: count // (1 << 20)
        return {
            "peak_mib": mib(torch.cuda.max_memory_allocated(self.device)),
            "device_reserved_mib": mib(torch.cuda.max_memory_reserved(self.device)),
            "host_peak_mib": host,
        }


class Masters:
    """Float32 copies of parameters of 16 bits: AdamW updates these, and the parameters are rounded from them."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.masters = [nn.Parameter(x.detach().float()) for x in parameters]

    def take_gradients(self):
        for master, parameter in zip(self.masters, self.parameters):
            master.grad = parameter.grad.float()
            parameter.grad = None

    def round(self):
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)


def step_report(options):
    started = time.perf_counter()
    machine = Machine(options.device)
    p = PRESETS[options.preset]
    p.batch, p.seq = options.micro_batch or p.batch, options.seq or p.seq
    dtype = DTYPES[options.dtype]
    with machine.device:
        model = Model(p)
        tokens, labels = (torch.randint(p.vocab, (p.batch, p.seq)) for _ in range(2))
    masters = None
    updated = list(model.parameters())
    if options.masters:
        # Tables of rotary positions stay wide, as their products do.
        for parameter in updated:
            parameter.data = parameter.data.to(dtype)
        masters = Masters(updated)
        updated = masters.masters
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(updated, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    scale = LOSS_SCALE if dtype == torch.float16 else 1.0
    seconds, losses, first_step = [], [], None
    for step in range(options.warmup + options.steps):
        start = machine.now()
        with torch.autocast(machine.device.type, dtype, enabled=dtype != torch.float32):
            loss = run(tokens, labels)
        (loss * scale if scale != 1.0 else loss).backward()
        if masters is not None:
            masters.take_gradients()
        if scale != 1.0:
            torch._foreach_mul_([x.grad for x in updated], 1.0 / scale)
        nn.utils.clip_grad_norm_(updated, 1.0)
        optimizer.step()
        if masters is not None:
            masters.round()
        optimizer.zero_grad(set_to_none=True)
        end = machine.now()
        first_step = first_step or end - started
        if step >= options.warmup:
            seconds.append(end - start)
        losses.append(round(loss.item(), 4))
    median = statistics.median(seconds)
    return {
        "preset": options.preset,
        "params": sum(x.numel() for x in model.parameters()),
        "tokens_per_step": p.batch * p.seq,
        "tokens_per_second": round(p.batch * p.seq / median, 1),
        "step_ms": round(median * 1e3, 2),
        "first_step_seconds": round(first_step, 1),
        **machine.memory(),
        "losses": losses,
    }


def operations(p, device):
    """Name -> (function, shapes of its inputs). The function's gradient is taken for all inputs."""
    b, t, c, h, g, d, f, v = p.batch, p.seq, p.hidden, p.heads, p.groups, p.hidden // p.heads, p.ffn, p.vocab
    n = b * t
    cos, sin = (x[None, None].to(device) for x in rotary_tables(t, d))
    labels = torch.randint(v, (n,), device=device)

    def attention(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=h != g).transpose(1, 2)

    def rotary(x):
        return rotate(x.transpose(1, 2), cos.to(x.dtype), sin.to(x.dtype)).transpose(1, 2)

    def linear(inputs, outputs, bias):
        return F.linear, [(n, inputs), (outputs, inputs)] + ([(outputs,)] if bias else [])

    return {
        "linear": linear(c, 4 * c, True),
        "rms_norm": (lambda x, w: F.rms_norm(x, (c,), w, 1e-5), [(n, c), (c,)]),
        "layer_norm": (lambda x, w, bias: F.layer_norm(x, (c,), w, bias, 1e-5), [(n, c), (c,), (c,)]),
        "rotary": (rotary, [(b, t, h, d)]),
        "swiglu": (swiglu, [(n, 2 * f)]),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [(n, 4 * c)]),
        "attention": (attention, [(b, t, h, d), (b, t, g, d), (b, t, g, d)]),
        "embedding": (lambda w: F.embedding(labels, w), [(v, c)]),
        "linear_cross_entropy": (lambda x, w: F.cross_entropy((x @ w.t()).float(), labels), [(n, c), (v, c)]),
        "qkv": linear(c, (h + 2 * g) * d, p.gpt2),
        "projection": linear(h * d, c, p.gpt2),
        "fc1": linear(c, f if p.gpt2 else 2 * f, p.gpt2),
        "fc2": linear(f, c, p.gpt2),
    }


def time_operation(machine, dtype, function, shapes, repeats):
    inputs = [(0.1 * torch.randn(shape, device=machine.device)).to(dtype).requires_grad_() for shape in shapes]
    gradient = torch.randn_like(function(*inputs))
    seconds = []
    # The first run chooses kernels.
    for _ in range(1 + repeats):
        start = machine.now()
        torch.autograd.grad(function(*inputs), inputs, gradient)
        seconds.append(machine.now() - start)
    return statistics.median(seconds[1:]) * 1e3


def time_adamw(machine, repeats):
    weight = nn.Parameter(torch.randn(1 << 22, device=machine.device))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(1 + repeats):
        start = machine.now()
        optimizer.step()
        seconds.append(machine.now() - start)
    return statistics.median(seconds[1:]) * 1e3


def ops_report(options):
    machine, p, dtype = Machine(options.device), PRESETS[options.preset], DTYPES[options.dtype]
    p.batch, p.seq = options.micro_batch or p.batch, options.seq or p.seq
    times = {}
    for name, operation in operations(p, machine.device).items():
        times[name] = time_operation(machine, dtype, *operation, options.steps)
    times["adamw"] = time_adamw(machine, options.steps)
    return {"preset": options.preset, "milliseconds": {name: round(ms, 4) for name, ms in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "ops"])
    parser.add_argument("--preset", default="nano-llama", choices=PRESETS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--masters", action="store_true", help="with bf16: parameters of 16 bits, float32 copies")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--seq", type=int)
    options = parser.parse_args()
    if options.masters and options.dtype != "bf16":
        parser.error("--masters: needs --dtype bf16")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    report = step_report(options) if options.what == "step" else ops_report(options)
    mode = ("compile" if options.compile else "eager") + (" masters" if options.masters else "")
    start = {"peer": f"torch {torch.__version__} {mode}", "threads": torch.get_num_threads()}
    print(json.dumps({**start, "device": options.device, "dtype": options.dtype, **report}))


if __name__ == "__main__":
    main()
