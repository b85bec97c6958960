// Stands for the management library of NVIDIA's driver: so many GPUs as PRETENDED_GPUS says, or none that answers.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

/// -1: the driver does not answer.
int pretended() {
  const char* said = std::getenv("PRETENDED_GPUS");
  return said ? std::atoi(said) : 0;
}
void say(char* to, unsigned room, const char* text) { std::snprintf(to, room, "%s", text); }

}  // namespace

extern "C" {
int nvmlInit_v2() { return pretended() < 0 ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned room) { return say(text, room, "580.65.06"), 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = static_cast<unsigned>(pretended()), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = reinterpret_cast<void*>(std::size_t{index} + 1), 0; }
int nvmlDeviceGetName(void*, char* text, unsigned room) { return say(text, room, "Pretended H100"), 0; }
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  if (reinterpret_cast<std::size_t>(device) == 2) return 15;  // lost
  return *total_free_used = 80ull << 30, 0;
}
}
