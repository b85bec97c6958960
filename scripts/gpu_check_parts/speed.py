"""Numbers beside their limits: groups of device_benchmark, each in a process of its own, and training beside PyTorch."""

import os
import sys

from .programs import ROOT
from .report import json_lines, row

SIZES = {"emulated": ["--mib", "1", "--tokens", "64", "--width", "128", "--context", "64", "--repeat", "2"], "quick": ["--mib", "256", "--repeat", "5"],
         "full": []}
SHAPES = {"emulated": ["tiny"], "quick": ["124m"], "full": ["124m", "1.5b", "8b-cut"]}
DATASHEET = 989e12  # FLOP/s: dense bf16 of H100 SXM and H200 SXM by their datasheets, which no product reaches
MFU_WANTED = {"1.5b": 50, "8b-cut": 50}  # %, by the full count
SPEED_TIMES = 6  # a shape is a run of ours after another, and PyTorch's compiler: so many times the limit of a test


def groups(programs):
    """Names of device_benchmark's groups."""
    return programs.run([programs.benchmark(), "--list"], 60).out.split()


def benchmark(programs, name, size, seconds, report):
    """Each row counts from the moment it is printed; a process that ends badly is a failed row beside those."""
    done = programs.run([programs.benchmark(), "--json", "--group", name, *SIZES[size]], seconds,
                        on_line=lambda line: report.measure(*(found for found in json_lines(line) if "value" in found)))
    rows = list(json_lines(done.out))
    errors = [f"{found['name']}: {found['error']}" for found in rows if "error" in found]
    good = done.status == 0 and rows and not errors
    return [row("benchmark", f"device_benchmark {name}", "passed" if good else "failed", done.seconds,
                "" if good else "\n".join([*errors, done.err, f"status {done.status}" + ("" if rows else ", and no number")]), done.late)]


def rows_of_training(result):
    """What a shape's runs tell; of a result that is not whole yet, what it has."""
    shape, ours, peer = result["shape"], result.get("ours"), result.get("peer")
    if not ours:
        return
    name = f"training {shape}"
    speed = {"name": name, "value": ours["tokens_per_second"], "unit": "tokens/s", "details": result, "note": f"runs {ours['runs']}"}
    if peer:
        speed.update(share=result["ratio"], limit=f"PyTorch ({peer['how']})", target=1.15)
    yield speed
    yield {"name": f"{name} MFU, full count", "value": 100 * result["mfu_full"], "unit": "%", "note": f"of {result['matmul_flops'] / 1e12:.1f} TFLOP/s, "
           f"the faster of both programs' products ({result['matmul_of']})", **({"at_least": MFU_WANTED[shape]} if shape in MFU_WANTED else {})}
    yield {"name": f"{name} MFU, causal count", "value": 100 * result["mfu_causal"], "unit": "%"}
    yield {"name": f"{name} FLOP/s, full count", "value": result["flops_full"] / 1e12, "unit": "TFLOP/s", "share": result["flops_full"] / DATASHEET,
           "limit": "the datasheet's 989 TFLOP/s"}
    if peer and peer["peak_bytes"]:
        yield {"name": f"{name} planned memory by PyTorch's peak", "value": result["memory_ratio"], "unit": "times", "at_most": 0.85}
    if ours["idle_share"] is None:
        yield {"name": f"{name} idle share", "value": None, "unit": "%", "note": "not measurable: tasks timed one by one took longer than a step"}
    else:
        yield {"name": f"{name} idle share, at least", "value": 100 * ours["idle_share"], "unit": "%", "below": 3,
               "note": "a lower bound: gaps inside a task count as busy"}
    if ours["stage3_tokens_per_second"]:
        yield {"name": f"{name} ZeRO stage 3, one rank", "value": ours["stage3_tokens_per_second"], "unit": "tokens/s",
               "share": ours["stage3_tokens_per_second"] / ours["stage0_beside_stage3"], "limit": "stage 0", "target": 0.99}
    for words, key in (("start to first step", "start_seconds"), ("start to first step, choices of kernels kept", "later_start_seconds")):
        if ours[key] is not None:
            yield {"name": f"{name} {words}", "value": ours[key], "unit": "s", **({"below": 5} if shape == "1.5b" else {})}
    if ours["used_bytes"] is not None:
        yield {"name": f"{name} memory in use beyond plan and overhead", "value": 100 * (ours["used_bytes"] / ours["expected_bytes"] - 1), "unit": "%",
               "at_most": 1, "note": f"{ours['used_bytes'] / 2**30:.2f} GiB by {ours['used_by']}; planned {ours['device_bytes'] / 2**30:.2f} GiB, "
               f"beside it {ours['overhead_bytes'] / 2**30:.2f} GiB"}


def training(programs, shape, emulated, seconds, keep, report):
    """device_training.py prints what it has of the shape after each run; a peer that crashed is a failed row, one that is not there a skipped row."""
    limit = SPEED_TIMES * seconds
    command = [sys.executable, os.path.join(ROOT, "validation", "benchmarks", "device_training.py"), "--json", "--shape", shape, "--steps",
               "1" if emulated else "20", "--tessera", programs.tessera(), "--peer-python", "python3", "--limit", str(2 * seconds),
               "--peer-limit", str(3 * seconds)]
    libraries = programs.environment.get("LD_LIBRARY_PATH")
    command += ["--library-path", libraries] if libraries else []
    command += ["--keep", keep] if keep else []

    def came(line):
        for result in json_lines(line):
            report.measure(*rows_of_training(result))

    # Not with the bundle's environment: PyTorch has its own libraries.
    done = programs.run_plain(command, limit, on_line=came)
    results = list(json_lines(done.out))
    last = results[-1] if results else {}
    good = done.status == 0 and last.get("whole") and not last.get("error")
    skipped = done.status == 77
    words = "" if good else "\n".join([last.get("error") or "", done.err, f"status {done.status}"])
    rows = [row("benchmark", f"device_training {shape}", "passed" if good else "skipped" if skipped else "failed", done.seconds, words, done.late)]
    for entry in last.get("no_peer", []):
        rows.append(row("benchmark", f"peer {shape} ({entry['how']})", "skipped" if entry["absent"] else "failed", 0, entry["why"]))
    return rows
