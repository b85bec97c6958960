#!/usr/bin/env python3
"""AdamW in 8 bits beside bitsandbytes on the same numbers: both codes' 256 values, and ten steps of its blockwise optimizer. Where a block's largest moment is
positive, as our scale keeps it, its codes are ours but where two values are as near; where it is negative, bitsandbytes has no -1, so that steps come near.

    check_adam8bit.py     ADAM8BIT_VALUES in the environment names our program"""
import os
import subprocess
import sys

import torch

try:
    import bitsandbytes.backends.cpu.ops as peer_ops
    import bitsandbytes.functional as peer
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

N, STEPS, BLOCK = 64 * 256, 10, 256


def ours(arguments, *numbers):
    data = b"".join(x.contiguous().numpy().tobytes() for x in numbers)
    return bytearray(subprocess.run([os.environ["ADAM8BIT_VALUES"], *map(str, arguments)], input=data, stdout=subprocess.PIPE, check=True).stdout)


def nearest(numbers, code, scales, codes, block):
    """bitsandbytes' own definition, which it uses of types other than fp32: of that its library for processors takes values that are not the nearest."""
    made, most = torch.ops.bitsandbytes.quantize_blockwise(numbers.double(), code, block)
    codes.copy_(made), scales.copy_(most)


peer_ops._quant_blockwise_fp32_direct = nearest


def maps():
    return peer.create_dynamic_map(True), peer.create_dynamic_map(False)


def check_maps():
    """bitsandbytes computes its values in fp32, so that they are rounded up to four times."""
    good = True
    for made, wanted, name in zip(torch.frombuffer(ours(["maps"]), dtype=torch.float32).view(2, 256), maps(), ("with signs", "without")):
        apart = (made.view(torch.int32) - wanted.view(torch.int32)).abs()
        print(f"values {name}: {int((apart == 0).sum())} of 256 the same bits, others up to {int(apart.max())} units of the last place apart")
        good &= bool((apart <= 4).all())
    return good


def peer_steps(weights, gradients):
    signed, unsigned = maps()
    weights, after = weights.clone(), []
    m, v = (torch.full((N,), int((code == 0).nonzero()), dtype=torch.uint8) for code in (signed, unsigned))
    scales = torch.zeros(2, N // BLOCK)
    for step, gradient in enumerate(gradients, 1):
        torch.ops.bitsandbytes.optimizer_update_8bit_blockwise("adam", gradient, weights, m, v, 0.9, 0.95, 0.0, 0.0, 1e-8, step, 1e-2, signed, unsigned,
                                                               scales[0], scales[1], 0.1, 1.0, False)
        after.append(weights.clone())
    return torch.stack(after), m, v


def check_steps(positive):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(N, generator=generator)
    # None so small beside its block's largest that its square is kept as 0: then the step is a moment over eps.
    gradients = (torch.rand(STEPS, N, generator=generator) + 0.5) * torch.exp2(torch.randint(-4, 1, (N,), generator=generator).float())
    gradients *= torch.randint(0, 2, (STEPS, N), generator=generator) * 2 - 1
    if positive:
        gradients[:, ::BLOCK] = 2
    wanted, m, v = peer_steps(weights, gradients)
    data = ours(["steps", N, STEPS], weights, gradients)
    made = torch.frombuffer(data, dtype=torch.float32, count=STEPS * N).view(STEPS, N)
    codes = torch.frombuffer(data, dtype=torch.uint8, offset=4 * STEPS * N).view(2, N)
    apart = float((made - wanted).norm() / (wanted - weights).norm())
    same = [float((mine == theirs).float().mean()) for mine, theirs in zip(codes, (m, v))]
    print(f"ten steps, largest moments {'positive' if positive else 'of any sign'}: {apart:.1e} of the way apart, the same codes {same[0]:.2%} of m, {same[1]:.2%} of v")
    return (apart < 1e-4 and min(same) > 0.999) if positive else (apart < 0.02 and same[1] > 0.999)


def main():
    checks = [check_maps(), check_steps(True), check_steps(False)]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
