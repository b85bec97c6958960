#include <fmt/format.h>
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/types.hpp"
#include "io/nvme/memlock.hpp"
#include "io/nvme/transport.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t most_registered = 1 << 30;  // bytes of one registered buffer
constexpr int collected_at_once = 64;

std::string refusal(int error_number) {
  switch (error_number) {
    case EPERM:
    case EACCES:
      return fmt::format("io_uring is forbidden here ({}; by sysctl kernel.io_uring_disabled or by the container's seccomp profile)",
                         error_number == EPERM ? "EPERM" : "EACCES");
    case ENOSYS:
      return "this kernel has no io_uring (ENOSYS)";
    case ENOMEM:
      return fmt::format("io_uring found too little memory to lock (ENOMEM; ulimit -l is {})", memlock_text());
    default:
      return fmt::format("io_uring does not start ({})", std::strerror(error_number));
  }
}

/// Makes the ring and asks something of it: some places allow the first and forbid the second. -errno, or 0.
int open_ring(io_uring& ring, unsigned entries) {
  if (const int made = ::io_uring_queue_init(entries, &ring, 0); made < 0) return made;
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  int answer = ::io_uring_submit(&ring);
  io_uring_cqe* ended = nullptr;
  while (answer >= 0 && (answer = io_uring_wait_cqe(&ring, &ended)) == -EINTR) {
  }
  if (answer >= 0)
    io_uring_cqe_seen(&ring, ended);
  else
    ::io_uring_queue_exit(&ring);
  return std::min(answer, 0);
}

class UringTransport final : public Transport {
 public:
  /// Takes the ring over.
  UringTransport(io_uring& ring, const std::vector<int>& descriptors) : ring_(ring), descriptors_(descriptors) {
    files_registered_ = ::io_uring_register_files(&ring_, descriptors.data(), static_cast<unsigned>(descriptors.size())) == 0;
  }
  ~UringTransport() override { ::io_uring_queue_exit(&ring_); }

  void register_memory(const std::vector<std::span<std::byte>>& memory, std::vector<std::string>& notes) {
    std::int64_t bytes = 0;
    for (const auto& m : memory)
      for (std::size_t at = 0; at < m.size(); at += most_registered) {
        buffers_.push_back({m.data() + at, std::min<std::size_t>(m.size() - at, most_registered)});
        bytes += static_cast<std::int64_t>(buffers_.back().iov_len);
      }
    std::sort(buffers_.begin(), buffers_.end(), [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
    const int r = ::io_uring_register_buffers(&ring_, buffers_.data(), static_cast<unsigned>(buffers_.size()));
    if (r == 0) return;
    buffers_.clear();
    const std::string why = r == -ENOMEM ? fmt::format("ulimit -l allows {}", memlock_text()) : std::string(std::strerror(-r));
    notes.push_back(fmt::format("{} of buffers could not be registered ({}), so the kernel pins them anew for each transfer",
                                human_bytes(static_cast<double>(bytes)), why));
  }

  bool start(Request& r) override {
    const std::lock_guard lock(submission_);
    if (broken_ == 0) {
      io_uring_sqe* e = io_uring_get_sqe(&ring_);  // there is always one: each is submitted before the next
      prepare(*e, r);
      io_uring_sqe_set_data(e, &r);
      broken_ = submit();
    }
    if (broken_ == 0) return false;
    r.result = broken_;
    return true;
  }

  void collect(std::vector<Request*>& ended) override {
    io_uring_cqe* first;
    if (io_uring_wait_cqe(&ring_, &first) !=
        0) {  // a signal came in between; anything else is tried again as well, because requests are out
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    io_uring_cqe* entries[collected_at_once];
    const unsigned n = ::io_uring_peek_batch_cqe(&ring_, entries, collected_at_once);
    const std::lock_guard lock(submission_);  // whoever started these has left start()
    for (unsigned i = 0; i < n; ++i) {
      if (auto* r = static_cast<Request*>(io_uring_cqe_get_data(entries[i]))) {
        r->result = entries[i]->res;
        ended.push_back(r);
      } else {
        waking_ = false;
      }
    }
    io_uring_cq_advance(&ring_, n);
  }

  void wake() override {
    const std::lock_guard lock(submission_);
    if (waking_ || broken_ != 0) return;
    io_uring_sqe* e = io_uring_get_sqe(&ring_);
    io_uring_prep_nop(e);
    io_uring_sqe_set_data(e, nullptr);
    waking_ = true;
    broken_ = submit();
  }

  bool asynchronous() const override { return true; }
  int threads(int wanted, int) const override { return wanted; }
  const char* name() const override { return "io_uring"; }
  bool registered() const override { return !buffers_.empty(); }

 private:
  void prepare(io_uring_sqe& e, const Request& r) {
    const int file = files_registered_ ? r.file : descriptors_[static_cast<std::size_t>(r.file)];
    const auto bytes = static_cast<unsigned>(r.bytes);
    const auto offset = static_cast<std::uint64_t>(r.offset);
    if (const int buffer = buffer_of(r); buffer >= 0 && r.write)
      io_uring_prep_write_fixed(&e, file, r.memory, bytes, offset, buffer);
    else if (buffer >= 0)
      io_uring_prep_read_fixed(&e, file, r.memory, bytes, offset, buffer);
    else if (r.write)
      io_uring_prep_write(&e, file, r.memory, bytes, offset);
    else
      io_uring_prep_read(&e, file, r.memory, bytes, offset);
    if (files_registered_) e.flags |= IOSQE_FIXED_FILE;
  }

  /// The registered buffer that holds all of the request's memory; -1 for none.
  int buffer_of(const Request& r) const {
    auto after = std::upper_bound(buffers_.begin(), buffers_.end(), r.memory, [](const void* p, const iovec& b) { return p < b.iov_base; });
    if (after == buffers_.begin()) return -1;
    --after;
    const auto* begin = static_cast<const std::byte*>(after->iov_base);
    return r.memory + r.bytes <= begin + after->iov_len ? static_cast<int>(after - buffers_.begin()) : -1;
  }

  /// 0, or the reason why this ring takes nothing any more: an entry that stayed in the queue must never reach the disk later.
  int submit() {
    for (int tries = 0; tries < 10000; ++tries) {
      const int n = ::io_uring_submit(&ring_);
      if (n > 0) return 0;
      if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY && n != -ENOMEM) return n;
      if (n != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the kernel lacks memory for the moment
    }
    return -EAGAIN;
  }

  std::mutex submission_;
  io_uring ring_;
  std::vector<int> descriptors_;
  bool files_registered_ = false;
  std::vector<iovec> buffers_;  // by address
  bool waking_ = false;
  int broken_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_uring_transport(const std::vector<int>& descriptors, int depth,
                                                const std::vector<std::span<std::byte>>& memory, std::vector<std::string>& notes) {
  io_uring ring;
  if (const int r = open_ring(ring, static_cast<unsigned>(depth) + 1); r < 0) {
    notes.push_back(refusal(-r));
    return nullptr;
  }
  auto transport = std::make_unique<UringTransport>(ring, descriptors);
  transport->register_memory(memory, notes);
  return transport;
}

std::string why_no_io_uring() {
  io_uring ring;
  if (const int r = open_ring(ring, 2); r < 0) return refusal(-r);
  ::io_uring_queue_exit(&ring);
  return "";
}

}  // namespace tessera::io
