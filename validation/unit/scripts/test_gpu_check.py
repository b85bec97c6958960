#!/usr/bin/env python3
"""Tests of scripts/gpu_check with programs that only pretend: what it counts, and when it fails."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/gpu_check"))
DEVICE = {"gpu": "pretended", "compute_capability": "9.0", "driver_cuda": "13.0"}

# Stands for device_benchmark: describes a GPU, and measures two things of which one misses its target.
BENCHMARK = f"""import sys
if '--describe' in sys.argv: print('{json.dumps(DEVICE)}'); sys.exit(0)
row = '{{"name": "%s", "unit": "GB/s", "value": 90, "limit": "copy", "limit_value": 100, "share": 0.9, "target": %s}}'
print('{{"rows": [' + row % ("near", 0.85) + ',' + row % ("far", 0.95) + ']}}')
"""
NO_GPU = "import sys; print('device_benchmark: there is no GPU to measure on this machine (none)', file=sys.stderr); sys.exit(6)"

# Stands for the program: the same losses and the same text whatever it is told, from the step that it resumes at.
TESSERA = """import json, os, sys
if 'train' in sys.argv:
    folder = next(a.split('=')[1] for a in sys.argv if a.startswith('run.output_dir='))
    os.makedirs(folder, exist_ok=True)
    loss = 5.0 + (0.1 if DRIFTS and 'zero.stage=2' in sys.argv else 0)
    with open(folder + '/metrics.jsonl', 'w') as file:
        steps = 30 if 'run.steps=1000000' in sys.argv else 6
        for step in range(1, steps + 1):
            file.write(json.dumps({'step': step, 'loss': loss / step, 'tokens_per_second': (1000 + step) * (0.5 if 'zero.stage=3' in sys.argv else 1), 'mfu': 0.5, 'mfu_causal': 0.4}) + '\\n')
    traced = [a.split('=')[1] for a in sys.argv if a.startswith('run.trace_step=')]
    if traced:
        where = folder + f'/trace/step-{int(traced[0]):08d}'
        os.makedirs(where)
        with open(where + '/partial', 'w') as file:
            json.dump({'traceEvents': [], 'otherData': {'idle_share': 0.25, **TIMELINE}}, file)
        os.rename(where + '/partial', where + '/rank-0000.json')
        print('first step done 1.25 s after launch', flush=True)
        import time; time.sleep(60)  # ended when the timeline is there
    print('resumed from a checkpoint at step 3 of 6')
if 'generate' in sys.argv:
    print('1,2,4' if SPEAKS and 'cuda' in sys.argv else '1,2,3')
    sys.exit()
if 'plan' in sys.argv:
    print(json.dumps({'tiers': {'device': {'bytes': 1 << 30}}}))
    sys.exit()
print('tessera 0')
"""

# Stands for a GoogleTest binary: writes results in GoogleTest's words, and ends with a status.
BINARY = """import json, sys
path = next(a.split(':', 1)[1] for a in sys.argv if a.startswith('--gtest_output=json:'))
cases = CASES
if cases is not None:
    tests = [{'name': n, 'status': 'RUN', 'result': r, 'time': '0.5s', **({'failures': [{'failure': 'wrong bits'}]} if f else {})} for n, r, f in cases]
    json.dump({'testsuites': [{'name': 'Suite', 'testsuite': tests + [{'name': 'filtered', 'status': 'NOTRUN', 'result': 'SUPPRESSED'}]}]}, open(path, 'w'))
sys.exit(STATUS)
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.tests = []
        self.write("validation/benchmarks/device_benchmark", BENCHMARK)
        self.program()

    def write(self, name, text):
        path = os.path.join(self.scratch.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"#!{sys.executable} -SE\n{text}")  # they need nothing of the site, and are started hundreds of times
        os.chmod(path, 0o755)
        return path

    def program(self, drifts=False, speaks=False, launch_gap_share=0.02):
        """`drifts`: its losses depend on the stage. `speaks`: a device's text is its own."""
        self.write("tessera", TESSERA.replace("DRIFTS", str(drifts)).replace("SPEAKS", str(speaks))
                   .replace("TIMELINE", repr({"launch_gap_share": launch_gap_share})))

    def binary(self, name, cases, status):
        path = self.write(name, BINARY.replace("CASES", repr(cases)).replace("STATUS", str(status)))
        self.tests.append({"name": name, "kind": "kernels", "path": path, "ranks": 1, "arguments": []})

    def check(self, **environment):
        with open(os.path.join(self.scratch.name, "gpu_tests.json"), "w") as file:
            json.dump(self.tests, file)
        done = subprocess.run([sys.executable, SCRIPT, "--quick", "--build", self.scratch.name, "--report", "report.json"], cwd=self.scratch.name,
                              capture_output=True, text=True, env={**os.environ, **environment})
        path = os.path.join(self.scratch.name, "report.json")
        if not os.path.exists(path):
            return done, None
        with open(path) as file:
            return done, json.load(file)

    def results(self, report, group):
        return {r["name"]: r["result"] for r in report["tests"] if r["group"] == group}

    def test_skipped_is_not_passed(self):
        self.binary("mixed", [("one", "COMPLETED", False), ("two", "SKIPPED", False)], 0)
        self.binary("all_skipped", [("three", "SKIPPED", False)], 77)
        self.binary("skipped_with_status_0", [("four", "SKIPPED", False)], 0)
        done, report = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.results(report, "mixed"), {"Suite.one": "passed", "Suite.two": "skipped"})
        self.assertEqual(self.results(report, "all_skipped"), {"Suite.three": "skipped"})
        self.assertEqual(self.results(report, "skipped_with_status_0"), {"Suite.four": "skipped"})
        self.assertEqual(report["totals"]["skipped"], 3)
        self.assertIn("3 skipped", done.stdout)
        self.assertEqual(report["device"], DEVICE)

    def test_failures_are_kept_with_their_words(self):
        self.binary("wrong", [("one", "COMPLETED", True), ("two", "COMPLETED", False)], 1)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(report["verdict"], "failed")
        self.assertEqual(self.results(report, "wrong"), {"Suite.one": "failed", "Suite.two": "passed"})
        self.assertIn("wrong bits", done.stdout)

    def test_ends_that_are_no_results_fail(self):
        for name, cases, status in (("crashed", None, 139), ("silent", None, 0), ("empty", [], 0), ("late", [("one", "COMPLETED", False)], 134)):
            with self.subTest(name):
                self.tests = []
                self.binary(name, cases, status)
                done, report = self.check()
                self.assertEqual(done.returncode, 1)
                self.assertEqual(self.results(report, name)["(the program)"], "failed")

    def test_scripts_and_ranks_are_known_by_their_status(self):
        for name, status, result in (("good", 0, "passed"), ("none", 77, "skipped"), ("bad", 1, "failed")):
            path = self.write(name, f"import os, sys; sys.exit({status} if os.environ['TESSERA'] and sys.argv[1:] == ['--word'] else 3)")
            for ranks, kind in ((1, "script"), (2, "program")):
                self.tests = [{"name": name, "kind": kind, "path": path, "ranks": ranks, "arguments": ["--word"]}]
                launcher = self.write("launcher", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[3:]) if sys.argv[1:3] == ['-n', '2'] else 3)")
                done, report = self.check(MPIEXEC=launcher)
                self.assertEqual(self.results(report, name), {"(the program)": result})
                self.assertEqual(done.returncode, 1 if result == "failed" else 0)

    def test_training_that_differs_fails(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.program(drifts=True, launch_gap_share=-0.1)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.results(report, "training")["same bits over ZeRO stages 0 to 3"], "failed")
        self.assertEqual(self.results(report, "training")["same bits twice"], "passed")
        # Tasks that took longer while they were traced say nothing of other steps: the traced step speaks for itself.
        self.assertRegex(done.stdout, r"training 124m idle share \(traced step\) +25.00 % \(target below 3 %: missed\)")

    def test_a_text_that_differs_fails(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.program(speaks=True)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual([name for name, result in self.results(report, "training").items() if result == "failed"], ["the host's text"])

    def test_a_missed_target_is_shown_and_fails_nothing(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        done, report = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"near .*target 85 %: met")
        self.assertRegex(done.stdout, r"far .*target 95 %: missed")
        self.assertEqual([r["name"] for r in report["benchmarks"]],
                         ["near", "far", "training 124m", "training 124m idle share (steps as they run)", "training 124m ZeRO stage 3, one rank",
                          "training 124m start to first step"])
        self.assertRegex(done.stdout, r"training 124m +1015.50 tokens/s")
        self.assertRegex(done.stdout, r"idle share \(steps as they run\) +2.00 % \(target below 3 %: met\)")
        self.assertRegex(done.stdout, r"stage 3, one rank +507.75 tokens/s +50.0 % of stage 0 \(target 99 %: missed\)")
        self.assertRegex(done.stdout, r"start to first step +1.25 s\n")

    def test_the_emulator_meets_no_target_and_misses_none(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.write("validation/benchmarks/device_benchmark", BENCHMARK.replace("pretended", "emulator"))
        done, report = self.check()
        self.assertTrue(report["emulated"])
        self.assertNotRegex(done.stdout, ": (met|missed)\\)")
        self.assertRegex(done.stdout, r"training tiny idle share .*target below 3 %: emulated, so it says nothing")

    def test_without_a_gpu_it_says_so_in_a_line(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.write("validation/benchmarks/device_benchmark", NO_GPU)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIsNone(report)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("there is no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
