// Folders and their order: what makes a save atomic.
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view replaced = ".replaced";

/// The step of "step-N", and of "step-N.replaced" (an older save of the step, alive only while a newer one takes its place).
std::optional<std::pair<std::int64_t, bool>> parse_name(std::string_view name) {
  bool old = name.ends_with(replaced);
  if (old) name.remove_suffix(replaced.size());
  if (!name.starts_with("step-")) return std::nullopt;
  name.remove_prefix(5);
  std::int64_t step = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return std::pair{step, old};
}

struct Found {
  std::int64_t step = 0;
  bool old = false;
  fs::path path;
};

/// Complete checkpoints, newest first. A folder without ".partial" was complete before it got its name.
std::vector<Found> list_checkpoints(const std::string& root) {
  std::vector<Found> out;
  std::error_code ignored;  // a folder that cannot be listed holds no checkpoints for us
  for (fs::directory_iterator it(root, ignored), end; !ignored && it != end; it.increment(ignored)) {
    std::error_code e;
    auto name = parse_name(it->path().filename().string());
    if (name && !it->is_symlink(e) && fs::exists(it->path() / index_file, e)) out.push_back({name->first, name->second, it->path()});
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.step != b.step ? a.step > b.step : a.old < b.old; });
  return out;
}

/// Removes a checkpoint so that a kill halfway leaves nothing that looks complete.
void remove_checkpoint(const fs::path& path) {
  fs::path doomed = path;
  if (!path.string().ends_with(".partial")) {
    doomed = path.string() + ".removed.partial";
    fs::remove_all(doomed);
    fs::rename(path, doomed);
  }
  fs::remove_all(doomed);
}

/// Makes `partial` be `final`, also where `final` exists: the old one is either fully there or fully replaced.
void move_into_place(const std::string& partial, const std::string& final) {
  if (!fs::exists(final)) return rename_path(partial, final);
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  // Not every file system can exchange two names. find_latest_checkpoint knows ".replaced", should a kill come between these two.
  const std::string aside = final + std::string(replaced);
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  rename_path(final, aside);
  rename_path(partial, final);
}

/// `latest` points to `name` from one instant to the next.
void move_latest(const std::string& root, const std::string& name) {
  const std::string link = root + "/latest", fresh = root + "/latest.partial";
  ::unlink(fresh.c_str());  // left by a kill
  if (::symlink(name.c_str(), fresh.c_str()) != 0) fail_storage("make the link", fresh, errno);
  rename_path(fresh, link);
}

void prune(const std::string& root, std::int64_t step, std::int64_t keep) {
  std::int64_t kept = 1;  // the one just committed, whatever its number
  for (auto& c : list_checkpoints(root)) {
    if (c.step == step && !c.old) continue;
    bool stale = c.old || (keep > 0 && kept >= keep);
    if (!stale) {
      ++kept;
      continue;
    }
    try {
      remove_checkpoint(c.path);
    } catch (const std::exception& e) {
      warning("{}: an old checkpoint could not be removed: {}. Remove it by hand.", c.path.string(), e.what());
    }
  }
}

}  // namespace

void remove_unfinished(const std::string& root) {
  std::error_code e;
  for (fs::directory_iterator it(root, e), end; !e && it != end; it.increment(e))
    if (it->path().filename().string().starts_with("step-") && it->path().extension() == ".partial") {
      std::error_code failed;
      fs::remove_all(it->path(), failed);
      if (failed) fail_storage("remove what an unfinished save left", it->path().string(), failed.value());
    }
  if (e) fail_storage("list the folder", root, e.value());
}

void begin_checkpoint(const std::string& root, std::int64_t step) {
  std::error_code e;
  fs::create_directories(root, e);
  if (e) fail_storage("create the folder", root, e.value());
  remove_unfinished(root);
  const std::string partial = partial_folder(root, step);
  fs::create_directory(partial, e);
  if (e) fail_storage("create the folder", partial, e.value());
}

void commit_checkpoint(const std::string& root, std::int64_t step, std::int64_t keep) {
  const std::string partial = partial_folder(root, step), final = root + "/" + checkpoint_name(step);
  TESSERA_REQUIRE(fs::exists(partial + "/" + index_file), "{} has no index", partial);
  sync_folder(partial);
  move_into_place(partial, final);
  sync_folder(root);
  move_latest(root, checkpoint_name(step));
  sync_folder(root);
  discard_checkpoint(root, step);  // after an exchange: the step's older save
  prune(root, step, keep);
}

void discard_checkpoint(const std::string& root, std::int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(partial_folder(root, step), ignored);
}

std::string find_latest_checkpoint(const std::string& root) {
  std::error_code e;
  auto target = fs::read_symlink(root + "/latest", e);
  if (!e && parse_name(target.filename().string()) && fs::exists(fs::path(root) / target / index_file, e))
    return (fs::path(root) / target).lexically_normal().string();
  auto found = list_checkpoints(root);
  return found.empty() ? "" : found.front().path.string();
}

}  // namespace tessera::io
