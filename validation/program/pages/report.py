#!/usr/bin/env python3
"""The page of a run (`tessera runs report`) in a real browser: of a run on two ranks that was resumed and traced, and of one that left nearly nothing. It opens
without an error and without asking for anything, its charts are drawn, in light and dark and at a phone's width, and no name of a user becomes markup.
Where there is no browser (chromium-headless-shell, chromium) only what needs none is tested, and the test counts as skipped."""
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402  pylint: disable=wrong-import-position

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
HOSTILE = "<script>alert('x')\"<img src=x onerror=alert(1)>"
KEYS = {"zero__stage": 3, "run__steps": 6, "checkpoint__every": 3, "evaluate__every": 2, "evaluate__batches": 1, "run__breakdown_every": 1, "batch__global": 4}
MACHINE = """[machine]
name = "small"
device = "host"
ranks_per_node = 2
host_memory = "8 GiB"
[overhead]
task = "1 us"
call = "100 ns"
[gemm.fp32]
peak = "100 GFLOP/s"
tokens = [64]
outputs = [64]
inputs = [64]
forward = "50 GFLOP/s"
input_gradient = "50 GFLOP/s"
weight_gradient = "50 GFLOP/s"
[attention.fp32]
tokens = [64]
head_dim = [16]
forward = "10 GFLOP/s"
backward = "10 GFLOP/s"
[kernels.fp32]
bytes = ["1 MiB"]
stream = "10 GB/s"
[collectives.node]
latency = "1 us"
all_gather = "1 GB/s"
reduce_scatter = "1 GB/s"
all_reduce = "1 GB/s"
[host]
adamw = "10 GB/s"
stream = "10 GB/s"
"""
MACHINE += MACHINE[MACHINE.index("[gemm"):MACHINE.index("[collectives")].replace("fp32", "bf16")
# Runs before all other scripts of a copy of the page, and writes what it saw into the document when all is drawn.
WATCH = """<script>
window.seen = {errors: [], blocked: []};
window.addEventListener('error', (e) => seen.errors.push(String(e.message)));
document.addEventListener('securitypolicyviolation', (e) => seen.blocked.push(e.blockedURI));
['error', 'warn'].forEach((name) => { console[name] = (...words) => seen.errors.push(words.join(' ')); });
window.addEventListener('load', () => setTimeout(() => {
  const drawn = (canvas) => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
    return count;
  };
  seen.charts = [...document.querySelectorAll('.plot')].map((plot) => ({
    id: plot.id, points: Number(plot.dataset.points), pixels: Math.max(0, ...[...plot.querySelectorAll('canvas')].map(drawn)),
    labels: plot.querySelectorAll('.dygraph-axis-label').length, clipped: plot.dataset.clipped === 'true'}));
  const timeline = document.getElementById('timeline');
  seen.bars = timeline ? Number(timeline.dataset.drawn) : 0;
  seen.timeline_pixels = timeline ? drawn(timeline) : 0;
  seen.asked = performance.getEntriesByType('resource').map((e) => e.name);
  seen.paper = getComputedStyle(document.body).backgroundColor;
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.images = document.images.length;
  if (timeline) {  // along the first lane, until there is a task: how soon one begins is the machine's to say
    const area = timeline.getBoundingClientRect();
    for (let x = 0; x < area.width && !(seen.task || '').startsWith('measured: '); ++x) {
      timeline.dispatchEvent(new PointerEvent('pointermove', {clientX: area.left + x, clientY: area.top + 29}));
      seen.task = document.getElementById('task').textContent;
    }
  }
  document.querySelectorAll('input[data-log]').forEach((box) => box.click());
  const axis = document.getElementById('axis');
  axis.value = 'time';
  axis.dispatchEvent(new Event('change'));
  seen.hours = [...document.querySelectorAll('#chart-loss .dygraph-axis-label')].filter((label) => label.textContent.endsWith(' h')).length;
  seen.milliseconds = Math.round(performance.now());
  document.documentElement.dataset.seen = JSON.stringify(seen);
}, 0));
</script>"""
check = runs.Checks()


def look(page, width=1400, dark=False):
    """What a browser sees of the page."""
    with tempfile.TemporaryDirectory(prefix="tessera-test-") as scratch:
        with open(page, encoding="utf-8") as text:
            watched = text.read().replace("<style>", WATCH + "<style>", 1)
        with open(f"{scratch}/page.html", "w", encoding="utf-8") as out:
            out.write(watched)
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
                   f"--user-data-dir={scratch}/profile", f"--window-size={width},900", "--virtual-time-budget=10000", "--dump-dom",
                   f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{scratch}/page.html"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=runs.HANG_SECONDS,
                              env={**os.environ, "HOME": scratch})
    found = re.search(r'<html[^>]* data-seen="([^"]*)"', done.stdout)
    if not found:
        check(f"{page} is drawn", False, done.stderr[-3000:] + done.stdout[:1000])
        return None
    return json.loads(html.unescape(found.group(1)))


def report(run, *options, expect=0):
    done = runs.tessera("runs", "report", run, *options)
    check(f"runs report {' '.join(os.path.basename(o) for o in options)} ends with {expect}", done.returncode == expect, done.stdout + done.stderr)
    return done


def check_sight(what, seen, charts):
    if seen is None:
        return
    text = json.dumps(seen, indent=1)
    check(f"{what}: no error", seen["errors"] == [] and seen["blocked"] == [], text)
    check(f"{what}: nothing is asked for", seen["asked"] == [] and seen["images"] == 0, text)
    check(f"{what}: charts {', '.join(sorted(charts))}", {c["id"].removeprefix("chart-") for c in seen["charts"]} == charts, text)
    check(f"{what}: each is drawn, with numbers at its axes", all(c["pixels"] > 200 and c["labels"] >= 4 for c in seen["charts"]), text)
    check(f"{what}: nothing is wider than the window", seen["overflow"] <= 0, text)


def whole_run(folder):
    """Six steps; then from the third on again, at another stage, with step 5 traced."""
    os.mkdir(f"{folder.path}/<")
    source = f"{folder.path}/</script><script>alert(2)<!--.bin"
    with open(folder.data, "rb") as tokens, open(source, "wb") as out:
        out.write(tokens.read()[2000:])
    keys = {"run__name": json.dumps(HOSTILE), "data__validation": folder.data, "data__train": json.dumps([folder.data, source]), "data__weights": "[1, 1]",
            **KEYS}
    folder.train("whole", 2, **keys)
    folder.train("whole", 2, **{**keys, "zero__stage": 2, "run__trace": 5, "run__resume": f"{folder.run('whole')}/checkpoints/step-00000003"})
    run = folder.run("whole")
    with open(f"{folder.path}/small.toml", "w", encoding="utf-8") as out:
        out.write(MACHINE)
    done = report(run, "--machine", f"{folder.path}/small.toml", "--json")
    data = json.loads(done.stdout or "{}")
    check("the JSON has every step once", data["numbers"]["step"] == [1, 2, 3, 4, 5, 6], json.dumps(data["numbers"])[:500])
    rows = {row["step"]: row["loss"] for row in folder.metrics("whole") if "loss" in row}
    check("and its losses", all(abs(rows[s] - loss) < 1e-5 * rows[s] for s, loss in zip(data["numbers"]["step"], data["numbers"]["columns"]["loss"]["mean"])))
    check("two ranks of step 5", data["traced_step"] == 5 and [r["rank"] for r in data["ranks"]] == [0, 1], json.dumps(data["ranks"]))
    check("two starts", data["run"]["starts"] == 2, json.dumps(data["run"]))
    check("a prediction, and what the simulator says of a change", data["prediction"]["seconds"] > 0, json.dumps(data.get("prediction")))
    check("parts of a step sum to it", abs(sum(data["run"]["shares"].values()) - 1) < 1e-9, json.dumps(data["run"]["shares"]))
    planned = folder.plan(2, **{**keys, "zero__stage": 2})
    check("memory as planned", {tier: use["bytes"] for tier, use in data["memory"].items()} == {tier: use["bytes"] for tier, use in planned["tiers"].items()},
          json.dumps([data["memory"], planned["tiers"]]))
    if "libjs-dygraphs" in runs.tessera("runs", "report", run).stderr:
        print("skipped: this build has no dygraphs, so it draws no pages")
        sys.exit(77 if check.good else 1)
    report(run, "--machine", f"{folder.path}/small.toml", "-o", f"{folder.path}/page.html")
    report(run)
    return f"{folder.path}/page.html", f"{run}/report.html"


def pipeline_run(folder):
    """Of a pipeline the stage is predicted whose rank is shown."""
    folder.train("pipeline", 2, mesh__pp=2, batch__global=4, run__steps=2, run__trace=2)
    done = report(folder.run("pipeline"), "--machine", f"{folder.path}/small.toml", "--json")
    data = json.loads(done.stdout or "{}")
    measured, predicted = (sum(sum(lane["tasks"]) for lane in data["step"][of]["lanes"]) for of in ("measured", "predicted"))
    check("a stage of a pipeline has as many tasks in its prediction", measured == predicted > 10, f"{measured} measured, {predicted} predicted")


def profiled_run(folder):
    """MFU is a share of the profile's peak where run.machine names one; else nothing is called MFU."""
    machine = f"{folder.path}/small.toml"
    said = folder.train("profiled", 1, batch__global=4, run__steps=2, run__machine=machine).stderr
    row = [row for row in folder.metrics("profiled") if "loss" in row][-1]
    check("MFU is of the profile's peak", 0 < row["mfu_causal"] < row["mfu"] and "of_product" not in row and "MFU is a share of 0.1 TFLOP/s a rank, the peak of small" in said, said)
    # The same FLOPs at the same rate: a profile with half the peak gives twice the share.
    with open(machine, encoding="utf-8") as text, open(f"{folder.path}/half.toml", "w", encoding="utf-8") as out:
        out.write(text.read().replace('peak = "100 GFLOP/s"', 'peak = "50 GFLOP/s"'))
    folder.train("half", 1, batch__global=4, run__steps=2, run__machine=f"{folder.path}/half.toml")
    half = [row for row in folder.metrics("half") if "loss" in row][-1]
    per_token = [of["mfu"] / of["tokens_per_second"] for of in (row, half)]
    check("and half the peak gives twice the share", abs(per_token[1] / per_token[0] - 2) < 1e-6, str(per_token))
    other = folder.metrics("whole")[-1] if "loss" in folder.metrics("whole")[-1] else [row for row in folder.metrics("whole") if "loss" in row][-1]
    check("without a profile it is of the measured product", "mfu" not in other and other["of_product"] > 0, json.dumps(other))
    data = json.loads(report(folder.run("profiled"), "--json").stdout or "{}")
    check("and so says the page", data["run"]["mfu"] > 0 and "mfu" in {chart["id"] for chart in data["charts"]}, json.dumps(data["run"]))
    refused = folder.train("refused", 1, expect=2, run__machine="h100_8", run__steps=1)
    check("a profile of GPUs is refused on a host", "name a profile of such a machine" in refused.stderr, refused.stderr)


def empty_run(folder):
    os.mkdir(folder.run("empty"))
    with open(f"{folder.run('empty')}/metrics.jsonl", "w", encoding="utf-8") as out:
        out.write('{"step": 0, "time": 1, "ranks": 2}\n{"st')
    report(folder.run("empty"))
    return f"{folder.run('empty')}/report.html"


def sparse_run(folder):
    """As on a GPU, where one step in ten is broken down."""
    os.mkdir(folder.run("sparse"))
    with open(f"{folder.run('sparse')}/metrics.jsonl", "w", encoding="utf-8") as out:
        for step in range(1, 61):
            row = {"step": step, "time": 1e9 + step, "loss": 3.0, "seconds": 1.0}
            out.write(json.dumps(row | ({"seconds_of": {"forward": 0.5, "data": 0.5}} if step % 10 == 0 else {})) + "\n")
    report(folder.run("sparse"))
    return f"{folder.run('sparse')}/report.html"


def stalled_run(folder):
    os.mkdir(folder.run("stalled"))
    with open(f"{folder.run('stalled')}/metrics.jsonl", "w", encoding="utf-8") as out:
        for step in range(1, 101):
            seconds = 60.0 if step == 50 else 0.2
            out.write(json.dumps({"step": step, "time": 1e9 + step, "loss": 3.0 + 1 / step, "seconds": seconds, "seconds_of": {"forward": 0.1, "waits": seconds - 0.1}}) + "\n")
    report(folder.run("stalled"))
    return f"{folder.run('stalled')}/report.html"


def several_runs(folder):
    """Of two runs with other steps; and what the command says where the file has no name."""
    page = f"{folder.path}/both.html"
    report(folder.run("whole"), folder.run("pipeline"), expect=2)
    report(folder.run("whole"), folder.run("pipeline"), "-o", page)
    return page


def live_page(folder):
    """A page of a run that goes on loads itself again, and the last one is of the run's end."""
    run = folder.start("live", 1, **{**runs.ENDLESS, "batch__global": 4})
    page = f"{folder.run('live')}/report.html"
    try:
        run.wait_for_step(2)
        follows = subprocess.Popen([runs.TESSERA, "runs", "report", folder.run("live"), "--watch", "--every", "1"], stdout=subprocess.PIPE, text=True)

        def text():
            with open(page, encoding="utf-8") as file:
                return file.read()
        runs.wait_until(lambda: os.path.exists(page), "a page")
        first = text()
        check("a live page loads again", 'data-reload="1"' in first[:200] and "reloads every 1 s" in first, first[:300])
        runs.wait_until(lambda: text() != first, "another page")
        run.signal_ranks(signal.SIGTERM)
        run.wait()
        check("who follows it ends with the run", follows.wait(runs.HANG_SECONDS) == 0)
        last = text()
        check("and leaves a page that stays", "data-reload" not in last[:200] and "interrupted" in last, last[:300])
    finally:
        run.kill()


with runs.Folder() as home:
    os.mkdir(home.run("none"))
    refused = report(home.run("none"), expect=2)
    check("a folder of no run is refused by name", home.run("none") in refused.stderr, refused.stderr)
    predicted, plain = whole_run(home)
    pipeline_run(home)
    profiled_run(home)
    live_page(home)
    empty, sparse = empty_run(home), sparse_run(home)
    sizes = {os.path.basename(page): os.path.getsize(page) for page in (predicted, plain, empty)}
    check("pages are small", all(size < 1_000_000 for size in sizes.values()), str(sizes))
    if not BROWSER:
        print("skipped: there is no chromium-headless-shell or chromium")
        sys.exit(77 if check.good else 1)
    curves = {"loss", "sources", "memory-use", "speed", "product", "seconds", "norm", "rate", "parts"}
    light = look(predicted)
    check_sight("light", light, curves)
    check("the step is drawn, measured and predicted", light and light["bars"] > 20 and light["timeline_pixels"] > 1000, json.dumps(light))
    check("a task says what it is", light and light["task"].startswith("measured: "), json.dumps(light))
    check("curves go over hours too", light and light["hours"] > 1, json.dumps(light))
    dark_phone = look(plain, width=390, dark=True)
    check_sight("dark, at a phone's width", dark_phone, curves)
    check("dark is dark", light and dark_phone and light["paper"] == "rgb(255, 255, 255)" != dark_phone["paper"], json.dumps([light, dark_phone]))
    few = look(sparse)
    check_sight("a run with few breakdowns", few, {"loss", "seconds", "parts"})
    check("whose areas are filled", few and next(c["pixels"] for c in few["charts"] if c["id"] == "chart-parts") > 50_000, json.dumps(few))
    check_sight("a run without steps", look(empty), set())
    stalled = look(stalled_run(home))
    check_sight("a run with a step that stood still", stalled, {"loss", "seconds", "parts"})
    check("which does not flatten the charts of time", stalled and {c["id"] for c in stalled["charts"] if c["clipped"]} == {"chart-seconds", "chart-parts"}, json.dumps(stalled))
    check("and areas are filled", stalled and next(c["pixels"] for c in stalled["charts"] if c["id"] == "chart-parts") > 50_000, json.dumps(stalled))
    both = look(several_runs(home))
    check_sight("two runs on one page", both, {"loss", "validation", "memory-use", "speed", "product", "seconds", "norm", "rate"} - {"memory-use"})
    check("which goes over hours too", both and both["hours"] > 1, json.dumps(both))
sys.exit(0 if check.good else 1)
