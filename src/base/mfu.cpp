#include "base/mfu.hpp"

#include <fmt/format.h>

namespace tessera {

const char* mfu_name(bool of_peak) { return of_peak ? "MFU" : "of the measured product"; }

std::string mfu_numbers(const Mfu& mfu) {
  const char* why = mfu.causal <= 1 ? ""
                    : mfu.of_peak   ? ": no share, because the profile's peak is not this machine's"
                                    : ": no share, because the product was measured on a busy machine";
  return fmt::format("{:.1f} % ({:.1f} % causal{})", 100 * mfu.full, 100 * mfu.causal, why);
}

std::string mfu_text(const Mfu& mfu) {
  return mfu.of_peak ? fmt::format("{} {}", mfu_name(true), mfu_numbers(mfu)) : fmt::format("{} {}", mfu_numbers(mfu), mfu_name(false));
}

}  // namespace tessera
