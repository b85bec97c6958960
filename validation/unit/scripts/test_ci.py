"""What runs tests and what ends them: scripts/profile_tests over a pretended build folder, and the limit of .ci/run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUSY = """import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.4: pass"], check=True)
"""
LIST = """add_test(busy "python3" "busy.py")
set_tests_properties(busy PROPERTIES LABELS "slow;unit" PROCESSORS 2 WORKING_DIRECTORY "FOLDER")
add_test(away "sh" "-c" "exit 77")
set_tests_properties(away PROPERTIES SKIP_RETURN_CODE 77)
add_test(word "sh" "-c" "echo \\$WORD")
set_tests_properties(word PROPERTIES ENVIRONMENT "WORD=a b" PASS_REGULAR_EXPRESSION "^a b")
add_test(wrong "sh" "-c" "echo why; exit 3")
add_test(stuck "sh" "-c" "trap '' TERM; sleep 100 & echo \\$! > child; wait; wait")
set_tests_properties(stuck PROPERTIES WORKING_DIRECTORY "FOLDER")
add_test(missing "no/such/program")
add_test(waits1 "sh" "-c" "touch one && until test -e computed; do sleep 0.05; done && rm one")
add_test(waits2 "sh" "-c" "! test -e one")
set_tests_properties(waits1 waits2 PROPERTIES LABELS waits RUN_SERIAL ON WORKING_DIRECTORY "FOLDER")
add_test(computes "sh" "-c" "touch computed")
set_tests_properties(computes PROPERTIES PROCESSORS 2 WORKING_DIRECTORY "FOLDER")
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class ProfileTests(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        with open(os.path.join(self.folder, "CTestTestfile.cmake"), "w") as file:
            file.write(LIST.replace("FOLDER", self.folder))
        with open(os.path.join(self.folder, "busy.py"), "w") as file:
            file.write(BUSY)

    def run_tests(self, *words):
        return subprocess.run([sys.executable, f"{ROOT}/scripts/profile_tests", self.folder, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def rows(self):
        with open(os.path.join(self.folder, "test_times.jsonl")) as lines:
            return {row["name"]: row for row in map(json.loads, lines)}

    def test_results_and_what_children_took(self):
        report = os.path.join(self.folder, "report.json")
        done = self.run_tests("-E", "stuck|missing|waits|computes", "--json", report)
        self.assertEqual(done.returncode, 8, done.stdout)
        self.assertEqual({name: row["result"] for name, row in self.rows().items()}, {"busy": "passed", "away": "skipped", "word": "passed", "wrong": "failed"})
        self.assertGreaterEqual(self.rows()["busy"]["processor"], 0.4)
        self.assertIn("why", done.stdout)
        self.assertIn("75% tests passed, 1 tests failed out of 4", done.stdout)
        with open(report) as file:
            self.assertEqual(len(json.load(file)["tests"]), 4)

    def test_choice(self):
        self.assertEqual(self.run_tests("-L", "unit").returncode, 0)
        self.assertEqual(set(self.rows()), {"busy"})
        self.assertEqual(self.run_tests("-R", "away", "--more").returncode, 0)
        self.assertEqual(set(self.rows()), {"busy", "away"})
        self.assertEqual(self.run_tests("-R", "nothing").returncode, 2)

    def test_what_waits_runs_beside_the_others_one_at_a_time(self):
        done = self.run_tests("-R", "waits|computes", "--timeout", "600")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_program_that_is_not_there_fails(self):
        done = self.run_tests("-R", "missing")
        self.assertEqual(done.returncode, 8)
        self.assertIn("not built", done.stdout)

    def test_the_limit_ends_all_that_a_test_started(self):
        done = self.run_tests("-R", "stuck", "--timeout", "1")
        self.assertEqual(done.returncode, 8)
        self.assertEqual(self.rows()["stuck"]["result"], "out of time")
        with open(os.path.join(self.folder, "child")) as file:
            self.assertFalse(alive(int(file.read())))

    def test_objects_of_a_log(self):
        with open(os.path.join(self.folder, ".ninja_log"), "w") as file:
            file.write("# ninja log v5\n0\t2500\t1\ta/b.cpp.o\t1f\n0\t9000\t1\tlib.a\t2f\n10\t20\t1\tc.cpp.o\t3f\n")
        done = self.run_tests("--show")
        self.assertEqual(done.returncode, 0)
        self.assertIn("2 objects, 2.5 s", done.stdout)
        self.assertLess(done.stdout.index("a/b.cpp.o"), done.stdout.index("c.cpp.o"))


class Limit(unittest.TestCase):
    def run_ci(self, steps, seconds):
        with tempfile.TemporaryDirectory() as tree:
            for path in (".ci/run", "scripts/steps.sh", "scripts/profile_tests", "CMakePresets.json"):
                os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
                shutil.copy(os.path.join(ROOT, path), os.path.join(tree, path))
            with open(f"{tree}/scripts/test", "w") as file:
                file.write(f"#!/usr/bin/env bash\nprogram=test\n. scripts/steps.sh\n{steps}\n")
            os.chmod(f"{tree}/scripts/test", 0o755)
            os.makedirs(f"{tree}/build/host")
            with open(f"{tree}/build/host/.ninja_log", "w") as file:
                file.write("0\t2500\t1\tsrc/slow.cpp.o\t1f\n")
            with open(f"{tree}/build/host/test_times.jsonl", "w") as file:
                file.write(json.dumps({"name": "long_one", "area": "long", "labels": [], "result": "passed", "processor": 7.5, "wall": 9}) + "\n")
            begin = time.monotonic()
            done = subprocess.run([f"{tree}/.ci/run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "TESSERA_CI_SECONDS": str(seconds)})
            return done, time.monotonic() - begin, self.number_in(f"{tree}/child")

    def number_in(self, path):
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return int(file.read())

    def test_a_run_that_takes_too_long_fails_and_says_where(self):
        done, seconds, child = self.run_ci("step quick true\nsleeps() { sleep 1000 & echo $! >child; wait; }\nstep endless sleeps", 2)
        self.assertEqual(done.returncode, 124, done.stdout)
        self.assertLess(seconds, 900)
        self.assertFalse(alive(child))
        for text in ("not done after 2 s; it was at: endless", "src/slow.cpp.o", "long_one", "  quick\n"):
            self.assertIn(text, done.stdout)

    def test_a_step_that_fails_ends_the_run(self):
        done, _, _ = self.run_ci("step broken sh -c 'exit 5'", 1000)
        self.assertEqual(done.returncode, 5, done.stdout)
        self.assertIn("broken: failed with status 5", done.stdout)


if __name__ == "__main__":
    unittest.main()
