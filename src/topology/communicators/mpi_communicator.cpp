#include "topology/communicators/mpi_communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "topology/communicators/mpi_types.hpp"
#include "topology/communicators/reduce.hpp"

namespace tessera {
namespace {

constexpr std::int64_t piece_bytes = 256 << 10;   // of one rank in the staging buffer of a reduction, at most
constexpr std::int64_t stage_bytes = 8 << 20;     // of all ranks, where pieces do not become tiny
constexpr std::int64_t piece_minimum = 32 << 10;  // bytes
constexpr std::int64_t count_limit = 1 << 30;     // MPI counts are ints
constexpr int rotate_tag = 0;

/// Blocks of `count` elements, `times` of them `spacing` elements from each other; copies of it stand `stride` elements apart.
class MatrixType {
 public:
  MatrixType(DType dtype, std::int64_t count, std::int64_t times, std::int64_t spacing, std::int64_t stride) {
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    MPI_CHECK(MPI_Type_create_hvector(static_cast<int>(times), static_cast<int>(count), static_cast<MPI_Aint>(spacing * element),
                                      mpi_type(dtype), &blocks));
    MPI_CHECK(MPI_Type_create_resized(blocks, 0, static_cast<MPI_Aint>(stride * element), &type_));
    MPI_CHECK(MPI_Type_commit(&type_));
    MPI_CHECK(MPI_Type_free(&blocks));
  }
  ~MatrixType() { MPI_Type_free(&type_); }
  MatrixType(const MatrixType&) = delete;
  MatrixType& operator=(const MatrixType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// MPI leaves the order of a float sum to the library, and it changes with size and algorithm. So float reductions move the terms
/// (all-to-all of pieces) and add them here in rank order: the traffic of a ring reduce-scatter, and the bits of the shared-memory path.
/// Integer sums are exact in any order and use MPI's own.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(OwnedComm comm, std::string label, double timeout_seconds, const Peers* peers)
      : comm_(std::move(comm)), label_(std::move(label)), timeout_seconds_(timeout_seconds), peers_(peers) {
    MPI_CHECK(MPI_Comm_rank(comm_.get(), &rank_));
    MPI_CHECK(MPI_Comm_size(comm_.get(), &size_));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string path() const override { return "mpi"; }
  void abort() override { aborted_.store(true); }

  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, const kernels::Context&) override {
    ++calls_;
    stride = stride == 0 ? count : stride;
    std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t at = 0; at < count; at += count_limit) {
      std::int64_t n = std::min(count_limit, count - at);
      char* to = static_cast<char*>(recv) + at * element;
      const char* from = static_cast<const char*>(send) + at * element;
      bool in_place = from == to + rank_ * stride * element;
      BlockType blocks(dtype, n, stride);
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_CHECK(
          MPI_Iallgather(in_place ? MPI_IN_PLACE : from, static_cast<int>(n), mpi_type(dtype), to, 1, blocks.get(), comm_.get(), &request));
      wait(request, "all_gather");
    }
  }

  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, bool accumulate,
                      const kernels::Context&) override {
    ++calls_;
    require_reducible(dtype);
    stride = stride == 0 ? count : stride;
    std::int64_t element = static_cast<std::int64_t>(size_of(dtype)), step = piece_elements(element);
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    for (std::int64_t at = 0; at < count; at += step) {
      std::int64_t n = std::min(step, count - at);
      exchange(static_cast<const char*>(send) + at * element, n, dtype, stride, "reduce_scatter");
      for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = stage_.data() + r * n * element;
      // Our own terms were not sent.
      sources[static_cast<std::size_t>(rank_)] = static_cast<const char*>(send) + (rank_ * stride + at) * element;
      reduce_in_order(static_cast<char*>(recv) + at * element, sources.data(), size_, n, dtype, Reduction::sum, accumulate);
    }
  }

  void all_reduce(void* buffer, std::int64_t count, DType dtype, Reduction reduction, const kernels::Context&) override {
    ++calls_;
    require_reducible(dtype);
    std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
    if (dtype == DType::i64) {
      for (std::int64_t at = 0; at < count; at += count_limit) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, static_cast<char*>(buffer) + at * element,
                                 static_cast<int>(std::min(count_limit, count - at)), MPI_INT64_T,
                                 reduction == Reduction::sum ? MPI_SUM : MPI_MAX, comm_.get(), &request));
        wait(request, "all_reduce");
      }
      return;
    }
    // Few elements: everybody gets all terms and adds them. Many: each rank reduces its piece of a chunk, then the pieces are gathered.
    std::int64_t step = piece_elements(element);
    if (count <= 4096 / element) return all_reduce_small(buffer, count, dtype, reduction);
    for (std::int64_t at = 0; at < count; at += step * size_)
      all_reduce_chunk(static_cast<char*>(buffer) + at * element, std::min(step * size_, count - at), dtype, reduction);
  }

  void broadcast(void* buffer, std::int64_t count, DType dtype, int root, const kernels::Context&) override {
    ++calls_;
    for (std::int64_t at = 0; at < count; at += count_limit) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_CHECK(MPI_Ibcast(static_cast<char*>(buffer) + at * static_cast<std::int64_t>(size_of(dtype)),
                           static_cast<int>(std::min(count_limit, count - at)), mpi_type(dtype), root, comm_.get(), &request));
      wait(request, "broadcast");
    }
  }

  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times, const kernels::Context&) override {
    ++calls_;
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t at = 0; at < count; at += count_limit) {
      const MatrixType blocks(dtype, std::min(count_limit, count - at), times, size_ * count, count);
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_CHECK(MPI_Ialltoall(static_cast<const char*>(send) + at * element, 1, blocks.get(), static_cast<char*>(recv) + at * element, 1,
                              blocks.get(), comm_.get(), &request));
      wait(request, "all_to_all");
    }
  }

  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int by, const kernels::Context&) override {
    ++calls_;
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    const int next = (rank_ + by) % size_, before = (rank_ + size_ - by) % size_;
    for (std::int64_t at = 0; at < count; at += count_limit) {
      const int n = static_cast<int>(std::min(count_limit, count - at));
      MPI_Request come = MPI_REQUEST_NULL, gone = MPI_REQUEST_NULL;
      MPI_CHECK(MPI_Irecv(static_cast<char*>(recv) + at * element, n, mpi_type(dtype), before, rotate_tag, comm_.get(), &come));
      MPI_CHECK(MPI_Isend(static_cast<const char*>(send) + at * element, n, mpi_type(dtype), next, rotate_tag, comm_.get(), &gone));
      wait(come, "rotate");
      wait(gone, "rotate");
    }
  }

  void barrier() override {
    ++calls_;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Ibarrier(comm_.get(), &request));
    wait(request, "barrier");
  }

 private:
  std::int64_t piece_elements(std::int64_t element) const { return std::clamp(stage_bytes / size_, piece_minimum, piece_bytes) / element; }

  /// stage_[r] = the n elements that rank r has for this rank at send + rank() * stride.
  void exchange(const char* send, std::int64_t n, DType dtype, std::int64_t stride, const char* what) {
    std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
    stage_.resize(static_cast<std::size_t>(n * element * size_));
    BlockType blocks(dtype, n, stride);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Ialltoall(send, 1, blocks.get(), stage_.data(), static_cast<int>(n), mpi_type(dtype), comm_.get(), &request));
    wait(request, what);
  }

  void all_reduce_small(void* buffer, std::int64_t count, DType dtype, Reduction reduction) {
    std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
    stage_.resize(static_cast<std::size_t>(bytes * size_));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(
        MPI_Iallgather(buffer, static_cast<int>(bytes), MPI_BYTE, stage_.data(), static_cast<int>(bytes), MPI_BYTE, comm_.get(), &request));
    wait(request, "all_reduce");
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = stage_.data() + r * bytes;
    reduce_in_order(buffer, sources.data(), size_, count, dtype, reduction, false);
  }

  void all_reduce_chunk(char* buffer, std::int64_t count, DType dtype, Reduction reduction) {
    std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
    // Pieces are equal, so the chunk is padded at its end; the padding is reduced too and thrown away.
    std::int64_t n = ceil_div(count, size_);
    padded_.assign(static_cast<std::size_t>(n * size_ * element), 0);
    std::memcpy(padded_.data(), buffer, static_cast<std::size_t>(count * element));
    exchange(padded_.data(), n, dtype, n, "all_reduce");
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = stage_.data() + r * n * element;
    char* mine = padded_.data() + rank_ * n * element;
    reduce_in_order(mine, sources.data(), size_, n, dtype, reduction, false);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(
        MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, padded_.data(), static_cast<int>(n * element), MPI_BYTE, comm_.get(), &request));
    wait(request, "all_reduce");
    std::memcpy(buffer, padded_.data(), static_cast<std::size_t>(count * element));
  }

  void wait(MPI_Request& request, const char* what) {
    comm_.wait(request, {.seconds = timeout_seconds_,
                         .peers = peers_,
                         .what = [this, what] { return fmt::format("{} ({}, call {})", what, label_, calls_); },
                         .aborted = &aborted_,
                         .carries = true});
  }

  OwnedComm comm_;
  std::string label_;
  double timeout_seconds_;
  const Peers* peers_;
  int rank_ = 0, size_ = 1;
  std::int64_t calls_ = 0;
  std::atomic<bool> aborted_{false};
  std::vector<char> stage_, padded_;  // grown at the first large call, then kept
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(OwnedComm comm, const std::string& label, double timeout_seconds, const Peers* peers) {
  return std::make_unique<MpiCommunicator>(std::move(comm), label, timeout_seconds, peers);
}

}  // namespace tessera
