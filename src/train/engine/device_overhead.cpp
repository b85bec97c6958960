#include "train/engine/device_overhead.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/types.hpp"

namespace tessera {

void DeviceOverhead::count(const std::string& what, std::int64_t planned) {
  const std::int64_t now = used_();
  parts_.emplace_back(what, std::max<std::int64_t>(0, now - before_ - planned));
  before_ = now;
}

std::string DeviceOverhead::text() const {
  std::string text;
  std::int64_t sum = 0;
  for (const auto& [what, bytes] : parts_) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, human_bytes(static_cast<double>(bytes)));
    sum += bytes;
  }
  return fmt::format("{}: {}", text, human_bytes(static_cast<double>(sum)));
}

}  // namespace tessera
