#include "train/observe/memory_use.hpp"

#include <fmt/format.h>

#include "base/process_memory.hpp"
#include "schedule/trace/memory_by_part.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

/// Of the GPU, by all processes; 0 without one.
std::int64_t on_gpu(const RunParts& run) { return run.overhead ? used_device_memory() : 0; }

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

}  // namespace

io::NamedNumbers memory_in_use(const RunParts& run) {
  io::NamedNumbers all;
  const auto add = [&](std::string name, std::int64_t bytes) {
    if (bytes > 0) all.emplace_back(std::move(name), static_cast<double>(bytes));
  };
  if (const auto process = process_memory()) add("process", process->resident), add("process_most", process->most);
  add("gpu", on_gpu(run));
  for (std::size_t t = 0; t < tier_count; ++t) add(fmt::format("arena_{}", name_of(static_cast<Tier>(t))), run.engine.room()[t]);
  return all;
}

std::string print_memory_in_use(const RunParts& run) {
  std::string text = print_memory_by_part(memory_by_part(run.engine.schedule()), run.engine.room());
  if (const auto process = process_memory())
    text += fmt::format("\n  the process has {} resident now, and had {} at most: arenas of the host, libraries and their buffers",
                        human(process->resident), human(process->most));
  if (const std::int64_t used = on_gpu(run); used > 0)
    text += fmt::format("\n  on the GPU {} are in use, by this process and others", human(used));
  return text;
}

}  // namespace tessera
