#!/usr/bin/env python3
"""Tests of scripts/bundle_launcher in a bundle that only pretends: where it finds NVIDIA's libraries, and what it says when it does not."""

import os
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/bundle_launcher"))
LIBRARY = "libpretended.so.13"


class Launcher(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.realpath(scratch.name)
        self.root = os.path.join(self.folder, "bundle with a space")
        for part in ("bin", "libexec", "lib", "fixtures"):
            os.makedirs(os.path.join(self.root, part))
        shutil.copy(SCRIPT, os.path.join(self.root, "bin", "launcher"))
        self.program("tessera", 'echo "$LD_LIBRARY_PATH"; echo "$@"')
        self.needs(glibc=["2.1"], processor=[], nvidia=[LIBRARY])
        self.uses()

    def program(self, name, text):
        path = os.path.join(self.root, "libexec", name)
        with open(path, "w") as file:
            file.write(f"#!/bin/bash\n{text}\n")
        os.chmod(path, 0o755)
        os.symlink("launcher", os.path.join(self.root, "bin", "mpiexec" if name == "mpiexec.hydra" else name))

    def needs(self, **lines):
        for name, words in lines.items():
            with open(os.path.join(self.root, "lib", f"needs.{name}"), "w") as file:
                file.writelines(word + "\n" for word in words)

    def uses(self, *libraries):
        with open(os.path.join(self.root, "lib", "uses.nvidia"), "w") as file:
            file.writelines(library + "\n" for library in libraries)

    def library(self, *parts, name=LIBRARY):
        folder = os.path.join(self.folder, *parts)
        os.makedirs(folder)
        open(os.path.join(folder, name), "w").close()
        return folder

    def start(self, *arguments, name="tessera", **environment):
        command = [os.path.join(self.root, "bin", name), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": self.folder, **environment})

    def expect_found(self, folder, **environment):
        done = self.start("plan", "a deck.toml", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        paths, arguments = done.stdout.splitlines()
        self.assertEqual(paths.split(":")[0], os.path.join(self.root, "lib"))
        self.assertIn(folder, paths.split(":"))
        self.assertEqual(arguments, "plan a deck.toml")

    def test_finds_libraries_where_they_are(self):
        toolkit = self.library("toolkit", "lib64")
        self.expect_found(toolkit, CUDA_HOME=os.path.dirname(toolkit))
        given = self.library("given")
        self.expect_found(given, LD_LIBRARY_PATH=given)
        packages = self.library("venv", "lib", "python3.11", "site-packages", "nvidia", "cu13", "lib")
        self.expect_found(packages, VIRTUAL_ENV=os.path.join(self.folder, "venv"))
        user = self.library(".local", "lib", "python3.12", "site-packages", "nvidia", "cublas", "lib")
        self.expect_found(user)

    def test_prints_what_it_would_set(self):
        given = self.library("given")
        done = self.start("--env", name="launcher", LD_LIBRARY_PATH=given)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = dict(line.split("=", 1) for line in done.stdout.splitlines())
        self.assertEqual(said["LD_LIBRARY_PATH"].split(":")[0], os.path.join(self.root, "lib"))
        self.assertIn(given, said["LD_LIBRARY_PATH"].split(":"))
        self.assertEqual((said["TESSERA_BUNDLE"], said["TESSERA_FIXTURES"]), (self.root, os.path.join(self.root, "fixtures")))
        # Of a bundle that was made to go beside a tree.
        os.rmdir(os.path.join(self.root, "fixtures"))
        for missing in (self.start("--env", name="launcher", LD_LIBRARY_PATH=given), self.start("--env", name="launcher", LD_LIBRARY_PATH=given, TESSERA_FIXTURES="nowhere")):
            self.assertNotEqual(missing.returncode, 0)
            self.assertIn("say TESSERA_FIXTURES=TREE/validation/parity/fixtures", missing.stderr)
        there = self.start("--env", name="launcher", LD_LIBRARY_PATH=given, TESSERA_FIXTURES=self.folder)
        self.assertIn(f"TESSERA_FIXTURES={self.folder}", there.stdout)
        # The launcher of a bundle that is told so takes it as it is.
        self.assertEqual(self.start(LD_LIBRARY_PATH="mine", TESSERA_BUNDLE=self.root).stdout.splitlines()[0], "mine")

    def test_does_without_what_it_only_uses(self):
        given = self.library("given")
        self.uses("libmissing.so.9", "libopened.so.9")
        self.expect_found(given, LD_LIBRARY_PATH=given)
        opened = self.library(".local", "lib", "python3.12", "site-packages", "nvidia", "opened", "lib", name="libopened.so.9")
        self.expect_found(opened, LD_LIBRARY_PATH=given)

    def test_names_what_is_missing_in_a_line(self):
        done = self.start()
        self.assertEqual((done.returncode, done.stdout), (6, ""))
        self.assertIn(f"tessera: {LIBRARY} is not on this machine", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_refuses_a_machine_that_cannot_run_it(self):
        self.needs(nvidia=[], processor=["no_such_feature"])
        done = self.start()
        self.assertEqual(done.returncode, 6)
        self.assertIn("this processor has no no_such_feature", done.stderr)
        self.needs(processor=[], glibc=["9.99"])
        done = self.start()
        self.assertEqual(done.returncode, 6)
        self.assertIn("glibc 9.99 is needed", done.stderr)

    def test_keeps_arguments_and_status_and_starts_mpiexec(self):
        self.needs(nvidia=[])
        self.program("test_one", "exit 77")
        self.program("mpiexec.hydra", 'echo hydra; "$@"')
        self.assertEqual(self.start(name="test_one").returncode, 77)
        done = self.start(os.path.join(self.root, "bin", "tessera"), "two words", name="mpiexec")
        self.assertEqual(done.stdout.splitlines()[0], "hydra")
        self.assertEqual(done.stdout.splitlines()[-1], "two words")


if __name__ == "__main__":
    unittest.main()
