#include "train/data/token_check.hpp"

#include <algorithm>
#include <functional>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/types.hpp"
#include "io/files/byte_progress.hpp"
#include "topology/failure/signals.hpp"

namespace tessera {
namespace {

constexpr std::int64_t piece_blocks = 32;     // between two looks at signals: 2 MiB of uint16
constexpr std::int64_t round_blocks = 1024;   // between two meetings of the ranks: 64 MiB each
constexpr double seconds_between_lines = 30;  // in a log; a terminal has a line that moves

/// The ranks that check together.
struct Ranks {
  const World* world;
  int rank() const { return world ? world->rank() : 0; }
  int count() const { return world ? world->ranks() : 1; }
  void together(const std::function<void()>& part) const { world ? world->together(part) : part(); }
  std::vector<std::string> gather(const std::string& mine) const {
    return world ? world->gather_text(mine) : std::vector<std::string>{mine};
  }
};

/// How far the check is, for rank 0's people.
class CheckProgress {
 public:
  CheckProgress(const io::TokenFile& file, bool speaks)
      : file_(file), speaks_(speaks), bar_("check " + file.path(), file.bytes(), speaks), begin_(now_seconds()), last_(begin_) {
    info("checking {} ({}): it has no checksums yet", file.path(), human_bytes(static_cast<double>(file.bytes())));
  }
  void at(double share) {
    bar_.set(static_cast<std::int64_t>(share * static_cast<double>(file_.bytes())));
    const double now = now_seconds();
    if (!speaks_ || bar_.shown() || now - last_ < seconds_between_lines) return;
    last_ = now;
    info("checking {}: {:.0f} %, {} left", file_.path(), 100 * share, human_duration((now - begin_) * (1 - share) / share));
  }
  double seconds() const { return now_seconds() - begin_; }

 private:
  const io::TokenFile& file_;
  bool speaks_;
  io::ByteProgress bar_;
  double begin_, last_;
};

/// The sums of all blocks: each rank reads a run of them, in rounds after which the ranks meet, so that a fault or a signal on one ends
/// all.
io::TokenSums scan_together(const io::TokenFile& file, std::int64_t vocab, const Ranks& ranks) {
  const std::int64_t n = ranks.count(), first = file.blocks() * ranks.rank() / n, last = file.blocks() * (ranks.rank() + 1) / n,
                     rounds = ceil_div(ceil_div(file.blocks(), n), round_blocks);
  CheckProgress progress(file, ranks.rank() == 0);
  io::TokenSums mine;
  for (std::int64_t round = 0; round < rounds; ++round) {
    ranks.together([&] {
      const std::int64_t end = std::min(last, first + (round + 1) * round_blocks);
      leave_if_stopped();
      for (std::int64_t at = first + round * round_blocks; at < end; at += piece_blocks) {
        mine.append(file.scan(at, std::min(at + piece_blocks, end), vocab));
        leave_if_stopped();
      }
    });
    progress.at(static_cast<double>(round + 1) / static_cast<double>(rounds));
  }
  io::TokenSums all;
  for (const std::string& part : ranks.gather(mine.pack())) all.append(io::TokenSums::unpack(part));
  if (ranks.rank() == 0) info("checked {} in {:.1f} s", file.path(), progress.seconds());
  return all;
}

void keep(const io::TokenFile& file) {
  try {
    file.keep();
    info("{} stores the result", io::KeptChecks::path_for(file.path()));
  } catch (const Error& error) {
    info("the next start checks {} again, because the result cannot be stored: {}", file.path(), error.what());
  }
}

}  // namespace

void check_tokens(io::TokenFile& file, std::int64_t vocab, const World* world) {
  const Ranks ranks{world};
  const std::string what = "token file " + file.path();
  if (world) world->require_same(what, hash_text(fmt::format("{} {}", file.tokens(), file.token_bytes())));
  // 1. Checksums on all ranks, or all read the file: a rank may see no file beside it, or another one.
  const auto known = ranks.gather(file.facts() ? "known" : "");
  if (std::ranges::find(known, "") != known.end()) {
    io::TokenSums all = scan_together(file, vocab, ranks);
    ranks.together([&] { file.accept(std::move(all)); });
    if (ranks.rank() == 0) keep(file);
  }
  // 2. The same tokens everywhere, and none that the model does not have.
  if (world) world->require_same(what, hash_text(file.facts()->text()));
  ranks.together([&] { file.require_ids_below(vocab); });
}

}  // namespace tessera
