#!/usr/bin/env python3
"""The scale of the loss beside DeepSpeed's DynamicLossScaler: 10,000 steps with drawn overflows, in several settings, have the same scale after each step, and
end where it ends.

    check_loss_scale.py     LOSS_SCALE_VALUES in the environment names our program

The class is read from loss_scaler.py of the sources that check_schedules.py finds. Exit status 77: there is no such file."""
import importlib.util
import os
import random
import subprocess
import sys
import types

import check_schedules

STEPS = 10000


def scaler_class():
    path = check_schedules.source()
    path = path and os.path.join(os.path.dirname(path), "fp16", "loss_scaler.py")
    if not path or not os.path.exists(path):
        return None
    quiet = types.SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)

    def module(name, **members):
        made = types.ModuleType(name)
        vars(made).update(members)
        sys.modules[name] = made
        return made
    comm = module("deepspeed.comm", get_rank=lambda: 0)
    module("deepspeed", comm=comm)
    module("deepspeed.utils", logger=quiet)
    module("deepspeed.runtime")
    module("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)
    module("deepspeed.runtime.utils", has_inf_or_nan=None)
    try:
        import torch  # noqa: F401: the file asks it for names of types alone
    except ImportError:
        module("torch", half="half", float16="half", bfloat16="bf16", float32="float", dtype=object, Tensor=object)
    spec = importlib.util.spec_from_file_location("loss_scaler", path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["loss_scaler"] = loaded  # its dataclasses ask for it
    spec.loader.exec_module(loaded)
    return loaded.DynamicLossScaler


def theirs(scaler, power, window, hysteresis, consecutive, minimum, overflows):
    made = scaler(init_scale=2.0**power, scale_window=window, min_scale=minimum, delayed_shift=hysteresis, consecutive_hysteresis=consecutive)
    lines = []
    for overflow in overflows:
        goes_on = 1
        try:
            made.update_scale(overflow)
        except Exception:  # that is how it says that the scale cannot fall
            made.last_overflow_iter, made.cur_iter, goes_on = made.cur_iter, made.cur_iter + 1, 0
        lines.append((float(made.cur_scale), goes_on))
    return lines


def main():
    scaler = scaler_class()
    if not scaler:
        print("no sources of DeepSpeed: scripts/setup --peer fetches them")
        return 77
    draw, good = random.Random(5), True
    for number in range(20):
        power, window, hysteresis = draw.choice([8, 16, 24]), draw.choice([1, 3, 20, 100, 1000]), draw.choice([1, 2, 5])
        consecutive, minimum, rare = draw.random() < 0.5, 2.0 ** draw.randrange(-3, 9), draw.choice([3, 10, 40])
        overflows = []
        while len(overflows) < STEPS:  # far from where fp32 ends, and in bursts too
            overflows += [draw.random() * rare < 1] * draw.choice([1, 1, 1, 2, 6]) + [False] * draw.randrange(0, min(4 * window, 60))
            overflows += [True] * (40 if len(overflows) % 7 == 0 else 0)
        asked = [os.environ["LOSS_SCALE_VALUES"], *map(str, (power, window, hysteresis, int(consecutive), minimum))]
        done = subprocess.run(asked, input="".join("01"[overflow] for overflow in overflows), capture_output=True, text=True, check=True)
        ours = [(float.fromhex(scale), int(goes_on)) for scale, goes_on in map(str.split, done.stdout.splitlines())]
        wanted = theirs(scaler, power, window, hysteresis, consecutive, minimum, overflows)
        until = next((i for i, (scale, _) in enumerate(wanted) if scale > 2.0**90), len(wanted))
        wrong = next((i for i in range(until) if ours[i] != wanted[i]), None)
        moves = sum(a[0] != b[0] for a, b in zip(ours, ours[1:]))
        good &= wrong is None and until > 1000 and moves > 3
        print(f"{'ok  ' if wrong is None else 'FAIL'} window {window}, hysteresis {hysteresis}{' in a row' if consecutive else ''}, minimum {minimum:g}: {until} steps, "
              f"{moves} moves" + ("" if wrong is None else f"; step {wrong}: {ours[wrong]} instead of {wanted[wrong]}"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
