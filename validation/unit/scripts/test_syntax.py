"""scripts/syntax on a pretended build folder: sources that are joined are looked at one by one, and a missing #include of one is found."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


class Syntax(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = os.path.realpath(scratch.name)
        for folder in ("scripts", "src/base", "build/host/Unity"):
            os.makedirs(os.path.join(self.tree, folder))
        shutil.copy(os.path.join(ROOT, "scripts", "syntax"), os.path.join(self.tree, "scripts", "syntax"))
        self.write("src/base/round.hpp", "#pragma once\ninline int round_up(int n) { return n + 1; }\n")
        self.write("src/base/a.cpp", '#include "base/round.hpp"\nint a() { return round_up(1); }\n')
        self.write("src/base/b.cpp", "int b() { return round_up(2); }\n")
        self.write("src/base/c.cpp", "int c() { int unused = 3; return 4; }\n")
        joined = "".join(f'#include "{self.tree}/src/base/{name}.cpp"\n' for name in "abc")
        self.write("build/host/Unity/unity_all_0_cxx.cxx", joined)
        command = f"c++ -I{self.tree}/src -std=c++20 -O3 -Wall -Wno-subobject-linkage -o x.o -c {self.tree}/build/host/Unity/unity_all_0_cxx.cxx"
        self.write("build/host/compile_commands.json", json.dumps([{"directory": f"{self.tree}/build/host", "command": command,
                                                                    "file": f"{self.tree}/build/host/Unity/unity_all_0_cxx.cxx"}]))
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-qm", "a")

    def write(self, path, text):
        with open(os.path.join(self.tree, path), "w") as file:
            file.write(text)

    def git(self, *words):
        subprocess.run(["git", "-C", self.tree, *words], check=True)

    def run_syntax(self, *words, draw=0):
        return subprocess.run([sys.executable, os.path.join(self.tree, "scripts", "syntax"), *words], capture_output=True, text=True,
                              env={**os.environ, "TESSERA_TEST_DRAW": str(draw)})

    def test_a_source_that_only_compiles_beside_others_is_named(self):
        done = self.run_syntax()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("src/base/b.cpp: does not compile alone", done.stdout)
        self.assertIn("round_up", done.stdout)
        self.assertIn("src/base/c.cpp: does not compile alone", done.stdout)  # a warning counts
        self.assertNotIn("a.cpp: does not", done.stdout)
        self.assertIn("3 of 3 sources, 2 do not", done.stdout)

    def test_only_what_a_change_touches(self):
        self.assertIn("0 of 3 sources", self.run_syntax("--since", "HEAD").stdout)
        self.write("src/base/round.hpp", "#pragma once\ninline int round_up(int n) { return n + 2; }\n")
        self.assertIn("1 of 3 sources, 0 do not", self.run_syntax("--since", "HEAD").stdout)
        self.write("src/base/b.cpp", "int b() { return round_up(3); }\n")
        self.assertEqual(self.run_syntax("--since", "HEAD").returncode, 1)

    def test_draws_cover_all_sources(self):
        found = set()
        for draw in range(2):
            done = self.run_syntax("--draw", "2", draw=draw)
            found |= {name for name in "bc" if f"{name}.cpp: does not" in done.stdout}
        self.assertEqual(found, {"b", "c"})

    def test_without_a_configured_folder_it_says_what_to_do(self):
        done = self.run_syntax("--build", os.path.join(self.tree, "nothing"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("cmake --preset host", done.stderr)


if __name__ == "__main__":
    unittest.main()
