#include "io/checkpoint/state_copies.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/log.hpp"
#include "base/own_files.hpp"
#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view start_beginning = "start-", aside_name = "aside";

void make_copies_folder(const std::string& path) {
  if (const std::string fault = make_own_folder(path); !fault.empty())
    fail(ExitCode::storage,
         "{}: cannot create this folder for copies of the state (checkpoint.neighbour_folder): {}. Remove it, or name a folder that others "
         "may not write to.",
         path, fault);
}

std::string description(const std::string& step_folder) { return step_folder + "/state.json"; }

bool is_mine(const std::string& path) {
  struct stat found;
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
}

/// This user's folders in `path` whose names begin so.
std::vector<fs::path> own_folders(const fs::path& path, std::string_view beginning) {
  std::vector<fs::path> found;
  std::error_code e;
  for (fs::directory_iterator it(path, e), end; !e && it != end; it.increment(e))
    if (it->path().filename().string().starts_with(beginning) && is_mine(it->path().string())) found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

struct StepFolder {
  std::string start;
  std::int64_t step = 0;
  std::string path;
};
std::vector<StepFolder> step_folders(const std::string& run) {
  std::vector<StepFolder> found;
  if (!is_mine(run)) return found;
  for (const fs::path& start : own_folders(run, start_beginning))
    for (const fs::path& rank : own_folders(start, "rank-"))
      for (const fs::path& step : own_folders(rank, "step-"))
        if (const auto number = step_of_name(step.stem().string()); number && step.extension() == ".partial")
          found.push_back({start.filename().string().substr(start_beginning.size()), *number, step.string()});
  return found;
}

std::string start_folder(const std::string& run, const std::string& start) { return fmt::format("{}/{}{}", run, start_beginning, start); }

}  // namespace

std::string state_copies_folder(const std::string& folder, const std::string& token) {
  return fmt::format("{}/tessera-copies-{}", folder, hash_text(token).hex().substr(0, 24));
}

StateCopies::StateCopies(const std::string& run, const std::string& start, int rank)
    : folder_(fmt::format("{}/rank-{:05}", start_folder(run, start), rank)) {
  make_copies_folder(run);
  make_copies_folder(start_folder(run, start));
  make_copies_folder(folder_);
}

void StateCopies::begin(std::int64_t step) const {
  remove(step);
  make_copies_folder(partial_folder(folder_, step));
}

void StateCopies::write(std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices) const {
  write_shard_over(aside_path(shard), folder_, step, layout, shard, slices);
}

void StateCopies::describe(const CheckpointMeta& meta, const CheckpointLayout& layout) const {
  AtomicFile out(description(partial_folder(folder_, meta.step)));
  const std::string text = description_text(meta, layout), all = hash_text(text).hex() + "\n" + text;
  out.file().write(0, all.data(), all.size());
  out.commit();
}

void StateCopies::link(std::int64_t from, std::int64_t to, int shard) const {
  const std::string path = shard_path(to, shard);
  if (::link(shard_path(from, shard).c_str(), path.c_str()) != 0) fail_storage("make another name", path, errno);
}

void StateCopies::set_aside(std::int64_t step) const noexcept {
  std::error_code ignored;
  const std::string aside = folder_ + "/" + std::string(aside_name);
  fs::remove_all(aside, ignored);
  fs::rename(partial_folder(folder_, step), aside, ignored);
  remove(step);
}

std::string StateCopies::aside_path(int shard) const { return fmt::format("{}/{}/{}", folder_, aside_name, shard_file(shard)); }

void StateCopies::remove(std::int64_t step) const noexcept { discard_checkpoint(folder_, step); }

std::string StateCopies::shard_path(std::int64_t step, int shard) const { return partial_folder(folder_, step) + "/" + shard_file(shard); }

ArrivingFile::ArrivingFile(std::string path, std::int64_t bytes, const std::string& over) : path_(std::move(path)) {
  const std::string unfinished = path_ + ".arriving";
  struct stat room;
  const bool taken = !over.empty() && ::lstat(over.c_str(), &room) == 0 && S_ISREG(room.st_mode) && room.st_nlink == 1 &&
                     ::rename(over.c_str(), unfinished.c_str()) == 0;
  file_ = taken ? PosixFile::update(unfinished, Readers::owner) : PosixFile::create(unfinished, Readers::owner);
  if (taken && room.st_size == bytes) return;
  file_.truncate(bytes);
  file_.reserve(bytes);  // what is full is found now, and no write meets it
}

void ArrivingFile::stands() {
  file_.close();
  rename_path(path_ + ".arriving", path_);
}

FoundCopies find_state_copies(const std::string& run) {
  FoundCopies found;
  for (const auto& [start, step, folder] : step_folders(run)) {
    std::error_code e;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, e)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("shard-") || entry.path().extension() != ".h5") continue;
      try {
        const auto file = PosixFile::open(entry.path().string(), ExitCode::checkpoint);
        const Envelope head = read_envelope(file, "shard");
        const ShardDirectory directory = parse_shard_directory(head.directory, file.path());
        if (directory.shards.size() != 1 || directory.step > step || name != shard_file(directory.shards.front()))
          fail(ExitCode::checkpoint, "{}: it belongs to another step or shard than its name says.", file.path());
        found.shards.push_back({start, step, directory.shards.front(), head.file_bytes, directory.layout, head.hash, file.path()});
      } catch (const Error& error) {
        found.faults.emplace_back(error.what());
      }
    }
  }
  return found;
}

std::string find_description(const std::string& run, const std::string& start, std::int64_t step) {
  for (const auto& [of, number, folder] : step_folders(run)) {
    const std::string path = description(folder);
    if (of != start || number != step || look_at(path).kind != PathState::Kind::file) continue;
    try {
      const std::string all = read_small_file(path, ExitCode::checkpoint);
      const std::size_t line = all.find('\n');
      if (line != std::string::npos && hash_text(all.substr(line + 1)).hex() == all.substr(0, line)) return all.substr(line + 1);
    } catch (const Error& error) {
      warning("{}", error.what());
    }
  }
  return "";
}

std::string description_text(const CheckpointMeta& meta, const CheckpointLayout& layout) {
  IndexDirectory d{.meta = meta, .layout = layout, .structure = {}, .files = {}};
  d.files.resize(static_cast<std::size_t>(file_count(layout)));  // their hashes are known when all are found
  return write_directory(d);
}

DescribedCopies parse_description(const std::string& text, const std::string& where) {
  IndexDirectory d = parse_index_directory(text, where);
  return {.meta = std::move(d.meta), .layout = std::move(d.layout)};
}

std::string put_together_folder(const std::string& run, const std::string& start, int node, std::int64_t step) {
  return fmt::format("{}/node-{:05}/{}", start_folder(run, start), node, checkpoint_name(step));
}

void put_together(const std::string& folder, const DescribedCopies& copies, std::span<const Hash128> hashes,
                  std::span<const FoundShard> shards) {
  const fs::path node = fs::path(folder).parent_path();
  for (const fs::path& path : {node.parent_path().parent_path(), node.parent_path(), node}) make_copies_folder(path.string());
  std::error_code e;
  fs::remove_all(folder, e);
  make_copies_folder(folder);
  for (const FoundShard& shard : shards) {
    const std::string name = folder + "/" + shard_file(shard.shard);
    if (::link(shard.path.c_str(), name.c_str()) != 0 && errno != EEXIST) fail_storage("make another name", name, errno);
  }
  const IndexDirectory d{.meta = copies.meta, .layout = copies.layout, .structure = {}, .files = {hashes.begin(), hashes.end()}};
  Envelope head{.format = checkpoint_format(copies.layout), .directory = write_directory(d), .hash = {}, .file_bytes = 0, .block_bytes = 0};
  head.hash = hash_text(head.directory);
  head.block_bytes = head.file_bytes = user_block_for(static_cast<std::int64_t>(head.directory.size()));
  auto out = PosixFile::create(folder + "/" + index_file, Readers::owner);
  write_envelope(out, "index", head);
  out.close();
}

void remove_state_copies(const std::string& run, const std::optional<KeptCopies>& kept) noexcept try {
  if (!is_mine(run)) return;
  std::error_code ignored;
  if (!kept) {
    fs::remove_all(run, ignored);
    return;
  }
  for (const auto& [start, step, folder] : step_folders(run))
    if (start != kept->start || (kept->newer_too ? step < kept->step : step != kept->step)) fs::remove_all(folder, ignored);
  for (const fs::path& start : own_folders(run, start_beginning)) {
    const bool at_work = kept->newer_too && start.filename().string() == std::string(start_beginning) + kept->start;
    for (const fs::path& node : own_folders(start, "node-")) fs::remove_all(node, ignored);
    for (const fs::path& rank : own_folders(start, "rank-")) {
      if (!at_work) fs::remove_all(rank / aside_name, ignored);
      fs::remove(rank, ignored);  // where nothing is left in it
    }
    fs::remove(start, ignored);
  }
} catch (const std::exception& error) {
  warning("{}: copies of the state were not removed: {}", run, error.what());
}

}  // namespace tessera::io
