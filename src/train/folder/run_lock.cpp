#include "train/folder/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/own_files.hpp"
#include "base/regular_file.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr const char* leaves = "leaves\n";
constexpr double leaving_seconds = 3600;  // of a large save on a busy file system
constexpr int most_looks = 25;            // somebody who only looks (holder_of) holds a lock for microseconds
constexpr double late_seconds = 30;       // in which a network file system shows on one node what was written on another

/// Nothing where it cannot be read: a pipe or a device may have no end.
std::string text_of(const std::string& path) {
  std::string text, why;
  constexpr std::int64_t most = 1 << 16;
  return read_regular(path, most, text, why) ? text : "";
}

std::string absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

}  // namespace

RunLock::~RunLock() { let_go(); }

RunLock::RunLock(RunLock&& other) noexcept
    : folder_(std::move(other.folder_)),
      claim_(std::move(other.claim_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      made_(std::exchange(other.made_, {})),
      made_file_(std::exchange(other.made_file_, false)),
      before_(std::move(other.before_)),
      waiting_since_(other.waiting_since_),
      said_of_(std::move(other.said_of_)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(claim_, other.claim_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(made_, other.made_);
  std::swap(made_file_, other.made_file_);
  std::swap(before_, other.before_);
  std::swap(waiting_since_, other.waiting_since_);
  std::swap(said_of_, other.said_of_);
  return *this;
}

bool RunLock::wait(double seconds, double patience) {
  const double begin = now_seconds();
  if (waiting_since_ < 0) waiting_since_ = begin;
  while (!try_to_hold()) {
    const std::string text = text_of(path()), owner = text.substr(0, text.find('\n'));
    const bool leaving = text.ends_with(leaves);
    if (now_seconds() - waiting_since_ >= (leaving ? std::max(leaving_seconds, patience) : patience))
      fail(ExitCode::environment, "another run is writing in {}: {}. Wait for it or stop it, or choose another run.output_dir.", folder_,
           owner);
    if (std::exchange(said_of_, owner + (leaving ? leaves : "")) != owner + (leaving ? leaves : ""))
      warning(
          "another run is writing in {}: {}. {}", folder_, owner,
          leaving ? "It saves and ends: this start continues after it." : fmt::format("This start waits {:g} s for it to end.", patience));
    if (now_seconds() - begin >= seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  sign();
  return true;
}

bool RunLock::try_to_hold() {
  const int file = open_file();
  for (int looks = 0; flock(file, LOCK_EX | LOCK_NB) != 0;) {
    const int reason = errno;
    if (reason == EINTR) continue;
    if (reason == EWOULDBLOCK && ++looks <= most_looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    if (reason == EWOULDBLOCK) {
      close(file);
      return false;
    }
    warning("{} cannot be locked ({}): a second run could write here too", path(), std::strerror(reason));
    break;
  }
  descriptor_ = file;
  if (stands()) return true;
  // Whoever held it has moved the run aside, or was refused and has taken the file back.
  close(std::exchange(descriptor_, -1));
  return false;
}

void RunLock::make_folder() {
  std::vector<fs::path> missing;
  for (fs::path at = absolute(folder_ + "/."); io::look_at(at.string()).nothing() && at.has_relative_path(); at = at.parent_path())
    if (!at.filename().empty()) missing.push_back(at);
  std::ranges::reverse(missing);
  for (const fs::path& at : missing)
    if (mkdir(at.c_str(), 0777) == 0)
      made_.push_back(at.string());
    else if (errno != EEXIST && errno != ENOENT)
      io::fail_storage("make the folder", at.string(), errno);
}

/// Tries again where a start that is refused takes its folder back at the same time.
int RunLock::open_file() {
  for (int tries = 0;; ++tries) {
    make_folder();
    int file = new_file(path().c_str());
    made_file_ = file >= 0;
    if (file < 0 && errno == EEXIST) file = open(path().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (struct stat there = {}; file >= 0 && (fstat(file, &there) != 0 || !S_ISREG(there.st_mode))) {
      close(file);
      fail(ExitCode::storage, "{}: this is not a regular file, but a run's lock must be one. Move it away, then run again.", path());
    }
    if (file >= 0) return file;
    if (errno != ENOENT || tries == 100) io::fail_storage("open", path(), errno);
  }
}

void RunLock::sign() {
  before_ = text_of(path());
  if (!before_.empty() && !before_.starts_with("process ")) {
    before_.clear(), close(std::exchange(descriptor_, -1));
    fail(ExitCode::storage, "{}: this is not a run's lock, but it has its name. Move it away, then run again.", path());
  }
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::random_device random;
  claim_ = fmt::format("claim {:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const std::string text = fmt::format("process {} on {}\n{}\n", getpid(), host, claim_);
  // Synced, or another node would not read it.
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      fsync(descriptor_) != 0)
    io::fail_storage("write", path(), errno);
}

void RunLock::keep() {
  made_.clear();
  made_file_ = false;
  before_.clear();
}

void RunLock::say_leaving() {
  const off_t end = lseek(descriptor_, 0, SEEK_END);
  // A start that does not read it waits less long: not worth an error.
  if (end >= 0 && pwrite(descriptor_, leaves, std::strlen(leaves), end) > 0) fsync(descriptor_);
}

bool RunLock::stands() const {
  const io::PathState there = io::look_at(path());
  return there.unknown() || there.same_as(io::look_at(descriptor_));
}

void RunLock::let_go() noexcept {
  const int file = std::exchange(descriptor_, -1);
  if (file >= 0) {
    // Before others can lock it. What fails here leaves a file or a text that the next start writes anew.
    if (made_file_ && io::look_at(path()).same_as(io::look_at(file)))
      unlink(path().c_str());
    else if (!before_.empty() && ftruncate(file, 0) == 0 && pwrite(file, before_.data(), before_.size(), 0) < 0)
      before_.clear();
    close(file);
  }
  for (; !made_.empty(); made_.pop_back()) rmdir(made_.back().c_str());
}

std::optional<std::string> holder_of(const std::string& folder) {
  const std::string path = folder + "/run.lock";
  if (io::look_at_link(path).nothing()) return "";
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const bool free = flock(file, LOCK_SH | LOCK_NB) == 0;
  const int reason = errno;
  close(file);
  if (free) return "";
  if (reason != EWOULDBLOCK) return std::nullopt;
  const std::string text = text_of(path);
  return text.substr(0, text.find('\n'));
}

void require_seen_by_all(const World& world, const std::string& folder, const std::string& claim) {
  if (world.ranks() == 1) return;
  const std::string said = world.broadcast_text(fmt::format("{}\n{}\n{}", claim, world.place().host, absolute(folder)));
  const std::size_t first = said.find('\n'), second = said.find('\n', first + 1);
  const std::string wanted = said.substr(0, first), host = said.substr(first + 1, second - first - 1), of_rank_0 = said.substr(second + 1);
  world.together([&] {
    const std::string here = absolute(folder), lock = here + "/run.lock";
    const bool same_node = world.place().node == 0 || world.place().host == host;
    const double begin = now_seconds(), patience = same_node ? 0 : std::min(late_seconds, world.options().collective_timeout_seconds / 2);
    while (text_of(lock).find(wanted) == std::string::npos) {
      if (now_seconds() - begin < patience) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        continue;
      }
      const io::PathState there = io::look_at(lock);
      fail(ExitCode::environment,
           "rank {} on {} does not see the run's folder: rank 0 on {} holds {}, but for rank {} that is {}, where {}. Start all ranks from "
           "one folder, or give run.output_dir as an absolute path on a file system that all nodes share.",
           world.rank(), world.place().host, host, of_rank_0, world.rank(), here,
           there.nothing()   ? "there is no run.lock"
           : there.unknown() ? fmt::format("run.lock cannot be read ({})", there.reason)
                             : "there is another run.lock");
    }
  });
}

}  // namespace tessera
