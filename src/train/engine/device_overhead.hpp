// What a GPU holds beside the plan: CUDA's context, NCCL, cuBLASLt. It cannot be planned, so it is measured and shown apart.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class DeviceOverhead {
 public:
  /// `used` says how many bytes of the GPU are in use by now, by anyone: what other processes take meanwhile is counted too.
  explicit DeviceOverhead(std::function<std::int64_t()> used) : used_(std::move(used)) {}
  /// All that was taken since the last call is `what`'s, but for `planned` bytes.
  void count(const std::string& what, std::int64_t planned = 0);
  /// "CUDA context 512 MiB, NCCL 96 MiB: 608 MiB"
  std::string text() const;

 private:
  std::function<std::int64_t()> used_;
  std::int64_t before_ = 0;
  std::vector<std::pair<std::string, std::int64_t>> parts_;
};

}  // namespace tessera
