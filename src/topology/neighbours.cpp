#include "topology/neighbours.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "topology/failure/mpi.hpp"
#include "topology/world_handles.hpp"

namespace tessera {
namespace {

constexpr std::int64_t message_bytes = 1 << 20;
constexpr int bytes_tag = 1, piece_tag = 2;

/// Runs a part of somebody else's work, and remembers the first fault: the messages go on.
class Guarded {
 public:
  void run(const std::function<void()>& part) {
    if (error_) return;
    try {
      part();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool failed() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace

std::vector<int> keepers_of(const std::vector<int>& node_of_rank) {
  const auto ranks = node_of_rank.size();
  std::vector<int> by_node(ranks);
  std::iota(by_node.begin(), by_node.end(), 0);
  std::ranges::stable_sort(by_node, {}, [&](int rank) { return node_of_rank[static_cast<std::size_t>(rank)]; });
  std::map<int, std::size_t> on_node;
  std::size_t most = 0;
  for (const int node : node_of_rank) most = std::max(most, ++on_node[node]);
  // Further than the largest node is long, and no further than half of all ranks.
  const std::size_t shift = std::clamp<std::size_t>(most, 1, std::max<std::size_t>(ranks / 2, 1));
  std::vector<int> keepers(ranks);
  for (std::size_t k = 0; k < ranks; ++k) keepers[static_cast<std::size_t>(by_node[k])] = by_node[(k + shift) % ranks];
  return keepers;
}

/// All that MPI may read or write while a message is under way.
struct Neighbours::Messages {
  std::int64_t sent = -1, coming = -1;
  MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
  std::vector<std::byte> out = std::vector<std::byte>(message_bytes), in = out;
};

struct Neighbours::Channel {
  OwnedComm comm;
  WaitLimit limit;
  std::atomic<bool> aborted{false};
  std::unique_ptr<Messages> messages = std::make_unique<Messages>();  ///< null: given up

  /// Either may have no partner: -1.
  void move(int to, const Outgoing& mine, int from, const Incoming& theirs);
  void exchange(int to, const Outgoing& mine, int from, const Incoming& theirs);
  void wait(MPI_Request& request) { comm.wait(request, limit); }
};

void Neighbours::Channel::move(int to, const Outgoing& mine, int from, const Incoming& theirs) {
  if (aborted || !messages) fail(ExitCode::lost, "{} were abandoned", limit.what());
  try {
    exchange(to, mine, from, theirs);
  } catch (...) {
    // What has begun to arrive cannot be cancelled, and no MPI takes back what is being sent: the bytes stay until the process ends, which
    // is soon. Kept in reach, so that no check for leaks takes them for lost.
    static auto& under_way = *new std::vector<std::unique_ptr<Messages>>;
    static std::mutex mutex;
    if (messages->send != MPI_REQUEST_NULL || messages->receive != MPI_REQUEST_NULL) {
      std::lock_guard lock(mutex);
      under_way.push_back(std::move(messages));
    }
    throw;
  }
}

void Neighbours::Channel::exchange(int to, const Outgoing& mine, int from, const Incoming& theirs) {
  auto& [sent, coming, send, receive, out, in] = *messages;
  sent = mine.bytes, coming = -1;
  if (from >= 0) MPI_CHECK(MPI_Irecv(&coming, 1, MPI_INT64_T, from, bytes_tag, comm.get(), &receive));
  if (to >= 0) MPI_CHECK(MPI_Isend(&sent, 1, MPI_INT64_T, to, bytes_tag, comm.get(), &send));
  if (from >= 0) wait(receive);
  if (to >= 0) wait(send);
  Guarded reading, writing;
  if (from >= 0) writing.run([&] { theirs.begin(coming); });
  const std::int64_t leaving_bytes = to < 0 ? 0 : sent;
  for (std::int64_t at = 0; at < std::max(leaving_bytes, coming); at += message_bytes) {
    const auto of = [&](std::int64_t bytes) { return static_cast<std::size_t>(std::clamp<std::int64_t>(bytes - at, 0, message_bytes)); };
    const std::size_t leaving = of(leaving_bytes), arriving = of(coming);
    if (arriving > 0) MPI_CHECK(MPI_Irecv(in.data(), static_cast<int>(arriving), MPI_BYTE, from, piece_tag, comm.get(), &receive));
    if (leaving > 0) {
      reading.run([&] { mine.read(at, std::span(out).first(leaving)); });
      MPI_CHECK(MPI_Isend(out.data(), static_cast<int>(leaving), MPI_BYTE, to, piece_tag, comm.get(), &send));
    }
    if (arriving > 0) {
      wait(receive);
      writing.run([&] { theirs.write(at, std::span<const std::byte>(in).first(arriving)); });
    }
    if (leaving > 0) wait(send);
  }
  if (from >= 0) writing.run(theirs.end);
  reading.rethrow();
  writing.rethrow();
}

Neighbours::Neighbours(const World& world) : channel_(std::make_unique<Channel>()), rank_(world.rank()) {
  std::vector<int> nodes;
  for (const std::string& node : world.gather_text(std::to_string(world.place().node))) nodes.push_back(std::stoi(node));
  const std::vector<int> keepers = keepers_of(nodes);
  keeper_ = keepers[static_cast<std::size_t>(rank_)];
  kept_ = static_cast<int>(std::ranges::find(keepers, rank_) - keepers.begin());
  for (std::size_t rank = 0; rank < nodes.size(); ++rank)
    on_other_nodes_ = on_other_nodes_ && nodes[rank] != nodes[static_cast<std::size_t>(keepers[rank])];
  channel_->comm = OwnedComm(duplicate(world.handles().world.get()));
  channel_->limit = {.seconds = world.options().collective_timeout_seconds,
                     .peers = &world.handles().peers,
                     .what = [] { return std::string("the copies of state for neighbours"); },
                     .aborted = &channel_->aborted};
}

void Neighbours::abort() { channel_->aborted = true; }

Neighbours::~Neighbours() = default;

void Neighbours::pass(const Outgoing& mine, const Incoming& theirs) const { channel_->move(keeper_, mine, kept_, theirs); }

void Neighbours::carry(const std::vector<Transfer>& transfers, const std::function<Outgoing(std::size_t)>& outgoing,
                       const std::function<Incoming(std::size_t)>& incoming) const {
  std::exception_ptr first;
  for (std::size_t k = 0; k < transfers.size(); ++k) {
    const auto [from, to] = transfers[k];
    TESSERA_REQUIRE(from != to, "rank {} carries to itself", from);
    Outgoing mine;
    try {
      if (rank_ == from) mine = outgoing(k);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
      mine = {};  // who waits for it is told
    }
    try {
      if (rank_ == from) channel_->move(to, mine, -1, {});
      if (rank_ == to) channel_->move(-1, {}, from, incoming(k));
    } catch (const Error& error) {
      if (error.code == ExitCode::lost) throw;
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera
