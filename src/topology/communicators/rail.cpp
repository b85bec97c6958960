#include "topology/communicators/rail.hpp"

#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "topology/communicators/mpi_types.hpp"
#include "topology/communicators/reduce.hpp"

namespace tessera {
namespace {

constexpr int up_tag = 0, down_tag = 1;

}  // namespace

/// Results on their way from the last node, in the order of pieces: received here, and where all get them sent on to the node before.
class Rail::Deliveries {
 public:
  Deliveries(Rail& rail, const Sums& sums) : rail_(rail), sums_(sums) {}

  /// This node's terms of the piece have gone up.
  void expect(const Piece& piece) {
    const int last = rail_.nodes_ - 1;
    if (piece.count == 0 || (piece.owner >= 0 && piece.owner != rail_.node_)) return;
    Delivery& delivery = expected_.emplace_back(Delivery{.piece = piece});
    if (piece.owner < 0) return receive(delivery, piece.out, size_of(sums_.dtype), rail_.node_ + 1);
    delivery.sums.resize(static_cast<std::size_t>(piece.count) * size_of_sum(sums_.dtype));
    receive(delivery, delivery.sums.data(), size_of_sum(sums_.dtype), last);
  }
  /// Sends on what has come; does not wait.
  void pass_on() {
    int done = 1;
    while (!expected_.empty() && done) {
      MPI_CHECK(MPI_Test(&expected_.front().request, &done, MPI_STATUS_IGNORE));
      if (done) take_first();
    }
  }
  /// The last node's own: the result of a piece for all, which lies in piece.out.
  void send_down(const Piece& piece) {
    if (rail_.node_ == 0 || piece.count == 0) return;
    MPI_Request& sent = sent_.emplace_back(MPI_REQUEST_NULL);
    MPI_CHECK(MPI_Isend(piece.out, static_cast<int>(piece.count * static_cast<std::int64_t>(size_of(sums_.dtype))), MPI_BYTE,
                        rail_.node_ - 1, down_tag, rail_.comm_.get(), &sent));
  }
  void finish() {
    while (!expected_.empty()) {
      rail_.wait(expected_.front().request);
      take_first();
    }
    for (MPI_Request& request : sent_) rail_.wait(request);
  }

 private:
  struct Delivery {
    Piece piece;
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> sums = {};  // not yet rounded
  };

  void receive(Delivery& delivery, void* to, std::size_t element, int from) {
    const auto bytes = static_cast<int>(delivery.piece.count * static_cast<std::int64_t>(element));
    MPI_CHECK(MPI_Irecv(to, bytes, MPI_BYTE, from, down_tag, rail_.comm_.get(), &delivery.request));
  }
  void take_first() {
    const Delivery& first = expected_.front();
    if (first.piece.owner < 0)
      send_down(first.piece);
    else
      end_in_order(first.piece.out, first.sums.data(), first.piece.count, sums_.dtype, sums_.reduction, sums_.accumulate);
    expected_.pop_front();
  }

  Rail& rail_;
  const Sums& sums_;
  std::deque<Delivery> expected_;
  std::deque<MPI_Request> sent_;
};

Rail::Rail(OwnedComm comm, double timeout_seconds, const Peers* peers, std::function<std::string()> what)
    : comm_(std::move(comm)),
      timeout_seconds_(timeout_seconds),
      peers_(peers),
      what_(std::move(what)),
      staging_(static_cast<std::size_t>(4 * piece_bytes)) {
  MPI_CHECK(MPI_Comm_rank(comm_.get(), &node_));
  MPI_CHECK(MPI_Comm_size(comm_.get(), &nodes_));
}

std::int64_t Rail::piece_elements(DType dtype) { return piece_bytes / static_cast<std::int64_t>(size_of_sum(dtype)); }

void Rail::wait(MPI_Request& request) {
  if (request != MPI_REQUEST_NULL)
    comm_.wait(request, {.seconds = timeout_seconds_, .peers = peers_, .what = what_, .aborted = &aborted_, .carries = true});
}

MPI_Request Rail::begin_gather(void* to, const void* from, std::int64_t count, DType dtype, std::int64_t stride) {
  const BlockType blocks(dtype, count, stride);
  const bool in_place = from == static_cast<const std::byte*>(to) + node_ * stride * static_cast<std::int64_t>(size_of(dtype));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(
      MPI_Iallgather(in_place ? MPI_IN_PLACE : from, static_cast<int>(count), mpi_type(dtype), to, 1, blocks.get(), comm_.get(), &request));
  return request;
}

void Rail::sum(const Sums& sums, std::int64_t pieces, int sources,
               const std::function<Piece(std::int64_t, std::span<const void*>)>& piece) {
  const bool first = node_ == 0, last = node_ == nodes_ - 1;
  const auto element = static_cast<std::int64_t>(size_of_sum(sums.dtype));
  std::vector<const void*> terms(static_cast<std::size_t>(sources));
  // By parity of the piece: one is received or sent while the other is worked on.
  std::array<MPI_Request, 2> come = {MPI_REQUEST_NULL, MPI_REQUEST_NULL}, gone = come;
  const auto buffer = [&](std::int64_t p, int of_two) { return staging_.data() + (2 * of_two + p % 2) * piece_bytes; };
  const auto receive = [&](std::int64_t p) {
    if (!first && p < pieces)
      MPI_CHECK(MPI_Irecv(buffer(p, 0), static_cast<int>(piece_bytes), MPI_BYTE, node_ - 1, up_tag, comm_.get(), &come[p % 2]));
  };
  const auto send = [&](std::int64_t p, std::int64_t count, int to, int tag) {
    MPI_CHECK(MPI_Isend(buffer(p, 1), static_cast<int>(count * element), MPI_BYTE, to, tag, comm_.get(), &gone[p % 2]));
  };
  Deliveries deliveries(*this, sums);
  receive(0);
  for (std::int64_t p = 0; p < pieces; ++p) {
    receive(p + 1);  // its bytes were read with the piece before last
    const Piece here = piece(p, terms);
    TESSERA_REQUIRE(here.count * element <= piece_bytes, "a piece of {} elements on a rail", here.count);
    wait(come[p % 2]);
    wait(gone[p % 2]);
    continue_in_order(buffer(p, 1), first ? nullptr : buffer(p, 0), terms.data(), sources, here.count, sums.dtype, sums.reduction);
    if (!last) {
      send(p, here.count, node_ + 1, up_tag);
      deliveries.expect(here);
      deliveries.pass_on();
    } else if (here.owner >= 0 && here.owner != node_) {
      if (here.count > 0) send(p, here.count, here.owner, down_tag);
    } else {
      end_in_order(here.out, buffer(p, 1), here.count, sums.dtype, sums.reduction, sums.accumulate);
      if (here.owner < 0) deliveries.send_down(here);
    }
  }
  for (MPI_Request& request : gone) wait(request);
  deliveries.finish();
}

}  // namespace tessera
