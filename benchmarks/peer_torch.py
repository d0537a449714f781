"""The PyTorch side of `cargo xtask bench`: training steps of the presets, or single operations, on the CPU in float32.

Prints one JSON object. `step` trains a preset's model on random tokens: forward, backward, clipping, fused AdamW.
`ops` times forward and backward of single operations at the shapes of `bridge bench --ops`.
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
}


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
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), labels.flatten())


def step_report(options):
    p = PRESETS[options.preset]
    model = Model(p)
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens, labels = (torch.randint(p.vocab, (p.batch, p.seq)) for _ in range(2))
    seconds, losses = [], []
    for step in range(options.warmup + options.steps):
        start = time.perf_counter()
        loss = run(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= options.warmup:
            seconds.append(time.perf_counter() - start)
        losses.append(round(loss.item(), 4))
    median = statistics.median(seconds)
    return {
        "preset": options.preset,
        "params": sum(x.numel() for x in model.parameters()),
        "tokens_per_second": round(p.batch * p.seq / median, 1),
        "step_ms": round(median * 1e3, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "losses": losses,
    }


def operations():
    """Name -> (function, shapes of its inputs). The function's gradient is taken for all inputs."""
    b, t, c, h, g, d, f, v = 8, 256, 384, 6, 2, 64, 1024, 8192
    n = b * t
    cos, sin = (x[None, None] for x in rotary_tables(t, d))
    labels = torch.randint(v, (n,))

    def attention(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    return {
        "linear": (F.linear, [(n, c), (4 * c, c), (4 * c,)]),
        "rms_norm": (lambda x, w: F.rms_norm(x, (c,), w, 1e-5), [(n, c), (c,)]),
        "layer_norm": (lambda x, w, bias: F.layer_norm(x, (c,), w, bias, 1e-5), [(n, c), (c,), (c,)]),
        "rotary": (lambda x: rotate(x.transpose(1, 2), cos, sin).transpose(1, 2), [(b, t, h, d)]),
        "swiglu": (swiglu, [(n, 2 * f)]),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [(n, 4 * c)]),
        "attention": (attention, [(b, t, h, d), (b, t, g, d), (b, t, g, d)]),
        "embedding": (lambda w: F.embedding(labels, w), [(v, c)]),
        "linear_cross_entropy": (lambda x, w: F.cross_entropy(x @ w.t(), labels), [(n, c), (v, c)]),
    }


def time_operation(function, shapes, repeats):
    inputs = [(0.1 * torch.randn(shape)).requires_grad_() for shape in shapes]
    gradient = torch.randn_like(function(*inputs))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.autograd.grad(function(*inputs), inputs, gradient)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


def time_adamw(repeats):
    weight = nn.Parameter(torch.randn(1 << 22))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


def ops_report(options):
    times = {name: time_operation(*operation, options.steps) for name, operation in operations().items()}
    times["adamw"] = time_adamw(options.steps)
    return {"milliseconds": {name: round(ms, 4) for name, ms in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "ops"])
    parser.add_argument("--preset", default="nano-llama", choices=PRESETS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    report = step_report(options) if options.what == "step" else ops_report(options)
    mode = "compile" if options.compile else "eager"
    print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "threads": torch.get_num_threads(), **report}))


if __name__ == "__main__":
    main()
