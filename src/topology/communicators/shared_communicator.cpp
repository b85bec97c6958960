#include "topology/communicators/shared_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "topology/communicators/copy.hpp"
#include "topology/communicators/reduce.hpp"
#include "topology/communicators/rounds.hpp"

namespace tessera {
namespace {

constexpr std::size_t window_minimum = 256 << 10;        // with its twin and the peers' it stays in a second-level cache
constexpr std::size_t window_bytes_per_rank = 16 << 10;  // a reduction cuts its window into a part for each rank
// Smaller blocks go through the windows even when the peers could read them: one round instead of two.
constexpr std::int64_t direct_minimum_bytes = 64 << 10;

std::size_t window_bytes_for(int size) { return std::max(window_minimum, window_bytes_per_rank * static_cast<std::size_t>(size)); }

/// A rank's buffer is either read by its peers where it lies (all buffers are in registered arenas; every byte is then moved once) or goes
/// through the windows in chunks. In the direct case a last round keeps every rank's buffer until all have read it.
class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(Rounds rounds, const Node& node)
      : rounds_(std::move(rounds)), node_(node), sources_(static_cast<std::size_t>(rounds_.size())) {}

  void abort() override { rounds_.abort(); }
  int rank() const override { return rounds_.rank(); }
  int size() const override { return rounds_.size(); }
  std::string path() const override { return "shared memory"; }

  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, const kernels::Context&) override {
    std::int64_t element = bytes_of(dtype), block = count * element, block_stride = stride == 0 ? block : stride * element;
    auto* to = static_cast<std::byte*>(recv);
    const auto* from = static_cast<const std::byte*>(send);
    bool direct = begin({.kind = CallKind::all_gather, .dtype = dtype, .count = count, .stride = stride}, send, block);
    if (direct) {
      each_peer([&](int r) { copy_block(to + r * block_stride, rounds_.resolve(r), static_cast<std::size_t>(block)); });
      copy_own(to + rank() * block_stride, from, block);
      rounds_.pass();
      return;
    }
    each_chunk(block, window_elements(1), [&](std::int64_t at, std::int64_t bytes) {
      std::memcpy(rounds_.window(), from + at, static_cast<std::size_t>(bytes));
      rounds_.pass();
      each_peer([&](int r) { std::memcpy(to + r * block_stride + at, rounds_.window(r), static_cast<std::size_t>(bytes)); });
    });
    copy_own(to + rank() * block_stride, from, block);
  }

  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, bool accumulate,
                      const kernels::Context&) override {
    require_reducible(dtype);
    std::int64_t element = bytes_of(dtype), block_stride = (stride == 0 ? count : stride) * element;
    const auto* from = static_cast<const std::byte*>(send);
    bool direct = begin({.kind = CallKind::reduce_scatter, .dtype = dtype, .count = count, .stride = stride}, send,
                        block_stride * (size() - 1) + count * element);
    if (direct) {
      for (int r = 0; r < size(); ++r) source(r) = rounds_.resolve(r) + rank() * block_stride;
      source(rank()) = from + rank() * block_stride;
      reduce_in_order(recv, sources_.data(), size(), count, dtype, Reduction::sum, accumulate);
      rounds_.pass();
      return;
    }
    each_chunk(count, window_elements(element) / size(), [&](std::int64_t at, std::int64_t n) {
      std::size_t part = static_cast<std::size_t>(n * element);
      each_peer([&](int r) { std::memcpy(rounds_.window() + r * part, from + r * block_stride + at * element, part); });
      rounds_.pass();
      for (int r = 0; r < size(); ++r) source(r) = rounds_.window(r) + rank() * part;
      source(rank()) = from + rank() * block_stride + at * element;
      reduce_in_order(static_cast<std::byte*>(recv) + at * element, sources_.data(), size(), n, dtype, Reduction::sum, accumulate);
    });
  }

  void all_reduce(void* buffer, std::int64_t count, DType dtype, Reduction reduction, const kernels::Context&) override {
    require_reducible(dtype);
    std::int64_t element = bytes_of(dtype);
    bool direct = begin({.kind = CallKind::all_reduce, .dtype = dtype, .reduction = reduction, .count = count}, buffer, count * element);
    if (direct) return all_reduce_direct(static_cast<std::byte*>(buffer), count, dtype, reduction);
    if (count * element <= small_bytes) {
      std::memcpy(rounds_.window(), buffer, static_cast<std::size_t>(count * element));
      rounds_.pass();
      for (int r = 0; r < size(); ++r) source(r) = rounds_.window(r);
      return reduce_in_order(buffer, sources_.data(), size(), count, dtype, reduction, false);
    }
    each_chunk(count, window_elements(element), [&](std::int64_t at, std::int64_t n) {
      all_reduce_window(static_cast<std::byte*>(buffer) + at * element, n, dtype, reduction);
    });
  }

  void broadcast(void* buffer, std::int64_t count, DType dtype, int root, const kernels::Context&) override {
    std::int64_t block = count * bytes_of(dtype);
    RoundCall call{.kind = CallKind::broadcast, .dtype = dtype, .root = root, .count = count};
    if (begin(call, buffer, block, root)) {
      if (rank() != root) copy_block(buffer, rounds_.resolve(root), static_cast<std::size_t>(block));
      rounds_.pass();
      return;
    }
    each_chunk(block, window_elements(1), [&](std::int64_t at, std::int64_t bytes) {
      auto* piece = static_cast<std::byte*>(buffer) + at;
      if (rank() == root) std::memcpy(rounds_.window(), piece, static_cast<std::size_t>(bytes));
      rounds_.pass();
      if (rank() != root) std::memcpy(piece, rounds_.window(root), static_cast<std::size_t>(bytes));
    });
  }

  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times, const kernels::Context&) override {
    const std::int64_t block = count * bytes_of(dtype), matrix = block * size();
    auto* to = static_cast<std::byte*>(recv);
    const auto* from = static_cast<const std::byte*>(send);
    for (std::int64_t k = 0; k < times; ++k) copy_own(to + k * matrix + rank() * block, from + k * matrix + rank() * block, block);
    if (begin({.kind = CallKind::all_to_all, .dtype = dtype, .count = count * times}, send, matrix * times)) {
      each_peer([&](int r) {
        const std::byte* theirs = rounds_.resolve(r) + rank() * block;
        for (std::int64_t k = 0; k < times; ++k)
          copy_block(to + k * matrix + r * block, theirs + k * matrix, static_cast<std::size_t>(block));
      });
      rounds_.pass();
      return;
    }
    for (std::int64_t k = 0; k < times; ++k)
      each_chunk(block, window_elements(1) / size(), [&](std::int64_t at, std::int64_t bytes) {
        const auto part = static_cast<std::size_t>(bytes);
        const std::int64_t first = k * matrix + at;
        each_peer([&](int r) { std::memcpy(rounds_.window() + r * bytes, from + first + r * block, part); });
        rounds_.pass();
        each_peer([&](int r) { std::memcpy(to + first + r * block, rounds_.window(r) + rank() * bytes, part); });
      });
  }

  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int by, const kernels::Context&) override {
    const std::int64_t block = count * bytes_of(dtype);
    const int before = (rank() + size() - by) % size();
    auto* to = static_cast<std::byte*>(recv);
    const auto* from = static_cast<const std::byte*>(send);
    if (begin({.kind = CallKind::rotate, .dtype = dtype, .count = count, .stride = by}, send, block)) {
      copy_block(to, rounds_.resolve(before), static_cast<std::size_t>(block));
      rounds_.pass();
      return;
    }
    each_chunk(block, window_elements(1), [&](std::int64_t at, std::int64_t bytes) {
      std::memcpy(rounds_.window(), from + at, static_cast<std::size_t>(bytes));
      rounds_.pass();
      std::memcpy(to + at, rounds_.window(before), static_cast<std::size_t>(bytes));
    });
  }

  void barrier() override {
    rounds_.begin({});
    rounds_.pass();
  }

 private:
  static constexpr std::int64_t small_bytes = 4096;  // every rank adds all terms itself

  static std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t window_elements(std::int64_t element) const { return static_cast<std::int64_t>(rounds_.window_bytes()) / element; }
  const void*& source(int r) { return sources_[static_cast<std::size_t>(r)]; }

  /// Starts a call. True when the peers can read every buffer that they need (the root's only, if there is one); then a round has been
  /// passed in which all said where theirs is.
  bool begin(RoundCall call, const void* data, std::int64_t bytes, int root = -1) {
    // Only what all ranks know may decide how many rounds there are.
    bool may_be_direct = node_.direct() && call.count * bytes_of(call.dtype) >= direct_minimum_bytes;
    if (may_be_direct) call.location = node_.locate(data, static_cast<std::size_t>(bytes)).value_or(Node::Location{});
    rounds_.begin(call);
    if (!may_be_direct) return false;
    rounds_.pass();
    for (int r = 0; r < size(); ++r)
      if ((root < 0 || r == root) && rounds_.call(r).location.arena < 0) return false;
    return true;
  }

  /// f(r) for the others, each rank starting at its successor, so that they do not all read the same memory at once.
  template <class F>
  void each_peer(F f) {
    for (int step = 1; step < size(); ++step) f((rank() + step) % size());
  }

  template <class F>
  static void each_chunk(std::int64_t count, std::int64_t chunk, F f) {
    for (std::int64_t at = 0; at < count; at += chunk) f(at, std::min(chunk, count - at));
  }

  static void copy_own(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (to != from) copy_block(to, from, static_cast<std::size_t>(bytes));
  }

  /// Rank r sums slice r of everybody's buffer into its own, then everybody collects the sums.
  void all_reduce_direct(std::byte* buffer, std::int64_t count, DType dtype, Reduction reduction) {
    std::int64_t element = bytes_of(dtype), slice = ceil_div(count, size());
    auto begin_of = [&](int r) { return std::min(r * slice, count) * element; };
    auto length_of = [&](int r) { return begin_of(r + 1) - begin_of(r); };
    for (int r = 0; r < size(); ++r) source(r) = rounds_.resolve(r) + begin_of(rank());
    source(rank()) = buffer + begin_of(rank());
    reduce_in_order(buffer + begin_of(rank()), sources_.data(), size(), length_of(rank()) / element, dtype, reduction, false);
    rounds_.pass();
    each_peer([&](int r) { copy_block(buffer + begin_of(r), rounds_.resolve(r) + begin_of(r), static_cast<std::size_t>(length_of(r))); });
    rounds_.pass();
  }

  /// The same through the windows: the terms in one round, the sums in the next.
  void all_reduce_window(std::byte* buffer, std::int64_t count, DType dtype, Reduction reduction) {
    std::int64_t element = bytes_of(dtype), slice = ceil_div(count, size());
    auto begin_of = [&](int r) { return std::min(r * slice, count) * element; };
    auto length_of = [&](int r) { return begin_of(r + 1) - begin_of(r); };
    std::memcpy(rounds_.window(), buffer, static_cast<std::size_t>(count * element));
    rounds_.pass();
    for (int r = 0; r < size(); ++r) source(r) = rounds_.window(r) + begin_of(rank());
    std::byte* sums = rounds_.window();
    reduce_in_order(sums, sources_.data(), size(), length_of(rank()) / element, dtype, reduction, false);
    rounds_.pass();
    for (int r = 0; r < size(); ++r) std::memcpy(buffer + begin_of(r), rounds_.window(r), static_cast<std::size_t>(length_of(r)));
  }

  Rounds rounds_;
  const Node& node_;
  std::vector<const void*> sources_;
};

}  // namespace

std::unique_ptr<Communicator> make_shared_communicator(MPI_Comm comm, const Node& node, std::vector<int> members, const std::string& label,
                                                       double timeout_seconds, std::string& reason) {
  int rank = 0, size = static_cast<int>(members.size());
  MPI_CHECK(MPI_Comm_rank(comm, &rank));
  std::size_t window_bytes = window_bytes_for(size);
  Mapping block = make_shared_block(comm, Rounds::bytes(size, window_bytes), node.direct(), reason);
  if (!block) return nullptr;
  return std::make_unique<SharedCommunicator>(
      Rounds(std::move(block), window_bytes, node, std::move(members), rank, label, timeout_seconds), node);
}

}  // namespace tessera
