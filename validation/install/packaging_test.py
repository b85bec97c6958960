#!/usr/bin/env python3
"""The recipes of scripts/packaging, as far as they can be read without Spack and Apptainer: the Spack recipe runs, with stand-ins for Spack's own words;
it asks for all that CMake looks for and sets options that CMake has; the container's definition copies what is there and its steps are shell."""
import os
import re
import subprocess
import sys
import types
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
RECIPE = "scripts/packaging/spack_repo/tessera/packages/tessera/package.py"


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def option_names():
    return set(re.findall(r"^(?:option|set)\((TESSERA_\w+)", read("CMakeLists.txt"), re.M))


class Recipe:
    """What the recipe says to Spack."""

    def __init__(self, variants):
        self.said = []
        package, modules = types.ModuleType("spack.package"), {}
        for word in ("version", "variant", "depends_on", "conflicts", "generator"):
            setattr(package, word, lambda *args, word=word, **named: self.said.append((word, args, named)))
        base = type("Package", (), {"define_from_variant": lambda _, name, variant: f"-D{name}={variants[variant]}"})
        module = modules["spack_repo.builtin.build_systems.cmake"] = types.ModuleType("cmake")
        module.CMakePackage = base
        for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
            modules[name] = types.ModuleType(name)
        modules["spack.package"] = package
        kept = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        try:
            scope = {"__name__": "package"}
            exec(compile(read(RECIPE), RECIPE, "exec"), scope)
        finally:
            for name, module in kept.items():
                sys.modules.pop(name) if module is None else sys.modules.update({name: module})
        self.package = scope["Tessera"]()

    def dependencies(self):
        return {re.split(r"[@ +~]", args[0])[0] for word, args, _ in self.said if word == "depends_on"}


class Packaging(unittest.TestCase):
    def test_spack_is_asked_for_all_that_cmake_looks_for(self):
        asked = Recipe({}).dependencies()
        said = re.findall(r'tessera_(?:need\(\w+|want\(\w+|missing\()\s*"[^"]*"\s+"[^"]*"\s+"([^"]*)"', read("scripts/cmake/dependencies.cmake") + read("scripts/cmake/mpi.cmake"))
        self.assertGreater(len(said), 20)
        mpis = {"mpich", "openmpi"}  # which Spack chooses from
        for names in said:
            name = re.split(r"[@ +~,]", names)[0]
            if not name.startswith("(") and name not in mpis | {"gcc", "boost", "cuda", "nccl", "cudnn"}:  # Boost is the emulator's
                self.assertIn(name, asked)

    def test_spack_sets_options_that_cmake_has(self):
        arguments = Recipe({"tests": False, "stacks": True, "prometheus": True, "march": "x86-64-v3"}).package.cmake_args()
        self.assertIn("-DTESSERA_HOST_ARCH=x86-64-v3", arguments)
        ours = {argument[2:].split("=")[0] for argument in arguments}
        self.assertLessEqual({name for name in ours if not name.startswith("CMAKE_")}, option_names())

    def test_apptainer_copies_what_is_there_and_all_that_cmake_reads(self):
        definition = read("scripts/packaging/tessera.def")
        sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", definition, re.M | re.S))
        copied = [line.split()[0] for line in sections["files"].splitlines() if line.strip()]
        for path in copied:
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)
        for folder in re.findall(r"\b(src|kernels|io|inputs|slurm|docs|scripts)/?", read("CMakeLists.txt") + read("scripts/cmake/install.cmake")):
            self.assertIn(folder, copied)
        for section in ("post", "test", "runscript"):
            done = subprocess.run(["sh", "-n"], input=sections[section], text=True, capture_output=True)
            self.assertEqual((section, done.returncode, done.stderr), (section, 0, ""))
        options = set(re.findall(r"-D(TESSERA_\w+)", sections["post"]))
        self.assertTrue(options)
        self.assertLessEqual(options, option_names())
        self.assertIn("--build)", read("scripts/setup"))


if __name__ == "__main__":
    unittest.main()
