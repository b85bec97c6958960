#include "train/run_folder.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void move_aside(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.old-{}", path, n);
    if (fs::exists(target)) continue;
    fs::rename(path, target);
    return info("run.overwrite: the earlier run was moved to {}", target);
  }
}

/// What makes the folder's run another one than this deck's; run.steps alone does not: a run may be made longer.
std::vector<std::string> foreign_keys(const Deck& deck, const RunFolder& folder) {
  ParsedDeck there = parse_deck_text(read_text(folder.deck()), folder.deck(), {}, 0);
  if (!there.faults.empty()) return {fmt::format("{} cannot be read: {}", folder.deck(), there.faults.front().str())};
  if (there.deck.run.steps != deck.run.steps)
    info("run.steps was {} in {} and is {} now; the learning rate follows the new number", there.deck.run.steps, folder.path,
         deck.run.steps);
  there.deck.run.steps = deck.run.steps;
  return identity_differences(there.deck, deck);
}

void require_own_folder(const Deck& deck, const RunFolder& folder) {
  const std::vector<std::string> foreign = foreign_keys(deck, folder);
  const bool anew = deck.run.resume == "never" && !io::find_latest_checkpoint(folder.checkpoints()).empty();
  if (foreign.empty() && !anew) return;
  if (deck.run.overwrite) return move_aside(folder.path);
  if (foreign.empty())
    fail(ExitCode::usage,
         "run.resume = \"never\" and {} holds checkpoints that a new run would mix with. Set run.overwrite=true to move them aside, or "
         "choose "
         "another run.output_dir.",
         folder.path);
  fail(ExitCode::usage,
       "{} holds a run of another deck:\n  {}\nChoose another run.output_dir, put these keys back, or set run.overwrite=true (the earlier "
       "run "
       "is kept beside it as {}.old-N).",
       folder.path, fmt::join(foreign, "\n  "), folder.path);
}

}  // namespace

StartPoint open_run_folder(const Deck& deck) {
  StartPoint start{.folder = {deck.run.output_dir}, .checkpoint = ""};
  const RunFolder& folder = start.folder;
  if (fs::exists(folder.deck())) require_own_folder(deck, folder);
  std::error_code error;
  fs::create_directories(folder.checkpoints(), error);
  if (error)
    fail(ExitCode::environment, "cannot make {}: {}. Choose a run.output_dir that you may write to.", folder.checkpoints(),
         error.message());
  if (access(folder.path.c_str(), W_OK) != 0 || access(folder.checkpoints().c_str(), W_OK) != 0)
    fail(ExitCode::environment, "no permission to write in {}: {}. Choose another run.output_dir.", folder.path, std::strerror(errno));

  if (deck.run.resume == "auto") {
    start.checkpoint = io::find_latest_checkpoint(folder.checkpoints());
  } else if (deck.run.resume != "never") {
    start.checkpoint = deck.run.resume;
  }

  std::ofstream out(folder.deck());
  out << print_deck(deck);
  out.close();
  if (!out) fail(ExitCode::storage, "cannot write {}: {}", folder.deck(), std::strerror(errno));
  return start;
}

}  // namespace tessera
