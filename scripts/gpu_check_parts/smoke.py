"""The first minute: gpu_smoke asks the GPU for one layer after the other, and then the program trains three steps with a CUDA graph. A layer that fails is
named, with what to look at next; those behind it have their turn in another process."""

import re

from .report import json_lines, row

GROUP = "smoke"
PROBES = 7  # of gpu_smoke
LIMIT = 20  # seconds of a probe
START = 10  # seconds of the process beside its probes
TRAINING = "training"
NO_GRAPH = "cannot be a CUDA graph"  # of a warning (src/schedule/run/graph_capture.cpp): the run goes on without
NEXT_OF_TRAINING = "each layer below it passed alone: the run's own words, and --part training, which compares graph and no graph"
# Lines of a run that say what the plan's allowances (src/schedule/plan/limits.hpp) and the choice of kernels came to.
SAID = {"beside the plan": r"beside the plan, (.*)", "attention": r"(attention(?: forward| backward)?: .*)"}


def rows_said(name, text):
    """What a run says of attention and of memory beside the plan, as rows."""
    for what, pattern in SAID.items():
        found = list(dict.fromkeys(re.findall(pattern, text)))
        if found:
            yield {"name": f"{name}: {what}", "value": None, "unit": "", "note": "; ".join(found)}


def words_of(line):
    """(result, message) of a probe's line."""
    if line["state"] == "failed":
        return "failed", f"{line['said']}\nlayer: {line['layer']}\nlook at: {line['next']}"
    return {"passed": "passed", "absent": "skipped"}[line["state"]], line["said"]


def row_of(line):
    result, message = words_of(line)
    return row(GROUP, f"{line['probe']} {line['name']}", result, line.get("seconds", 0), message)


def run_from(programs, first, report):
    """(rows, the probe that the next process begins with; 0: none) of one process."""
    count = PROBES + 1 - first
    done = programs.run([programs.smoke(), "--from", str(first), "--seconds", str(LIMIT)], START + count * LIMIT)
    lines = list(json_lines(done.out))
    report.measure(*({"name": f"loaded {line['library']}", "value": None, "unit": "", "note": f"{line['version']}, {line['path']}"}
                     for line in lines if "library" in line))
    probes = [line for line in lines if "probe" in line]
    ended = [line for line in probes if line["state"] != "begins"]
    rows = [row_of(line) for line in ended]
    broken = probes[-1] if probes and probes[-1]["state"] == "begins" else None
    if broken:  # no word of how it ended
        rows.append(row(GROUP, f"{broken['probe']} {broken['name']}", "failed", done.seconds,
                        f"{done.err}\nthe process ended within this probe, with status {done.status}", done.late))
    elif not probes:
        rows.append(row(GROUP, "(the program)", "failed", done.seconds, f"{done.text()}\nstatus {done.status}", done.late))
    last = probes[-1] if probes else None
    goes_on = last and last["probe"] > 1 and last["probe"] < PROBES and (broken or last.get("ends")) and not programs.clock.over()
    return rows, last["probe"] + 1 if goes_on else 0


def probes(programs, report):
    rows, first = [], 1
    while first:
        more, first = run_from(programs, first, report)
        rows += more
    return rows


def first_probe(programs):
    """Of a machine without a GPU: what the first probe misses, in a line."""
    done = programs.run([programs.smoke(), "--only", "1"], START + LIMIT)
    failed = next((line for line in json_lines(done.out) if line.get("state") == "failed"), None)
    return f"smoke, probe 1 ({failed['name']}): {failed['said']}" if failed else ""


def train(programs, training, report):
    """Three steps as a graph."""
    begin = programs.clock.seconds()
    fault, late = None, False
    try:
        training.prepare()
        text = training.train("smoke", "run.device=cuda", "run.steps=3", "kernels.cuda_graph=on", limit=LIMIT)[1]
        report.measure(*rows_said("three steps", text))
        fault = next((line for line in text.splitlines() if NO_GRAPH in line), None)
    except (RuntimeError, OSError, ValueError) as error:
        fault, late = str(error), getattr(error, "late", False)
    if fault:
        fault += f"\nlayer: the step as a whole\nlook at: {NEXT_OF_TRAINING}"
    return [row(GROUP, f"{PROBES + 1} three steps of training, as a CUDA graph", "failed" if fault else "passed", programs.clock.seconds() - begin, fault or "", late)]
