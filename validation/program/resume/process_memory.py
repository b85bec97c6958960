#!/usr/bin/env python3
"""What the processes of a run hold in memory is what its plan counts: with no offload, with state on the host and on disks, also while it saves and after a
resume, a rank stays within 64 MiB of its plan and of what libraries take. That base is measured: a run of a tiny model in the same build, less its plan.

Two kinds of pages. Private ones (a process's own, and files that it maps) are those of the tier "host", and on one rank those of "device". Shared ones are
memory files that the ranks of a node map from each other, so that each rank has its own and, once it has touched them, its peers' in its books: the tier
"shared", and on several ranks "device". Pages that are pinned or registered for direct transfers are resident like others and count once."""
import sys

import runs
from drawn import third

MIB = 1 << 20
SLACK = 64 * MIB
COMMON = {**runs.ENDLESS, "run__threads": 1, "precision__compute": "bf16", "batch__global": 4, "checkpoint__every": 3, "checkpoint__keep": 1,
          "zero__param_persistence_threshold": 0}
# 20 M parameters, 18 bytes each: a copy of one of their parts that no plan counts is more than the slack.
MODEL = {"model__layers": 6, "model__width": 512, "model__head_dim": 128, "model__ff_width": 1408, "model__vocab": 4096}
EVERYTHING = {"zero__stage": 3, "activation__recompute": "full"}
CASES = [  # name, ranks, keys
    ("no offload", 1, {"zero__stage": 0}),
    ("no offload", 2, {"zero__stage": 2}),
    ("optimizer on the host", 1, {"zero__stage": 1, "zero__offload_optimizer__device": "host"}),
    ("all on the host", 2, {**EVERYTHING, "zero__offload_optimizer__device": "host", "zero__offload_param__device": "host", "activation__offload": "host"}),
    ("optimizer on a disk", 2, {"zero__stage": 2, "zero__offload_optimizer__device": "nvme"}),
    ("all on a disk", 1, {**EVERYTHING, "zero__offload_optimizer__device": "nvme", "zero__offload_param__device": "nvme", "activation__offload": "nvme"}),
]
check = runs.Checks()


def pages_of(pid):
    """Bytes of a process: private, shared, and the most of both that there were at a time."""
    with open(f"/proc/{pid}/status") as status:
        rows = {key: int(value.split()[0]) << 10 for key, value in (line.split(":", 1) for line in status) if key.startswith(("Rss", "VmHWM"))}
    return {"private": rows["RssAnon"] + rows["RssFile"], "shared": rows["RssShmem"], "most": rows["VmHWM"]}


def largest(running):
    """Of the ranks' pages, the most of each kind."""
    ranks = [pages_of(pid) for pid in running.ranks()]
    return {kind: max(pages[kind] for pages in ranks) for kind in ranks[0]}


def planned(folder, ranks, keys):
    tiers = {name: tier["bytes"] for name, tier in folder.plan(ranks, "--threads", "1", **keys)["tiers"].items() if name != "nvme"}
    shared = sum(count for name, count in tiers.items() if name == "shared" or (name == "device" and ranks > 1))
    private = sum(tiers.values()) - shared
    return {"private": private, "shared": ranks * shared, "most": private + ranks * shared}


def measured(folder, name, ranks, keys):
    """The pages of a run that has saved, and of one that goes on where that was killed."""
    found, step = [], 8
    for _ in range(2):
        running = folder.start(name, ranks, **keys)
        running.wait_for_step(step)
        found.append(largest(running))
        running.kill()
        step = running.steps_done() + 6
    return found


def text(count):
    return f"{count / MIB:.1f} MiB"


with runs.Folder() as folder:
    base = {}
    for ranks in (1, 2):
        plan, found = planned(folder, ranks, COMMON), measured(folder, f"tiny-{ranks}", ranks, COMMON)[0]
        base[ranks] = {kind: found[kind] - plan[kind] for kind in plan}
        print(f"base of {ranks} ranks: " + ", ".join(f"{kind} {text(count)}" for kind, count in base[ranks].items()))
    for number, (name, ranks, keys) in third(enumerate(CASES)):
        keys = {**COMMON, **MODEL, **keys}
        plan = planned(folder, ranks, keys)
        for when, found in zip(("", ", resumed"), measured(folder, f"case-{number}", ranks, keys)):
            for kind in plan:
                beyond = found[kind] - plan[kind] - base[ranks][kind]
                check(f"{name}, {ranks} ranks{when}: {kind} {text(found[kind])}, planned {text(plan[kind])}, beyond plan and base {text(beyond)}",
                      beyond <= SLACK and (kind == "shared" or found[kind] >= plan["private"]))
sys.exit(0 if check.good else 1)
