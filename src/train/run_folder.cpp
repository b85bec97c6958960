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

/// Lines of two printed decks that differ, as "key: there -> here". Printed decks have the same keys in the same order.
std::string differences(const std::string& there, const std::string& here) {
  std::istringstream a(there), b(here);
  std::string x, y, section, out;
  while (std::getline(a, x) && std::getline(b, y)) {
    if (!y.empty() && y.front() == '[') section = y.substr(1, y.find(']') - 1);
    if (x != y && section != "zero" && section != "mesh" && section != "kernels")
      out += fmt::format("\n  [{}] {}   here: {}", section, x, y);
  }
  return out;
}

void move_aside(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.old-{}", path, n);
    if (fs::exists(target)) continue;
    fs::rename(path, target);
    return info("run.overwrite: the earlier run was moved to {}", target);
  }
}

void require_own_folder(const Deck& deck, const RunFolder& folder) {
  const std::string text = read_text(folder.deck());
  const ParsedDeck there = parse_deck_text(text, folder.deck(), {}, 0);
  if (there.faults.empty() && deck_identity(there.deck) == deck_identity(deck)) return;
  fail(ExitCode::usage,
       "{} holds a run of another deck:{}\nChoose another run.output_dir, put these keys back, or set run.overwrite=true (the earlier run "
       "is kept beside it as {}.old-N).",
       folder.path, differences(text, print_deck(deck)), folder.path);
}

}  // namespace

StartPoint open_run_folder(const Deck& deck) {
  StartPoint start{.folder = {deck.run.output_dir}, .checkpoint = ""};
  const RunFolder& folder = start.folder;
  if (deck.run.overwrite && fs::exists(folder.deck())) move_aside(folder.path);
  std::error_code error;
  fs::create_directories(folder.checkpoints(), error);
  if (error)
    fail(ExitCode::environment, "cannot make {}: {}. Choose a run.output_dir that you may write to.", folder.checkpoints(),
         error.message());
  if (access(folder.path.c_str(), W_OK) != 0 || access(folder.checkpoints().c_str(), W_OK) != 0)
    fail(ExitCode::environment, "no permission to write in {}: {}. Choose another run.output_dir.", folder.path, std::strerror(errno));
  if (fs::exists(folder.deck())) require_own_folder(deck, folder);

  if (deck.run.resume == "auto") {
    start.checkpoint = io::find_latest_checkpoint(folder.checkpoints());
  } else if (deck.run.resume != "never") {
    start.checkpoint = deck.run.resume;
  } else if (!io::find_latest_checkpoint(folder.checkpoints()).empty()) {
    fail(ExitCode::usage,
         "run.resume = \"never\" and {} holds checkpoints that a new run would mix with. Set run.overwrite=true to move them aside, or "
         "choose another run.output_dir.",
         folder.path);
  }

  std::ofstream out(folder.deck());
  out << print_deck(deck);
  out.close();
  if (!out) fail(ExitCode::storage, "cannot write {}: {}", folder.deck(), std::strerror(errno));
  return start;
}

}  // namespace tessera
