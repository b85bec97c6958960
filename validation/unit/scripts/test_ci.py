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

    def run_tests(self, *words, environment=None):
        return subprocess.run([sys.executable, f"{ROOT}/scripts/profile_tests", self.folder, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **(environment or {})})

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

    def test_a_draw_deals_out_all_tests(self):
        halves = {}
        for draw in range(8):
            for part in range(2):
                self.run_tests("-E", "stuck", "--timeout", "600", "--draw", f"{part}/2", environment={"TESSERA_TEST_DRAW": str(draw)})
                halves[draw, part] = set(self.rows())
            self.assertFalse(halves[draw, 0] & halves[draw, 1])
            self.assertEqual(len(halves[draw, 0] | halves[draw, 1]), 8)
        self.assertGreater(len({frozenset(half) for half in halves.values()}), 4)
        self.assertEqual(self.run_tests("--draw", "2/2").returncode, 2)

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


def copy_to(tree, path):
    os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
    shutil.copy(os.path.join(ROOT, path), os.path.join(tree, path))


def write_script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(f"#!/usr/bin/env bash\n{text}\n")
    os.chmod(path, 0o755)


class Newcomer(unittest.TestCase):
    """README's commands in CI: those of README, in a clone, with HOME and PATH alone."""

    README = "# X\n\n## Start\n\n    scripts/quickstart     # trains\n    scripts/test           # tests\n\n## Next\n\n    scripts/other\n"

    def run_newcomer(self, readme, quickstart="true"):
        with tempfile.TemporaryDirectory() as tree:
            for path in (".ci/newcomer", "scripts/steps.sh"):
                copy_to(tree, path)
            with open(f"{tree}/README.md", "w") as file:
                file.write(readme)
            write_script(f"{tree}/scripts/quickstart", f"env >../quickstart.env; mkdir -p build/host/src build/host/kernels build/host/io; touch build/host/src/a.o; {quickstart}")
            write_script(f"{tree}/scripts/test", "env >../test.env; for word; do echo \"test $word\"; done")
            write_script(f"{tree}/scripts/syntax", ":")
            os.makedirs(f"{tree}/validation/program/documents")
            with open(f"{tree}/validation/program/documents/shown.py", "w") as file:
                file.write("print('shown')\n")
            git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@localhost"]
            for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
                subprocess.run([*git, *words], check=True)
            done = subprocess.run([f"{tree}/.ci/newcomer"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "CI": "true", "CCACHE_DIR": "/elsewhere"})
            found = {}
            for name in ("quickstart", "test"):
                path = f"{tree}/build/newcomer/{name}.env"
                if os.path.exists(path):
                    with open(path) as file:
                        found[name] = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
            return done, found

    def test_both_commands_run_with_home_and_path_alone(self):
        done, found = self.run_newcomer(self.README)
        self.assertEqual(done.returncode, 0, done.stdout)
        for name in ("quickstart", "test"):
            self.assertEqual(set(found[name]) - {"PWD", "OLDPWD", "SHLVL", "_"}, {"HOME", "PATH"})
            self.assertTrue(found[name]["HOME"].endswith("build/newcomer/home"))

    def test_another_readme_fails(self):
        done, found = self.run_newcomer(self.README.replace("    scripts/test ", "    scripts/tests "))
        self.assertEqual((done.returncode, found), (1, {}), done.stdout)
        self.assertIn("README's Start has the commands 'scripts/quickstart scripts/tests'", done.stdout)

    def test_a_command_that_fails_ends_it(self):
        done, found = self.run_newcomer(self.README, "exit 3")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertNotIn("test", found)

    def test_a_warning_of_the_compiler_fails(self):
        done, _ = self.run_newcomer(self.README, "echo 'src/a.cpp:3:5: warning: unused variable [-Wunused]'")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("the compiler warned", done.stdout)

    def test_objects_that_are_compiled_again_fail(self):
        done, _ = self.run_newcomer(self.README, "(cat >scripts/test <<'END'\n#!/bin/sh\ntouch build/host/src/a.o\nEND\n)")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("compiled again by scripts/test", done.stdout)

    def test_no_script_asks_whether_ci_is_set(self):
        found = subprocess.run(["git", "-C", ROOT, "grep", "-nE", r"\$\{?CI[:}\" ]|ENV\{CI\}", "--", "scripts", ".ci", "CMakeLists.txt"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(found.stdout, "")


class Limit(unittest.TestCase):
    def run_ci(self, steps, seconds):
        with tempfile.TemporaryDirectory() as tree:
            for path in (".ci/run", "scripts/steps.sh", "scripts/profile_tests", "CMakePresets.json"):
                copy_to(tree, path)
            write_script(f"{tree}/scripts/test", f"program=test\n. scripts/steps.sh\n{steps}")
            for path in ("scripts/setup", "scripts/style", "scripts/english", ".ci/newcomer"):
                write_script(f"{tree}/{path}", ":")
            os.makedirs(f"{tree}/build/host")
            with open(f"{tree}/build/host/.ninja_log", "w") as file:
                file.write("0\t2500\t1\tsrc/slow.cpp.o\t1f\n")
            with open(f"{tree}/build/host/test_times.jsonl", "w") as file:
                file.write(json.dumps({"name": "long_one", "area": "long", "labels": [], "result": "passed", "processor": 7.5, "wall": 9}) + "\n")
            for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-q", "--allow-empty", "-m", "of which CI draws"]):
                subprocess.run(["git", "-C", tree, *words], check=True)
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
