#!/usr/bin/env python3
"""Schedules beside DeepSpeed's own classes: a configuration becomes a deck, and 3,000 updates of both have the same learning rate and betas, to the last bit.

    check_schedules.py [--write]     with --write some of them become validation/unit/optimizer/deepspeed_rates.txt, which else must hold them

The classes are read from lr_schedules.py of an installed DeepSpeed, of the sources at DEEPSPEED_SOURCE, or of those that scripts/setup --peer keeps. They are plain Python: where
torch is missing, stand-ins take its place. Exit status 77: there is no such file."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import types

UPDATES = 3000
CACHE = os.environ.get("TESSERA_CACHE", os.path.expanduser("~/.cache/tessera"))
HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "..", "unit", "optimizer", "deepspeed_rates.txt")
KEPT = [0, 1, 2, 3, 124, 125, 170, 300, 301, 335, 599, 601, 701, 702, 1001, 1002, 1071, 1211, 2001, 2501, 2999]  # updates of the table
LR, BETAS = 3e-4, [0.9, 0.95]

CYCLE = {"cycle_min_lr": 1e-5, "cycle_max_lr": 7e-4, "cycle_first_step_size": 300}
CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": 1e-6, "warmup_max_lr": 2e-3, "warmup_num_steps": 700, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_min_lr": 3e-6, "warmup_num_steps": 1}),
    ("WarmupDecayLR", {"total_num_steps": 2500}),
    ("WarmupDecayLR", {"total_num_steps": 2800, "warmup_min_lr": 1e-5, "warmup_max_lr": 9e-4, "warmup_num_steps": 333, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 2500}),
    ("WarmupCosineLR", {"total_num_steps": 2900, "warmup_min_ratio": 0.03, "warmup_num_steps": 123, "cos_min_ratio": 0.1, "warmup_type": "linear"}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 170, "lr_range_test_step_rate": 1.7}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 170, "lr_range_test_step_rate": 0.3, "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 770, "decay_step_size": 100, "decay_lr_rate": 0.7, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": 7, "cycle_second_stair_count": 5, "cycle_second_step_size": 910, "decay_step_size": 1000, "decay_mom_rate": 0.02}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": 11, "decay_step_size": 30, "decay_lr_rate": 0.01, "decay_mom_rate": 0.001}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 0, "cycle_momentum": False, "decay_step_size": 1, "decay_lr_rate": 0.001}),
]


def source():
    named = os.environ.get("DEEPSPEED_SOURCE")
    found = [named] if named else [os.path.join(CACHE, "deepspeed-0.19.6", "deepspeed")]
    if not named and (spec := importlib.util.find_spec("deepspeed")):
        found.insert(0, spec.submodule_search_locations[0])
    files = [os.path.join(folder, "runtime", "lr_schedules.py") for folder in found]
    return next(filter(os.path.exists, files), None)


def classes(path):
    """The module, without the package around it, which needs far more."""
    try:
        import torch
    except ImportError:
        torch = types.ModuleType("torch")
        torch.is_tensor = lambda value: False
        torch.optim = types.ModuleType("torch.optim")
        torch.optim.Optimizer = type("Optimizer", (), {})
        sys.modules.update({"torch": torch, "torch.optim": torch.optim})
    quiet = types.SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)
    utils = types.ModuleType("deepspeed.utils")
    utils.logger = quiet
    package = types.ModuleType("deepspeed")
    package.utils = utils
    sys.modules.update({"deepspeed": package, "deepspeed.utils": utils})
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(module, name, params):
    """The learning rate and betas of each update, as the engine makes them: the scheduler is made, and steps after each update."""

    class Plain(module.Optimizer):
        def __init__(self):
            self.param_groups = [{"lr": LR, "betas": tuple(BETAS)}]
            self.defaults = {"betas": tuple(BETAS)}

    optimizer = Plain()
    scheduler = getattr(module, name)(optimizer, **params)
    for _ in range(UPDATES):
        group = optimizer.param_groups[0]
        yield group["lr"], *group["betas"]
        scheduler.step()


def ours(name, params, folder):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": BETAS}},
        "scheduler": {"type": name, "params": params},
    }
    config_path, deck_path = os.path.join(folder, "ds.json"), os.path.join(folder, "deck.toml")
    with open(config_path, "w") as out:
        json.dump(config, out)
    overrides = [] if "total_num_steps" in params else [f"run.steps={UPDATES}"]
    with open(deck_path, "w") as out:
        subprocess.run([os.environ["TESSERA"], "deck", "import", config_path, "--model", "llama3-8b", "--ranks", "1", *overrides], stdout=out, check=True)
    lines = subprocess.run([os.environ["SCHEDULE_VALUES"], deck_path, str(UPDATES)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [tuple(map(float.fromhex, line.split())) for line in lines], keys_of(deck_path)


def keys_of(path):
    """What of a deck a schedule reads, as overrides."""
    with open(path, "rb") as file:
        deck = tomllib.load(file)
    rate = deck["learning_rate"]
    found = {"run.steps": deck["run"]["steps"], **{f"optimizer.{key}": deck["optimizer"][key] for key in ("learning_rate", "beta1", "beta2") if key in deck["optimizer"]}}
    for section, keys in (("learning_rate", rate), *((f"learning_rate.{name}", keys) for name, keys in rate.items() if isinstance(keys, dict))):
        found.update({f"{section}.{key}": value for key, value in keys.items() if not isinstance(value, dict)})
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in found.items()]


def main():
    path = source()
    if not path:
        print("skipped: no lr_schedules.py of DeepSpeed; run scripts/setup --peer, or set DEEPSPEED_SOURCE to the package's folder", file=sys.stderr)
        sys.exit(77)
    module, different, table = classes(path), 0, ""
    with tempfile.TemporaryDirectory() as folder:
        for name, params in CASES:
            expected = list(theirs(module, name, params))
            got, keys = ours(name, params, folder)
            table += f"deck {' '.join(keys)}\n" + "".join(f"{n} {' '.join(value.hex() for value in expected[n])}\n" for n in KEPT)
            wrong = [n for n in range(UPDATES) if expected[n] != got[n]]
            print(f"{'FAIL' if wrong else 'ok'} {name} {params}: {UPDATES - len(wrong)} of {UPDATES} updates equal", *(f"update {n}: {got[n]}, DeepSpeed's {expected[n]}" for n in wrong[:3]), sep="\n  ")
            different += len(wrong)
    if "--write" in sys.argv:
        with open(TABLE, "w") as out:
            out.write(table)
    with open(TABLE) as file:
        if file.read() != table:
            print(f"FAIL {os.path.normpath(TABLE)} is another table: write it with --write")
            different += 1
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
