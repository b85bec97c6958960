#include "schedule/run/disk.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <exception>

#include "base/check.hpp"
#include "base/log.hpp"
#include "topology/failure/patience.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_moves = 16;

}  // namespace

Disk::Disk(const io::SpillOptions& options, double patience)
    : bytes_(static_cast<std::size_t>(options.bytes)), patience_(patience), file_(options) {
  void* addresses = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED)
    fail(ExitCode::memory, "no addresses for {} of a disk tier. Check `ulimit -v`.", human_bytes(static_cast<double>(options.bytes)));
  base_ = static_cast<std::byte*>(addresses);
}

Disk::~Disk() {
  if (lost_) {
    file_.abandon();  // to wait for it would be to hang
    return;
  }
  if (std::uncaught_exceptions() == 0) {
    try {
      file_.close();
    } catch (const std::exception& error) {
      warning("{}", error.what());
    }
  }
  ::munmap(base_, bytes_);
}

void Disk::await(const io::SpillFile::Ticket& ticket) {
  Patience patience;
  for (double limit = patience_ / 10; !file_.ended_within(ticket, 0.2);) {
    const double waited = patience.waited();
    if (waited < limit) continue;
    const std::string what = under_way();
    if (waited >= patience_) {
      lost_ = true;
      fail(ExitCode::lost,
           "no answer for {:.0f} s (topology.collective_timeout): {}. Look at that disk and its node's log; the last checkpoint is whole.",
           waited, what);
    }
    limit = std::min(2 * limit, patience_);
    warning("a disk tier waits for {:.0f} s: {}", waited, what);
  }
  file_.wait(ticket);
}

/// Begins all, then waits for all: memory that the disk still moves must outlive the first error.
template <class Begin>
void Disk::move_all(std::span<const Move> moves, Begin begin) {
  TESSERA_REQUIRE(moves.size() <= most_moves, "{} moves in one task", moves.size());
  std::array<io::SpillFile::Ticket, most_moves> tickets;
  for (std::size_t i = 0; i < moves.size(); ++i) tickets[i] = begin(moves[i]);
  std::exception_ptr error;
  for (std::size_t i = 0; i < moves.size() && !lost_; ++i) {
    try {
      await(tickets[i]);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

bool Disk::holds(const void* address) const { return address >= base_ && address < base_ + bytes_; }

void Disk::read(std::span<const Move> moves, const std::string& unit) {
  move_all(moves, [&](const Move& m) {
    TESSERA_REQUIRE(holds(m.from) && !holds(m.to), "{} reads no place on disk", unit);
    return file_.read(m.from - base_, {m.to, static_cast<std::size_t>(m.bytes)}, unit);
  });
}

void Disk::write(std::span<const Move> moves, const std::string& unit) {
  written_ = true;
  move_all(moves, [&](const Move& m) {
    TESSERA_REQUIRE(holds(m.to) && !holds(m.from), "{} writes no place on disk", unit);
    return file_.write(m.to - base_, {m.from, static_cast<std::size_t>(m.bytes)}, unit);
  });
}

std::string Disk::under_way() const {
  const std::vector<io::UnderWay> requests = file_.under_way();
  return requests.empty() ? "" : fmt::format("a disk {}", requests.front().text());
}

bool uses_disks(const Deck& deck) {
  const auto on_disk = [](OffloadDevice device) { return device == OffloadDevice::nvme; };
  return on_disk(deck.zero.offload_optimizer.device) || on_disk(deck.zero.offload_param.device) || on_disk(deck.activation.offload);
}

io::SpillOptions spill_options(const Deck& deck, int rank) {
  io::SpillOptions options{.folders = {},
                           .purpose = fmt::format("offloaded state, rank {}", rank),
                           .block_bytes = deck.nvme.block_bytes(),
                           .queue_depth = static_cast<int>(deck.nvme.queue_depth),
                           .threads = static_cast<int>(deck.nvme.threads),
                           .encrypt = deck.nvme.encrypt,
                           .wipe = deck.nvme.wipe,
                           .staging = {},
                           .memory = {}};
  // Each folder once: blocks go to them in turn, whoever named them.
  for (const std::string* path : {&deck.zero.offload_optimizer.nvme_path, &deck.zero.offload_param.nvme_path})
    for (std::size_t at = 0; at < path->size();) {
      const std::size_t end = std::min(path->find(':', at), path->size());
      const std::string folder = path->substr(at, end - at);
      if (!folder.empty() && std::ranges::find(options.folders, folder) == options.folders.end()) options.folders.push_back(folder);
      at = end + 1;
    }
  return options;
}

}  // namespace tessera
