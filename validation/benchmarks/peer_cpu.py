#!/usr/bin/env python3
"""The peer of `tessera train` on CPU: PyTorch and transformers, the GPT-2-124M-sized Llama, one training step at a time.

    peer_cpu.py [--threads 2] [--steps 3] [--sequence-length 1024] [--micro-batch 1] [--modes fp32,autocast,bf16] [--compile] [--json]

A step is forward, backward, clipping and fused AdamW, as in a user's script: transformers' LlamaForCausalLM with PyTorch's own attention (SDPA).
    fp32      everything in fp32
    autocast  fp32 weights, torch.autocast to bf16: the usual way
    bf16      bf16 weights and gradients, fp32 master weights updated by AdamW and copied back: what Tessera does
With --compile torch.compile makes one program of the forward pass with the loss, and one of the backward pass.
Prints tokens/s (median), and model FLOP/s against the matmul rate that the same PyTorch reaches in the same run.
Exit status 77: torch or transformers is not installed (scripts/setup --peer).
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

LAYERS, WIDTH, HEADS, FF, VOCAB = 12, 768, 12, 2048, 50304


def make_model(dtype):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=FF,
        vocab_size=VOCAB, tie_word_embeddings=True, max_position_embeddings=4096, rms_norm_eps=1e-5)
    config._attn_implementation = "sdpa"
    return transformers.LlamaForCausalLM(config).to(dtype).train()


def matmul_rate(dtype, width=2048, seconds=1.0):
    """FLOP/s of one square matrix product, best of what fits in the time."""
    a, b = torch.randn(width, width).to(dtype), torch.randn(width, width).to(dtype)
    torch.mm(a, b)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * width**3 / best


def make_step(mode, compiled):
    """A function that trains one step on (tokens, targets) and returns the loss."""
    model = make_model(torch.bfloat16 if mode == "bf16" else torch.float32)
    parameters = list(model.parameters())
    master = [p.detach().float() for p in parameters] if mode == "bf16" else parameters
    optimizer = torch.optim.AdamW(master, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(tokens, targets):
        logits = model(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().view(-1, VOCAB), targets.view(-1))

    if compiled:
        loss_of = torch.compile(loss_of)

    def step(tokens, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            loss = loss_of(tokens, targets)
        loss.backward()
        if mode == "bf16":
            for whole, p in zip(master, parameters):
                whole.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(master, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if mode == "bf16":
            with torch.no_grad():
                torch._foreach_copy_(parameters, master)
        return loss.item()

    return step, sum(p.numel() for p in parameters)


def measure(mode, arguments):
    step, parameters = make_step(mode, arguments.compile)
    batch, length = arguments.micro_batch, arguments.sequence_length
    seconds = []
    warmups = 2 if arguments.compile else 1
    for number in range(arguments.steps + warmups):
        ids = torch.randint(VOCAB, (batch, length + 1))
        start = time.perf_counter()
        loss = step(ids[:, :-1], ids[:, 1:].contiguous())
        seconds.append(time.perf_counter() - start)
        if not loss < 20:
            raise SystemExit(f"{mode}: step {number} has the loss {loss}")
    median = statistics.median(seconds[warmups:])
    flops = 6 * parameters + 12 * LAYERS * WIDTH * length  # per token, full attention; the head is the embedding and counts once
    causal = 6 * parameters + 6 * LAYERS * WIDTH * length
    tokens = batch * length / median
    peak = matmul_rate(torch.float32 if mode == "fp32" else torch.bfloat16)
    return {"mode": mode, "tokens_per_second": tokens, "seconds_per_step": median, "parameters": parameters, "gflops_full_attention": tokens * flops / 1e9,
            "gflops_causal": tokens * causal / 1e9, "matmul_gflops": peak / 1e9, "share_of_matmul": tokens * flops / peak, "threads": arguments.threads, "compiled": arguments.compile,
            "micro_batch": batch, "sequence_length": length, "torch": torch.__version__, "transformers": transformers.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--modes", default="fp32,autocast,bf16")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--json", action="store_true", help="one JSON object a mode")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for mode in arguments.modes.split(","):
        if mode not in ("fp32", "autocast", "bf16"):
            parser.error(f"no mode {mode}; there are fp32, autocast, bf16")
        row = measure(mode, arguments)
        print(json.dumps(row) if arguments.json else
              f"{mode:9}{row['tokens_per_second']:8.1f} tokens/s  {row['seconds_per_step']:6.2f} s/step  {row['gflops_full_attention']:6.1f} GFLOP/s "
              f"= {100 * row['share_of_matmul']:.0f} % of PyTorch's matmul ({row['matmul_gflops']:.0f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
