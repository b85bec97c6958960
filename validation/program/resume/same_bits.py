#!/usr/bin/env python3
"""The same deck gives the same bits over ZeRO stages, numbers of ranks, lanes, and across resume at another layout; in fast mode the same numbers
to 1e-5. Usage: same_bits.py reproducible|fast|gradients|tensor|shared_keys|context|ring|pipeline|replicas|nodes|frozen [--dtype fp32|bf16] [--device host|cuda]
                same_bits.py experts [--dtype fp32|bf16] [--device host|cuda]      the same of a model with experts, some of whose tokens are dropped,
                                                    with its experts cut over ranks, and beside ranks that cut its tokens
                same_bits.py optimizers [--dtype fp32|bf16] [--device host|cuda]      each optimizer over a part of the layouts, and across a resume
                same_bits.py shapes [--seed N]      models and layouts drawn at random: 2 models of 3 layouts; with TESSERA_TEST_FULL=1 in the
                                                    environment 8 of 12
Runs have 8 steps of 28 sequences, on GPUs 3 of 3, or of 5 in `reproducible` and `fast`. A third of the matrix is made, and of the other modes' layouts a third on the
host and another one on GPUs: which, TESSERA_TEST_DRAW says, so that landings cover all. With TESSERA_TEST_FULL=1 they have 20 of 60 and 5 of 5,
`reproducible` runs every mode of recompute at every stage on 1, 2 and 3 ranks too, and each mode all of its layouts in each type and on each device.
The reference of a fast mode on GPUs runs on the host: both devices must agree."""
import argparse
import fnmatch
import itertools
import json
import math
import os
import random
import re
import struct
import sys

import runs
from drawn import DRAW, FULL, third


def drawn(layouts):
    """A third of them, by the draw; all where there is time."""
    return [layout for number, layout in enumerate(layouts) if FULL or (number + DRAW) % 3 == 0]


# 14 micro-batches, or 30 (5 on GPUs): some numbers of ranks cannot share them evenly, and run empty ones.
HOST_MATRIX = drawn([(stage, ranks) for stage in range(4) for ranks in (1, 2, 3, 4)] + [(3, 5), (2, 6)])  # 5 and 6 ranks once each
AFTER = (7, 10, 15) if FULL else (2, 4, 6)  # steps on the host after which layouts resume one another

# Of each device: layouts (stage, ranks) by mode and type, those that resume one another after the step that is named last, and keys. Ranks may
# share a GPU, and GPUs may be emulated, so theirs are fewer and smaller: an emulated one takes as long as it has launches, one for each layer, head,
# expert and micro-batch, whatever their sizes. Three steps are the first, the one that becomes a CUDA graph, and one that launches it again.
DEVICES = {
    "host": {
        "steps": 20 if FULL else 8,
        "fp32": HOST_MATRIX,
        "bf16": [(0, 2), (1, 3), (2, 4), (3, 2), (3, 3)],
        "fast": HOST_MATRIX,
        "resumes": ((3, 3, AFTER[0]), (1, 4, AFTER[1]), (2, 2, AFTER[2])),
        "tp": (2, 4),
        "tp_layouts": ((1, 1), (0, 2), (2, 2), (2, 1), (3, 3), (3, 2)),
        "shared": (4, 2),
        "shared_layouts": ((0, 2), (1, 1), (2, 2), (3, 2)) if FULL else ((1, 1), (2, 2), (3, 1)),
        "cp": [{"cp": 2}, {"cp": 4}, {"cp": 2, "tp": 2}],
        "ring": [{"cp": 2}, {"cp": 3}, {"cp": 2, "tp": 2}],
        "ring_layouts": ((1, 1), (0, 2), (2, 2), (2, 1), (3, 3), (3, 2)) if FULL else ((0, 2), (1, 1), (2, 1), (3, 2)),
        "cp_layouts": ((1, 1), (0, 2), (2, 2), (2, 1), (3, 3), (3, 2)),
        "ep": [{"ep": 2}, {"ep": 4}],
        "ep_layouts": ((0, 2), (2, 1), (3, 3), (1, 1), (2, 2), (3, 2)) if FULL else ((0, 2), (2, 1), (3, 3)),
        "pp_layouts": ((0, 2, 1), (1, 2, 2), (2, 2, 2), (3, 2, 3), (1, 3, 1), (3, 3, 2), (0, 4, 1), (2, 5, 1)),
        "pp_resumes": ((3, 2, 2, AFTER[0]), (0, 5, 1, AFTER[1]), (1, 1, 3, AFTER[2])),
        "pp_orders": (("zero_bubble", 0, 4, 1), ("zero_bubble", 1, 2, 2), ("zero_bubble", 2, 3, 2), ("zero_bubble", 3, 2, 2),
                      ("interleaved", 0, 4, 1), ("interleaved", 1, 2, 2), ("interleaved", 2, 3, 1), ("interleaved", 3, 2, 2)),
        "keys": {"batch__micro": 2, "batch__global": 60 if FULL else 28},
        "uneven": {},
        "few_heads": {},
        "evaluations": 5,
    },
    "cuda": {
        "steps": 5 if FULL else 3,
        "fp32": drawn([(stage, ranks) for stage in range(4) for ranks in (2, 3, 4)]) + [(3, 1)],
        "bf16": [(0, 2), (3, 2)],
        "fast": [(0, 1), (2, 3), (3, 2)],
        "resumes": ((3, 3, 2), (1, 1, 3), (2, 2, 4)) if FULL else ((3, 3, 1), (2, 2, 2)),
        "tp": (2,),
        "tp_layouts": ((1, 2), (3, 1)),
        "shared": (2,),
        "shared_layouts": ((1, 2), (3, 1)),
        "cp": [{"cp": 2}, {"cp": 2, "tp": 2}],
        "ring": [{"cp": 2}],
        "ring_layouts": ((1, 2), (3, 1)),
        "cp_layouts": ((1, 2), (3, 1)),
        "ep": [{"ep": 2}],
        "ep_layouts": ((1, 2), (3, 1)),
        "pp_layouts": ((0, 2, 1), (1, 2, 2), (3, 2, 2), (2, 3, 1)),
        "pp_resumes": ((3, 2, 1, 2), (0, 3, 1, 3), (1, 1, 2, 4)) if FULL else ((3, 2, 1, 1), (1, 1, 2, 2)),
        "pp_orders": (("zero_bubble", 1, 3, 1), ("interleaved", 3, 2, 1)),
        "graph_off": (0, 1),  # beside a reference whose steps must be a CUDA graph
        "keys": {"run__device": "cuda", "topology__share_gpu": True, "kernels__gemm_search": False,
                 "batch__global": 5 if FULL else 3, "batch__sequence_length": 8},
        "uneven": {"batch__global": 5},  # sequences, which neither 2 nor 3 nor 4 ranks can share evenly
        "few_heads": {} if FULL else {"model__heads": 2, "model__kv_heads": 1},  # where none are cut
        "evaluations": 5 if FULL else 3,
    },
}


def layout_keys(stage, ranks):
    # Lanes on threads for some, limits that cut collectives and keep few units live for others: none of it may move a bit.
    keys = {"zero__stage": stage, "run__lanes": "threads" if (stage + ranks) % 2 else "inline"}
    recompute = ("none", "selective", "full", "auto")[(stage + ranks) % 4]
    keys.update(activation__recompute=recompute, activation__every=1 + ranks % 2 if recompute == "full" else 1)
    if recompute != "none" and stage % 2:
        keys.update(activation__keep='["attention.context", "attention.normed"]')
    if stage and (stage + 2 * ranks) % 3 != 2:
        keys.update(zero__offload_optimizer__device=("host", "nvme")[(stage + ranks) % 2], zero__offload_optimizer__buffer_count=2 + ranks % 2)
        if stage < 3 and ranks % 2:
            keys.update(zero__offload_optimizer__ratio=0.4)
        keys.update(nvme__block_size=[65536, 4096, 1048576][ranks % 3], zero__offload_optimizer__pipeline_read=ranks != 2,
                    zero__offload_optimizer__pipeline_write=ranks != 4)
    if stage == 3 and ranks != 3 and "zero__offload_optimizer__device" in keys or (stage, ranks) == (3, 1):
        keys.update(zero__offload_optimizer__device="host", zero__offload_param__device=("nvme", "host")[ranks % 2])
        keys.update(zero__offload_param__max_in_cpu=10000 if ranks == 4 else 0)
    if (stage + ranks) % 3 != 1:
        keys.update(activation__offload=("host", "nvme")[ranks % 2])
    if stage == 3:
        keys.update(zero__max_reuse_distance=0, zero__max_live_parameters=30000, zero__param_persistence_threshold=[0, 64, 2000, 100000][ranks % 4])
    if stage in (1, 2):
        keys.update(zero__reduce_bucket_size=4096, zero__allgather_bucket_size=4096, zero__sub_group_size=1024)
    return keys


def with_memory_between(folder, ranks, keys):
    """For a layout that leaves its recompute to the memory that there is: as much as makes auto drop something and not all."""
    if keys.get("activation__recompute") != "auto":
        return keys
    offloads = "zero__offload_optimizer__device" in keys or "activation__offload" in keys
    kind = "device" if offloads or keys.get("run__device") == "cuda" else "host"
    if "mesh__pp" in keys:  # on a stage that has few micro-batches under way, values that must be kept are most of it
        keys = {key: value for key, value in keys.items() if key != "activation__keep"}
    most = {**keys, "activation__recompute": "none", "memory__device": '"1 TB"'}
    most.pop("activation__keep", None)
    least = {**keys, "activation__recompute": "full", "memory__device": '"1 TB"'}
    stages = range(0, ranks, ranks // keys.get("mesh__pp", 1))
    limits = [[folder.plan(ranks, "--threads", "1", "--rank", str(rank), **asked)["limits"][kind] for rank in stages] for asked in (most, least)]
    reserve = 10**12 - limits[0][0]["limit"]
    most, least = ([limit["needed"] for limit in of_stages] for of_stages in limits)
    room = max((max(most) + max(least)) // 2, *(min(of_stage) for of_stage in zip(most, least)))
    return {**keys, "run__threads": 1, "memory__device": f'"{room + reserve} B"'}


def reproducible(folder, dtype, device):
    steps = device["steps"]
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, **device["keys"], **device["uneven"], **device["few_heads"]}
    saves = [after for _, _, after in device["resumes"]] + [steps]
    graph = {"kernels__cuda_graph": "on"} if "graph_off" in device else {}
    # The others are played (runs.py): the program itself makes the reference, and one layout that is drawn.
    folder.train("reference", 1, own_process=True, zero__stage=0, checkpoint__every=saves[0], checkpoint__keep=0, **graph, **common)
    losses, hashes = folder.losses("reference"), folder.hashes("reference")
    if len(losses) != steps:
        sys.exit(f"FAIL the reference run has {len(losses)} steps")
    if "run__device" not in device["keys"]:
        # The last of few steps may be worse than the one before it.
        good = min(loss for step, (loss, _) in losses.items() if step > (steps - 1 if FULL else steps // 2)) < losses[1][0]
        if not good:
            print(f"FAIL the reference run did not learn: {losses}")
    else:
        folder.train("on-host", 1, zero__stage=0, **{**common, "run__device": "host"})
        good = near("the reference", losses, folder.losses("on-host"), dtype)
    layouts = [(f"stage{stage}-ranks{ranks}", stage, ranks, {}) for stage, ranks in device[dtype]]
    if FULL:
        layouts += [(f"{mode}-stage{stage}-ranks{ranks}", stage, ranks, {"activation__recompute": mode, "activation__every": 1, "activation__keep": "[]"})
                    for mode in ("none", "selective", "full", "auto") for stage in range(4) for ranks in (1, 2, 3)]
    if "graph_off" in device:
        layouts.insert(0, ("graph-off", *device["graph_off"], {"kernels__cuda_graph": "off"}))
    own = layouts[DRAW % len(layouts)][0]
    for name, stage, ranks, more in layouts:
        folder.train(name, ranks, own_process=name == own, **with_memory_between(folder, ranks, {**layout_keys(stage, ranks), **more, **common}))
        good &= runs.same(name + " losses", folder.losses(name), losses)
        good &= runs.same(name + " state", folder.hashes(name), hashes)
    # From the reference's first checkpoint on, at other layouts, and from one of those on again.
    before = "reference"
    for (stage, ranks, after), save in zip(device["resumes"], saves[1:]):
        name = f"resumed-stage{stage}-ranks{ranks}"
        start = folder.run(before) + f"/checkpoints/step-{after:08d}"
        keys = with_memory_between(folder, ranks, {**layout_keys(stage, ranks), **common})
        folder.train(name, ranks, run__resume=start, checkpoint__every=save, checkpoint__keep=0, **keys)
        good &= runs.same(name + " losses", folder.losses(name), {s: v for s, v in losses.items() if s > after})
        good &= runs.same(name + " state", folder.hashes(name), hashes)
        before = name
    return good


# Room for fewer tokens than choose an expert, a shared expert, and both losses of the router.
EXPERTS = {"model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 40, "model__shared_ff_width": 24,
           "model__normalize_top_k": False, "model__router_aux_loss": 0.02, "model__router_z_loss": 0.001, "experts__capacity_factor": 1.1}


def experts_of(device):
    """EXPERTS, on a GPU with gates that fit a tile of its grouped products."""
    return EXPERTS if FULL or device is DEVICES["host"] else {**EXPERTS, "model__expert_ff_width": 24}


def of_model(device, size, least):
    """A number of layers or heads: on GPUs the least that the layouts of a mode can cut."""
    return size if FULL or device is DEVICES["host"] else least


def heads_of(device):
    """A key head for each query head, which two ranks can cut."""
    return {"model__heads": of_model(device, 4, 2), "model__kv_heads": of_model(device, 4, 2)}


def near_state(what, ours, reference, dtype):
    """Complains where a weight differs by more of its norm than the order of its sums explains."""
    if dtype != "fp32":
        return True
    for (group, tensor), (shape, values) in reference.items():
        if group != "master":
            continue
        a, b = (struct.unpack(f"<{len(data) // 4}f", data) for data in (ours[group, tensor][1], values))
        norm, apart = math.sqrt(sum(x * x for x in b)), math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
        if apart > 1e-4 * norm:
            print(f"FAIL {what}: {tensor} is {apart / norm:.2e} of its norm apart")
            return False
    return True


def experts_over_ranks(folder, dtype, device):
    """mesh.ep: the same bits at equal sizes over stages of either kind, data-parallel ranks, recompute, offload, resumes and kills, with room for all
    tokens and for some; near what one rank gives, whose state a run reads and writes bit for bit whatever its axis; evaluations and loads likewise."""
    steps = device["steps"]
    evaluated = {"evaluate__every": steps, "evaluate__batches": device["evaluations"], "data__validation": f'"{folder.data}"'}
    good = over_axes(folder, dtype, device, device["ep"], device["ep_layouts"],
                     {**experts_of(device), **evaluated, **heads_of(device)})
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, **heads_of(device), "model__vocab": 263,
              **device["keys"], **experts_of(device), **evaluated}

    def last_row(name):
        return {key: row[key] for row in folder.metrics(name) if row["step"] == steps for key in ("val_loss", "dropped", "expert_load", "router_balance") if key in row}

    for name in (f"ep2-stage{stage}-dp{dp}" for stage, dp in third(device["ep_layouts"], device is DEVICES["cuda"])):
        if last_row(name) != last_row("ep2"):
            print(f"FAIL {name}: {last_row(name)} instead of {last_row('ep2')}")
            good = False
    alone, there = last_row("alone"), last_row("ep2")
    if not alone["dropped"] or sum(there["expert_load"]) != sum(alone["expert_load"]) or abs(alone["val_loss"] / there["val_loss"] - 1) > (1e-4 if dtype == "fp32" else 2e-2):
        print(f"FAIL ep2 ends with {there}, one rank with {alone}")
        good = False
    good &= near_state("ep2", runs.read_state(folder.latest("ep2")), runs.read_state(folder.latest("alone")), dtype)

    def same(name, reference, ranks, **keys):
        folder.train(name, ranks, **with_memory_between(folder, ranks, keys))
        return (runs.same(name + " losses", folder.losses(name), folder.losses(reference)) and
                runs.same(name + " state", folder.hashes(name), folder.hashes(reference)))

    good &= same("ep2-pp2", "ep2", 4, **{**common, "mesh__ep": 2, **stage_keys(1, 2, 2)})
    if device is DEVICES["cuda"]:
        return good
    if FULL or DRAW % 2:
        good &= same("ep2-pp2-dp2", "ep2", 8, **{**common, "mesh__ep": 2, **stage_keys(3, 2, 2)})
    if FULL or not DRAW % 2:
        good &= same("ep2-pp2-zero_bubble", "ep2", 4, **{**common, "mesh__ep": 2, **stage_keys(2, 2, 1), **ordered("zero_bubble", 2)})
    dropless = {**common, "experts__capacity_factor": '"dropless"', "model__shared_ff_width": 0, "batch__global": 18}  # a last group of exchanges with an empty one
    folder.train("dropless", 1, **dropless)
    folder.train("dropless-ep2", 2, mesh__ep=2, **dropless)
    good &= near("dropless-ep2", folder.losses("dropless-ep2"), folder.losses("dropless"), dtype)
    for zero, pp, dp in third(((2, 1, 2), (1, 2, 1), (3, 1, 3)), False):
        keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
        name = f"dropless-ep2-stage{zero}-pp{pp}-dp{dp}"
        good &= same(name, "dropless-ep2", 2 * pp * dp, **{**keys, **dropless, "mesh__ep": 2})
    fast_keys = {**common, "run__reproducible": False, "run__log_every": 1}
    folder.train("fast-alone", 1, **fast_keys)
    done = folder.train("fast-ep2", 4, mesh__ep=2, zero__stage=2, **fast_keys)
    good &= near("fast-ep2", folder.losses("fast-ep2"), folder.losses("fast-alone"), dtype)
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    if not memory or any(used != planned for used, planned in memory):
        print(f"FAIL memory used and planned: {memory}")
        good = False
    return good & killed(folder, common, {"mesh__ep": 2})


# Sizes of axes that cut the tokens or the experts of a layer; stages of either kind and data-parallel ranks that must not move a bit of each.
EXPERTS_BESIDE = [({"tp": 2, "ep": 2}, ((3, 1, 2), (1, 2, 1))), ({"cp": 2}, ((2, 1, 3), (3, 2, 2)))]
EXPERTS_BESIDE_FULL = [({"tp": 2}, ((0, 1, 2), (1, 1, 3), (2, 2, 2), (3, 1, 4))), ({"cp": 2, "ep": 2}, ((0, 1, 2), (3, 1, 2), (2, 2, 1))),
                       ({"tp": 2, "cp": 2}, ((3, 1, 2), (1, 2, 1))), ({"tp": 2, "cp": 2, "ep": 2}, ()), ({"tp": 4, "ep": 2}, ()), ({"tp": 4}, ((3, 1, 2), (2, 2, 1)))]


def experts_beside(folder, dtype, device):
    """Experts beside mesh.tp and mesh.cp, with a shared one and both losses: near what one rank gives where nothing is dropped, the same bits, loads and
    evaluations at equal sizes of these axes, and likewise with room for some tokens only, which is a rank's own."""
    steps, good = device["steps"], True
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, **heads_of(device), "model__vocab": 263,
              **device["keys"], **experts_of(device), "experts__capacity_factor": '"dropless"', "evaluate__every": steps, "evaluate__batches": device["evaluations"],
              "data__validation": f'"{folder.data}"'}

    def figures(name):
        return [{k: row[k] for k in ("val_loss", "router_balance", "router_z", "dropped", "expert_load") if k in row} for row in folder.metrics(name) if "saved" not in row]

    folder.train("beside-alone", 1, **common)
    full, left = FULL and device is DEVICES["host"], left_to_others(dtype, device)
    for sizes, layouts in EXPERTS_BESIDE + (EXPERTS_BESIDE_FULL if full else []):
        axes, ranks = {f"mesh__{axis}": size for axis, size in sizes.items()}, math.prod(sizes.values())
        for room in ({}, {"experts__capacity_factor": 1.1}) if full or "cp" in sizes else ({},):
            reference = "beside-" + "-".join(f"{axis}{size}" for axis, size in sizes.items()) + ("-dropping" if room else "")
            folder.train(reference, ranks, **{**common, **axes, **room})
            if room and not any(row.get("dropped") for row in figures(reference)):
                print(f"FAIL {reference}: nothing was dropped")
                good = False
            if not room:
                good &= near(reference, folder.losses(reference), folder.losses("beside-alone"), dtype)
                good &= near_state(reference, runs.read_state(folder.latest(reference)), runs.read_state(folder.latest("beside-alone")), dtype)
            for zero, pp, dp in layouts:
                if left():
                    continue
                keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
                name = f"{reference}-stage{zero}-pp{pp}-dp{dp}"
                folder.train(name, ranks * pp * dp, **with_memory_between(folder, ranks * pp * dp, {**keys, **common, **axes, **room}))
                good &= runs.same(name + " losses", folder.losses(name), folder.losses(reference))
                good &= runs.same(name + " state", folder.hashes(name), folder.hashes(reference))
                if figures(name) != figures(reference):
                    print(f"FAIL {name}: {figures(name)} instead of {figures(reference)}")
                    good = False
    return good


def biases_of(state):
    """By tensor, the biases of a checkpoint's routers."""
    return {tensor: struct.unpack(f"<{len(data) // 4}f", data) for (group, tensor), (_, data) in state.items()
            if group == "master" and tensor.endswith("router_bias")}


def balanced_by_bias(folder, dtype, device):
    """model.router_balance = "bias": the bits of one rank over stages, data-parallel ranks, stages of a pipeline, offload and resumes, and at equal sizes of
    tp, cp and ep; biases are multiples of the rate that a step moved up or down; loads are more equal than without; evaluations choose with them."""
    steps, good, rate = device["steps"], True, 1 / 1024  # a power of two: sums of it are exact
    plain = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, **heads_of(device), "model__vocab": 263,
             "model__layers": of_model(device, 4, 2), **device["keys"], **experts_of(device), "experts__capacity_factor": '"dropless"', "model__router_aux_loss": 0,
             "evaluate__every": steps, "evaluate__batches": device["evaluations"], "data__validation": f'"{folder.data}"'}
    common = {**plain, "model__router_balance": '"bias"', "model__router_bias_rate": rate}

    def figures(name, after):
        return [{k: row[k] for k in ("val_loss", "router_balance", "expert_load") if k in row} for row in folder.metrics(name)
                if row.get("step", 0) > after and "saved" not in row]

    def same(name, reference, ranks, after=0, **keys):
        folder.train(name, ranks, **keys)
        alike = figures(name, after) == figures(reference, after)
        if not alike:
            print(f"FAIL {name}: {figures(name, after)} instead of {figures(reference, after)}")
        return (alike and runs.same(name + " losses", folder.losses(name), {s: v for s, v in folder.losses(reference).items() if s > after}) and
                runs.same(name + " state", folder.hashes(name), folder.hashes(reference)))

    middle, left = steps // 2, left_to_others(dtype, device)
    folder.train("biased", 1, checkpoint__every=middle, checkpoint__keep=0, **common)
    biases = biases_of(runs.read_state(folder.latest("biased")))
    moved = [b / rate for values in biases.values() for b in values]
    if len(biases) != plain["model__layers"] or len(moved) != 4 * len(biases) or any(b != round(b) or abs(b) > steps for b in moved) or not any(moved):
        print(f"FAIL biases after {steps} steps of {rate}: {biases}")
        good = False
    folder.train("unbiased", 1, **plain)
    most = {name: sum(row["most_loaded"] for row in folder.metrics(name) if row["step"] > steps - 4 and "most_loaded" in row) for name in ("biased", "unbiased")}
    if device is DEVICES["host"] and most["biased"] >= most["unbiased"]:
        print(f"FAIL the last loads are no more equal than without a bias: {most}")
        good = False
    for zero, pp, dp in ((3, 1, 2), (1, 2, 1)) + (((0, 1, 3), (2, 2, 2), (1, 1, 4), (3, 4, 1)) if FULL else ()):
        if left():
            continue
        keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
        good &= same(f"biased-stage{zero}-pp{pp}-dp{dp}", "biased", pp * dp, **with_memory_between(folder, pp * dp, {**keys, **common}))
    start = folder.run("biased") + f"/checkpoints/step-{middle:08d}"
    good &= same("biased-resumed", "biased", 2, middle, run__resume=start, zero__stage=2, **common)
    if device is DEVICES["cuda"]:
        return good
    folder.train("biased-ep2-tp2", 4, mesh__ep=2, mesh__tp=2, **common)
    good &= near("biased-ep2-tp2", folder.losses("biased-ep2-tp2"), folder.losses("biased"), dtype)
    for zero, pp, dp in ((3, 1, 2), (1, 2, 1)):
        if left():
            continue
        keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
        good &= same(f"biased-ep2-tp2-stage{zero}-pp{pp}-dp{dp}", "biased-ep2-tp2", 4 * pp * dp,
                     **with_memory_between(folder, 4 * pp * dp, {**keys, **common, "mesh__ep": 2, "mesh__tp": 2}))
    folder.train("biased-cp2", 2, mesh__cp=2, zero__stage=1, **common)
    good &= near("biased-cp2", folder.losses("biased-cp2"), folder.losses("biased"), dtype)
    return good


def killed(folder, common, cut):
    """A run that was killed goes on, at another layout, to what it would have come to."""
    endless = {**common, **runs.ENDLESS, "checkpoint__every": 2, "checkpoint__keep": 0, "evaluate__every": 0}
    undisturbed = {**endless, "run__steps": 9}
    folder.train("undisturbed", 2, **cut, **undisturbed)
    run = folder.start("killed", 2, zero__stage=1, **cut, **endless)
    run.wait_for_step(5)
    run.kill()
    killed_at = int(os.path.basename(os.path.realpath(folder.latest("killed")))[5:])
    last = {**undisturbed, "run__steps": max(9, killed_at)}
    if killed_at > 9:
        folder.train("undisturbed-longer", 2, **cut, **last)
    reference = "undisturbed-longer" if killed_at > 9 else "undisturbed"
    folder.train("killed", 4, zero__stage=3, **cut, **last)
    good = runs.same("killed losses", folder.losses("killed"), folder.losses(reference))
    good &= runs.same("killed state", folder.hashes("killed"), folder.hashes(reference))
    return good


def experts(folder, dtype, device):
    if device is DEVICES["cuda"]:
        return experts_beside(folder, dtype, device) & balanced_by_bias(folder, dtype, device) & experts_over_ranks(folder, dtype, device)
    few = {**device, "fp32": third([(0, 2), (1, 3), (2, 4), (3, 1), (3, 3)], False), "bf16": [(0, 3), (3, 2)], "resumes": ((3, 3, AFTER[0]), (1, 2, AFTER[2])),
           "keys": {**device["keys"], **EXPERTS}}
    good = reproducible(folder, dtype, few)
    rows = [row for row in folder.metrics("reference") if "dropped" in row]
    if not any(row["dropped"] > 0 for row in rows) or any(len(row["expert_load"]) != 4 for row in rows):
        print(f"FAIL no token of the reference was dropped, or loads are not of 4 experts: {rows}")
        good = False
    for other in (f"stage{stage}-ranks{ranks}" for stage, ranks in few[dtype]):
        for row, there in zip(rows, (row for row in folder.metrics(other) if "dropped" in row)):
            for key in ("router_balance", "router_z", "dropped", "most_loaded", "expert_load"):
                if row[key] != there[key]:
                    print(f"FAIL {other}: step {row['step']} has {key} {there[key]}, the reference {row[key]}")
                    good = False
    good &= experts_beside(folder, dtype, device)
    good &= balanced_by_bias(folder, dtype, device)
    return experts_over_ranks(folder, dtype, device) and good


def random_shape(chance):
    kv_heads = chance.choice([1, 2, 3])
    return {"model__layers": chance.randint(1, 4), "model__width": chance.randint(5, 70), "model__kv_heads": kv_heads, "model__heads": kv_heads * chance.choice([1, 2, 3]),
            "model__head_dim": 2 * chance.randint(1, 12), "model__ff_width": chance.randint(3, 90), "model__vocab": chance.randint(211, 400),
            "model__tied": chance.random() < 0.5, "model__qk_norm": chance.random() < 0.5, "model__qkv_bias": chance.random() < 0.5,
            "batch__micro": chance.choice([1, 2]), "batch__global": 2 * chance.randint(2, 9), "batch__sequence_length": chance.randint(2, 33),
            "precision__compute": chance.choice(["fp32", "bf16"]), **random_experts(chance)}


def random_experts(chance):
    """Experts, for every other model."""
    if chance.random() < 0.5:
        return {}
    experts = chance.randint(1, 6)
    return {"model__experts": experts, "model__experts_per_token": chance.randint(1, experts), "model__expert_ff_width": chance.randint(3, 50),
            "model__shared_ff_width": chance.choice([0, chance.randint(1, 40)]), "model__normalize_top_k": chance.random() < 0.5,
            "model__router_aux_loss": chance.choice([0, 0.05]), "model__router_z_loss": chance.choice([0, 0.01]),
            "experts__capacity_factor": chance.choice(['"dropless"', round(chance.uniform(0.1, 2), 2)])}


def random_layout(chance):
    """Number of ranks and keys: sizes of buckets and limits from single elements to all."""
    keys = {"zero__stage": chance.randrange(4), "run__lanes": chance.choice(["threads", "inline"])}
    for name in ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size", "max_live_parameters", "max_reuse_distance",
                 "param_persistence_threshold"):
        if chance.random() < 0.5:
            keys["zero__" + name] = int(10 ** chance.uniform(1.5, 6))
    if keys["zero__stage"] and chance.random() < 0.4:
        keys["zero__offload_optimizer__device"] = chance.choice(["host", "nvme"])
        if keys["zero__stage"] == 3 and chance.random() < 0.5:
            keys["zero__offload_param__device"] = chance.choice(["host", "nvme"])
        elif chance.random() < 0.5:
            keys["zero__offload_optimizer__ratio"] = round(chance.uniform(0.05, 1), 2)
        keys["nvme__block_size"] = 4096 * 2 ** chance.randrange(9)
        keys["nvme__encrypt"] = chance.random() < 0.3
    if chance.random() < 0.4:
        keys["activation__offload"] = chance.choice(["host", "nvme"])
    return chance.choice([1, 2, 2, 3, 4, 5, 7]), keys


def with_stages(chance, shape, ranks, keys):
    """The layout, or where the model has the layers and half of the time stages of a pipeline, with numbers of layers or without."""
    layers = shape["model__layers"]
    if layers == 1 or shape["model__tied"] or chance.random() < 0.5:
        return ranks, keys
    keys = {**keys, "run__lanes": "threads", "mesh__pp": chance.randint(2, layers)}
    keys.pop("activation__offload", None)
    if chance.random() < 0.3:
        cuts = sorted(chance.sample(range(1, layers), keys["mesh__pp"] - 1))
        keys["pipeline__layers"] = str([end - begin for begin, end in zip([0, *cuts], [*cuts, layers])]).replace(" ", "")
    return keys["mesh__pp"] * chance.randint(1, 2), keys


def shapes(folder, seed):
    count, layouts = (8, 12) if FULL else (2, 3)
    good = True
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        common = {"run__reproducible": True, "run__steps": 4, "run__threads": 1, **random_shape(chance)}
        folder.train(f"shape{number}", 1, zero__stage=0, **common)
        losses, hashes = folder.losses(f"shape{number}"), folder.hashes(f"shape{number}")
        for layout in range(layouts):
            name, (ranks, keys) = f"shape{number}-layout{layout}", with_stages(chance, common, *random_layout(chance))
            folder.train(name, ranks, **keys, **common)
            what = f"{name} of seed {seed} ({ranks} ranks, {keys}, {common})"
            good &= runs.same(what + " losses", folder.losses(name), losses) and runs.same(what + " state", folder.hashes(name), hashes)
    return good


def near(name, losses, reference, dtype):
    """Complains where losses differ by more than the order of their sums explains."""
    worst = max(abs(losses[s][0] / reference[s][0] - 1) for s in reference)
    if worst <= (1e-5 if dtype == "fp32" else 2e-2):
        return True
    print(f"FAIL {name}: losses differ by {worst:.2e} relative")
    return False


def fast_layouts(device):
    for stage, ranks in device["fast"]:
        yield f"stage{stage}-ranks{ranks}", ranks, {**layout_keys(stage, ranks), **device["keys"]}
    if device is DEVICES["host"]:
        for stage, ranks in ((0, 1), (1, 2), (2, 3)):  # packed copies of weights, made anew after each update
            yield f"packed-stage{stage}-ranks{ranks}", ranks, {**device["keys"], "batch__micro": 1, "kernels__pack_weights": True, **layout_keys(stage, ranks)}


def fast(folder, dtype, device):
    on_host = {**device["keys"], **device["uneven"], **device["few_heads"], "run__device": "host", "run__steps": 20 if FULL or device is DEVICES["host"] else 8}
    folder.train("reference", 1, zero__stage=0, precision__compute=dtype, **on_host)
    reference = folder.losses("reference")
    good = True
    for name, ranks, keys in fast_layouts(device):
        folder.train(name, ranks, **with_memory_between(folder, ranks, {"precision__compute": dtype, **keys, **device["uneven"], **device["few_heads"], "run__steps": on_host["run__steps"]}))
        good &= near(name, folder.losses(name), reference, dtype)
    return good


def rounded_layouts(device, ranks_of_full):
    """Stages and ranks; all of them where there is time."""
    if FULL:
        return [(stage, ranks) for stage in range(4) for ranks in ranks_of_full]
    stages = range(4) if device is DEVICES["host"] else (1, 3)
    return [(stage, ranks_of_full[(stage + 1) % 3]) for stage in stages]


def gradients(folder, dtype, device):
    """precision.gradients = "bf16", which takes one micro-batch a rank: ranks beyond the batch run empty ones. With run.reproducible the same bits over
    stages and ranks, and across resume; else near what fp32 sums give, and not the same."""
    good, steps = True, device["steps"]
    for micros, ranks_of_full in ((1, (1, 2, 3)), (2, (2, 3, 4))):
        common = {**device["keys"], **device["few_heads"], "run__steps": steps, "batch__micro": 2, "batch__global": 2 * micros, "precision__compute": dtype}
        exact = {**common, "precision__gradients": "bf16", "run__reproducible": True}
        reference, first = f"rounded{micros}", ranks_of_full[0]
        folder.train(reference, first, zero__stage=0, checkpoint__every=steps // 2, checkpoint__keep=0, **exact)
        losses, hashes = folder.losses(reference), folder.hashes(reference)
        for stage, ranks in rounded_layouts(device, ranks_of_full):
            name = f"{reference}-stage{stage}-ranks{ranks}"
            folder.train(name, ranks, **with_memory_between(folder, ranks, {**layout_keys(stage, ranks), **exact}))
            good &= runs.same(name + " losses", folder.losses(name), losses)
            good &= runs.same(name + " state", folder.hashes(name), hashes)
        name, start = f"{reference}-resumed", folder.run(reference) + f"/checkpoints/step-{steps // 2:08d}"
        folder.train(name, ranks_of_full[1], run__resume=start, zero__stage=2, **exact)
        good &= runs.same(name + " losses", folder.losses(name), {s: v for s, v in losses.items() if s > steps // 2})
        good &= runs.same(name + " state", folder.hashes(name), hashes)
        plain = f"plain{micros}"
        folder.train(plain, first, zero__stage=0, **common)
        for stage in (0, 1, 2, 3) if FULL else (micros,):
            name = f"{plain}-bf16-stage{stage}"
            folder.train(name, ranks_of_full[1], zero__stage=stage, **{**common, "precision__gradients": "bf16"})
            good &= near(name, folder.losses(name), folder.losses(plain), "bf16")
            if folder.hashes(name) == folder.hashes(plain):
                print(f"FAIL {name}: sums in bf16 and in fp32 gave the same weights")
                good = False
    return good


def over_axes(folder, dtype, device, meshes, layouts, more, of_cut=None):
    """Ranks along axes that cut what a rank computes: the same bits over stages, data-parallel ranks and resume at equal sizes of the axes, near what one
    rank gives, and from any point of one on with any other. `meshes` are sizes by axis, the first and one that is drawn; `layouts` stages and data-parallel
    ranks: a third of them for the first mesh, the last one for the other; all of both where there is time. `of_cut` are keys of all runs but those of one rank."""
    steps, good = device["steps"], True
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "model__heads": 4, "model__kv_heads": 4, "model__vocab": 263,
              **device["keys"], **more}
    middle = steps // 2
    folder.train("alone", 1, checkpoint__every=middle, checkpoint__keep=0, **common)
    alone = folder.losses("alone")
    on_gpus = device is DEVICES["cuda"]
    others = meshes[1:]
    for mesh in meshes if FULL or not others else [meshes[0], others[DRAW % len(others)]]:
        ranks, sizes = math.prod(mesh.values()), {**{f"mesh__{axis}": size for axis, size in mesh.items()}, **(of_cut or {})}
        keys = {**common, **sizes}
        reference = "-".join(f"{axis}{size}" for axis, size in mesh.items())
        folder.train(reference, ranks, checkpoint__every=middle, checkpoint__keep=0, **keys)
        losses, hashes = folder.losses(reference), folder.hashes(reference)
        good &= near(reference, losses, alone, dtype)
        for stage, dp in third(layouts, on_gpus) if mesh == meshes[0] else layouts[-1:]:
            name = f"{reference}-stage{stage}-dp{dp}"
            folder.train(name, ranks * dp, **with_memory_between(folder, ranks * dp, {**layout_keys(stage, dp), **keys}))
            good &= runs.same(name + " losses", folder.losses(name), losses)
            good &= runs.same(name + " state", folder.hashes(name), hashes)
        later = {s: v for s, v in losses.items() if s > middle}
        start = folder.run(reference) + f"/checkpoints/step-{middle:08d}"
        name = f"{reference}-resumed"
        folder.train(name, ranks * 2, run__resume=start, zero__stage=3, zero__param_persistence_threshold=0, **keys)
        good &= runs.same(name + " losses", folder.losses(name), later)
        good &= runs.same(name + " state", folder.hashes(name), hashes)
        for name, n, of, other in ((f"{reference}-alone", 1, reference, {}), (f"alone-{reference}", ranks, "alone", sizes)):
            folder.train(name, n, run__resume=folder.run(of) + f"/checkpoints/step-{middle:08d}", **{**common, **other})
            good &= near(name, folder.losses(name), {s: v for s, v in alone.items() if s > middle}, dtype)
    return good


def tensor(folder, dtype, device):
    """mesh.tp: another size is another order of sums. In bf16 a loss near that of a fair guess says little of it: fp32 tells, weights too."""
    good = over_axes(folder, dtype, device, [{"tp": tp} for tp in device["tp"]], device["tp_layouts"], {})
    if dtype == "fp32":
        return good
    exact = {"run__reproducible": True, "precision__compute": "fp32", "run__steps": 2, "model__vocab": 263, **device["keys"]}
    folder.train("alone-fp32", 1, **exact)
    folder.train("tp2-fp32", 2, **exact, mesh__tp=2)
    good &= near("tp2-fp32", folder.losses("tp2-fp32"), folder.losses("alone-fp32"), "fp32")
    return good & near_state("tp2-fp32", runs.read_state(folder.latest("tp2-fp32")), runs.read_state(folder.latest("alone-fp32")), "fp32")


def shared_keys(folder, dtype, device):
    """mesh.tp of more ranks than key heads, some of which make parts of the same: as for others, beside context-parallel ranks of both methods and stages of a
    pipeline in every order. Fast mode gives the same numbers, and memory is what was planned."""
    steps = device["steps"]
    model = {"model__kv_heads": 1, "model__qk_norm": True, "model__qkv_bias": True, "model__tied": False, "model__layers": of_model(device, 4, 2)}
    good = over_axes(folder, dtype, device, [{"tp": tp} for tp in device["shared"]], device["shared_layouts"], model)
    good &= near_state("tp2", runs.read_state(folder.latest("tp2")), runs.read_state(folder.latest("alone")), dtype)
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "model__heads": 4, "model__vocab": 263, **device["keys"], **model}

    def same(name, reference, ranks, **keys):
        folder.train(name, ranks, **{**common, "mesh__tp": 2, **keys})
        return (runs.same(name + " losses", folder.losses(name), folder.losses(reference)) and
                runs.same(name + " state", folder.hashes(name), folder.hashes(reference)))

    orders = (("1f1b", 3, 1, "none"), ("zero_bubble", 1, 2, "selective"), ("zero_bubble", 2, 1, "full"), ("interleaved", 0, 1, "full"))
    for schedule, zero, dp, recompute in third(orders, False) if device is DEVICES["host"] else orders[2:3]:
        keys = {**stage_keys(zero, 2, dp), **ordered(schedule, 2), "activation__recompute": recompute, "activation__every": 1, "activation__keep": "[]"}
        good &= same(f"{schedule}-pp2-dp{dp}-{recompute}", "tp2", 4 * dp, **keys)
    fast_keys = {**common, "run__reproducible": False, "run__log_every": 1, "mesh__tp": 2}
    done = folder.train("fast", 4, **{**fast_keys, "zero__stage": 2})
    good &= near("fast", folder.losses("fast"), folder.losses("alone"), dtype)
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    if not memory or any(used != planned for used, planned in memory):
        print(f"FAIL memory used and planned: {memory}")
        good = False
    if device is DEVICES["cuda"]:
        return good
    for method in ("ulysses", "ring"):
        cut = {"mesh__cp": 2, "context__method": method}
        folder.train(method, 4, **{**common, "mesh__tp": 2, **cut})
        good &= near(method, folder.losses(method), folder.losses("alone"), dtype)
        good &= near_state(method, runs.read_state(folder.latest(method)), runs.read_state(folder.latest("alone")), dtype)
        if FULL or method == "ulysses":
            good &= same(f"{method}-stage3-dp2", method, 8, **{**with_memory_between(folder, 8, {**layout_keys(3, 2), **common, **cut, "mesh__tp": 2})})
        if FULL or method == "ring":
            good &= same(f"{method}-pp2", method, 8, **{**stage_keys(1, 2, 1), **ordered("zero_bubble", 2), **cut})
    # Each of two key heads is that of two ranks of four.
    two = {**common, "model__kv_heads": 2, "model__qkv_bias": False}
    folder.train("two-heads-alone", 1, **two)
    folder.train("two-heads", 4, **{**two, "mesh__tp": 4})
    good &= near("two-heads", folder.losses("two-heads"), folder.losses("two-heads-alone"), dtype)
    good &= near_state("two-heads", runs.read_state(folder.latest("two-heads")), runs.read_state(folder.latest("two-heads-alone")), dtype)
    return good & killed(folder, common, {"mesh__tp": 2})


def context(folder, dtype, device, meshes="cp", of_cut=None):
    """mesh.cp alone, with more ranks than sequences of a micro-batch, and beside tensor-parallel ranks, with a key head for each rank and for two: another size
    is another order of sums. An evaluation counts every token once, fast mode gives the same numbers, and memory is what was planned."""
    evaluated = {"evaluate__every": device["steps"], "evaluate__batches": 3, "data__validation": f'"{folder.data}"'}
    good = over_axes(folder, dtype, device, device[meshes], device[meshes + "_layouts"], {"model__qk_norm": True, "model__kv_heads": 2, **evaluated}, of_cut)
    good &= near_state("cp2", runs.read_state(folder.latest("cp2")), runs.read_state(folder.latest("alone")), dtype)
    values = {name: [row["val_loss"] for row in folder.metrics(name) if "val_loss" in row] for name in ("alone", "cp2")}
    if not values["alone"] or any(abs(a / b - 1) > (1e-4 if dtype == "fp32" else 2e-2) for a, b in zip(values["alone"], values["cp2"], strict=True)):
        print(f"FAIL validation losses differ: {values}")
        good = False
    common = {"precision__compute": dtype, "run__steps": device["steps"], "run__log_every": 1, "model__kv_heads": 2, "model__vocab": 263, "model__qk_norm": True, **device["keys"]}
    done = folder.train("fast", 2, mesh__cp=2, zero__stage=2, **(of_cut or {}), **common)
    good &= near("fast", folder.losses("fast"), folder.losses("alone"), dtype)
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    if not memory or any(used != planned for used, planned in memory):
        print(f"FAIL memory used and planned: {memory}")
        good = False
    return good


RING = {"context__method": "ring"}


def ring(folder, dtype, device):
    """The same with keys that go round, and where there are more ranks than heads; beside stages of a pipeline in every order; a run that was killed goes on."""
    good = context(folder, dtype, device, "ring", RING)
    few = {"run__reproducible": True, "precision__compute": dtype, "run__steps": device["steps"], "model__heads": 2, "model__kv_heads": 1, **device["keys"]}
    folder.train("few-heads", 1, **few)
    cp = 3 if device is DEVICES["host"] else 4  # twice as many divide the sequence
    for zero, dp in ((3, 1), (0, 2)) if device is DEVICES["host"] else ((3, 1),):
        name = f"few-heads-dp{dp}"
        folder.train(name, cp * dp, **{**few, **with_memory_between(folder, cp * dp, {**layout_keys(zero, dp), **few, **RING, "mesh__cp": cp})})
        good &= near(name, folder.losses(name), folder.losses("few-heads"), dtype)
        good &= near_state(name, runs.read_state(folder.latest(name)), runs.read_state(folder.latest("few-heads")), dtype)
    if device is DEVICES["cuda"]:
        return good
    good &= runs.same("few heads", folder.hashes("few-heads-dp2"), folder.hashes("few-heads-dp1"))
    common = {**few, "model__layers": 4, "model__tied": False, "mesh__cp": 2, **RING}
    folder.train("one-stage", 2, **common)
    orders = (("1f1b", 1, 1, "full"), ("zero_bubble", 3, 1, "full"), ("zero_bubble", 1, 2, "selective"), ("interleaved", 2, 1, "none"))
    for schedule, zero, dp, recompute in third(orders, False):
        name = f"{schedule}-pp2-cp2-dp{dp}-{recompute}"
        keys = {**stage_keys(zero, 2, dp), **ordered(schedule, 2), "activation__recompute": recompute, "activation__every": 1, "activation__keep": "[]"}
        folder.train(name, 4 * dp, **{**common, **keys})
        good &= runs.same(name + " losses", folder.losses(name), folder.losses("one-stage"))
        good &= runs.same(name + " state", folder.hashes(name), folder.hashes("one-stage"))
    return good & killed(folder, few, {"mesh__cp": 2, **RING})


def stage_keys(zero, pp, dp):
    # What a stage leaves out is refused by name.
    keys = {**layout_keys(zero, dp), "run__lanes": "threads", "mesh__pp": pp}
    keys.pop("activation__offload", None)
    return keys


def ordered(schedule, pp, virtual=2):
    keys = {"pipeline__schedule": schedule}
    return {**keys, "pipeline__virtual_stages": virtual} if schedule == "interleaved" else keys


def orders_of(device):
    """Schedules, stages of ZeRO and of the pipeline, data-parallel ranks: all of them where there is time."""
    if FULL and device is DEVICES["host"]:
        return [(schedule, zero, pp, dp) for schedule in ("zero_bubble", "interleaved") for zero in range(4) for pp in (2, 3, 4) for dp in (1, 2)]
    return device["pp_orders"]


def left_to_others(dtype, device):
    """A function that says of one comparison after the other whether a run in another type or on the other device makes it, by the draw: all of them are
    made by each where there is time."""
    parts, part = (2, int(dtype == "bf16")) if device is DEVICES["host"] else (3, 1)
    turn = itertools.count()
    return lambda: not FULL and (next(turn) + DRAW) % parts != part


def pipeline(folder, dtype, device):
    """mesh.pp: the bits of one rank over schedules, stages of either kind, data-parallel ranks, numbers of micro-batches and resumes; with mesh.tp those of tp
    alone. In fast mode, where both ends share a matrix, near what one rank gives."""
    steps, good = device["steps"], True
    most = of_model(device, 4, 3)  # stages
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "model__layers": 2 * most, "model__tied": False, **device["keys"], **device["few_heads"],
              "evaluate__every": steps, "evaluate__batches": device["evaluations"], "data__validation": folder.data}
    saves = [after for *_, after in device["pp_resumes"]] + [steps]
    left = left_to_others(dtype, device)
    reference = "alone"
    folder.train("alone", 1, checkpoint__every=saves[0], checkpoint__keep=0, **common)
    losses, hashes = folder.losses("alone"), folder.hashes("alone")

    def figures(name):
        return [{k: row[k] for k in ("val_loss", "router_balance", "dropped", "expert_load") if k in row} for row in folder.metrics(name) if row["step"] == steps]

    def same(name, ranks, after=0, **keys):
        if not after and left():
            return True
        keys = {**common, **keys}
        folder.train(name, ranks, **with_memory_between(folder, ranks, keys))
        if figures(name) != figures(reference):
            print(f"FAIL {name}: {figures(name)} instead of {figures(reference)}")
            return False
        return (runs.same(name + " losses", folder.losses(name), {s: v for s, v in losses.items() if s > after}) and
                runs.same(name + " state", folder.hashes(name), hashes))

    for zero, pp, dp in device["pp_layouts"]:
        good &= same(f"stage{zero}-pp{pp}-dp{dp}", pp * dp, **stage_keys(zero, pp, dp))
    good &= same("unequal", 3, mesh__pp=3, pipeline__layers="[1,4,3]" if most == 4 else "[1,3,2]")
    for schedule, zero, pp, dp in orders_of(device):
        recompute = {"activation__recompute": ("none", "selective", "full", "auto")[(zero + pp) % 4], "activation__every": 1, "activation__keep": "[]"}
        virtual = 2 + (zero + dp) % (8 // pp - 1)
        good &= same(f"{schedule}-stage{zero}-pp{pp}-dp{dp}", pp * dp, **{**stage_keys(zero, pp, dp), **recompute, **ordered(schedule, pp, virtual)})
    good &= same("unequal-interleaved", 2, mesh__pp=2, pipeline__layers="[1,3,2,2]" if most == 4 else "[1,2,2,1]", **ordered("interleaved", 2))
    before = "alone"
    for (zero, pp, dp, after), save in zip(device["pp_resumes"], saves[1:]):
        name = f"resumed-stage{zero}-pp{pp}-dp{dp}"
        keys = stage_keys(zero, pp, dp) if pp > 1 else {"zero__stage": zero}
        good &= same(name, pp * dp, after, run__resume=folder.run(before) + f"/checkpoints/step-{after:08d}", checkpoint__every=save, checkpoint__keep=0, **keys)
        before = name
    # Fewer micro-batches than stages, down to one, and a last one that is empty.
    for micros in third((1, 2, 3, 5), dtype == "bf16"):
        few, reference = {"batch__micro": 1, "batch__global": micros}, f"few{micros}"
        folder.train(reference, 1, **{**common, **few})
        losses, hashes = folder.losses(reference), folder.hashes(reference)
        good &= same(f"few{micros}-pp3", 3, **few, **stage_keys(0, 3, 1)) and same(f"few{micros}-pp2-dp2", 4, **few, **stage_keys(2, 2, 2))
        for schedule in ("zero_bubble", "interleaved"):
            good &= same(f"few{micros}-{schedule}", most, **few, **stage_keys(micros % 4, most, 1), **ordered(schedule, most))
    tied, reference = {"model__tied": True, "model__layers": 4}, "tied"
    folder.train(reference, 1, **{**common, **tied})
    losses, hashes = folder.losses(reference), folder.hashes(reference)
    if device is DEVICES["host"]:
        good &= same("tied-stage3-dp2", 2, **tied, **layout_keys(3, 2)) if dtype == "bf16" else same("tied-stage1-dp3", 3, **tied, **layout_keys(1, 3))
    for schedule, zero, pp, dp in (("1f1b", 1, 2, 2), ("zero_bubble", 3, 2, 1), ("interleaved", 0, 2, 1)):
        good &= same(f"tied-{schedule}-pp{pp}-dp{dp}", pp * dp, **tied, **stage_keys(zero, pp, dp), **ordered(schedule, pp))
    of_two = {"model__layers": of_model(device, 8, 4)}  # stages, with two of the interleaved schedule's on each
    routed, reference = {**experts_of(device), **of_two}, "with-experts"
    folder.train(reference, 1, **{**common, **routed})
    losses, hashes = folder.losses(reference), folder.hashes(reference)
    good &= same("experts-pp2-dp2", 4, **routed, **stage_keys(1, 2, 2))
    for schedule in ("zero_bubble", "interleaved"):
        good &= same(f"experts-{schedule}", 4, **routed, **stage_keys(3, 2, 2), **ordered(schedule, 2))
    heads = {**heads_of(device), **of_two}
    tensor_parallel, reference = {**heads, "mesh__tp": 2}, "tp2"
    folder.train(reference, 2, **{**common, **tensor_parallel})
    losses, hashes = folder.losses(reference), folder.hashes(reference)
    good &= same("pp2-tp2", 4, **tensor_parallel, **stage_keys(1, 2, 1))
    good &= same("zero_bubble-pp2-tp2", 4, **tensor_parallel, **stage_keys(3, 2, 1), **ordered("zero_bubble", 2))
    good &= same("interleaved-pp2-tp2", 4, **tensor_parallel, **stage_keys(2, 2, 1), **ordered("interleaved", 2))
    cut, reference = {**heads, "mesh__cp": 2}, "cp2"
    folder.train(reference, 2, **{**common, **cut})
    losses, hashes = folder.losses(reference), folder.hashes(reference)
    for schedule, zero, dp in (("1f1b", 3, 1), ("zero_bubble", 1, 2), ("interleaved", 2, 1)):
        good &= same(f"{schedule}-pp2-cp2-dp{dp}", 4 * dp, **cut, **stage_keys(zero, 2, dp), **ordered(schedule, 2))
    fast_keys = {**common, "run__reproducible": False, "model__tied": True}
    folder.train("fast", 1, **fast_keys)
    for schedule, zero, pp, dp in (("1f1b", 0, 2, 1), ("1f1b", 3, 2, 2), ("1f1b", 2, 3, 1), ("zero_bubble", 1, most, 1), ("zero_bubble", 3, 2, 2),
                                   ("interleaved", 0, most, 1), ("interleaved", 2, 2, 2)):
        name = f"fast-{schedule}-stage{zero}-pp{pp}-dp{dp}"
        if left():
            continue
        folder.train(name, pp * dp, **with_memory_between(folder, pp * dp, {**fast_keys, **stage_keys(zero, pp, dp), **ordered(schedule, pp)}))
        good &= near(name, folder.losses(name), folder.losses("fast"), dtype)
    folder.train("fast-cp2", 4, **with_memory_between(folder, 4, {**fast_keys, **stage_keys(1, 2, 1), "mesh__cp": 2}))
    good &= near("fast-cp2", folder.losses("fast-cp2"), folder.losses("fast"), dtype)
    return good


def groups_of_ranks(device):
    """Ranks, mesh and ZeRO: groups with the whole state each (mesh.replicate), and with a compute copy each (zero.hpz_partition_size)."""
    copies = lambda size, **keys: {"zero__stage": 3, "zero__hpz_partition_size": size, "zero__max_reuse_distance": 0, **keys}
    layouts = [(4, {"mesh__replicate": 2, "zero__stage": 3}), (3, {"mesh__replicate": 3, "zero__stage": 1}), (4, copies(2)),
               (6, copies(3, activation__recompute="full", run__lanes="threads"))]
    if device is DEVICES["cuda"]:
        return [layouts[0], layouts[2]]
    layouts += [(4, copies(2, zero__offload_optimizer__device="host", zero__allgather_bucket_size=4096)), (4, copies(2, mesh__pp=2)),
                (4, {"mesh__replicate": 2, "zero__stage": 2, "run__lanes": "threads"})]
    if FULL:
        layouts += [(6, {"mesh__replicate": 3, "zero__stage": stage, "mesh__pp": pp}) for stage in (1, 2, 3) for pp in (1, 2) if pp == 1 or stage < 3]
        layouts += [(8, copies(size, mesh__pp=pp, zero__offload_optimizer__device=device)) for size in (2, 4) for pp in (1, 2) for device in ("none", "nvme")]
    return layouts


def replicas(folder, dtype, device):
    """Groups of data-parallel ranks: the bits of one rank, and in fast mode near them; evaluations and resumes among them, and memory is what was planned."""
    steps, good = device["steps"], True
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "run__log_every": 1, "model__layers": 3, "model__tied": False,
              "zero__param_persistence_threshold": 64, "evaluate__every": steps, "evaluate__batches": device["evaluations"], "data__validation": folder.data, **device["keys"], **device["few_heads"]}
    folder.train("alone", 1, checkpoint__every=steps // 2, checkpoint__keep=0, **common)
    losses, hashes = folder.losses("alone"), folder.hashes("alone")
    value = lambda name: [row["val_loss"] for row in folder.metrics(name) if "val_loss" in row]
    for number, (ranks, keys) in third(enumerate(groups_of_ranks(device)), False):
        name = f"groups{number}-ranks{ranks}"
        start = {"run__resume": folder.run("alone") + f"/checkpoints/step-{steps // 2:08d}"} if number % 2 else {}
        done = folder.train(name, ranks, **{**common, **keys, **start})
        good &= runs.same(f"{name} losses ({keys})", folder.losses(name), {s: v for s, v in losses.items() if s > (steps // 2 if start else 0)})
        good &= runs.same(f"{name} state ({keys})", folder.hashes(name), hashes)
        memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
        if value(name) != value("alone") or not memory or any(used != planned for used, planned in memory):
            print(f"FAIL {name} ({keys}): validation losses {value(name)} and {value('alone')}, memory used and planned {memory}")
            good = False
        folder.train(f"fast-{name}", ranks, **{**common, **keys, "run__reproducible": False})
        good &= near(f"fast-{name}", folder.losses(f"fast-{name}"), losses, dtype)
    return good


# Blocks of a gather and a reduction are large enough to be worth shared memory inside nodes.
LARGE = {"model__width": 128, "model__vocab": 1024, "model__ff_width": 256, "batch__global": 12, "run__steps": 4, "batch__sequence_length": 16}


def nodes(folder, dtype, device):
    """Ranks of pretended nodes, whose collectives go through shared memory inside them: in fast mode too the bits of collectives that do not."""
    good = True
    common = {**LARGE, "precision__compute": dtype, "run__threads": 1, "zero__param_persistence_threshold": 0}
    layouts = [(0, 4, 2, "fast"), (3, 4, 2, "fast"), (2, 6, 3, "fast"), (1, 6, 2, "exact"), (3, 6, 2, "exact"), (2, 5, 2, "exact")]
    for stage, ranks, of_node, mode in third(layouts, False):
        name, keys = f"{mode}-stage{stage}-ranks{ranks}-of{of_node}", {**common, "zero__stage": stage, "run__reproducible": mode == "exact"}
        os.environ.pop("TESSERA_RANKS_PER_NODE", None)
        folder.train(name + "-one-node", ranks if mode == "fast" else 1, **keys)
        os.environ["TESSERA_RANKS_PER_NODE"] = str(of_node)
        for hierarchical in ("auto", "never"):
            over = folder.train(f"{name}-{hierarchical}", ranks, topology__hierarchical=hierarchical, **keys).stderr
            inside = re.search(rf"collectives by shared memory inside {ranks // of_node} nodes, mpi between", over) is not None
            if inside != (hierarchical == "auto" and ranks % of_node == 0):
                print(f"FAIL {name}: with {hierarchical} the banner says otherwise:\n{over}")
                good = False
            good &= runs.same(f"{name} {hierarchical} losses", folder.losses(f"{name}-{hierarchical}"), folder.losses(name + "-one-node"))
            good &= runs.same(f"{name} {hierarchical} state", folder.hashes(f"{name}-{hierarchical}"), folder.hashes(name + "-one-node"))
    return good


FROZEN = ["embedding.*", "layers.0.*", "layers.1.m*", "layers.2.attention.norm", "head.norm"]


def is_frozen(tensor):
    return any(fnmatch.fnmatchcase(tensor, pattern) for pattern in FROZEN)


def is_base(tensor):
    return ".lora_" not in tensor


def stayed(name, before, after, dtype, is_frozen=is_frozen):
    """Frozen tensors have the bytes that they began with, which the compute type holds, and moments of zero; all others have moved."""
    good = True
    for (group, tensor), (_, data) in after.items():
        same = data == before[group, tensor][1]
        rounded = dtype == "fp32" or not any(data[i] or data[i + 1] for i in range(0, len(data), 4))
        if is_frozen(tensor) != same or (is_frozen(tensor) and not (rounded if group == "master" else not any(data))):
            print(f"FAIL {name}: {group} of {tensor} {'moved' if is_frozen(tensor) else 'stayed'}, or is not what the compute type holds")
            good = False
    return good


def frozen(folder, dtype, device):
    """model.freeze: the bits of one rank over stages of either kind, data-parallel ranks, replicas, groups of compute copies, offload, recompute and
    resumes, and at equal sizes of tp, cp and ep; what is frozen stays to the byte."""
    steps, good = device["steps"], True
    plain = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "run__threads": 1, "model__layers": 4, **heads_of(device),
             "model__vocab": 263, **device["keys"], "model__freeze": json.dumps(FROZEN)}
    middle = steps // 2
    left = left_to_others(dtype, device)

    def same(name, reference, ranks, after=0, **keys):
        if not after and left():
            return True
        folder.train(name, ranks, **with_memory_between(folder, ranks, keys))
        return (runs.same(name + " losses", folder.losses(name), {s: v for s, v in folder.losses(reference).items() if s > after}) and
                runs.same(name + " state", folder.hashes(name), folder.hashes(reference)))

    for kind, more in (("dense", {}), ("tied", {"model__tied": True}), ("experts", {**experts_of(device), "model__layers": of_model(device, 4, 3)})):
        common = {**plain, **more}
        reference = f"frozen-{kind}"
        folder.train(reference, 1, checkpoint__every=middle, checkpoint__keep=0, **common)
        start = folder.run(reference) + f"/checkpoints/step-{middle:08d}"
        good &= stayed(reference, runs.read_state(start), runs.read_state(folder.latest(reference)), dtype)
        layouts = {"dense": ((0, 1, 3), (1, 1, 2), (2, 1, 4), (3, 1, 2), (3, 1, 3), (1, 2, 2), (3, 4, 1)), "tied": ((3, 1, 2), (1, 2, 1)), "experts": ((3, 1, 3),)}
        for zero, pp, dp in layouts[kind][-2:] if device is DEVICES["cuda"] else layouts[kind]:
            keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
            good &= same(f"{reference}-stage{zero}-pp{pp}-dp{dp}", reference, pp * dp, **{**keys, **common})
        good &= same(f"{reference}-resumed", reference, 2, middle, run__resume=start, **{**layout_keys(3, 2), **common})
        axes = {"dense": ({"tp": 2}, {"cp": 2}), "tied": ({"tp": 2},), "experts": ({"ep": 2, "tp": 2},)}[kind]
        for sizes in axes[:1] if device is DEVICES["cuda"] else axes:
            cut, ranks = {f"mesh__{axis}": size for axis, size in sizes.items()}, math.prod(sizes.values())
            name = reference + "-" + "-".join(f"{axis}{size}" for axis, size in sizes.items())
            folder.train(name, ranks, **common, **cut)
            good &= near(name, folder.losses(name), folder.losses(reference), dtype) if kind != "experts" else True
            good &= stayed(name, runs.read_state(start), runs.read_state(folder.latest(name)), dtype)
            good &= same(name + "-stage3-dp2", name, 2 * ranks, **{**layout_keys(3, 2), **common, **cut})
    common = plain
    good &= same("frozen-replicas", "frozen-dense", 4, **common, zero__stage=2, mesh__replicate=2)
    good &= same("frozen-groups", "frozen-dense", 4, **common, zero__stage=3, zero__param_persistence_threshold=0, zero__hpz_partition_size=2)
    good &= same("frozen-zero_bubble", "frozen-dense", 2, **{**common, **stage_keys(1, 2, 1), **ordered("zero_bubble", 2)})
    # Nothing of the first stage is trained, and of the whole model the head's matrix alone.
    for name, patterns in (("half", ["embedding.*", "layers.0.*", "layers.1.*"]), ("head", ["embedding.*", "layers.*", "head.norm"])):
        keys = {**common, "model__freeze": json.dumps(patterns)}
        folder.train(f"frozen-{name}", 1, **keys)
        good &= same(f"frozen-{name}-pp2", f"frozen-{name}", 2, **{**keys, **stage_keys(1, 2, 1)})
        good &= same(f"frozen-{name}-stage3", f"frozen-{name}", 2, **{**layout_keys(3, 2), **keys})
    return good


# Of B the learning rate is another, as LoRA+ has it.
GROUPS = '[{ tensors = ["*.lora_b"], learning_rate = 0.02 }, { tensors = ["layers.1.*"], weight_decay = 0.5 }]'
LORA = {"dense": {"lora__rank": 8, "lora__dropout": 0.1, "model__qkv_bias": True, "optimizer__groups": GROUPS},
        "tied": {"lora__rank": 3, "lora__dropout": 0.4, "lora__scaling": "rslora", "lora__alpha": 4.0, "lora__targets": '["q_proj", "wv", "layers.1.mlp.*", "layers.2.*.w_down"]', "model__tied": True,
                 "model__qk_norm": True},
        "experts": {**EXPERTS, "lora__rank": 4, "lora__targets": '["all-linear"]'}}


def lora(folder, dtype, device):
    """Adapters: the bits of one rank over stages of either kind, data-parallel ranks, replicas, groups of compute copies, offload, recompute and resumes,
    and at equal sizes of tp, cp and ep; the model that they stand beside stays to the byte."""
    steps, good = device["steps"], True
    plain = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, "run__threads": 1, "model__layers": 4, "model__heads": 4, "model__kv_heads": 2,
             "model__vocab": 263, **device["keys"]}
    middle = steps // 2
    left = left_to_others(dtype, device)

    def same(name, reference, ranks, after=0, **keys):
        if not after and left():
            return True
        folder.train(name, ranks, **with_memory_between(folder, ranks, keys))
        return (runs.same(name + " losses", folder.losses(name), {s: v for s, v in folder.losses(reference).items() if s > after}) and
                runs.same(name + " state", folder.hashes(name), folder.hashes(reference)))

    for kind, more in LORA.items():
        common = {**plain, **more}
        if kind == "experts":
            common.update(experts_of(device), model__layers=of_model(device, 4, 2), model__heads=of_model(device, 4, 2))
        reference = f"lora-{kind}"
        folder.train(reference, 1, checkpoint__every=middle, checkpoint__keep=0, **common)
        start = folder.run(reference) + f"/checkpoints/step-{middle:08d}"
        good &= stayed(reference, runs.read_state(start), runs.read_state(folder.latest(reference)), dtype, is_base)
        layouts = {"dense": ((0, 1, 3), (1, 1, 2), (2, 1, 4), (3, 1, 2), (3, 1, 3), (1, 2, 2), (3, 4, 1)), "tied": ((3, 1, 2), (1, 2, 1)), "experts": ((3, 1, 3),)}
        for zero, pp, dp in layouts[kind][-2:] if device is DEVICES["cuda"] else layouts[kind]:
            keys = stage_keys(zero, pp, dp) if pp > 1 else layout_keys(zero, dp)
            good &= same(f"{reference}-stage{zero}-pp{pp}-dp{dp}", reference, pp * dp, **{**keys, **common})
        good &= same(f"{reference}-resumed", reference, 2, middle, run__resume=start, **{**layout_keys(3, 2), **common})
        axes = {"dense": ({"tp": 2}, {"tp": 4}, {"cp": 2}), "tied": ({"tp": 2, "cp": 2},), "experts": ({"ep": 2, "tp": 2},)}[kind]
        for sizes in axes[:1] if device is DEVICES["cuda"] else axes:
            cut, ranks = {f"mesh__{axis}": size for axis, size in sizes.items()}, math.prod(sizes.values())
            name = reference + "-" + "-".join(f"{axis}{size}" for axis, size in sizes.items())
            folder.train(name, ranks, **common, **cut)
            good &= near(name, folder.losses(name), folder.losses(reference), dtype) if kind != "experts" else True
            good &= stayed(name, runs.read_state(start), runs.read_state(folder.latest(name)), dtype, is_base)
            good &= same(name + "-stage3", name, 2 * ranks, **{**layout_keys(3, 2), **common, **cut})
    common = {**plain, **LORA["dense"]}
    good &= same("lora-replicas", "lora-dense", 4, **common, zero__stage=2, mesh__replicate=2)
    good &= same("lora-groups", "lora-dense", 4, **common, zero__stage=3, zero__param_persistence_threshold=0, zero__hpz_partition_size=2)
    good &= same("lora-zero_bubble", "lora-dense", 2, **{**common, **stage_keys(1, 2, 1), **ordered("zero_bubble", 2)})
    return good


# What of a deck's [optimizer] shapes an update, beside its defaults.
GROUPS = ("[{ tensors = ['layers.*.mlp.w_*', 'head.*'], type = 'lion', beta2 = 0.9 }, { tensors = ['layers.1.*'], type = 'sgd', momentum = 0.5 },"
          " { tensors = ['*'], weight_decay = 0.01 }]")
OF_OPTIMIZERS = {"adamw": [{}, {"optimizer__groups": GROUPS}, {"optimizer__moments": "bf16"}],
                 "adam8bit": [{"model__ff_width": 160}],  # of which the layers have whole blocks, some of their tensors
                 "lion": [{}, {"optimizer__moments": "bf16", "optimizer__moments_rounding": "nearest"}], "lamb": [{"optimizer__max_trust_ratio": 0.5}],
                 "muon": [{}, {"optimizer__newton_schulz": "polar_express", "optimizer__muon_scale": "original", "optimizer__nesterov": False, "optimizer__moments": "bf16"}],
                 "sgd": [{}, {"optimizer__momentum": 0.9}, {"optimizer__momentum": 0.9, "optimizer__nesterov": True}]}


def optimizers(folder, dtype, device):
    """Each optimizer of the schema, in each of its shapes: the same bits over stages, ranks, offload and across a resume at another layout; others than
    those of every other optimizer."""
    steps = device["steps"]
    common = {"run__reproducible": True, "precision__compute": dtype, "run__steps": steps, **device["keys"], **device["few_heads"]}
    middle = steps // 2
    keys = json.loads(runs.tessera("deck", "reference", "--json").stdout)
    # 1-bit Adam depends on the number of ranks: onebit.py.
    names = [name for name in next(row["choices"] for row in keys if row["key"] == "optimizer.type") if name != "onebit_adam"]
    shapes = [(name, shape) for name in names for shape in OF_OPTIMIZERS.get(name, [{}])]
    layouts = [(3, 2), (1, 3), (2, 2), (3, 3), (0, 2), (1, 2), (2, 3), (3, 1)]
    each, left = len(layouts) if FULL else 1, left_to_others(dtype, device)
    good, seen = True, {}
    for number, (name, shape) in enumerate(shapes):
        title = "-".join([name, *(f"{key.split('__')[1]}" for key in shape)])
        of_it = {**common, "optimizer__type": name, **shape}
        folder.train(title, 1, checkpoint__every=middle, checkpoint__keep=0, checkpoint__weights_every=middle, **of_it)
        losses, hashes = folder.losses(title), folder.hashes(title)
        other = seen.setdefault(str(losses), title)
        if other != title or len(losses) != steps:
            print(f"FAIL {title} has {len(losses)} steps and the losses of {other}")
            good = False
        for stage, ranks in [layouts[(number * each + DRAW + i) % len(layouts)] for i in range(each)]:
            run = f"{title}-stage{stage}-ranks{ranks}"
            folder.train(run, ranks, **with_memory_between(folder, ranks, {**layout_keys(stage, ranks), **of_it}))
            good &= runs.same(run + " losses", folder.losses(run), losses)
            good &= runs.same(run + " state", folder.hashes(run), hashes)
        if left():
            continue
        start = folder.run(title) + f"/checkpoints/step-{middle:08d}"
        run = f"{title}-resumed"
        folder.train(run, 2, run__resume=start, checkpoint__weights_every=steps, **with_memory_between(folder, 2, {**layout_keys(3, 2), **of_it}))
        good &= runs.same(run + " losses", folder.losses(run), {s: v for s, v in losses.items() if s > middle})
        good &= runs.same(run + " state", folder.hashes(run), hashes)
    # Matrices of which tensor-parallel ranks have parts of rows or of columns.
    cut = {**common, "optimizer__type": "muon", "mesh__tp": 2}
    folder.train("muon-tp2", 2, **cut)
    good &= near("muon-tp2", folder.losses("muon-tp2"), folder.losses("muon"), dtype)
    stage = 1 + DRAW % 3
    folder.train(f"muon-tp2-stage{stage}", 4, **{**layout_keys(stage, 2), **cut, "activation__recompute": "full"})
    good &= runs.same(f"muon-tp2-stage{stage} state", folder.hashes(f"muon-tp2-stage{stage}"), folder.hashes("muon-tp2"))
    # What AdamW keeps in fp32 may go on in fewer bits.
    for title, shape in {"adamw-8bit": {"optimizer__type": "adam8bit"}, "adamw-bf16": {"optimizer__moments": "bf16"}}.items():
        folder.train(title, 1, run__resume=folder.run("adamw") + f"/checkpoints/step-{middle:08d}", **{**common, **shape})
        after = {step: loss for step, loss in folder.losses("adamw").items() if step > middle}
        good &= set(folder.losses(title)) == set(after) and near(title, folder.losses(title), after, dtype)
    # A group that has all tensors is the optimizer that it names.
    folder.train("lion-own", 2, **{**common, **layout_keys(2, 2), "optimizer__type": "lion", "optimizer__beta1": 0.8, "optimizer__beta2": 0.7})
    folder.train("lion-group", 2, **{**common, **layout_keys(2, 2), "optimizer__groups": "[{ tensors = ['*'], type = 'lion', beta1 = 0.8, beta2 = 0.7 }]"})
    good &= runs.same("lion as a group", folder.losses("lion-group"), folder.losses("lion-own"))
    return good & refused_state(folder, common, names) & refused_groups(folder, common)


def refused_groups(folder, common):
    """A tensor whose state another optimizer saved is refused by name, though the checkpoint's groups are those of this deck."""
    other = GROUPS.replace("'head.*'", "'embedding.*'")
    done = runs.tessera(*folder.arguments("other_groups", run__resume=folder.latest("adamw-groups"), optimizer__groups=other, **common), own_process=True)
    said = done.stderr + done.stdout
    if done.returncode == 4 and "was updated by an optimizer that keeps" in said and ("head." in said or "embedding." in said):
        return True
    print(f"FAIL other groups: status {done.returncode}: {said[-400:]}")
    return False


def refused_state(folder, common, names):
    """State that another optimizer saved is refused by name, with what works in its place."""
    good = True
    for name, other in itertools.permutations(names, 2):
        state = {of: sorted({group for group, _ in runs.read_state(folder.latest(of))}) for of in (name, other) if os.path.isdir(folder.run(of))}
        if len(state) < 2 or state[name] == state[other] or state[name] == ["master"]:
            continue
        done = runs.tessera(*folder.arguments(f"{other}-of-{name}", run__resume=folder.latest(name), optimizer__type=other, **common), own_process=True)
        said = done.stderr + done.stdout
        if done.returncode != 4 or "the state of another optimizer" not in said or "tessera consolidate" not in said:
            print(f"FAIL {other} from {name}: status {done.returncode}: {said[-400:]}")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["reproducible", "fast", "gradients", "tensor", "shared_keys", "context", "ring", "pipeline", "experts", "replicas", "nodes", "frozen", "lora", "optimizers", "shapes"])
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", choices=DEVICES, default="host")
    parser.add_argument("--seed", type=int, default=DRAW)
    options = parser.parse_args()
    with runs.Folder() as folder:
        if options.device == "cuda" and not runs.has_gpu(folder):
            print("skipped: no GPU")
            return 77
        if options.mode == "shapes":
            good = shapes(folder, options.seed)
        else:
            modes = {"reproducible": reproducible, "fast": fast, "gradients": gradients, "tensor": tensor, "shared_keys": shared_keys, "context": context, "ring": ring, "pipeline": pipeline,
                     "experts": experts, "replicas": replicas, "nodes": nodes, "frozen": frozen, "lora": lora, "optimizers": optimizers}
            good = modes[options.mode](folder, options.dtype, DEVICES[options.device])
    print("same" if good else "different")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
