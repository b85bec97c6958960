#include "train/data/data_identity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.hpp"
#include "deck/deck.hpp"

namespace tessera {
namespace {

std::string holds(const io::CheckpointData& file) {
  return fmt::format("{} tokens of {} bits, digest {}{}", file.tokens, 8 * file.token_bytes, file.digest,
                     file.documents.empty() ? "" : ", documents " + file.documents);
}

/// The same files, wherever they stand in the list.
bool same_files(const std::vector<io::CheckpointData>& a, const std::vector<io::CheckpointData>& b) {
  return std::ranges::is_permutation(a, b, [](auto& one, auto& other) { return one.holds_the_same(other); });
}

}  // namespace

std::vector<std::string> data_differences(const std::vector<io::CheckpointData>& there, const std::vector<io::CheckpointData>& here) {
  std::vector<std::string> differences;
  for (std::size_t k = 0; k < std::max(there.size(), here.size()); ++k) {
    if (k >= there.size())
      differences.push_back(fmt::format("file {} was missing, and is {}: {}", k + 1, here[k].path, holds(here[k])));
    else if (k >= here.size())
      differences.push_back(fmt::format("file {} was {}: {}, and is missing", k + 1, there[k].path, holds(there[k])));
    else if (!there[k].holds_the_same(here[k]))
      differences.push_back(
          fmt::format("file {} was {}: {}, and is {}: {}", k + 1, there[k].path, holds(there[k]), here[k].path, holds(here[k])));
  }
  if (!differences.empty() && same_files(there, here))
    differences.emplace_back("these are the same files in another order, in which each gives other samples");
  return differences;
}

bool goes_on_with(const io::CheckpointReader& checkpoint, const std::vector<io::CheckpointData>& here, bool own, bool overwrite) {
  const std::vector<io::CheckpointData>& there = checkpoint.meta().data;
  if (there.empty()) {
    info("{} does not say which data it was trained on (it was imported, or saved by an earlier version), so data.train is not compared",
         checkpoint.folder());
    return true;
  }
  const std::vector<std::string> differences = data_differences(there, here);
  if (differences.empty()) return true;
  const std::string all = fmt::format("\n  {}", fmt::join(differences, "\n  "));
  if (!own) {
    info("data.train holds other data than {} was trained on, and this run continues with it from the same count of samples:{}",
         checkpoint.folder(), all);
    return true;
  }
  if (overwrite) {
    info("data.train holds other data than the run in this folder was trained on up to {}, so run.overwrite moves that run aside:{}",
         checkpoint.folder(), all);
    return false;
  }
  fail(ExitCode::usage,
       "data.train holds other data than this run was trained on up to {}:{}\nRestore the files that it was made with, under any path. To "
       "continue with the new files, start another run there: run.output_dir=NEW run.resume={}. To start over, set run.overwrite=true (the "
       "earlier run is kept).",
       checkpoint.folder(), all, checkpoint.folder());
}

}  // namespace tessera
