// What the environment asks of OpenMP's threads, where that would put all ranks of a node on the same cores.
#pragma once
#include <string>

namespace tessera {

/// Of an environment with OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY, that of one of several ranks: takes them out if `whole_node`,
/// since places are counted among all cores of the node then, on each rank from the first one on. Ranks that their launcher has bound keep
/// them, and so does a program that is alone. Touches nothing but the array, so that it may be called before any library has started.
void leave_openmp_binding(char** environment, bool whole_node) noexcept;
/// The same of this process, by the cores that it may use. For ELF's .preinit_array: OpenMP reads the variables when it is loaded.
void leave_openmp_binding_at_start(int argc, char** argv, char** environment) noexcept;

/// "OMP_PROC_BIND and OMP_PLACES": what was taken out; empty: nothing.
std::string left_openmp_binding();

}  // namespace tessera
