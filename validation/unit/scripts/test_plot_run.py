#!/usr/bin/env python3
"""Tests of scripts/plot_run as a user runs it. Exit status 77: no python3 here has matplotlib."""

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/plot_run"))


def has_matplotlib(python):
    return os.path.exists(python) and subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0


def plot(*arguments, python=sys.executable, **environment):
    return subprocess.run([python, SCRIPT, *arguments], capture_output=True, text=True, env={**os.environ, **environment})


def rows(steps, **more):
    return [{"step": s, "loss": 5.0 / s, "grad_norm": 1.0 + 1.0 / s, "lr": 1e-3, "tokens_per_second": 1000.0 + s, **more} for s in range(1, steps + 1)]


def size_of_png(path):
    with open(path, "rb") as file:
        head = file.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is not a PNG"
    return struct.unpack(">II", head[16:24])


def ink_of(path):
    """The share of pixels with colour (not white, not grey): lines are drawn in colour, text and grid are not."""
    code = ("import sys, matplotlib.image as i; p = i.imread(sys.argv[1])[..., :3]; print(float(((p.max(-1) - p.min(-1)) > 0.3).mean()))")
    python = sys.executable if has_matplotlib(sys.executable) else "/usr/bin/python3"
    return float(subprocess.run([python, "-c", code, path], capture_output=True, text=True, check=True).stdout)


def functions_of_script():
    with open(SCRIPT, encoding="utf-8") as file:
        names = {"__name__": "plot_run"}
        exec(compile(file.read(), SCRIPT, "exec"), names)  # pylint: disable=exec-used
    return names


class Curves(unittest.TestCase):
    def test_a_spike_of_the_norm_is_no_plateau(self):
        values = [1.0] * 2000
        values[700] = 1e6
        middle = functions_of_script()["middle"](values)
        self.assertEqual(set(middle), {1.0})

    def test_the_median_is_that_of_each_window(self):
        script = functions_of_script()
        values = [float((i * 7919) % 613) for i in range(900)]
        half = script["half_window"](values)
        for i, median in enumerate(script["middle"](values)):
            side = min(half, i)
            self.assertAlmostEqual(median, statistics.median(values[i - side:min(len(values), i + 1 + side)]))

    def test_the_last_value_of_a_legend_is_the_last_row(self):
        labels = []

        class Axes:
            def __getattr__(self, _):
                return lambda *_, **__: self

            def plot(self, *_, label="", **__):
                labels.append(label)

        steps = list(range(1, 401))
        losses = [2.0] * 399 + [9.0]
        none = ([], [])
        columns = {"loss": (steps, losses), "val_loss": none, "loss of a.h5": (steps, losses)}
        functions_of_script()["draw_loss"](Axes(), [("run", columns)])
        self.assertEqual([label for label in labels if label], ["train, 9.0000", "a.h5, 9.0000"])


class PlotRun(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def run_folder(self, name, lines, tail=""):
        folder = os.path.join(self.root, name)
        os.makedirs(folder)
        with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
            file.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines) + tail)
        return folder

    def refused(self, *arguments, says, **environment):
        result = plot(*arguments, **environment)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertNotIn("Traceback", result.stderr)
        for text in says:
            self.assertIn(text, result.stderr)

    def test_draws_and_prints_the_path(self):
        folder = self.run_folder("a", rows(120) + [{"step": s, "val_loss": 1.0} for s in (50, 100)])
        result = plot(folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, os.path.join(folder, "plot.png") + "\n")
        width, height = size_of_png(os.path.join(folder, "plot.png"))
        self.assertGreater(width, 1000)
        self.assertGreater(height, 600)
        self.assertGreater(ink_of(os.path.join(folder, "plot.png")), 0.002)
        self.assertEqual(sorted(os.listdir(folder)), ["metrics.jsonl", "plot.png"])

    def test_overlays_runs(self):
        folders = [self.run_folder(n, rows(30)) for n in ("a", "b", "c")]
        plot(*folders[:2])
        self.assertTrue(os.path.exists(os.path.join(folders[0], "comparison.png")))
        target = os.path.join(self.root, "mine.png")
        self.assertEqual(plot("-o", target, *folders).stdout, target + "\n")
        size_of_png(target)

    def test_few_columns_and_one_step_are_enough(self):
        folder = self.run_folder("a", [{"step": 1, "loss": 5.5}])
        result = plot(folder)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_summary(self):
        folder = self.run_folder("a", rows(200) + [{"step": 100, "val_loss": 2.0}, {"step": 200, "val_loss": 2.5}])
        result = plot("--json", folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        got = json.loads(result.stdout)
        want = {"run": "a", "steps": 200, "first_step": 1, "last_step": 200, "first_loss": 5.0, "last_loss": 0.025, "lowest_loss": 0.025,
                "last_val_loss": 2.5, "lowest_val_loss": 2.0, "lowest_val_loss_step": 100, "median_tokens_per_second": 1100.5,
                "largest_grad_norm": 2.0, "last_lr": 1e-3}
        self.assertEqual({k: got[k] for k in want}, want)
        self.assertAlmostEqual(got["smoothed_loss"], 5 * (1 / 200 + 1 / 199 + 1 / 198) / 3)
        self.assertFalse(os.path.exists(os.path.join(folder, "plot.png")))

    def test_last_row_of_a_step_counts(self):
        folder = self.run_folder("a", rows(10) + [{"step": 10, "loss": 9.0}])
        self.assertEqual(json.loads(plot("--json", folder).stdout)["last_loss"], 9.0)

    def test_values_that_are_not_finite_are_left_out(self):
        folder = self.run_folder("a", rows(10) + ['{"step": 11, "loss": NaN}', '{"step": 12, "loss": null}'])
        self.assertEqual(json.loads(plot("--json", folder).stdout)["last_step"], 10)

    def test_files_of_a_mixture_have_curves(self):
        lines = [{**row, "loss_of_files": {"data/a.h5": row["loss"] + 1, "data/b.h5": None if row["step"] == 9 else 0.5}} for row in rows(9)]
        mixed, plain = self.run_folder("mixed", lines), self.run_folder("plain", rows(9))
        summary = json.loads(plot("--json", mixed).stdout)
        self.assertEqual(summary["last_loss_of_files"], {"data/a.h5": 5.0 / 9 + 1, "data/b.h5": 0.5})
        self.assertNotIn("last_loss_of_files", json.loads(plot("--json", plain).stdout))
        for folder in mixed, plain:
            self.assertEqual(plot(folder).returncode, 0)
        self.assertGreater(ink_of(os.path.join(mixed, "plot.png")), ink_of(os.path.join(plain, "plot.png")))
        self.refused("--json", self.run_folder("wrong", [{**rows(1)[0], "loss_of_files": {"a": "b"}}]), says=["metrics.jsonl:1", "loss_of_files"])

    def test_torn_last_line_is_left_out(self):
        folder = self.run_folder("a", rows(10), tail='{"step": 11, "lo')
        result = plot("--json", folder)
        self.assertEqual(json.loads(result.stdout)["last_step"], 10)
        self.assertIn("metrics.jsonl:11: left out", result.stderr)

    def test_torn_line_inside_is_refused(self):
        folder = self.run_folder("a", rows(3) + ['{"step": 4, "lo'] + rows(2))
        self.refused(folder, says=["metrics.jsonl:4: not JSON", "delete the line"])

    def test_wrong_values_are_refused(self):
        self.refused(self.run_folder("a", ["[1, 2]"]), says=["metrics.jsonl:1: not a JSON object"])
        self.refused(self.run_folder("b", ['{"loss": 1.0}']), says=['metrics.jsonl:1: no integer "step"'])
        self.refused(self.run_folder("c", ['{"step": 1, "loss": "low"}']), says=["metrics.jsonl:1: \"loss\" is 'low', not a number"])

    def test_nothing_to_draw_is_refused(self):
        self.refused(os.path.join(self.root, "nope"), says=["no such folder"])
        os.makedirs(os.path.join(self.root, "bare"))
        self.refused(os.path.join(self.root, "bare"), says=["no metrics.jsonl there"])
        self.refused(self.run_folder("a", []), says=["empty, the run has finished no step yet"])
        self.refused(self.run_folder("b", [], tail='{"st'), says=["empty, the run has finished no step yet"])
        self.refused(self.run_folder("c", [{"step": 1, "val_loss": 1.0}]), says=["no step with a loss yet"])

    def test_output_that_cannot_be_written_is_refused(self):
        folder = self.run_folder("a", rows(3))
        self.refused("-o", os.path.join(self.root, "no/such/place.png"), folder, says=["cannot be written", "-o"])

    def trace_file(self, tasks, **more):
        """A timeline of `tasks` tasks on three lanes, in the words of run.trace."""
        events = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": t, "args": {"name": n}} for t, n in enumerate(("compute", "gather", "reduce"))]
        kinds = ("forward", "gather", "reduce", "backward")
        for i in range(tasks):
            events.append({"name": f"task {i}", "cat": kinds[i % 4], "ph": "X", "pid": 0, "tid": i % 4 % 3, "ts": 10.0 * i, "dur": 12.0, "args": {}})
        summary = {"step": 7, "rank": 0, "ranks": 2, "seconds": 1e-5 * tasks + 1e-4, "idle_share": 0.02, "exposed_communication_share": 0.3,
                   "lanes": {"compute": {"busy_share": 0.6}}, **more}
        path = os.path.join(self.root, "rank-0000.json")
        with open(path, "w") as file:
            json.dump({"traceEvents": events, "otherData": summary}, file)
        return path

    def test_draws_timelines_of_few_and_of_many_tasks(self):
        for tasks in (1, 8, 20000):
            with self.subTest(tasks=tasks):
                path = self.trace_file(tasks)
                result = plot("--trace", path)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stdout, path[: -len("json")] + "png\n")
                width, height = size_of_png(path[: -len("json")] + "png")
                self.assertGreater(width, 1500)
                self.assertGreater(height, 800)
                self.assertGreater(ink_of(path[: -len("json")] + "png"), 0.02 if tasks > 1 else 0.002)
        target = os.path.join(self.root, "mine.png")
        self.assertEqual(plot("--trace", "-o", target, self.trace_file(8)).stdout, target + "\n")

    def test_summary_of_a_timeline(self):
        self.assertEqual(json.loads(plot("--trace", "--json", self.trace_file(8)).stdout)["exposed_communication_share"], 0.3)

    def test_what_is_no_timeline_is_refused(self):
        self.refused("--trace", os.path.join(self.root, "nope.json"), says=["nope.json: No such file", "run.trace"])
        self.refused("--trace", self.root, says=["Is a directory"])
        self.refused("--trace", self.trace_file(8, seconds="long"), says=["not a timeline"])
        self.refused("--trace", self.trace_file(0), says=["holds no task"])
        for text in ("", "[]", "{}", '{"traceEvents": [{}], "otherData": {}}'):
            path = os.path.join(self.root, "other.json")
            with open(path, "w") as file:
                file.write(text)
            self.refused("--trace", path, says=["other.json: not a timeline that run.trace wrote"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": [], "otherData": {"first_step": 3, "last_step": 4}}, file)
        self.refused("--trace", path, says=["holds all ranks", "rank-R.json"])
        self.assertEqual(plot("--trace", path, path).returncode, 2)

    def test_no_matplotlib_says_what_to_install(self):
        hidden = os.path.join(self.root, "hidden")
        os.makedirs(hidden)
        with open(os.path.join(hidden, "sitecustomize.py"), "w") as file:
            file.write("import sys\nsys.modules['matplotlib'] = None\n")
        folder = self.run_folder("a", rows(3))
        self.refused(folder, says=["python3-matplotlib"], PYTHONPATH=hidden)
        self.assertEqual(plot("--json", folder, PYTHONPATH=hidden).returncode, 0)


if __name__ == "__main__":
    if not any(map(has_matplotlib, (sys.executable, "/usr/bin/python3"))):
        print("skipped: no python3 here has matplotlib; apt-get install python3-matplotlib", file=sys.stderr)
        sys.exit(77)
    unittest.main()
