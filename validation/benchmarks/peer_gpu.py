#!/usr/bin/env python3
"""The peer of `tessera train` on one GPU: the same Llama shapes in plain PyTorch, compiled.

    peer_gpu.py [--shape 124m|1.5b|8b-cut] [--micro-batch N] [--sequence-length T] [--layers L] [--steps 20] [--json]

A step is forward, backward, clipping by the global norm and fused AdamW. The model is what a user of PyTorch writes for speed: bf16 weights and gradients
with fp32 masters and moments (what Tessera keeps too), torch.compile over the whole model, scaled_dot_product_attention restricted to its fast
backends (cuDNN, then flash), fused cross-entropy by the compiler. --master none keeps bf16 weights alone, --mode autocast keeps fp32 weights
under torch.autocast, --compile reduce-overhead runs forward and backward as CUDA graphs. The steps that count are timed together, between two
synchronizations, so that launches run ahead as they do in training. Prints tokens/s, MFU by both FLOP counts against the matmul rate that the same PyTorch
reaches in the same run, the peak of allocated memory in those steps, and which backend attention took. --device cpu with a small shape tries the script itself.
Exit status 77: torch is not installed, or there is no GPU.
"""

import argparse
import json
import os
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shapes import SHAPES, flops_per_token  # noqa: E402


WARM_UP = 5  # steps that do not count: they compile, and record CUDA graphs


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.dim = s["heads"], s["kv_heads"], s["width"] // s["heads"]
        self.attention_norm, self.mlp_norm = RMSNorm(s["width"]), RMSNorm(s["width"])
        self.qkv = nn.Linear(s["width"], (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(self.heads * self.dim, s["width"], bias=False)
        self.gate_up = nn.Linear(s["width"], 2 * s["ff"], bias=False)
        self.down = nn.Linear(s["ff"], s["width"], bias=False)

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, -1, self.dim).transpose(1, 2).split(
            (self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s["vocab"], s["width"])
        self.layers = nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.norm = RMSNorm(s["width"])
        self.head = nn.Linear(s["width"], s["vocab"], bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if s["tied"]:
            self.head.weight = self.embedding.weight
        dim = s["width"] // s["heads"]
        angle = torch.outer(torch.arange(s["length"]).float(), 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def matmul_rate(device, width):
    """FLOP/s of one square bf16 product on random data, best of ten."""
    a, b = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(13):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * width**3 / best


def attention_of(shape, device, backends):
    """The first of the backends allowed, in their order, that PyTorch says it can use for attention of this shape; what it runs follows the same test. To
    be called where they are in force. Unknown where this version of PyTorch has no such test."""
    if device != "cuda":
        return "math"
    try:
        cuda, dim = torch.backends.cuda, shape["width"] // shape["heads"]
        q, k, v = (torch.zeros(shape["batch"], shape["length"], heads, dim, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
                   for heads in (shape["heads"], shape["kv_heads"], shape["kv_heads"]))
        arguments = cuda.SDPAParams(q, k, v, None, 0.0, True, shape["kv_heads"] != shape["heads"])
        tests = {SDPBackend.CUDNN_ATTENTION: ("cuDNN", cuda.can_use_cudnn_attention), SDPBackend.FLASH_ATTENTION: ("flash", cuda.can_use_flash_attention)}
        return next((tests[backend][0] for backend in backends if backend in tests and tests[backend][1](arguments)), "neither cuDNN nor flash")
    except (AttributeError, TypeError, RuntimeError) as error:
        return f"unknown ({type(error).__name__})"


def make_step(shape, arguments):
    torch.manual_seed(1)
    bf16 = arguments.mode == "bf16"
    with torch.device(arguments.device):  # a billion random numbers take a processor half a minute
        model = Llama(shape)
    if bf16:
        model = model.to(torch.bfloat16)
    parameters = list(model.parameters())
    masters = bf16 and arguments.master == "fp32"
    master = [p.detach().float() for p in parameters] if masters else parameters
    optimizer = torch.optim.AdamW(master, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = model if arguments.eager else torch.compile(model, mode=arguments.compile)

    def step(tokens, targets):
        if arguments.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(arguments.device, torch.bfloat16, enabled=not bf16):
            loss = compiled(tokens, targets)
        loss.backward()
        if masters:
            for whole, p in zip(master, parameters):
                whole.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(master, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(parameters, master)
        return loss.detach().clone()  # a CUDA graph writes the next loss to the same place

    return step, sum(p.numel() for p in parameters)


def measure(shape, arguments):
    step, parameters = make_step(shape, arguments)
    batch, length, device = shape["batch"], shape["length"], arguments.device
    batches = [torch.randint(shape["vocab"], (batch, length + 1), device=device) for _ in range(4)]
    inputs = [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in batches]
    losses = [step(*inputs[i % 4]) for i in range(WARM_UP)]
    synchronize(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    losses += [step(*inputs[i % 4]) for i in range(arguments.steps)]
    synchronize(device)
    seconds = (time.perf_counter() - start) / arguments.steps
    peak_bytes = torch.cuda.max_memory_allocated() if device == "cuda" else None
    losses = [loss.item() for loss in losses]
    if not all(0 < loss < 20 for loss in losses):
        raise SystemExit(f"losses {losses}")
    full, causal = flops_per_token(shape)
    tokens = batch * length / seconds
    peak = matmul_rate(arguments.device, 8192 if arguments.device == "cuda" else 1024)
    return {"peer": "PyTorch " + torch.__version__, "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu", "shape": shape,
            "mode": arguments.mode, "master": arguments.master if arguments.mode == "bf16" else "fp32", "compiled": not arguments.eager,
            "compile": arguments.compile,
            "parameters": parameters, "tokens_per_second": tokens, "seconds_per_step": seconds, "matmul_flops": peak,
            "mfu_full": tokens * full / peak, "mfu_causal": tokens * causal / peak, "peak_bytes": peak_bytes, "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="124m")
    parser.add_argument("--micro-batch", type=int, help="sequences of a step")
    parser.add_argument("--sequence-length", type=int, help="tokens of a sequence")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mode", choices=("bf16", "autocast"), default="bf16")
    parser.add_argument("--master", choices=("fp32", "none"), default="fp32")
    parser.add_argument("--compile", choices=("default", "reduce-overhead"), default="default", help="torch.compile's mode")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU", file=sys.stderr)
        return 77
    given = {"batch": arguments.micro_batch, "length": arguments.sequence_length, "layers": arguments.layers}
    shape = {**SHAPES[arguments.shape], **{key: value for key, value in given.items() if value}}
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION] if arguments.device == "cuda" else [SDPBackend.MATH]
    with sdpa_kernel(backends, set_priority=True):
        attention = attention_of(shape, arguments.device, backends)
        print(f"attention: {attention}", file=sys.stderr)
        row = {**measure(shape, arguments), "attention": attention}
    memory = f"  peak {row['peak_bytes'] / 2**30:.2f} GiB" if row["peak_bytes"] else ""
    print(json.dumps(row) if arguments.json else
          f"{arguments.shape} {row['mode']}: {row['tokens_per_second']:.0f} tokens/s  {row['seconds_per_step']:.4f} s/step  MFU {100 * row['mfu_full']:.1f} % full, "
          f"{100 * row['mfu_causal']:.1f} % causal of {row['matmul_flops'] / 1e12:.1f} TFLOP/s{memory}; attention: {attention}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
