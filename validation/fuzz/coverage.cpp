// What the readers' instrumentation (-fsanitize-coverage=trace-pc,trace-cmp) calls, and where libFuzzer looks at it. g++ tells of each
// block that is run; libFuzzer of LLVM wants counters, so each block has one by its address. Comparisons are libFuzzer's own where it is
// linked, else nobody's.
#include <cstddef>
#include <cstdint>

namespace {
constexpr std::size_t counter_count = std::size_t{1} << 16;
std::uint8_t counters[counter_count];
}  // namespace

extern "C" {

void __sanitizer_cov_trace_pc() {
  const auto at = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  ++counters[(at ^ (at >> 16)) % counter_count];
}

#define NOBODYS(name, type) \
  __attribute__((weak)) void __sanitizer_cov_trace_##name(type, type) {}
NOBODYS(cmp1, std::uint8_t)
NOBODYS(cmp2, std::uint16_t)
NOBODYS(cmp4, std::uint32_t)
NOBODYS(cmp8, std::uint64_t)
NOBODYS(const_cmp1, std::uint8_t)
NOBODYS(const_cmp2, std::uint16_t)
NOBODYS(const_cmp4, std::uint32_t)
NOBODYS(const_cmp8, std::uint64_t)
NOBODYS(cmpf, float)
NOBODYS(cmpd, double)
#undef NOBODYS
__attribute__((weak)) void __sanitizer_cov_trace_switch(std::uint64_t, std::uint64_t*) {}

/// libFuzzer's, in fuzz targets alone.
__attribute__((weak)) void __sanitizer_cov_8bit_counters_init(std::uint8_t* begin, std::uint8_t* end);

void tessera_watch_coverage() {
  if (__sanitizer_cov_8bit_counters_init) __sanitizer_cov_8bit_counters_init(counters, counters + counter_count);
}
}
