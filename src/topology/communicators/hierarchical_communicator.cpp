#include "topology/communicators/hierarchical_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "topology/communicators/copy.hpp"
#include "topology/communicators/rail.hpp"
#include "topology/communicators/reduce.hpp"
#include "topology/communicators/rounds.hpp"

namespace tessera {
namespace {

// Below, one call of MPI's is faster than meetings on both sides of it.
constexpr std::int64_t hierarchical_minimum_bytes = 32 << 10;
constexpr std::size_t gather_piece_bytes = 64 << 10;  // of a node's block, at least
constexpr std::size_t node_window_minimum = 1 << 20;

std::size_t window_bytes_for(int nodes, int locals) {
  const std::size_t gathers = gather_piece_bytes * static_cast<std::size_t>(nodes);
  const std::size_t sums = static_cast<std::size_t>(Rail::piece_bytes) * static_cast<std::size_t>(locals);
  return std::max({node_window_minimum, gathers, sums});
}

/// Rank i of each node stands on rail i and carries what falls to it: of a gather the blocks of its rail's ranks, of a reduce-scatter the
/// sums that they get, of an all-reduce every so many pieces. The ranks of a node read each other's buffers where they lie, or through
/// windows. How much travels between nodes in one piece does not depend on which, since nodes may differ in that.
class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(Rounds rounds, OwnedComm rail, std::unique_ptr<Communicator> flat, const Node& node, std::string label,
                           double timeout_seconds, const Peers* peers)
      : rounds_(std::move(rounds)),
        flat_(std::move(flat)),
        node_(node),
        label_(std::move(label)),
        rail_(std::move(rail), timeout_seconds, peers, [this] { return fmt::format("{} ({}, call {})", what_, label_, calls_); }) {}

  int rank() const override { return flat_->rank(); }
  int size() const override { return flat_->size(); }
  std::string path() const override { return fmt::format("shared memory inside {} nodes, mpi between", rail_.nodes()); }
  void abort() override {
    rounds_.abort();
    rail_.abort();
    flat_->abort();
  }

  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, const kernels::Context&) override {
    stride = stride == 0 ? count : stride;
    const std::int64_t element = bytes_of(dtype);
    if (count * element < hierarchical_minimum_bytes) return flat_->all_gather(recv, send, count, dtype, stride);
    const Gather gather{static_cast<std::byte*>(recv), static_cast<const std::byte*>(send), count, stride, dtype, element};
    const bool direct = begin({.kind = CallKind::all_gather, .dtype = dtype, .count = count, .stride = stride}, recv,
                              (stride * (size() - 1) + count) * element);
    direct ? gather_direct(gather) : gather_by_window(gather);
  }

  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, bool accumulate,
                      const kernels::Context&) override {
    require_reducible(dtype);
    stride = stride == 0 ? count : stride;
    const std::int64_t element = bytes_of(dtype), step = Rail::piece_elements(dtype);
    if (count * element < hierarchical_minimum_bytes) return flat_->reduce_scatter(recv, send, count, dtype, stride, accumulate);
    const bool direct = begin({.kind = CallKind::reduce_scatter, .dtype = dtype, .count = count, .stride = stride}, send,
                              (stride * (size() - 1) + count) * element);
    const auto* from = static_cast<const std::byte*>(send);
    // Piece by piece of the blocks of this rail's ranks, one node's after the other.
    rail_.sum({dtype, Reduction::sum, accumulate}, ceil_div(count, step) * nodes(), locals(),
              [&](std::int64_t p, std::span<const void*> sources) -> Rail::Piece {
                const std::int64_t at = p / nodes() * step, n = std::min(step, count - at), of_node = p % nodes();
                const auto place = [&](int rail) { return ((of_node * locals() + rail) * stride + at) * element; };
                if (direct)
                  terms_of_peers(sources, [&](int peer) { return rounds_.resolve(peer) + place(local()); });
                else
                  terms_by_windows(sources, n * element, [&](int rail) { return from + place(rail); });
                sources[static_cast<std::size_t>(local())] = from + place(local());
                return {n, static_cast<int>(of_node), static_cast<std::byte*>(recv) + at * element};
              });
    if (direct) rounds_.pass();
  }

  void all_reduce(void* buffer, std::int64_t count, DType dtype, Reduction reduction, const kernels::Context&) override {
    require_reducible(dtype);
    const std::int64_t element = bytes_of(dtype), chunk = Rail::piece_elements(dtype) * locals();
    if (count * element < hierarchical_minimum_bytes) return flat_->all_reduce(buffer, count, dtype, reduction);
    auto* values = static_cast<std::byte*>(buffer);
    const RoundCall call{.kind = CallKind::all_reduce, .dtype = dtype, .reduction = reduction, .count = count};
    if (begin(call, buffer, count * element)) return all_reduce_direct(values, count, dtype, reduction);
    for (std::int64_t at = 0; at < count; at += chunk)
      all_reduce_by_windows(values + at * element, std::min(chunk, count - at), dtype, reduction);
  }

  void broadcast(void* buffer, std::int64_t count, DType dtype, int root, const kernels::Context&) override {
    flat_->broadcast(buffer, count, dtype, root);
  }
  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times, const kernels::Context&) override {
    flat_->all_to_all(recv, send, count, dtype, times);
  }
  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int by, const kernels::Context&) override {
    flat_->rotate(recv, send, count, dtype, by);
  }
  void barrier() override { flat_->barrier(); }

 private:
  struct Gather {
    std::byte* to;
    const std::byte* from;
    std::int64_t count, stride;  // elements
    DType dtype;
    std::int64_t element;  // bytes
  };

  static std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
  int local() const { return rounds_.rank(); }
  int locals() const { return rounds_.size(); }
  int nodes() const { return rail_.nodes(); }

  template <class F>
  void each_peer(F f) const {
    for (int step = 1; step < locals(); ++step) f((local() + step) % locals());
  }

  /// Starts a call. True when the peers of this node can read all of its ranks' buffers.
  bool begin(RoundCall call, const void* data, std::int64_t bytes) {
    what_ = name_of(call.kind);
    ++calls_;
    if (node_.direct()) call.location = node_.locate(data, static_cast<std::size_t>(bytes)).value_or(Node::Location{});
    rounds_.begin(call);
    rounds_.pass();
    for (int r = 0; r < locals(); ++r)
      if (rounds_.call(r).location.arena < 0) return false;
    return true;
  }

  // --- gathers ---

  std::int64_t gather_elements(std::int64_t element) const { return static_cast<std::int64_t>(rounds_.window_bytes()) / nodes() / element; }

  /// A piece is on its way between the nodes while the one before it is copied inside them.
  void gather_direct(const Gather& g) {
    const std::int64_t step = gather_elements(g.element), pieces = ceil_div(g.count, step);
    std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    const auto length = [&](std::int64_t p) { return std::min(step, g.count - p * step); };
    const auto start = [&](std::int64_t p) {
      if (p < pieces)
        requests[p % 2] = rail_.begin_gather(g.to + (local() * g.stride + p * step) * g.element, g.from + p * step * g.element, length(p),
                                             g.dtype, locals() * g.stride);
    };
    start(0), start(1);
    for (std::int64_t p = 0; p < pieces; ++p) {
      rail_.wait(requests[p % 2]);
      rounds_.pass();
      start(p + 2);
      each_peer([&](int r) {
        for (int m = 0; m < nodes(); ++m) {
          const std::int64_t at = ((m * locals() + r) * g.stride + p * step) * g.element;
          copy_block(g.to + at, rounds_.resolve(r) + at, static_cast<std::size_t>(length(p) * g.element));
        }
      });
    }
    rounds_.pass();
  }

  void gather_by_window(const Gather& g) {
    const std::int64_t step = gather_elements(g.element);
    stage_.resize(rounds_.window_bytes());
    for (std::int64_t first = 0; first < g.count; first += step) {
      const std::int64_t n = std::min(step, g.count - first);
      const auto bytes = static_cast<std::size_t>(n * g.element);
      std::memcpy(stage_.data() + static_cast<std::size_t>(rail_.node()) * bytes, g.from + first * g.element, bytes);
      MPI_Request request =
          rail_.begin_gather(stage_.data(), stage_.data() + static_cast<std::size_t>(rail_.node()) * bytes, n, g.dtype, n);
      rail_.wait(request);
      std::memcpy(rounds_.window(), stage_.data(), bytes * static_cast<std::size_t>(nodes()));
      rounds_.pass();
      for (int r = 0; r < locals(); ++r) {
        const std::byte* blocks = r == local() ? stage_.data() : rounds_.window(r);
        for (std::size_t m = 0; m < static_cast<std::size_t>(nodes()); ++m)
          std::memcpy(g.to + ((static_cast<std::int64_t>(m) * locals() + r) * g.stride + first) * g.element, blocks + m * bytes, bytes);
      }
    }
  }

  // --- sums ---

  template <class F>
  void terms_of_peers(std::span<const void*> sources, F place) const {
    each_peer([&](int r) { sources[static_cast<std::size_t>(r)] = place(r); });
  }

  /// Each rank lays its terms for each rail side by side: `terms(rail)`, of at most so many bytes.
  template <class F>
  void terms_by_windows(std::span<const void*> sources, std::int64_t bytes, F terms) {
    each_peer([&](int r) { std::memcpy(rounds_.window() + r * Rail::piece_bytes, terms(r), static_cast<std::size_t>(bytes)); });
    rounds_.pass();
    terms_of_peers(sources, [&](int r) { return rounds_.window(r) + local() * Rail::piece_bytes; });
  }

  /// Elements [first, first + n) of `count` that rail r sums in chunk p.
  struct Share {
    std::int64_t first, n;
  };
  Share share_of(int rail, std::int64_t p, std::int64_t count, std::int64_t step) const {
    const std::int64_t first = std::min((p * locals() + rail) * step, count);
    return {first, std::min(step, count - first)};
  }

  void all_reduce_direct(std::byte* values, std::int64_t count, DType dtype, Reduction reduction) {
    const std::int64_t element = bytes_of(dtype), step = Rail::piece_elements(dtype), chunks = ceil_div(count, step * locals());
    rail_.sum({dtype, reduction}, chunks, locals(), [&](std::int64_t p, std::span<const void*> sources) -> Rail::Piece {
      const Share mine = share_of(local(), p, count, step);
      terms_of_peers(sources, [&](int r) { return rounds_.resolve(r) + mine.first * element; });
      sources[static_cast<std::size_t>(local())] = values + mine.first * element;
      return {mine.n, -1, values + mine.first * element};
    });
    rounds_.pass();
    for (std::int64_t p = 0; p < chunks; ++p)
      each_peer([&](int r) {
        const Share theirs = share_of(r, p, count, step);
        std::memcpy(values + theirs.first * element, rounds_.resolve(r) + theirs.first * element,
                    static_cast<std::size_t>(theirs.n * element));
      });
    rounds_.pass();
  }

  /// A chunk: a piece for each rail, the terms in one round and the sums in the next.
  void all_reduce_by_windows(std::byte* values, std::int64_t count, DType dtype, Reduction reduction) {
    const std::int64_t element = bytes_of(dtype), step = Rail::piece_elements(dtype);
    const Share mine = share_of(local(), 0, count, step);
    each_peer([&](int r) {
      const Share theirs = share_of(r, 0, count, step);
      std::memcpy(rounds_.window() + r * Rail::piece_bytes, values + theirs.first * element, static_cast<std::size_t>(theirs.n * element));
    });
    rounds_.pass();
    rail_.sum({dtype, reduction}, 1, locals(), [&](std::int64_t, std::span<const void*> sources) -> Rail::Piece {
      terms_of_peers(sources, [&](int r) { return rounds_.window(r) + local() * Rail::piece_bytes; });
      sources[static_cast<std::size_t>(local())] = values + mine.first * element;
      return {mine.n, -1, values + mine.first * element};
    });
    std::memcpy(rounds_.window(), values + mine.first * element, static_cast<std::size_t>(mine.n * element));
    rounds_.pass();
    each_peer([&](int r) {
      const Share theirs = share_of(r, 0, count, step);
      std::memcpy(values + theirs.first * element, rounds_.window(r), static_cast<std::size_t>(theirs.n * element));
    });
  }

  Rounds rounds_;
  std::unique_ptr<Communicator> flat_;
  const Node& node_;
  std::string label_;
  std::string_view what_;
  std::int64_t calls_ = 0;
  Rail rail_;
  std::vector<std::byte> stage_;
};

OwnedComm split(MPI_Comm comm, int color, int key) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split(comm, color, key, &made));
  return OwnedComm(made);
}

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(MPI_Comm comm, std::unique_ptr<Communicator> flat, const Node& node,
                                                             NodeGrid grid, const std::string& label, double timeout_seconds,
                                                             const Peers* peers, std::string& reason) {
  const auto locals = static_cast<int>(grid.members.size());
  const int local = flat->rank() % locals;
  const OwnedComm inside = split(comm, grid.node, local);
  const std::size_t window_bytes = window_bytes_for(grid.nodes, locals);
  Mapping block = make_shared_block(inside.get(), Rounds::bytes(locals, window_bytes), node.direct(), reason);
  if (!all_agree(comm, static_cast<bool>(block))) {
    if (reason.empty()) reason = "those of another node cannot";
    return nullptr;
  }
  return std::make_unique<HierarchicalCommunicator>(
      Rounds(std::move(block), window_bytes, node, std::move(grid.members), local, label, timeout_seconds), split(comm, local, grid.node),
      std::move(flat), node, label, timeout_seconds, peers);
}

}  // namespace tessera
