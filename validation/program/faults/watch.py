#!/usr/bin/env python3
"""What a user sees: the banner, a line a step in a file, a bar with the time left on a terminal, metrics.jsonl; and a memory plan that is exact to
the byte, before the run and in it."""
import json
import os
import pty
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

STEPS = 10
COMMON = {"run__steps": STEPS, "run__reproducible": True, "run__threads": 1, "batch__global": 12, "run__log_every": 1}
check = runs.Checks()


def rows(folder, name):
    """Each step's line with its numbers as they are written."""
    with open(os.path.join(folder.run(name), "metrics.jsonl")) as lines:
        return [row for row in (json.loads(line, parse_float=str) for line in lines) if "loss" in row]


def banner(folder):
    output = folder.train("banner", 2, zero__stage=3, **COMMON).stderr
    head = output[:output.index("step  1/10")]
    with open(os.path.join(folder.run("banner"), "deck.toml")) as text:
        deck = text.read().strip()
    with open(os.path.join(folder.run("banner"), "plan.txt")) as text:
        plan = text.read()
    check("the banner shows what differs from the defaults", "[zero] stage = 3" in head and "kv_heads" in head, head)
    check("no default stands in it", "error_feedback" not in head and "norm_eps" not in head and "kv_heads = 2" in deck and "norm_eps" in deck, head)
    check("it is one screen", head.count("\n") < 40, f"{head.count(chr(10))} lines\n{head}")
    check("a healthy log has no word error", "error" not in output.lower(), output)
    check("it names the whole deck and the whole plan", all(f"{folder.run('banner')}/{name}" in head for name in ("deck.toml", "plan.txt")), head)
    kept = re.findall(r"^    \S+ +[\d.]+ \S+B$", plan, re.M)
    check("plan.txt has the memory table, auto's choices and the mesh", len(kept) > 5 and "auto: mesh.dp = 2" in plan and "\nmesh  " in plan, plan)
    for line in (r"^mesh .*dp", r"^model .* parameters in \d+ units; .* FLOPs a token", r"^batch .*micro-batches", r"^memory .*planned",
                 r"^machine .*GEMM"):
        check(f"the banner has a line {line!r}", re.search(line, head, re.M), head)
    for category in ("master", "state", "activations"):
        check(f"the memory table has {category}", category in head.lower(), head)
    lines = re.findall(r"^step +(\d+)/10  loss ([\d.]+)  grad norm ([\d.]+)  lr (\S+)  .* tokens/s  .* %.*  memory (.+) of (.+)  left .+$", output, re.M)
    check("a line a step in a file", [int(line[0]) for line in lines] == list(range(1, STEPS + 1)), output)
    check("memory used equals memory planned in every line", lines and all(line[4] == line[5] for line in lines), output)
    check("no bar and no control characters in a file", "\r" not in output and "\033" not in output, output)
    figures = rows(folder, "banner")
    check("the lines show what metrics.jsonl holds", all(f"{float(row['loss']):.4f}" == line[1] for row, line in zip(figures, lines)), output)


def metrics(folder):
    folder.train("first", 2, zero__stage=2, **COMMON)
    folder.train("second", 3, zero__stage=1, checkpoint__every=4, **COMMON)
    first, second = rows(folder, "first"), rows(folder, "second")
    check("metrics.jsonl has one object a step, in order", [row["step"] for row in first] == list(range(1, STEPS + 1)), str(first))
    keys = ("step", "loss", "grad_norm", "lr", "tokens_per_second")
    check(f"each has {', '.join(keys)}", all(key in row for row in first for key in keys), str(first[0]))
    exact = [repr(float(row[key])) == row[key] for row in first for key in ("loss", "grad_norm")]
    check("the shortest digits that read back bit for bit", all(exact), str(first))
    same = all(a[key] == b[key] for a, b in zip(first, second) for key in ("loss", "grad_norm", "lr"))
    check("another layout that saves on the way writes the same digits", same and len(second) == STEPS, f"{first}\n{second}")
    folder.train("second", 1, **COMMON)
    check("a run that was done already leaves them alone", rows(folder, "second") == second)


def memory(folder):
    width, ff, vocab, layers = 32, 48, 211, 2
    count = 2 * vocab * width + width + layers * (2 * width + width * (width + 2 * width // 2 + width) + 3 * width * ff)
    totals = []
    for stage in range(4):
        for dtype, ranks in (("fp32", 2), ("bf16", 3)):
            keys = {**COMMON, "zero__stage": stage, "precision__compute": dtype, "run__reproducible": dtype == "fp32"}
            said = folder.plan(ranks, "--threads", "1", **keys)
            check(f"plan: {said['parameters']} parameters", said["parameters"] == count)
            total = said["bytes_per_rank"]
            totals.append((dtype, total))
            name, what = f"exact-{stage}-{dtype}", f"stage {stage}, {ranks} ranks, {dtype}: plan says {total} bytes"
            folder.train(name + "-less", ranks, expect=5, **keys, memory__host=f'"{total - 1} B"')
            output = folder.train(name, ranks, **keys, memory__host=f'"{total} B"').stderr
            check(f"{what}; the run fits into that and not into one less", not os.path.exists(folder.run(name + "-less")))
            check(f"{what}; the run's lines say so", f"memory {runs.human_bytes(total)} of {runs.human_bytes(total)}" in output, output)
    fp32 = [total for dtype, total in totals if dtype == "fp32"][:3]  # stage 3's buffers of gathered units outweigh so small a model
    check(f"stages 0, 1, 2 need less and less: {fp32}", fp32 == sorted(fp32, reverse=True) and len(set(fp32)) == 3)


def terminal(folder):
    """The bar needs a terminal on standard error: a pseudo-terminal is one."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(folder.command("terminal", 1, **COMMON), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 65536):
            output += piece
    except OSError:
        pass  # how Linux says that the other end is closed
    status, output = process.wait(runs.HANG_SECONDS), output.decode()
    bars = re.findall(r"\r\033\[K\[([#.]{30})\] (\d+)/10 steps, (\d+ s|\d+ min \d\d s) left", output)
    check("a bar with the time left on a terminal", status == 0 and [int(bar[1]) for bar in bars][-1:] == [STEPS], output)
    check("the bar grows", bars and bars[0][0] != bars[-1][0] and bars[-1][0] == "#" * 30, output)
    check("lines stay whole beside the bar", len(re.findall(r"^(?:\r\033\[K)*step +\d+/10  loss", output.replace("\r\n", "\n"), re.M)) >= 1, output)


def main():
    with runs.Folder() as folder:
        for part in (banner, metrics, memory, terminal):
            part(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
