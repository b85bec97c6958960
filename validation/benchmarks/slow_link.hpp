// A slow link between nodes, pretended: collectives do what they did, and take at least as long as their bytes would on such a link.
#pragma once
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "topology/communicators/communicator.hpp"
#include "topology/mesh.hpp"

namespace tessera::benchmarks {

/// What one rank has of the link from other nodes to its own, at `rate` bytes/s. Lanes take turns on it, as they would on a wire.
class SlowLink {
 public:
  explicit SlowLink(double rate) : rate_(rate) {}

  /// 0: bytes take no time.
  void set_rate(double rate) {
    const std::lock_guard lock(mutex_);
    rate_ = rate;
  }
  /// So many bytes come from other nodes: returns when they can have passed, counted from the call, or from where those before end.
  void pass(double bytes, std::chrono::steady_clock::time_point begin) {
    std::chrono::steady_clock::time_point end;
    {
      const std::lock_guard lock(mutex_);
      bytes_ += bytes;
      if (rate_ <= 0) return;
      free_ = std::max(free_, begin) +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(bytes / rate_));
      end = free_;
    }
    std::this_thread::sleep_until(end);
  }
  /// That have passed since the last call.
  double take_bytes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(bytes_, 0);
  }

 private:
  double rate_, bytes_ = 0;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_;
};

/// Of host ranks. Counts what a rank receives of each rank of other nodes by itself: what nodes might share of it they do not. Time begins
/// when all have come.
class SlowCommunicator final : public Communicator {
 public:
  /// `link` outlives it. Ranks of the world are on nodes of `ranks_per_node`, in their order.
  SlowCommunicator(std::unique_ptr<Communicator> inner, const Group& group, int ranks_per_node, SlowLink& link)
      : inner_(std::move(inner)), link_(link) {
    const int here = group.world[static_cast<std::size_t>(group.rank)] / ranks_per_node;
    for (const int other : group.world) elsewhere_ += other / ranks_per_node != here;
    for (const int other : group.world) node_of_.push_back(other / ranks_per_node);
    node_ = here;
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string path() const override { return inner_->path() + ", slow between nodes"; }
  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride,
                  const kernels::Context& context) override {
    during(elsewhere_ * bytes(count, dtype), [&] { inner_->all_gather(recv, send, count, dtype, stride, context); });
  }
  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, bool accumulate,
                      const kernels::Context& context) override {
    during(elsewhere_ * bytes(count, dtype), [&] { inner_->reduce_scatter(recv, send, count, dtype, stride, accumulate, context); });
  }
  /// As a reduce-scatter and an all-gather.
  void all_reduce(void* buffer, std::int64_t count, DType dtype, Reduction reduction, const kernels::Context& context) override {
    during(2 * elsewhere_ * bytes(count, dtype) / size(), [&] { inner_->all_reduce(buffer, count, dtype, reduction, context); });
  }
  void broadcast(void* buffer, std::int64_t count, DType dtype, int root, const kernels::Context& context) override {
    const bool comes = node_of_[static_cast<std::size_t>(root)] != node_;
    during(comes ? bytes(count, dtype) : 0, [&] { inner_->broadcast(buffer, count, dtype, root, context); });
  }
  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times,
                  const kernels::Context& context) override {
    during(elsewhere_ * bytes(count * times, dtype), [&] { inner_->all_to_all(recv, send, count, dtype, times, context); });
  }
  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int by, const kernels::Context& context) override {
    const bool comes = node_of_[static_cast<std::size_t>((rank() + size() - by) % size())] != node_;
    during(comes ? bytes(count, dtype) : 0, [&] { inner_->rotate(recv, send, count, dtype, by, context); });
  }
  void barrier() override { inner_->barrier(); }
  void register_memory(std::span<std::byte> memory) override { inner_->register_memory(memory); }
  void deregister_memory() override { inner_->deregister_memory(); }
  void check(double waited) override { inner_->check(waited); }
  void abort() override { inner_->abort(); }

 private:
  static double bytes(std::int64_t count, DType dtype) { return static_cast<double>(count) * static_cast<double>(size_of(dtype)); }
  template <class Call>
  void during(double from_elsewhere, const Call& call) {
    if (from_elsewhere <= 0) return call();
    inner_->barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    link_.pass(from_elsewhere, begin);
  }

  std::unique_ptr<Communicator> inner_;
  SlowLink& link_;
  double elsewhere_ = 0;      ///< members on other nodes
  std::vector<int> node_of_;  ///< each member
  int node_ = 0;
};

}  // namespace tessera::benchmarks
