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
bool second(void* device) { return reinterpret_cast<std::size_t>(device) == 2; }

}  // namespace

extern "C" {
int nvmlInit_v2() { return pretended() < 0 ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned room) { return say(text, room, "580.65.06"), 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = static_cast<unsigned>(pretended()), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = reinterpret_cast<void*>(std::size_t{index} + 1), 0; }
int nvmlDeviceGetName(void*, char* text, unsigned room) { return say(text, room, "Pretended H100"), 0; }
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  if (second(device)) return 15;  // lost
  return *total_free_used = 80ull << 30, 0;
}
// The second is hot, slowed down by it, with fewer lanes and an error that nothing mended.
int nvmlDeviceGetTemperature(void* device, int, unsigned* degrees) { return *degrees = second(device) ? 97 : 40, 0; }
int nvmlDeviceGetTotalEccErrors(void* device, int type, int, unsigned long long* count) { return *count = second(device) && type == 1, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) { return *bits = second(device) ? 0x41 : 1, 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) { return *width = second(device) ? 8 : 16, 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) { return *width = 16, 0; }
}
