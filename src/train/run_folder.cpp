#include "train/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/files/posix_file.hpp"

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
    io::rename_path(path, target);
    return info("run.overwrite: the earlier run was moved to {}", target);
  }
}

/// Whether the folder holds a run of another deck; `why` then says what differs. run.steps alone makes no other run: one may be made
/// longer.
bool holds_another_deck(const Deck& deck, const RunFolder& folder, std::string& why) {
  std::error_code ignored;  // a folder that may not be entered is refused by require_writable
  if (!fs::exists(folder.deck(), ignored)) return false;
  ParsedDeck there = parse_stored_deck(read_text(folder.deck()), folder.deck());
  if (!there.faults.empty()) {
    why = fmt::format("\n  {} cannot be understood", folder.deck());
    return true;
  }
  const std::int64_t steps = std::exchange(there.deck.run.steps, deck.run.steps);
  for (const std::string& difference : identity_differences(there.deck, deck)) why += "\n  " + difference;
  if (why.empty() && steps != deck.run.steps)
    info("run.steps was {} in {} and is {} now; the learning rate follows the new number", steps, folder.path, deck.run.steps);
  return !why.empty();
}

/// Refuses a folder that cannot be written, or be made. Makes nothing.
void require_writable(const std::string& path) {
  fs::path at = fs::absolute(path).lexically_normal();
  std::error_code error;
  while (at.has_relative_path() && !fs::exists(at, error)) at = at.parent_path();
  if (!fs::is_directory(at, error))
    fail(ExitCode::environment, "cannot make {}: {} is not a folder. Choose another run.output_dir.", path, at.string());
  if (access(at.c_str(), W_OK | X_OK) != 0)
    fail(ExitCode::environment, "no permission to write in {}: {}. Choose a run.output_dir that you may write to.", at.string(),
         std::strerror(errno));
}

/// run.resume = PATH: another run's checkpoint begins a run, and the same command started again goes on with what it has saved itself; one
/// of the run's own checkpoints takes it back to that step.
std::string named_or_own(const std::string& named, const RunFolder& folder, const std::string& last) {
  std::error_code missing;  // a path that does not exist is refused where it is opened
  if (last.empty() || !fs::exists(named, missing)) return named;
  const fs::path own = fs::weakly_canonical(folder.checkpoints(), missing);
  for (fs::path at = fs::weakly_canonical(named, missing); at.has_relative_path(); at = at.parent_path())
    if (at == own) return named;
  info("run.resume: this run has begun from {} already and goes on from its own {}", named, last);
  return last;
}

/// The locked file, waited for up to `patience` seconds; -1 where the file system has no locks.
int lock_file(const RunFolder& folder, double patience) {
  const int file = open(folder.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) io::fail_storage("open", folder.lock(), errno);
  for (const double begin = now_seconds(); flock(file, LOCK_EX | LOCK_NB) != 0;) {
    const int reason = errno;
    if (reason == EINTR) continue;
    if (reason == EWOULDBLOCK && now_seconds() - begin < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    close(file);
    if (reason == EWOULDBLOCK)
      fail(ExitCode::environment, "another run is writing in {}: {}. Wait for it or stop it, or choose another run.output_dir.",
           folder.path, read_text(folder.lock()));
    warning("{} cannot be locked ({}): nothing keeps a second run out", folder.lock(), std::strerror(reason));
    return -1;
  }
  return file;
}

/// Refuses a folder in which a run is at work.
void require_idle(const RunFolder& folder, double patience) {
  std::error_code ignored;
  if (!fs::exists(folder.lock(), ignored)) return;
  const int file = lock_file(folder, patience);
  if (file >= 0) close(file);
}

}  // namespace

StartPoint examine_run_folder(const Deck& deck, double patience) {
  StartPoint start{.folder = {deck.run.output_dir}, .checkpoint = "", .move_aside = false};
  std::string& path = start.folder.path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();  // NAME/.old-1 would lie inside what is moved
  const RunFolder& folder = start.folder;
  require_writable(folder.path);
  require_writable(folder.checkpoints());
  require_idle(folder, patience);
  const std::string last = io::find_latest_checkpoint(folder.checkpoints());
  std::string why;
  if (holds_another_deck(deck, folder, why)) {
    if (!deck.run.overwrite)
      fail(ExitCode::usage,
           "{} holds a run of another deck:{}\nChoose another run.output_dir, put these keys back, or set run.overwrite=true (the earlier "
           "run is kept beside it as {}.old-N).",
           folder.path, why, folder.path);
    start.move_aside = true;
  } else if (deck.run.resume == "never" && !last.empty()) {
    if (!deck.run.overwrite)
      fail(ExitCode::usage,
           "run.resume = \"never\" and {} holds checkpoints that a new run would mix with. Set run.overwrite=true to move them aside, or "
           "choose another run.output_dir.",
           folder.path);
    start.move_aside = true;
  }
  if (start.move_aside) require_writable(fs::absolute(folder.path).lexically_normal().parent_path().string());
  if (deck.run.resume == "auto")
    start.checkpoint = start.move_aside ? "" : last;
  else if (deck.run.resume != "never")
    start.checkpoint = start.move_aside ? deck.run.resume : named_or_own(deck.run.resume, folder, last);
  if (!start.checkpoint.empty()) io::CheckpointReader check(start.checkpoint);  // refuses here, before memory and time are spent
  return start;
}

RunLock::RunLock(const RunFolder& folder, double patience) : descriptor_(lock_file(folder, patience)) {
  if (descriptor_ < 0) return;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const std::string owner = fmt::format("process {} on {}", getpid(), host);
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size()))
    io::fail_storage("write", folder.lock(), errno);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}
RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RunLock claim_run_folder(const Deck& deck, const StartPoint& start, double patience) {
  const RunFolder& folder = start.folder;
  if (start.move_aside) move_aside(folder.path);
  std::error_code error;
  fs::create_directories(folder.checkpoints(), error);
  if (error) io::fail_storage("make the folder", folder.checkpoints(), error.value());
  RunLock lock(folder, patience);
  // The next save would do this too, but a run killed after its last one has no next save.
  io::remove_unfinished(folder.checkpoints());
  // At once or not at all: a deck.toml that a kill cut short would look like the run of another deck.
  io::AtomicFile out(folder.deck());
  const std::string text = print_deck(deck);
  out.file().write(0, text.data(), text.size());
  out.commit();
  return lock;
}

}  // namespace tessera
