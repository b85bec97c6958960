"""Finds the built programs, and the environment that they need: a bundle's, or a build folder's."""

import hashlib
import json
import os

from . import processes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class Programs:
    def __init__(self, build, clock):
        self.clock = clock
        self.bundle = os.path.exists(os.path.join(ROOT, "manifest.json"))
        self.folder = ROOT if self.bundle else os.path.abspath(build)
        listed = os.path.join(self.folder, "gpu_tests.json")
        if not os.path.exists(listed):
            raise SystemExit(f"gpu_check: {listed} is not there; build the cuda preset (cmake --preset cuda && cmake --build build/cuda), or name a "
                             "build folder with --build")
        with open(listed) as file:
            self.tests = json.load(file)
        self.environment = self.of_launcher() if self.bundle else {}

    def of_launcher(self):
        """What a bundle's launcher would set. The programs are then started without it: a tool that wraps one meets no shell, and what is no part of
        the bundle, such as PyTorch, keeps its own libraries."""
        done = processes.run([os.path.join(self.folder, "bin", "launcher"), "--env"], 60)
        if done.status != 0:
            raise SystemExit("gpu_check: " + (done.err.strip() or f"bin/launcher --env ended with status {done.status}"))
        return dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)

    def path(self, name, in_build):
        return os.path.join(self.folder, "libexec", name) if self.bundle else os.path.join(self.folder, in_build)

    def tessera(self):
        return self.path("tessera", "tessera")

    def benchmark(self):
        return self.path("device_benchmark", "validation/benchmarks/device_benchmark")

    def smoke(self):
        return self.path("gpu_smoke", "validation/smoke/gpu_smoke")

    def test(self, entry):
        if not self.bundle:
            return entry["path"]
        return os.path.join(self.folder, entry["path"]) if entry["kind"] == "script" else self.path(os.path.basename(entry["path"]), "")

    def mpiexec(self):
        """The bundle's, or that of the MPI with which the build folder was configured."""
        if self.bundle:
            return self.path("mpiexec.hydra", "")
        cache = os.path.join(self.folder, "CMakeCache.txt")
        if "MPIEXEC" not in os.environ and os.path.exists(cache):
            with open(cache) as lines:
                return next((line.split("=", 1)[1].strip() for line in lines if line.startswith("MPIEXEC_EXECUTABLE:")), "mpiexec")
        return os.environ.get("MPIEXEC", "mpiexec")

    def run(self, command, seconds, cwd=None, on_line=None, **environment):
        """Runs one of these programs, for no longer than the call has left."""
        return processes.run(command, min(seconds, self.clock.left()), cwd, {**self.environment, **environment}, on_line)

    def run_plain(self, command, seconds, on_line=None):
        """Runs what is no part of them, without their environment."""
        return processes.run(command, min(seconds, self.clock.left()), on_line=on_line)

    def version(self):
        return self.run([self.tessera(), "--version"], 60).out.splitlines()

    def digest(self):
        with open(self.tessera(), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
