#include "report/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "base/types.hpp"

namespace tessera {
namespace {

// What is used of nvml.h, whose interface does not change: a build without CUDA has no headers of it.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
constexpr int good = 0;
constexpr unsigned longest_name = 96;

struct Library {
  std::unique_ptr<void, int (*)(void*)> handle{dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), dlclose};
  template <class Call>
  bool find(Call& call, const char* name) const {
    call = reinterpret_cast<Call>(dlsym(handle.get(), name));
    return call != nullptr;
  }
};

}  // namespace

DriverView view_of_driver() {
  DriverView view;
  const Library library;
  if (!library.handle) return view.why = "there is no driver of NVIDIA (libnvidia-ml.so.1)", view;
  int (*init)() = nullptr, (*shutdown)() = nullptr;
  int (*driver)(char*, unsigned) = nullptr, (*count)(unsigned*) = nullptr, (*at)(unsigned, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr, (*memory)(Device, Memory*) = nullptr;
  if (!library.find(init, "nvmlInit_v2") || !library.find(shutdown, "nvmlShutdown") ||
      !library.find(driver, "nvmlSystemGetDriverVersion") || !library.find(count, "nvmlDeviceGetCount_v2") ||
      !library.find(at, "nvmlDeviceGetHandleByIndex_v2") || !library.find(name, "nvmlDeviceGetName") ||
      !library.find(memory, "nvmlDeviceGetMemoryInfo"))
    return view.why = "libnvidia-ml.so.1 lacks calls that are asked for: it is older than this program", view;
  if (const int status = init(); status != good)
    return view.why = fmt::format("the driver of NVIDIA does not answer (NVML status {}): nvidia-smi says more", status), view;
  char text[longest_name] = {};
  if (driver(text, longest_name) == good) view.driver = text;
  unsigned gpus = 0;
  if (count(&gpus) != good || gpus == 0) view.why = "the driver sees none";
  for (unsigned i = 0; i < gpus; ++i) {
    Device device = nullptr;
    Memory bytes{};
    const bool named = at(i, &device) == good && name(device, text, longest_name) == good;
    view.gpus.emplace_back(named ? text : "a GPU that does not answer");
    if (named && memory(device, &bytes) == good) view.gpus.back() += ", " + human_bytes(static_cast<double>(bytes.total));
  }
  shutdown();
  return view;
}

}  // namespace tessera
