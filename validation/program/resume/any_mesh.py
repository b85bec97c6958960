#!/usr/bin/env python3
"""A run goes on from a checkpoint of any mesh at any other, with no bit lost: pairs of layouts drawn by seed, of tensor-, context-, expert-parallel ranks,
stages of a pipeline, data-parallel ranks and ZeRO stages, on up to 8 ranks. usage: any_mesh.py [--seed N] [--pairs N]

What a step computes depends on the sizes of tp, cp and ep and on the method of cp alone. So of each pair the second run must end with the state of a run that went the same
way by the plainest layouts of those sizes; and where the sizes are 1, with that of one rank. N is 5, with TESSERA_TEST_FULL=1 in the environment 40."""
import argparse
import math
import os
import random
import sys

import runs

COMMON = {"run__reproducible": True, "precision__compute": "fp32", "run__threads": 1, "model__layers": 4, "model__heads": 4, "model__kv_heads": 4,
          "model__vocab": 257, "model__tied": False, "batch__micro": 2, "batch__global": 8, "learning_rate__schedule": "constant", "checkpoint__keep": 0}
RING = {"context__method": "ring"}
# Sizes of axes and keys; dp is what makes up the ranks. Those that a run may start with and go on with.
DENSE = [
    ({"dp": 1}, {}), ({"dp": 2}, {"zero__stage": 0}), ({"dp": 3}, {"zero__stage": 3, "zero__param_persistence_threshold": 0}),
    ({"dp": 2}, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), ({"dp": 4}, {"zero__stage": 1, "activation__recompute": "full"}),
    ({"dp": 4, "replicate": 2}, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), ({"dp": 6, "replicate": 3}, {"zero__stage": 1}),
    ({"dp": 2, "replicate": 2}, {"zero__stage": 2}), ({"dp": 4, "tp": 2, "replicate": 2}, {"zero__stage": 3}),
    ({"dp": 4, "pp": 2, "replicate": 2}, {"zero__stage": 2}), ({"dp": 2, "cp": 2, "replicate": 2}, {"zero__stage": 1}),
    ({"dp": 4}, {"zero__stage": 3, "zero__hpz_partition_size": 2, "zero__param_persistence_threshold": 0}),
    ({"dp": 2, "cp": 2}, {"zero__stage": 3, "zero__hpz_partition_size": 2}), ({"dp": 4, "tp": 2}, {"zero__stage": 3, "zero__hpz_partition_size": 2}),
    ({"dp": 4, "pp": 2}, {"zero__stage": 3, "zero__hpz_partition_size": 2, "zero__param_persistence_threshold": 0}),
    ({"tp": 2}, {"zero__stage": 0}), ({"tp": 2, "dp": 2}, {"zero__stage": 3}), ({"tp": 4}, {"zero__stage": 1}),
    ({"tp": 2, "dp": 3}, {"zero__stage": 2, "activation__recompute": "selective"}),
    ({"pp": 2}, {"zero__stage": 0}), ({"pp": 2, "dp": 2}, {"zero__stage": 3}), ({"pp": 4}, {"zero__stage": 1}), ({"pp": 3}, {"pipeline__layers": "[1,2,1]"}),
    ({"pp": 2, "dp": 3}, {"zero__stage": 2, "activation__recompute": "full"}),
    ({"pp": 2}, {"zero__stage": 2, "pipeline__schedule": "interleaved"}), ({"pp": 2, "dp": 2}, {"zero__stage": 1, "pipeline__schedule": "zero_bubble"}),
    ({"pp": 2, "cp": 2}, {"zero__stage": 1}), ({"pp": 2, "tp": 2}, {"zero__stage": 1}), ({"pp": 2, "tp": 2, "dp": 2}, {"zero__stage": 3}),
    ({"cp": 2}, {"zero__stage": 1}), ({"cp": 2, "dp": 2}, {"zero__stage": 3}), ({"cp": 4}, {"zero__stage": 2}),
    ({"cp": 2, "tp": 2}, {"zero__stage": 2}), ({"cp": 2, "tp": 2, "dp": 2}, {"zero__stage": 3}),
    ({"cp": 2}, {"zero__stage": 2, **RING}), ({"cp": 2, "dp": 2}, {"zero__stage": 3, "activation__recompute": "full", **RING}), ({"cp": 3}, {"zero__stage": 1, **RING}),
    ({"cp": 2, "tp": 2}, {"zero__stage": 3, **RING}), ({"cp": 2, "pp": 2}, {"zero__stage": 1, **RING}),
]
EXPERTS = [
    ({"dp": 1}, {}), ({"dp": 3}, {"zero__stage": 3}), ({"dp": 2}, {"zero__stage": 1}), ({"pp": 2}, {"zero__stage": 1}), ({"pp": 2, "dp": 2}, {"zero__stage": 2}),
    ({"dp": 4, "ep": 2, "replicate": 2}, {"zero__stage": 3}), ({"ep": 2, "dp": 2}, {"zero__stage": 3, "zero__hpz_partition_size": 2, "zero__param_persistence_threshold": 0}),
    ({"ep": 2}, {"zero__stage": 1}), ({"ep": 2, "dp": 2}, {"zero__stage": 3}), ({"ep": 4}, {"zero__stage": 2, "activation__recompute": "full"}),
    ({"pp": 2, "ep": 2}, {"zero__stage": 1}), ({"pp": 2, "ep": 2, "dp": 2}, {"zero__stage": 2}),
    ({"tp": 2}, {"zero__stage": 0}), ({"tp": 2, "dp": 2}, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), ({"tp": 2, "pp": 2}, {"zero__stage": 1}),
    ({"tp": 2, "ep": 2}, {"zero__stage": 2}), ({"tp": 2, "ep": 2, "dp": 2}, {"zero__stage": 3}), ({"tp": 2, "ep": 2, "pp": 2}, {"zero__stage": 1}),
    ({"cp": 2}, {"zero__stage": 1, "activation__recompute": "full"}), ({"cp": 2, "dp": 4, "replicate": 2}, {"zero__stage": 3}),
    ({"cp": 2, "ep": 2}, {"zero__stage": 0}), ({"cp": 2, "ep": 2, "dp": 2}, {"zero__stage": 3}), ({"cp": 2, "tp": 2, "ep": 2}, {"zero__stage": 2}),
    ({"cp": 2, "tp": 2}, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), ({"cp": 2, "pp": 2}, {"zero__stage": 2, "pipeline__schedule": "zero_bubble"}),
]
# One key head, whose parts tensor-parallel ranks make where there are several.
KEYS = [
    ({"dp": 1}, {}), ({"dp": 3}, {"zero__stage": 3}), ({"tp": 2}, {"zero__stage": 0}), ({"tp": 4}, {"zero__stage": 1}), ({"tp": 2, "dp": 2}, {"zero__stage": 3}),
    ({"tp": 4, "dp": 2}, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), ({"tp": 4, "dp": 2}, {"zero__stage": 2, "activation__recompute": "full"}),
    ({"tp": 2, "pp": 2}, {"zero__stage": 1, "pipeline__schedule": "zero_bubble"}), ({"tp": 4, "pp": 2}, {"zero__stage": 2, "pipeline__schedule": "interleaved"}),
    ({"tp": 2, "pp": 2, "dp": 2}, {"zero__stage": 3, "activation__recompute": "selective"}), ({"tp": 2, "cp": 2}, {"zero__stage": 1}),
    ({"tp": 2, "cp": 2, "dp": 2}, {"zero__stage": 3}), ({"tp": 2, "cp": 2}, {"zero__stage": 2, **RING}), ({"tp": 4, "cp": 2}, {"zero__stage": 3, **RING}),
    ({"cp": 2}, {"zero__stage": 2, **RING}), ({"tp": 2, "cp": 2, "pp": 2}, {"zero__stage": 1, **RING}),
]
# An embedding that both ends of a pipeline have.
TIED = [layout for layout in DENSE if layout[0].get("pp", 1) == 2 or not set(layout[0]) - {"dp"}]
OF_EXPERTS = {"model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 24, "model__shared_ff_width": 16, "model__router_balance": '"bias"'}
ARITHMETIC = ("tp", "cp", "ep")  # axes that are part of it
SAVES = (2, 4, 6)  # steps: of the start that all share, of the first run of a pair, of the second


def ranks_of(mesh):
    return math.prod(size for axis, size in mesh.items() if axis != "replicate")  # a part of dp


def name_of(mesh, keys):
    return "-".join([f"{axis}{size}" for axis, size in mesh.items()] + [f"stage{keys.get('zero__stage', 0)}"] + ["ring"] * ("context__method" in keys))


class Model:
    """Runs of one model by what they are: each is made once."""

    def __init__(self, folder, name, layouts, more):
        self.folder, self.name, self.layouts, self.common = folder, name, layouts, {**COMMON, **more}
        self.plain = {}
        for mesh, keys in sorted(layouts, key=lambda layout: ranks_of(layout[0])):
            self.plain.setdefault(self.arithmetic(mesh, keys), (mesh, keys))
        self.made = {}

    @staticmethod
    def arithmetic(mesh, keys):
        return tuple(mesh.get(axis, 1) for axis in ARITHMETIC) + (keys.get("context__method", ""),)

    def run(self, *layouts):
        """Name of the run that goes through these layouts, one after the other, from the start that all share."""
        key = tuple(name_of(*layout) + str(sorted(layout[1].items())) for layout in layouts)
        if key in self.made:
            return self.made[key]
        before = self.run(*layouts[:-1]) if layouts[:-1] else self.start()
        mesh, keys = layouts[-1]
        name = f"{self.name}-{len(self.made)}"
        self.train(name, mesh, keys, SAVES[len(layouts)], run__resume=self.folder.latest(before))
        self.made[key] = name
        return name

    def start(self):
        if () not in self.made:
            self.made[()] = f"{self.name}-start"
            self.train(self.made[()], {"dp": 1}, {}, SAVES[0])
        return self.made[()]

    def train(self, name, mesh, keys, steps, **more):
        axes = {f"mesh__{axis}": size for axis, size in mesh.items()}
        self.folder.train(name, ranks_of(mesh), **{**self.common, **axes, **keys, "run__steps": steps, **more})

    def check(self, first, second):
        name = self.run(first, second)
        plain = self.run(self.plain[self.arithmetic(*first)], self.plain[self.arithmetic(*second)])
        what = f"{self.name}: {name_of(*first)} to {name_of(*second)}"
        good = runs.same(what + " state", self.folder.hashes(name), self.folder.hashes(plain))
        return good and runs.same(what + " losses", self.folder.losses(name), self.folder.losses(plain))


def pairs_of(chance, model, count):
    """Each layout once before any comes a second time, on either side. Two of the plainest would be compared with themselves."""
    layouts, plain = model.layouts, model.plain.values()
    pairs, firsts, seconds = [], [], []
    while len(pairs) < count:
        firsts = firsts or chance.sample(layouts, len(layouts))
        seconds = seconds or chance.sample(layouts, len(layouts))
        pair = (firsts.pop(), seconds.pop())
        if pair[0] is not pair[1] and not (pair[0] in plain and pair[1] in plain):
            pairs.append(pair)
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TESSERA_TEST_DRAW", "1")))
    parser.add_argument("--pairs", type=int, default=40 if os.environ.get("TESSERA_TEST_FULL") else 5)
    options = parser.parse_args()
    good, meshes = True, set()
    with runs.Folder() as folder:
        for name, layouts, more, share in (("dense", DENSE, {}, 0.5), ("tied", TIED, {"model__tied": True}, 0.15), ("experts", EXPERTS, OF_EXPERTS, 0.2),
                                            ("keys", KEYS, {"model__kv_heads": 1, "model__qk_norm": True, "model__qkv_bias": True}, 0.15)):
            model = Model(folder, name, layouts, more)
            for first, second in pairs_of(random.Random(f"{options.seed} {name}"), model, max(1, round(share * options.pairs))):
                good &= model.check(first, second)
                meshes |= {name_of(*first), name_of(*second)}
    print(f"{'same' if good else 'different'}: {options.pairs} pairs of {len(meshes)} layouts")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
