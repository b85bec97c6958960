#!/usr/bin/env python3
"""Tests of scripts/gpu_check with programs that only pretend: what it counts, and when it fails."""

import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from pretended import BENCHMARK, BINARY, BREAKING, DEVICE, LISTED_TESTS, NO_GPU, NVIDIA_SMI, PEER, SANITIZER, SMOKE, TESSERA

SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/gpu_check"))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def load():
    """gpu_check as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.tests = []
        self.benchmark()
        self.program()
        self.smoke()

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

    def benchmark(self, broken=(), gpu="pretended"):
        self.write("validation/benchmarks/device_benchmark", BENCHMARK.replace("BROKEN", repr(broken)).replace("pretended", gpu))

    def smoke(self, fails=(), ends=(), dies=(), absent=()):
        self.write("validation/smoke/gpu_smoke", SMOKE.replace("FAILS", repr(fails)).replace("ENDS", repr(ends)).replace("DIES", repr(dies))
                   .replace("ABSENT", repr(absent)))

    def peer(self, crashes=False):
        """PATH with a python3 that has PyTorch."""
        path = self.write("path/python3", PEER.replace("CRASHES", str(crashes)))
        return os.path.dirname(path) + os.pathsep + os.environ["PATH"]

    def tools_path(self, refuses, silent):
        """PATH with a compute-sanitizer."""
        tool = self.write("path/compute-sanitizer", SANITIZER.replace("REFUSES", str(refuses)).replace("SILENT", str(silent)))
        return os.path.dirname(tool) + os.pathsep + os.environ["PATH"]

    def binary(self, name, cases, status):
        path = self.write(name, BINARY.replace("CASES", repr(cases)).replace("STATUS", str(status)))
        self.tests.append({"name": name, "kind": "kernels", "path": path, "ranks": 1, "arguments": []})

    def command(self, *options):
        with open(os.path.join(self.scratch.name, "gpu_tests.json"), "w") as file:
            json.dump(self.tests, file)
        return [sys.executable, SCRIPT, "--build", self.scratch.name, "--report", "report.json", *options]

    def report(self):
        path = os.path.join(self.scratch.name, "report.json")
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return json.load(file)

    def check(self, *options, **environment):
        done = subprocess.run(self.command(*(options or ("--quick",))), cwd=self.scratch.name, capture_output=True, text=True,
                              env={**os.environ, **environment})
        return done, self.report()

    def results(self, report, group):
        return {r["name"]: r["result"] for r in report["tests"] if r["group"] == group}

    def test_skipped_is_not_passed(self):
        self.binary("mixed", [("one", "COMPLETED", False), ("two", "SKIPPED", False)], 0)
        self.binary("all_skipped", [("three", "SKIPPED", False)], 77)
        self.binary("skipped_with_status_0", [("four", "SKIPPED", False)], 0)
        done, report = self.check("--part", "tests")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.results(report, "mixed"), {"Suite.one": "passed", "Suite.two": "skipped"})
        self.assertEqual(self.results(report, "all_skipped"), {"Suite.three": "skipped"})
        self.assertEqual(self.results(report, "skipped_with_status_0"), {"Suite.four": "skipped"})
        self.assertEqual(report["totals"]["skipped"], 3)
        self.assertIn("3 skipped", done.stdout)
        self.assertEqual(report["device"], DEVICE)

    def test_failures_are_kept_with_their_words(self):
        self.binary("wrong", [("one", "COMPLETED", True), ("two", "COMPLETED", False)], 1)
        done, report = self.check("--part", "tests")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(report["verdict"], "failed")
        self.assertEqual(self.results(report, "wrong"), {"Suite.one": "failed", "Suite.two": "passed"})
        self.assertIn("wrong bits", done.stdout)

    def test_ends_that_are_no_results_fail(self):
        for name, cases, status in (("crashed", None, 139), ("silent", None, 0), ("empty", [], 0), ("late", [("one", "COMPLETED", False)], 134)):
            with self.subTest(name):
                self.tests = []
                self.binary(name, cases, status)
                done, report = self.check("--part", "tests")
                self.assertEqual(done.returncode, 1)
                self.assertEqual(self.results(report, name)["(the program)"], "failed")

    def test_scripts_and_ranks_are_known_by_their_status(self):
        for name, status, result in (("good", 0, "passed"), ("none", 77, "skipped"), ("bad", 1, "failed")):
            path = self.write(name, f"import os, sys; sys.exit({status} if os.environ['TESSERA'] and sys.argv[1:] == ['--word'] else 3)")
            for ranks, kind in ((1, "script"), (2, "program")):
                self.tests = [{"name": name, "kind": kind, "path": path, "ranks": ranks, "arguments": ["--word"]}]
                launcher = self.write("launcher", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[3:]) if sys.argv[1:3] == ['-n', '2'] else 3)")
                done, report = self.check("--part", "tests", MPIEXEC=launcher)
                self.assertEqual(self.results(report, name), {"(the program)": result})
                self.assertEqual(done.returncode, 0 if result == "passed" else 1)  # nothing passed where all skipped

    def test_ranks_that_cannot_share_the_gpu_cost_nothing_else_its_turn(self):
        """What stands alone comes first, and one hang on two ranks is enough."""
        stuck = self.write("stuck", "import time; time.sleep(3000)")
        for ranks in (1, 4, 2, 3):
            self.tests.append({"name": f"nccl.ranks{ranks}", "kind": "program", "path": stuck, "ranks": ranks, "arguments": []})
        self.binary("kernel", [("a", "COMPLETED", False)], 0)
        self.tests[0]["path"] = self.tests[-1]["path"]
        good = self.write("good", "pass")
        self.tests.insert(0, {"name": "matrix", "kind": "script", "path": good, "ranks": 4, "arguments": []})
        self.tests.append({"name": "curve", "kind": "script", "path": good, "ranks": 1, "arguments": []})
        launcher = self.write("launcher", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[3:]))")
        for more in ((), ("--continue", "report.json")):
            done, report = self.check("--part", "tests", "--timeout", "5", *more, MPIEXEC=launcher)
            self.assertEqual(report["finished"], [f"tests/{name}" for name in ("kernel", "nccl.ranks1", "nccl.ranks2", "nccl.ranks3", "nccl.ranks4", "curve",
                                                                              "matrix")])
            self.assertEqual([r["result"] for r in report["tests"]], ["passed", "passed", "failed", "skipped", "skipped", "passed", "skipped"])
            self.assertIn("skipped (the program): not run on several ranks of one GPU, since nccl.ranks2 failed", done.stdout if not more else first)
            first = done.stdout

    def test_random_values_can_be_drawn_again(self):
        self.binary("kernel", [("a", "COMPLETED", True)], 1)
        with open(self.tests[0]["path"]) as file:
            text = file.read()
        self.write("kernel", text.replace("wrong bits", "wrong bits of ' + __import__('os').environ['TESSERA_TEST_SEED'] + '").partition("\n")[2])
        seeds = []
        for options in ((), (), ("--seed", "77")):
            done, report = self.check("--part", "tests", *options)
            seeds.append(report["calls"][-1]["seed"])
            self.assertIn(f"wrong bits of {seeds[-1]}\n", done.stdout)
            self.assertIn(f"random values of --seed {seeds[-1]}", report["tests"][0]["message"])
        self.assertNotEqual(seeds[0], seeds[1])
        self.assertEqual(seeds[2], 77)

    def test_training_that_differs_fails(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.program(drifts=True, launch_gap_share=-0.1)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.results(report, "training")["same bits over ZeRO stages 0 to 3"], "failed")
        self.assertEqual(self.results(report, "training")["same bits twice"], "passed")
        # Tasks that took longer while they were traced say nothing of other steps.
        self.assertRegex(done.stdout, r"training 124m idle share +not measurable")

    def test_a_text_that_differs_fails(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.program(speaks=True)
        done, report = self.check("--part", "training")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([name for name, result in self.results(report, "training").items() if result == "failed"], ["the host's text"])

    def test_a_missed_target_is_shown_and_fails_nothing(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        done, report = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"near .*target 85%: met")
        self.assertRegex(done.stdout, r"far .*target 95%: missed")
        self.assertEqual([r["name"] for r in report["benchmarks"]],
                         ["loaded NCCL", "room", *("training 124m" + words for words in (
                             "", " MFU, full count, of measured products", " MFU, causal count, of measured products", " FLOP/s, full count", " idle share, at least", " ZeRO stage 3, one rank",
                             " start to first step", " start to first step, choices of kernels kept")), "near", "far"])
        self.assertRegex(done.stdout, r"training 124m +1015.4\d tokens/s")
        self.assertRegex(done.stdout, r"idle share, at least +2.00 % \(target below 3 %: not decided\); a lower bound")
        self.assertRegex(done.stdout, r"of measured products .*the rate that counts is .* reaches \d+\.\d % of the datasheet's 989 TFLOP/s")
        self.assertRegex(done.stdout, r"stage 3, one rank +507.7\d tokens/s +50.0 % of stage 0 \(target 99%: missed\)")
        self.assertRegex(done.stdout, r"start to first step +\d+\.\d\d s\n")

    def test_the_emulator_meets_no_target_and_misses_none(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.benchmark(gpu="emulator")
        done, report = self.check()
        self.assertTrue(report["emulated"])
        self.assertNotRegex(done.stdout, ": (met|missed)\\)")
        self.assertRegex(done.stdout, r"training tiny idle share, .*target below 3 %: emulated, so it means nothing")

    def test_without_a_gpu_it_says_so_in_a_line(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        self.write("validation/benchmarks/device_benchmark", NO_GPU)
        done, report = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIsNone(report)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("there is no GPU", done.stderr)

    def test_a_group_that_fails_costs_no_other_its_numbers(self):
        self.benchmark(broken=("near",))
        done, report = self.check("--part", "benchmarks")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([r["name"] for r in report["benchmarks"]], ["near", "far"])
        self.assertEqual(self.results(report, "benchmark"), {"device_benchmark near": "failed", "device_benchmark far": "passed"})
        self.assertIn("misaligned address", done.stdout)

    def test_the_peer_counts_at_its_fastest(self):
        done, report = self.check("--part", "speed:124m", "--keep", "kept", PATH=self.peer())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"tokens/s +169.2 % of PyTorch \(compiled, CUDA graphs, attention of cuDNN\) \(target 115%: met\)")
        self.assertRegex(done.stdout, r"planned memory by PyTorch's peak +0.50 times \(target at most 0.85 times: met\)")
        self.assertRegex(done.stdout, r"MFU, full count.* 1.7 TFLOP/s.*\(ours\)")
        self.assertIn("gpu_check_runs.tar.gz", report["calls"][0]["runs"])
        self.assertTrue(os.path.exists(os.path.join(self.scratch.name, report["calls"][0]["runs"])))

    def test_a_peer_that_crashes_is_a_failed_row(self):
        done, report = self.check("--part", "speed:124m", PATH=self.peer(crashes=True))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.results(report, "benchmark")["peer 124m (autocast, compiled)"], "failed")
        self.assertIn("out of memory", done.stdout)
        self.assertRegex(done.stdout, r"% of PyTorch \(compiled, CUDA graphs, attention of cuDNN\)")

    def test_a_shape_that_fails_costs_no_other_its_turn(self):
        self.write("tessera", "import sys; print('plan is out of order', file=sys.stderr); sys.exit(3)")
        done, report = self.check("--part", "speed:124m,speed:1.5b")
        self.assertEqual(self.results(report, "benchmark"), {"device_training 124m": "failed", "device_training 1.5b": "failed"})
        self.assertIn("plan is out of order", done.stdout)

    def test_a_timeout_ends_all_that_a_test_started(self):
        pids = os.path.join(self.scratch.name, "pids")
        path = self.write("stuck", f"""import os, subprocess, time
print('[       OK ] Suite.first (12 ms)', flush=True)
own = subprocess.Popen(['sleep', '3000'], start_new_session=True)
same = subprocess.Popen(['sleep', '3000'])
open({pids!r}, 'w').write(f'{{os.getpid()}} {{own.pid}} {{same.pid}}')
time.sleep(3000)
""")
        self.tests = [{"name": "stuck", "kind": "kernels", "path": path, "ranks": 1, "arguments": []}]
        done, report = self.check("--part", "tests", "--timeout", "5")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.results(report, "stuck"), {"Suite.first": "passed", "(the program)": "failed"})
        with open(pids) as file:
            self.assertEqual([pid for pid in file.read().split() if alive(int(pid))], [])

    def test_what_does_not_fit_is_left_over_and_continued(self):
        self.binary("one", [("a", "COMPLETED", False)], 0)
        done, report = self.check("--part", "tests", "--deadline", "20")  # without what is kept for the end that is less than a test wants
        self.assertEqual((done.returncode, report["verdict"], report["left_over"]), (3, "unfinished", ["tests/one"]))
        self.assertIn("--continue report.json", done.stdout)
        done, report = self.check("--part", "tests", "--continue", "report.json")
        self.assertEqual((done.returncode, report["verdict"], report["left_over"]), (0, "passed", []))
        self.assertEqual(len(report["calls"]), 2)

    def test_a_broken_device_costs_no_other_test_its_turn(self):
        for breaks, result in ((("Suite.b",), "failed"), (("Suite.a", "Suite.d"), "failed")):
            path = self.write("breaking", BREAKING.replace("BREAKS", repr(breaks)))
            self.tests = [{"name": "breaking", "kind": "kernels", "path": path, "ranks": 1, "arguments": []}]
            done, report = self.check("--part", "tests")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(self.results(report, "breaking"), {f"Suite.{name}": "failed" if f"Suite.{name}" in breaks else "passed" for name in "abcd"})

    def test_a_device_that_breaks_always_is_given_up(self):
        gpu_check = load()
        from gpu_check_parts import device_tests
        names = [f"Suite.{letter}" for letter in "abcd"]
        path = self.write("breaking", BREAKING.replace("BREAKS", repr(names)))
        self.tests = [{"name": "breaking", "kind": "kernels", "path": path, "ranks": 1, "arguments": []}]
        self.command()
        before, device_tests.STOPS = device_tests.STOPS, 2
        try:
            where = gpu_check.Programs(self.scratch.name, gpu_check.Clock())
            rows = device_tests.run_test(where, self.tests[0], 90)
        finally:
            device_tests.STOPS = before
        self.assertEqual([(r["name"], r["result"]) for r in rows], [("Suite.a", "failed"), ("Suite.b", "failed"), ("(the program)", "failed")])
        self.assertIn("2 tests were not run", rows[-1]["message"])

    def test_each_probe_is_a_row_that_names_its_layer(self):
        self.smoke(fails=(3, 6), ends=(3,), dies=(4,), absent=(5,))
        done, report = self.check("--part", "smoke")
        self.assertEqual(done.returncode, 1)
        want = dict(enumerate(("passed", "passed", "failed", "failed", "skipped", "failed", "passed"), 1))
        self.assertEqual(self.results(report, "smoke"), {**{f"{n} layer {n}": result for n, result in want.items()},
                                                         "8 three steps of training, as a CUDA graph": "passed"})
        self.assertRegex(done.stdout, r"FAILED 3 layer 3\n +it broke\n +layer: its layer\n +look at: its log")
        self.assertRegex(done.stdout, r"FAILED 4 layer 4\n +the process ended within this probe, with status 139")
        self.assertRegex(done.stdout, r"loaded NCCL +2.28, /lib/libnccl.so.2")

    def test_nothing_stands_on_a_first_probe_that_fails(self):
        self.smoke(fails=(1,), ends=(1,))
        done, report = self.check("--part", "smoke", "--only", "probes")
        self.assertEqual(self.results(report, "smoke"), {"1 layer 1": "failed"})

    def test_without_a_gpu_the_first_probe_says_what_is_missing(self):
        self.write("validation/benchmarks/device_benchmark", NO_GPU)
        done, report = self.check("--part", "smoke")
        self.assertEqual((done.returncode, done.stdout, report), (1, "", None))
        self.assertEqual(done.stderr, "gpu_check: smoke, probe 1 (binary version): there is no GPU\n")

    def test_a_training_that_fails_is_repeated_without_a_graph(self):
        self.binary("good", [("one", "COMPLETED", False)], 0)
        done, report = self.check("--part", "smoke,training", "--only", "training", FAILS_IN_A_GRAPH="1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("with CUDA_LAUNCH_BLOCKING=1 and kernels.cuda_graph=off it passes\n"), 7)
        # Head and tail of what it printed stay.
        message = report["tests"][0]["message"]
        self.assertLess(len(message), 8100)
        self.assertTrue(message.startswith("first words"))
        self.assertIn("characters ...]", message)
        self.assertIn("an illegal memory access", message)

    def test_a_long_message_keeps_head_and_tail(self):
        load()
        from gpu_check_parts.report import KEPT, row
        message = row("group", "name", "failed", 0, "head" + "x" * 2 * KEPT + "tail")["message"]
        self.assertTrue(message.startswith("head") and message.endswith("tail") and len(message) < KEPT + 100)

    def test_what_tells_most_comes_first(self):
        load()
        from gpu_check_parts import order
        wanted = ["smoke/probes", "tests/kernel_warpgroup_cuda", "tests/kernel_gemm_cuda", "tests/kernel_attention_cuda", "tests/parity.fixtures.device",
                  "tests/train_device", "training/same bits twice", "benchmarks/limits", "speed/124m", "speed/8b-cut", "speed/1.5b",
                  "benchmarks/products-bf16", "benchmarks/attention-D64", "benchmarks/adamw", "tests/kernel_ring_attention_cuda", "tests/anything",
                  "memcheck/kernel_softmax_slice_cuda", "memcheck/kernel_adamw_cuda", "racecheck/kernel_adamw_cuda", "tests/resume.loss_curve_fp32",
                  "tests/topology_nccl_communicator.ranks1", "tests/topology_nccl_communicator.ranks2", "tests/resume.same_bits_cuda",
                  "tests/resume.timeline_cuda"]
        places = [order.place(key) for key in wanted]
        self.assertEqual(places, sorted(places))
        self.assertEqual(len(set(order.PLACES)), len(order.PLACES))

    def test_a_deadline_makes_a_job_unfinished_and_not_failed(self):
        gpu_check = load()
        from gpu_check_parts import device_tests, processes, programs, report
        path = self.write("slow", "import time; print('[       OK ] Suite.first (1 ms)', flush=True); time.sleep(3000)")
        self.tests = [{"name": "slow", "kind": "kernels", "path": path, "ranks": 1, "arguments": []}]
        self.command()
        clock = processes.Clock(processes.Clock.RESERVE + 5)
        where = programs.Programs(self.scratch.name, clock)
        made = report.Report(os.path.join(self.scratch.name, "report.json"), {"device": DEVICE})
        made.planned = ["tests/slow"]
        gpu_check.run_job(gpu_check.Job("tests/slow", 0, lambda _: device_tests.run_test(where, self.tests[0], 90)), made, clock, False)
        self.assertEqual(self.results(self.report(), "slow"), {"Suite.first": "passed", "(the program)": "unfinished"})
        self.assertEqual((self.report()["verdict"], self.report()["left_over"]), ("unfinished", ["tests/slow"]))
        self.assertEqual(made.status(), 3)

    def test_a_speed_job_goes_on_after_its_last_whole_run(self):
        gpu_check = load()
        from gpu_check_parts import processes, programs, report, speed
        self.command()
        count, gate = (os.path.join(self.scratch.name, name) for name in ("count", "gate"))
        self.write("tessera", TESSERA.replace("DRIFTS", "False").replace("SPEAKS", "False").replace("TIMELINE", "{}")
                   .replace("if 'train' in sys.argv:", f"if 'train' in sys.argv:\n    open({count!r}, 'a').write('x')", 1))
        hangs = f"import os, sys, time\nwhile 'reduce-overhead' in sys.argv and not os.path.exists({gate!r}): time.sleep(0.05)\n"
        path = os.path.dirname(self.write("path/python3", hangs + PEER.replace("CRASHES", "False"))) + os.pathsep + os.environ["PATH"]
        made = report.Report(os.path.join(self.scratch.name, "report.json"), {"device": DEVICE, "driver": "", "emulated": False, "version": [], "program": ""})
        made.planned = ["speed/124m"]
        before, os.environ["PATH"] = os.environ["PATH"], path
        try:
            # The first deadline comes while the last peer hangs: what runs before that takes under a second.
            for seconds, runs, left in ((12, "xxxx", ["speed/124m"]), (600, "xxxxx", [])):
                where = programs.Programs(self.scratch.name, processes.Clock(processes.Clock.RESERVE + seconds))
                job = gpu_check.Job("speed/124m", 0, lambda to: speed.training(where, "124m", False, 90, None, to))
                gpu_check.run_job(job, made, where.clock, False)
                self.assertEqual(made.left_over(), left)
                with open(count) as file:
                    self.assertEqual(file.read(), runs)
                made = report.Report.read(made.path)
                open(gate, "w").close()
        finally:
            os.environ["PATH"] = before
        rows = {r["name"]: r for r in made.benchmarks}
        self.assertIn("5 runs of both are of an earlier call", rows["training 124m"]["note"])
        self.assertIn("compiled, CUDA graphs", rows["training 124m"]["limit"])
        self.assertEqual(len(rows["training 124m"]["details"]["done"]), 8)

    def test_a_part_may_take_its_share_of_a_call(self):
        gpu_check = load()
        from gpu_check_parts import report
        made = report.Report(os.path.join(self.scratch.name, "report.json"), {"device": DEVICE})

        class Clock:
            """Goes on by what the jobs say that they took."""
            now = 0.0

            def left(self):
                return 30 - self.now

            def over(self):
                return False

            def seconds(self):
                return self.now

        clock = Clock()

        def work(_):
            clock.now += 0.3
            return []

        jobs = [gpu_check.Job(f"{part}/{n}", 0, work, share) for part, share in (("memcheck", 0.02), ("speed", 1)) for n in range(4)]
        made.planned = [job.key for job in jobs]
        gpu_check.run_jobs(jobs, made, clock, False, 30)
        self.assertEqual(made.left_over(), ["memcheck/2", "memcheck/3"])
        gpu_check.run_jobs(jobs, made, clock, False, 30)
        self.assertEqual(made.left_over(), [])

    def test_a_killed_call_leaves_a_whole_report_that_goes_on(self):
        self.binary("one", [("a", "COMPLETED", False)], 0)
        count, gate = os.path.join(self.scratch.name, "count"), os.path.join(self.scratch.name, "gate")
        first = self.tests[0]["path"]
        with open(first) as file:
            text = file.read()
        with open(first, "w") as file:
            file.write(text.replace("import json, sys", f"import json, sys; open({count!r}, 'a').write('x')", 1))
        self.binary("two", [("b", "COMPLETED", False)], 0)
        second = self.tests[1]["path"]
        with open(second) as file:
            text = file.read()
        with open(second, "w") as file:
            file.write(text.replace("import json, sys", f"import json, os, sys, time\nwhile not os.path.exists({gate!r}): time.sleep(0.05)", 1))
        for number in (signal.SIGKILL, signal.SIGTERM):
            if self.report():
                os.remove(os.path.join(self.scratch.name, "report.json"))
            call = subprocess.Popen(self.command("--part", "tests"), cwd=self.scratch.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            limit = time.time() + 600
            while time.time() < limit and not (self.report() and "tests/one" in self.report()["finished"]):
                time.sleep(0.05)
            call.send_signal(number)
            call.wait(600)
            self.assertEqual((self.report()["verdict"], self.report()["left_over"]), ("unfinished", ["tests/two"]))
            self.assertEqual(self.results(self.report(), "one"), {"Suite.a": "passed"})
        open(gate, "w").close()
        done, report = self.check("--part", "tests", "--continue", "report.json")
        self.assertEqual((done.returncode, report["verdict"]), (0, "passed"))
        self.assertEqual(self.results(report, "two"), {"Suite.b": "passed"})
        with open(count) as file:
            self.assertEqual(file.read(), "xx")  # once for each of the killed calls, and not again

    def test_reports_of_one_gpu_and_program_make_one(self):
        self.binary("one", [("a", "COMPLETED", False)], 0)
        self.check("--part", "tests")
        os.rename(os.path.join(self.scratch.name, "report.json"), os.path.join(self.scratch.name, "first.json"))
        self.check("--part", "benchmarks")
        os.rename(os.path.join(self.scratch.name, "report.json"), os.path.join(self.scratch.name, "second.json"))
        done, report = self.check("--merge", "first.json", "second.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report["finished"], ["tests/one", "benchmarks/near", "benchmarks/far"])
        self.assertEqual((len(report["tests"]), len(report["benchmarks"])), (3, 2))
        self.benchmark(gpu="another")
        done, _ = self.check("--part", "tests", "--continue", "first.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("another GPU or another program", done.stderr)

    def test_the_sanitizer_passes_by_its_summary(self):
        self.binary("kernel", [("a", "COMPLETED", False)], 0)
        listing = self.tests[0]["path"]
        with open(listing) as file:
            text = file.read()
        with open(listing, "w") as file:  # the tool starts it without a report
            file.write(text.replace("path = next", LISTED_TESTS + "path = next")
                       .replace("json:'))", "json:')) if any('output' in a for a in sys.argv) else '/dev/null'"))
        gate = os.path.join(self.scratch.name, "hang")
        path = self.tools_path(False, False)
        for refuses, silent, result in ((False, False, "passed"), (False, True, "failed"), (True, False, "skipped")):
            self.tools_path(refuses, silent)
            done, report = self.check("--part", "memcheck,racecheck", PATH=path)
            for kind in ("memcheck", "racecheck"):
                self.assertEqual(self.results(report, kind), {"kernel": result}, done.stdout)
            if refuses:
                self.assertIn("Device not supported", done.stdout)
            elif not silent:
                self.assertRegex(done.stdout, r"(?s)  kernel: 2 of 3 tests\n.*  kernel: 2 of 3 tests; shared memory only\n")
        # Out of time without a fault is not clean; with one it is a failure.
        self.tools_path(False, False)
        for words, result in (("", "skipped"), ("========= Invalid __global__ read of size 4 bytes", "failed")):
            with open(gate, "w") as file:
                file.write(words)
            done, report = self.check("--part", "memcheck", "--timeout", "6", PATH=path, HANG=gate)
            self.assertEqual(self.results(report, "memcheck"), {"kernel": result}, done.stdout)
            if result == "skipped":
                self.assertRegex(done.stdout, r"1 of 3 tests; no fault until its \d+ s were over")

    def test_memory_in_use_stands_beside_plan_and_overhead(self):
        self.write("tessera", TESSERA.replace("DRIFTS", "False").replace("SPEAKS", "False").replace("TIMELINE", "{}")
                   .replace("print('first step done", "print('beside the plan, on the GPU of rank 0: CUDA context 76 MiB: 76 MiB'); print('first step done"))
        smi = self.write("path/nvidia-smi", NVIDIA_SMI)
        done, report = self.check("--part", "speed:124m", PATH=os.path.dirname(smi) + os.pathsep + os.environ["PATH"])
        self.assertRegex(done.stdout, r"memory in use beyond plan and overhead +0.00 % \(target at most 1 %: met\); 1.07 GiB by what the device holds more")


if __name__ == "__main__":
    unittest.main()
