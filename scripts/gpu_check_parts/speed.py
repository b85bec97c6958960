"""Numbers beside their limits: groups of device_benchmark, each in a process of its own, and training beside PyTorch."""

import json
import os
import sys
import tempfile

from .programs import ROOT
from .report import json_lines, row

SIZES = {"emulated": ["--mib", "1", "--tokens", "64", "--width", "128", "--context", "64", "--repeat", "2", "--search", "1"],
         "quick": ["--mib", "256", "--repeat", "5", "--search", "1"],
         "full": []}
SHAPES = {"emulated": ["tiny"], "quick": ["124m"], "full": ["124m", "1.5b", "8b-cut"]}
ROOM = "room"  # the group of products beside a kernel that holds multiprocessors, which belongs to this part
# Seconds below which a shape is not started: its longest run, which is PyTorch's with its compiler. What a deadline cuts goes on after the last whole run.
LEAST = {"tiny": 20, "124m": 90, "1.5b": 150, "8b-cut": 150}
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


def notes_of(result):
    yield f"runs {result['ours']['runs']}"
    if result.get("runs_of_earlier_calls"):
        yield f"{result['runs_of_earlier_calls']} runs of both are of an earlier call, perhaps on another GPU of the kind"
    if result["peer"] and result.get("not_tried"):
        yield f"PyTorch's {result['not_tried']}"


def rows_of_training(result):
    """What a shape's runs tell; of a result that is not whole yet, what it has."""
    shape, ours, peer = result["shape"], result.get("ours"), result.get("peer")
    if not ours:
        return
    name = f"training {shape}"
    speed = {"name": name, "value": ours["tokens_per_second"], "unit": "tokens/s", "details": result, "note": "; ".join(notes_of(result))}
    if peer:
        speed.update(share=result["ratio"], limit=f"PyTorch ({peer['how']}, attention of {peer.get('attention', 'unknown')})", target=1.15)
    yield speed
    yield {"name": f"{name} MFU, full count, of measured products", "value": 100 * result["mfu_full"], "unit": "%",
           "note": f"the rate that counts is {result['matmul_flops'] / 1e12:.1f} TFLOP/s, measured of a product beside it, the faster of both programs' "
           f"({result['matmul_of']}); this training reaches {100 * result['flops_full'] / DATASHEET:.1f} % of the datasheet's {DATASHEET / 1e12:.0f} TFLOP/s",
           **({"at_least": MFU_WANTED[shape]} if shape in MFU_WANTED else {})}
    yield {"name": f"{name} MFU, causal count, of measured products", "value": 100 * result["mfu_causal"], "unit": "%"}
    yield {"name": f"{name} FLOP/s, full count", "value": result["flops_full"] / 1e12, "unit": "TFLOP/s", "share": result["flops_full"] / DATASHEET,
           "limit": f"the datasheet's {DATASHEET / 1e12:.0f} TFLOP/s"}
    if peer and peer["peak_bytes"]:
        yield {"name": f"{name} planned memory by PyTorch's peak", "value": result["memory_ratio"], "unit": "times", "at_most": 0.85}
    if ours["idle_share"] is None:
        yield {"name": f"{name} idle share", "value": None, "unit": "%", "note": "not measurable: tasks timed one by one took longer than a step"}
    else:
        yield {"name": f"{name} idle share, at least", "value": 100 * ours["idle_share"], "unit": "%", "below": 3, "lower_bound": True,
               "note": "a lower bound: gaps between the kernels of a task count as busy"}
    if ours["stage3_tokens_per_second"]:
        yield {"name": f"{name} ZeRO stage 3, one rank", "value": ours["stage3_tokens_per_second"], "unit": "tokens/s",
               "share": ours["stage3_tokens_per_second"] / ours["stage0_beside_stage3"], "limit": "stage 0", "target": 0.99}
    for words, key in (("start to first step", "start_seconds"), ("start to first step, choices of kernels kept", "later_start_seconds")):
        if ours[key] is not None:
            yield {"name": f"{name} {words}", "value": ours[key], "unit": "s", **({"below": 5} if shape == "1.5b" else {})}
    yield from ours.get("notes", [])
    if ours["used_bytes"] is not None:
        yield {"name": f"{name} memory in use beyond plan and overhead", "value": 100 * (ours["used_bytes"] / ours["expected_bytes"] - 1), "unit": "%",
               "at_most": 1, "note": f"{ours['used_bytes'] / 2**30:.2f} GiB by {ours['used_by']}; planned {ours['device_bytes'] / 2**30:.2f} GiB, "
               f"beside it {ours['overhead_bytes'] / 2**30:.2f} GiB"}


def runs_before(report):
    """What a call that was cut within this job printed last of it; None where there is no such."""
    return next((r["details"] for r in report.before if r.get("details", {}).get("done")), None)


def training(programs, shape, emulated, seconds, keep, report):
    """device_training.py prints what it has of the shape after each run; a peer that crashed is a failed row, one that is not there a skipped row. It goes on
    after the runs that an earlier call has done."""
    with tempfile.TemporaryDirectory() as scratch:
        before, done = runs_before(report), None
        if before:
            report.measure(*rows_of_training(before))  # so that they outlast a call that is cut before its first run ends
            done = os.path.join(scratch, "done.json")
            with open(done, "w") as file:
                json.dump(before, file)
        return run_training(programs, shape, emulated, seconds, keep, done, report)


def run_training(programs, shape, emulated, seconds, keep, done, report):
    limit = SPEED_TIMES * seconds
    command = [sys.executable, os.path.join(ROOT, "validation", "benchmarks", "device_training.py"), "--json", "--shape", shape, "--steps",
               "1" if emulated else "20", "--tessera", programs.tessera(), "--peer-python", "python3", "--limit", str(2 * seconds),
               "--peer-limit", str(3 * seconds)]
    libraries = programs.environment.get("LD_LIBRARY_PATH")
    command += ["--library-path", libraries] if libraries else []
    command += ["--keep", keep] if keep else []
    command += ["--done", done] if done else []

    def came(line):
        for result in json_lines(line):
            report.measure(*rows_of_training(result))

    # Not with the bundle's environment: PyTorch has its own libraries.
    ended = programs.run_plain(command, limit, on_line=came)
    results = list(json_lines(ended.out))
    last = results[-1] if results else {}
    good = ended.status == 0 and last.get("whole") and not last.get("error")
    skipped = ended.status == 77
    words = "" if good else "\n".join([last.get("error") or "", ended.err, f"status {ended.status}"])
    rows = [row("benchmark", f"device_training {shape}", "passed" if good else "skipped" if skipped else "failed", ended.seconds, words, ended.late)]
    for entry in last.get("no_peer", []):
        rows.append(row("benchmark", f"peer {shape} ({entry['how']})", "skipped" if entry["absent"] else "failed", 0, entry["why"]))
    return rows
