// What gpu_smoke asks of a GPU, each of a layer that stands on the ones before.
#pragma once
#include <span>
#include <string>
#include <vector>

namespace tessera::smoke {

struct Probe {
  const char* name;
  const char* layer;     ///< whose fault it is where this one fails and those before it passed
  const char* next;      ///< what to look at then
  std::string (*run)();  ///< what it found, for the report; throws what is wrong
};
/// In their order.
std::span<const Probe> probes();

/// Not there, and nothing needs it.
struct Absent {
  std::string why;
};

/// Part of a probe that runs now: named where it fails or hangs. gpu_smoke.cpp
void stage(const char* name);

/// A line for each library that has come into the process since the last call: "cuBLASLt 13.1.0, /usr/local/cuda/lib/libcublasLt.so.13".
struct Library {
  std::string name, version, path;
};
std::vector<Library> new_libraries();

}  // namespace tessera::smoke
