"""Tessera for Spack 1.0 and newer. From the repository's top folder:
    spack repo add scripts/packaging/spack_repo/tessera
    spack dev-build tessera@main
The source is this folder, so the recipe names no place to fetch it from. For CPUs alone: Spack has no cudnn-frontend, which the backend of GPUs needs."""
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Tessera(CMakePackage):
    """Trains transformers on MPI ranks: ZeRO stages 0 to 3, memory planned to the byte, the same bits on any number of ranks."""

    generator("ninja")

    version("main")

    variant("march", default="native", values=lambda value: True, multi=False, description="-march of the kernels for CPUs, as the compiler spells it")
    variant("tests", default=False, description="Build the tests, and the benchmarks with them")
    variant("stacks", default=True, description="Show stacks of ranks that keep others waiting")
    variant("prometheus", default=True, description="Serve metrics to Prometheus")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10:")
    depends_on("kokkos@5: +openmp +serial ~shared +pic")
    depends_on("onednn cpu_runtime=omp")
    depends_on("fmt")
    depends_on("spdlog +fmt_external")
    depends_on("tomlplusplus")
    depends_on("nlohmann-json")
    depends_on("cli11@2:")
    depends_on("hwloc@2:")
    depends_on("xxhash")
    depends_on("liburing")
    depends_on("openssl")
    depends_on("elfutils", when="+stacks")
    depends_on("prometheus-cpp", when="+prometheus")
    depends_on("googletest", when="+tests")
    depends_on("benchmark", when="+tests")
    depends_on("python@3:", type=("build", "run"), when="+tests")

    conflicts("%gcc@:11", msg="needs C++20")

    def cmake_args(self):
        return [
            self.define_from_variant("TESSERA_TESTS", "tests"),
            self.define_from_variant("TESSERA_LIBDW", "stacks"),
            self.define_from_variant("TESSERA_PROMETHEUS", "prometheus"),
            self.define_from_variant("TESSERA_BENCHMARKS", "tests"),
            self.define_from_variant("TESSERA_HOST_ARCH", "march"),
            "-DCMAKE_UNITY_BUILD=ON",
        ]
