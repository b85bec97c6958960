#!/usr/bin/env python3
"""scripts/gpu_check on the emulator: its first minute, and what becomes of tests whose device breaks.

  test_smoke.py BUILD"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.path.abspath(sys.argv.pop(1))
PROBES = ["1 binary version", "2 Kokkos start", "3 tensor cores", "4 cuBLASLt", "5 cuDNN", "6 NCCL", "7 capture",
          "8 three steps of training, as a CUDA graph"]


class Smoke(unittest.TestCase):
    def check(self, *options, **environment):
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "report.json")
            done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gpu_check"), "--build", BUILD, "--report", path, *options],
                                  capture_output=True, text=True, env={**os.environ, **environment})
            self.said = done.stdout + done.stderr
            if not os.path.exists(path):
                return done, None
            with open(path) as file:
                return done, json.load(file)

    def test_all_layers_stand(self):
        done, report = self.check("--part", "smoke")
        self.assertEqual(done.returncode, 0, self.said)
        self.assertEqual([(r["name"], r["result"]) for r in report["tests"]], [(name, "passed") for name in PROBES])
        rows = {r["name"]: r["note"] for r in report["benchmarks"]}
        for name in ("driver", "CUDA runtime", "cuBLASLt", "cuDNN", "NCCL"):
            self.assertRegex(rows[f"loaded {name}"], r"^[\d.]+, the emulator$")
        self.assertIn("CUDA context", rows["three steps: beside the plan"])
        self.assertIn("attention", rows["three steps: attention"])

    def test_a_broken_layer_is_named(self):
        done, report = self.check("--part", "smoke", "--only", "probes", TESSERA_EMULATED_FAULT="3")
        self.assertEqual(done.returncode, 1)
        broken = [r for r in report["tests"] if r["name"] == "3 tensor cores"][0]
        self.assertRegex(broken["message"], r"^wgmma: .*cudaErrorIllegalAddress.*\nlayer: our reading of the PTX ISA\nlook at: ")
        self.assertEqual([r["name"] for r in report["tests"]], PROBES[:7])

    def test_a_probe_that_hangs_says_so_itself(self):
        # The signal that its alarm is, as soon as it has begun; again where it was faster than that.
        for _ in range(50):
            smoke = subprocess.Popen([os.path.join(BUILD, "validation", "smoke", "gpu_smoke")], stdout=subprocess.PIPE, text=True)
            smoke.stdout.readline()
            smoke.send_signal(signal.SIGALRM)
            words = smoke.communicate()[0].strip().splitlines()[-1]
            if smoke.returncode != 0:
                break
        self.assertEqual((json.loads(words)["state"], json.loads(words)["ends"]), ("failed", True), words)
        self.assertIn("did not end within 20 s", words)

    def test_without_a_gpu_a_line_says_so(self):
        done, report = self.check("--part", "smoke", TESSERA_EMULATED_GPUS="0")
        self.assertEqual((done.returncode, done.stdout, report), (1, "", None))
        self.assertRegex(done.stderr, r"^gpu_check: smoke, probe 1 \(binary version\): there is no GPU on this machine [^\n]*\n$")

    def test_tests_behind_a_broken_device_are_run(self):
        listed = subprocess.run([os.path.join(BUILD, "validation", "kernels", "test_device_kernels"), "--gtest_list_tests", "--file",
                                 "elementwise_cuda_test.cpp"], capture_output=True, text=True).stdout
        names = ["ElementwiseCuda." + line.strip() for line in listed.splitlines() if line.startswith("  ")]
        done, report = self.check("--part", "tests", "--only", "kernel_elementwise_cuda", TESSERA_EMULATED_FAULT="40")
        results = [(r["name"], r["result"]) for r in report["tests"]]
        self.assertEqual([name for name, _ in results], names, self.said)
        broken = [r for r in report["tests"] if r["result"] == "failed"]
        self.assertTrue(0 < len(broken) < len(names))
        for r in broken:
            self.assertIn("the device was left in cudaErrorIllegalAddress", r["message"])
        self.assertEqual(results[-1][1], "passed")


if __name__ == "__main__":
    unittest.main()
