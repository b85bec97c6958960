#!/usr/bin/env python3
"""fp8 beside PyTorch: the codes of every bf16 are those of its casts, clamped; codes and scales of matrices are those of the definition in its words, and so are delayed scales over steps; products
of whole numbers with scales that are powers of two have the bits of torch._scaled_mm, and others come near.

    check_fp8.py     FP8_VALUES in the environment names our program"""
import os
import subprocess
import sys

import torch

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
TENSOR, ROWS, ROW_BLOCKS, SQUARE_BLOCKS = range(4)
BLOCK = 128


def ours(arguments, *matrices):
    data = b"".join(m.contiguous().view(torch.uint8).numpy().tobytes() for m in matrices)
    return subprocess.run([os.environ["FP8_VALUES"], *map(str, arguments)], input=data, stdout=subprocess.PIPE, check=True).stdout


def bytes_of(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def clamped(x, name):
    largest = torch.finfo(TYPES[name]).max
    return x.clamp(-largest, largest).to(TYPES[name])


def check_casts():
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    codes = bytes_of(ours(["casts"])).view(2, -1)
    number = ~every.isnan()
    good = True
    for made, name in zip(codes, TYPES):
        wanted = clamped(every, name)
        good &= bool((made == wanted.view(torch.uint8))[number].all()) and bool(made.view(TYPES[name]).float()[~number].isnan().all())
    return good


def largest_magnitudes(x, scaling):
    """Of the elements that share a scale, as a matrix that repeats them, and as it is."""
    rows, columns = x.shape
    if scaling == TENSOR:
        most = x.abs().max().reshape(1, 1)
        return most.expand(rows, columns), most
    if scaling == ROWS:
        most = x.abs().amax(1, keepdim=True)
        return most.expand(rows, columns), most
    high, wide = (1, BLOCK) if scaling == ROW_BLOCKS else (BLOCK, BLOCK)
    down, across = -(-rows // high), -(-columns // wide)
    whole = torch.zeros(down * high, across * wide)
    whole[:rows, :columns] = x
    most = whole.abs().view(down, high, across, wide).amax((1, 3))
    return most.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :columns], most


def multipliers(most, name, scaling):
    most, largest = most.double().clamp(min=1e-12), torch.finfo(TYPES[name]).max
    if scaling in (TENSOR, ROWS):
        return (largest / most).float()
    return torch.exp2(-torch.ceil(torch.log2(most / largest))).float()


def check_matrices(generator):
    good = True
    for rows, columns in ((1, 1), (33, 130), (256, 384)):
        x = (torch.randn(rows, columns, generator=generator) * torch.exp2(torch.randint(-9, 9, (rows, 1), generator=generator).float())).bfloat16()
        for name in TYPES:
            for scaling in range(4):
                for transposed in (False, True):
                    mine = (x.t() if transposed else x).float()
                    each, most = largest_magnitudes(mine, scaling)
                    codes = clamped(mine * multipliers(each, name, scaling), name).view(torch.uint8)
                    scales = 1 / multipliers(most, name, scaling)
                    data = ours(["quantise", name, scaling, int(transposed), rows, columns], x)
                    same = data == codes.contiguous().numpy().tobytes() + scales.contiguous().numpy().tobytes()
                    if not same:
                        print(f"FAIL {rows} x {columns} in {name}, scaling {scaling}, transposed {transposed}")
                    good &= same
    return good


def check_delayed(generator):
    """The recipe of Transformer Engine, written out: a step's codes have the scale of the steps before."""
    good, steps, (rows, columns) = True, 5, (33, 70)
    for tensor, name in enumerate(("e4m3", "e5m2", "e4m3")):
        for margin, length in ((0, 1024), (2, 2)):
            x = [(torch.randn(rows, columns, generator=generator) * size).bfloat16() for size in (3e-3, 40, 0, 0.5, 7e4)]
            data = ours(["delayed", tensor, margin, length, steps, rows, columns], *x)
            history, scale, wanted = torch.zeros(length), torch.tensor(1.), b""
            for step in range(steps):
                wanted += clamped(x[step].float() * scale, name).view(torch.uint8).numpy().tobytes()
                history = history.roll(1)
                history[0] = x[step].float().abs().max()
                amax = history.max().double()
                scale = (torch.finfo(TYPES[name]).max / amax / 2**margin).float() if amax > 0 else torch.tensor(1.)
                wanted += scale.numpy().tobytes()
            if data != wanted:
                print(f"FAIL delayed scales of tensor {tensor}, margin {margin}, {length} steps")
            good &= data == wanted
    return good


def scaled_mm(a, b, name, scaling):
    def codes(x, name):
        by = multipliers(largest_magnitudes(x.float(), scaling)[1], name, scaling)
        return clamped(x.float() * by, name), 1 / by
    (x, x_scale), (y, y_scale) = codes(a, name), codes(b, "e4m3")
    shape = () if scaling == TENSOR else (-1, 1)
    return torch._scaled_mm(x, y.t(), scale_a=x_scale.reshape(shape), scale_b=y_scale.reshape(shape).t() if shape else y_scale.reshape(()),
                            out_dtype=torch.bfloat16)


def check_products(generator):
    good, (M, N, K) = True, (48, 80, 160)
    for name in TYPES:
        for scaling in (TENSOR, ROWS):
            def whole(rows):
                """Quarters whose largest magnitude is 1.75, times a power of two a row: all sums are exact."""
                x = torch.randint(-7, 8, (rows, K), generator=generator).float() / 4
                x[:, 0] = 1.75
                return (x * torch.exp2(torch.randint(-3, 3, (rows, 1), generator=generator).float()) if scaling == ROWS else x).bfloat16()

            def normal(rows):
                return torch.randn(rows, K, generator=generator).bfloat16()
            for draw, exact in ((whole, True), (normal, False)):
                a, b = draw(M), draw(N)
                wanted = scaled_mm(a, b, name, scaling)
                made = bytes_of(ours(["product", name, scaling, M, N, K], a, b)).view(torch.bfloat16).view(M, N)
                difference = (made.double() - wanted.double()).norm() / wanted.double().norm()
                same = torch.equal(made, wanted) if exact else difference < 3e-3
                if not same:
                    print(f"FAIL product in {name}, scaling {scaling}, exact {exact}: {difference:.2e} relative")
                good &= bool(same)
    return good


def main():
    generator = torch.Generator().manual_seed(1)
    checks = {"casts": check_casts(), "matrices": check_matrices(generator), "delayed scales": check_delayed(generator), "products": check_products(generator)}
    for name, good in checks.items():
        print(f"{name}: {'the same' if good else 'DIFFERENT'}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
