#!/usr/bin/env python3
"""The same deck gives the same bits over ZeRO stages, numbers of ranks, lanes, and across resume at another layout; in fast mode the same numbers
to 1e-5. Usage: same_bits.py reproducible|fast [--dtype fp32|bf16]"""
import argparse
import sys

import runs

# Stage x ranks, and 5 and 6 ranks once each.
MATRIX = [(stage, ranks) for stage in range(4) for ranks in (1, 2, 3, 4)] + [(3, 5), (2, 6)]


def layout_keys(stage, ranks):
    # Lanes on threads for some, limits that cut collectives and keep few units live for others: none of it may move a bit.
    keys = {"zero__stage": stage, "run__lanes": "threads" if (stage + ranks) % 2 else "inline"}
    if stage == 3:
        keys.update(zero__max_reuse_distance=0, zero__max_live_parameters=30000, zero__param_persistence_threshold=[0, 64, 2000, 100000][ranks % 4])
    if stage in (1, 2):
        keys.update(zero__reduce_bucket_size=4096, zero__allgather_bucket_size=4096, zero__sub_group_size=1024)
    return keys


def reproducible(folder, dtype):
    common = {"run__reproducible": True, "precision__compute": dtype}
    folder.train("reference", 1, zero__stage=0, checkpoint__every=7, checkpoint__keep=0, **common)
    losses, hashes = folder.losses("reference"), folder.hashes("reference")
    if len(losses) != 20 or not losses[20][0] < losses[1][0]:
        sys.exit(f"FAIL the reference run did not learn: {losses}")
    good = True
    matrix = MATRIX if dtype == "fp32" else [(0, 2), (1, 3), (2, 4), (3, 2), (3, 3)]
    for stage, ranks in matrix:
        name = f"stage{stage}-ranks{ranks}"
        folder.train(name, ranks, **layout_keys(stage, ranks), **common)
        good &= runs.same(name + " losses", folder.losses(name), losses)
        good &= runs.same(name + " state", folder.hashes(name), hashes)
    # From the reference's checkpoint of step 7 on, at other layouts, and from one of those on again.
    start = folder.run("reference") + "/checkpoints/step-00000007"
    for stage, ranks in ((3, 3), (1, 4), (2, 2)):
        name = f"resumed-stage{stage}-ranks{ranks}"
        folder.train(name, ranks, run__resume=start, checkpoint__every=5, checkpoint__keep=0, **layout_keys(stage, ranks), **common)
        good &= runs.same(name + " losses", folder.losses(name), {s: v for s, v in losses.items() if s > int(start[-8:])})
        good &= runs.same(name + " state", folder.hashes(name), hashes)
        start = folder.run(name) + "/checkpoints/" + ("step-00000010" if ranks == 3 else "step-00000015")
    return good


def fast_layouts():
    for stage, ranks in MATRIX:
        yield f"stage{stage}-ranks{ranks}", ranks, layout_keys(stage, ranks)
    for stage, ranks in ((0, 1), (1, 2), (2, 3)):  # packed copies of weights, made anew after each update
        yield f"packed-stage{stage}-ranks{ranks}", ranks, {"kernels__pack_weights": True, **layout_keys(stage, ranks)}


def fast(folder, dtype):
    bound = 1e-5 if dtype == "fp32" else 2e-2
    folder.train("reference", 1, zero__stage=0, precision__compute=dtype)
    reference = folder.losses("reference")
    good = True
    for name, ranks, keys in fast_layouts():
        folder.train(name, ranks, precision__compute=dtype, **keys)
        losses = folder.losses(name)
        worst = max(abs(losses[s][0] / reference[s][0] - 1) for s in reference)
        if worst > bound:
            print(f"FAIL {name}: losses differ by {worst:.2e} relative")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["reproducible", "fast"])
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    with runs.Folder() as folder:
        good = {"reproducible": reproducible, "fast": fast}[options.mode](folder, options.dtype)
    print("same" if good else "different")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
