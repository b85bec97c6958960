#include "io/checkpoint/staging.hpp"

#include <filesystem>

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

}  // namespace

Staging::Staging(const std::string& folder, const std::string& root, int rank) {
  // Not made here: a name that is wrong would take the room of whatever disk it lies on.
  if (const PathState there = look_at(folder); there.kind != PathState::Kind::folder)
    fail(ExitCode::storage, "{} (checkpoint.staging): {}. Name a folder on a disk of the node that is there on each of them.", folder,
         there.nothing()   ? "there is no such folder"
         : there.unknown() ? there.reason
                           : "it is no folder");
  std::error_code e;
  const std::string run = fs::weakly_canonical(root, e).string();
  folder_ = fmt::format("{}/tessera-{}/rank-{:05}", folder, hash_text(e ? root : run).hex().substr(0, 16), rank);
  fs::create_directories(folder_, e);
  if (e) fail_storage("create the folder (checkpoint.staging)", folder_, e.value());
  remove_unfinished(folder_);
}

Staging::~Staging() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  fs::remove(fs::path(folder_).parent_path(), ignored);  // by the last of the node's ranks
}

void Staging::write(std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices) const {
  begin_checkpoint(folder_, step);
  write_shard(folder_, step, apart(layout), shard, slices);
}

void Staging::drain(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard) const {
  const CheckpointLayout staged_layout = apart(layout);
  try {
    ShardFile staged(partial_folder(folder_, step), staged_layout, hash_text(layout_text(staged_layout)), shard);
    std::vector<ShardSlice> slices;
    std::size_t i = 0;
    for (int group = 0; group < static_cast<int>(layout.groups.size()); ++group)
      for (auto& held : slices_of(layout, shard)) {
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
    fail(ExitCode::storage, "what was saved on the node's own disk cannot be read back: {}", error.what());
  }
  discard_checkpoint(folder_, step);
}

}  // namespace tessera::io
