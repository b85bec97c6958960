#include "io/checkpoint/staging.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.hpp"
#include "base/own_files.hpp"
#include "io/checkpoint/shard_file.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

/// A file for each shard, whatever they share in the run's folder.
CheckpointLayout apart(CheckpointLayout layout) {
  layout.files.clear();
  return layout;
}

/// Of all ranks of the run whose checkpoints are in `root`.
std::string staged_run(const std::string& folder, const std::string& root) {
  std::error_code e;
  const std::string run = fs::weakly_canonical(root, e).string();
  return fmt::format("{}/tessera-{}", folder, hash_text(e ? root : run).hex().substr(0, 16));
}

void make_own(const std::string& path) {
  if (const std::string fault = make_own_folder(path); !fault.empty())
    fail(ExitCode::storage,
         "{}: cannot create this folder for staged saves (checkpoint.staging): {}. Remove it, or name a folder that others may not write "
         "to.",
         path, fault);
}

/// A folder of this user's, locked for as long as the descriptor is open; -1 where it is another's, or a living process has it.
int lock_own_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat found;
  if (folder < 0 || (::fstat(folder, &found) == 0 && found.st_uid == ::geteuid() && ::flock(folder, LOCK_EX | LOCK_NB) == 0)) return folder;
  ::close(folder);
  return -1;
}

}  // namespace

Staging::Staging(const std::string& folder, const std::string& root, int rank) {
  // Not made here: a name that is wrong would take the room of whatever disk it lies on.
  if (const PathState there = look_at(folder); there.kind != PathState::Kind::folder)
    fail(ExitCode::storage, "{} (checkpoint.staging): {}. Name a folder on a disk of the node that exists on each of them.", folder,
         there.nothing()   ? "there is no such folder"
         : there.unknown() ? there.reason
                           : "it is not a folder");
  const std::string run = staged_run(folder, root);
  make_own(run);
  folder_ = fmt::format("{}/rank-{:05}", run, rank);
  make_own(folder_);
  lock_ = lock_own_folder(folder_);
  remove_unfinished(folder_);
}

Staging::~Staging() {
  if (lock_ >= 0) ::close(lock_);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  fs::remove(fs::path(folder_).parent_path(), ignored);  // by the last of the node's ranks
}

void Staging::write(std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices) const {
  begin_checkpoint(folder_, step);
  write_shard(folder_, step, apart(layout), shard, slices, Readers::owner);
}

void Staging::drain(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard) const {
  const CheckpointLayout staged_layout = apart(layout);
  try {
    ShardFile staged(partial_folder(folder_, step), staged_layout, hash_text(layout_text(staged_layout)), shard);
    std::vector<ShardSlice> slices;
    std::size_t i = 0;
    for (auto& [group, held] : slices_of_groups(layout, shard)) {
      const auto& table = staged.table(i);
      // A writer asks for whole blocks, as many as it writes at once.
      auto fetch = [&staged, &table, i](std::int64_t at, std::span<float> out) {
        const std::int64_t block = at / hash_block;
        staged.read_run(i, table, block, block + ceil_div(static_cast<std::int64_t>(out.size()), hash_block), out.data());
      };
      slices.push_back({group, held.unit, ShardSource(held.end - held.begin, std::move(fetch))});
      ++i;
    }
    write_shard(root, step, layout, shard, slices);
  } catch (const Error& error) {
    if (error.code == ExitCode::storage) throw;
    fail(ExitCode::storage, "the save on the node's own disk cannot be read back: {}", error.what());
  }
  discard_checkpoint(folder_, step);
}

void remove_left_staging(const std::string& folder, const std::string& root) noexcept try {
  std::error_code e;
  const std::string run = staged_run(folder, root);
  struct stat found;
  if (::lstat(run.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::geteuid()) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, e)) {
    const int lock = lock_own_folder(entry.path().string());
    if (lock < 0) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
  fs::remove(run, e);
} catch (const std::exception& error) {
  warning("{}: files that an earlier start left there (checkpoint.staging) were not removed: {}", folder, error.what());
}

}  // namespace tessera::io
