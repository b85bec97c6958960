#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"
#include "io/nvme/transport.hpp"

namespace tessera::io {
namespace {

/// Whoever starts a request waits for it.
class ThreadTransport final : public Transport {
 public:
  explicit ThreadTransport(const std::vector<int>& descriptors) : descriptors_(descriptors) {}

  bool start(Request& r) override {
    const int d = descriptors_[static_cast<std::size_t>(r.file)];
    const auto n = static_cast<std::size_t>(r.bytes);
    const ssize_t moved = r.write ? ::pwrite(d, r.memory, n, r.offset) : ::pread(d, r.memory, n, r.offset);
    r.result = moved < 0 ? -errno : moved;
    return true;
  }
  void collect(std::vector<Request*>&) override { TESSERA_REQUIRE(false, "no transfer is in flight outside of start()"); }
  void wake() override {}
  bool asynchronous() const override { return false; }
  int threads(int, int queue_depth) const override { return queue_depth; }
  const char* name() const override { return "threads"; }

 private:
  std::vector<int> descriptors_;
};

}  // namespace

std::unique_ptr<Transport> make_thread_transport(const std::vector<int>& descriptors) {
  return std::make_unique<ThreadTransport>(descriptors);
}

}  // namespace tessera::io
