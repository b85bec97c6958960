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

/// Reasons in the words of people, by NVML's bits. Those of an idle GPU, and of limits that somebody has set, are none.
struct SlowReason {
  unsigned long long bit;
  const char* word;
};
constexpr SlowReason slow_reasons[] = {
    {0x8, "its hardware"}, {0x20, "heat, by the driver"}, {0x40, "heat, by the hardware"}, {0x80, "a power brake"}};

/// Calls that an older driver may not have; what one of them does not answer stays unsaid.
class HealthCalls {
 public:
  explicit HealthCalls(const Library& library) {
    library.find(temperature_, "nvmlDeviceGetTemperature");
    library.find(errors_, "nvmlDeviceGetTotalEccErrors");
    library.find(reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    library.find(width_, "nvmlDeviceGetCurrPcieLinkWidth");
    library.find(most_width_, "nvmlDeviceGetMaxPcieLinkWidth");
  }
  GpuHealth of(Device device) const {
    constexpr int core_sensor = 0, corrected = 0, uncorrected = 1, since_load = 0;
    GpuHealth health;
    unsigned degrees = 0, width = 0, most_width = 0;
    unsigned long long count = 0, bits = 0;
    if (temperature_ && temperature_(device, core_sensor, &degrees) == good) health.temperature = degrees;
    if (errors_ && errors_(device, corrected, since_load, &count) == good) health.corrected = static_cast<std::int64_t>(count);
    if (errors_ && errors_(device, uncorrected, since_load, &count) == good) health.uncorrected = static_cast<std::int64_t>(count);
    if (reasons_ && reasons_(device, &bits) == good)
      for (const SlowReason& reason : slow_reasons)
        if (bits & reason.bit) health.slowed_by.emplace_back(reason.word);
    if (width_ && most_width_ && width_(device, &width) == good && most_width_(device, &most_width) == good)
      health.link_width = static_cast<int>(width), health.most_link_width = static_cast<int>(most_width);
    return health;
  }

 private:
  int (*temperature_)(Device, int, unsigned*) = nullptr;
  int (*errors_)(Device, int, int, unsigned long long*) = nullptr;
  int (*reasons_)(Device, unsigned long long*) = nullptr;
  int (*width_)(Device, unsigned*) = nullptr;
  int (*most_width_)(Device, unsigned*) = nullptr;
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
    return view.why = "libnvidia-ml.so.1 lacks calls that this program needs: it is too old", view;
  if (const int status = init(); status != good)
    return view.why = fmt::format("the driver of NVIDIA does not answer (NVML status {}): nvidia-smi shows more", status), view;
  char text[longest_name] = {};
  if (driver(text, longest_name) == good) view.driver = text;
  unsigned gpus = 0;
  if (count(&gpus) != good || gpus == 0) view.why = "the driver sees none";
  const HealthCalls calls(library);
  for (unsigned i = 0; i < gpus; ++i) {
    Device device = nullptr;
    Memory bytes{};
    const bool named = at(i, &device) == good && name(device, text, longest_name) == good;
    view.gpus.emplace_back(named ? text : "a GPU that does not answer");
    if (named && memory(device, &bytes) == good) view.gpus.back() += ", " + human_bytes(static_cast<double>(bytes.total));
    view.health.push_back(named ? calls.of(device) : GpuHealth{});
  }
  shutdown();
  return view;
}

}  // namespace tessera
