#include "models/hub_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/regular_file.hpp"
#include "base/shell_word.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view of_models = "models--";

/// What cannot be looked at is not there.
bool is_in_place(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::set<fs::path> folders_in(const fs::path& folder) {
  std::set<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored))
    if (it->is_directory(ignored)) found.insert(it->path());
  return found;
}

CachedModel snapshot_of(const fs::path& model) {
  const std::string name = model.filename().string();
  CachedModel found{.snapshot = "", .name = name.substr(name.rfind("--") == name.npos ? 0 : name.rfind("--") + 2), .others = ""};
  std::string commit, why;
  if (read_regular((model / "refs/main").string(), 4096, commit, why)) commit.erase(std::min(commit.size(), commit.find_first_of(" \r\n")));
  const std::set<fs::path> snapshots = folders_in(model / "snapshots");
  if (snapshots.empty()) return found;
  const bool by_main = !commit.empty() && snapshots.contains(model / "snapshots" / commit);
  found.snapshot = by_main ? (model / "snapshots" / commit).string() : snapshots.begin()->string();
  if (!by_main && snapshots.size() > 1)
    found.others = fmt::format(" It has {} snapshots, and refs/main links to none: give one of them, for example {}.", snapshots.size(),
                               shell_word(found.snapshot));
  return found;
}

std::optional<CachedModel> first_of_hub(const fs::path& hub) {
  std::set<fs::path> models;
  for (const fs::path& model : folders_in(hub))
    if (model.filename().string().starts_with(of_models) && is_in_place(model / "snapshots")) models.insert(model);
  if (models.empty()) return {};
  CachedModel first = snapshot_of(*models.begin());
  if (models.size() > 1)
    first.others = fmt::format(" It is Hugging Face's cache, with {} models: give one of them, for example {}.", models.size(),
                               shell_word(models.begin()->string()));
  return first;
}

}  // namespace

std::optional<CachedModel> cached_model(const std::string& path) {
  std::error_code ignored;
  const fs::path absolute = fs::absolute(path, ignored).lexically_normal(),
                 full = absolute.has_filename() ? absolute : absolute.parent_path();
  constexpr std::array parts{"snapshots", "blobs", "refs"};
  const bool part = std::ranges::find(parts, full.filename().string()) != parts.end();
  if (const fs::path model = part ? full.parent_path() : full;
      is_in_place(model / "snapshots") && (is_in_place(model / "blobs") || is_in_place(model / "refs")))
    return snapshot_of(model);
  for (const fs::path& hub : {full, full / "hub"})
    if (auto first = first_of_hub(hub)) return first;
  return {};
}

bool is_name_of_hub(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == path.npos || slash + 1 == path.size() || path.find('/', slash + 1) != path.npos || is_in_place(path)) return false;
  const auto of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.'; };
  const auto begins = [&](std::size_t at) { return std::isalnum(static_cast<unsigned char>(path[at])) != 0; };
  // Nor is a file, or what lies where our own commands write.
  constexpr std::array<std::string_view, 5> ours{"runs/", "models/", "data/", "out/", "checkpoints/"};
  if (std::ranges::any_of(ours, [&](std::string_view folder) { return path.starts_with(folder); })) return false;
  constexpr std::array files{".json", ".jsonl", ".toml", ".h5", ".bin", ".safetensors", ".gguf", ".parquet", ".txt"};
  if (std::ranges::any_of(files, [&](const char* ending) { return path.ends_with(ending); })) return false;
  // A folder of this place that is mistyped is no name of the hub.
  return begins(0) && begins(slash + 1) && !is_in_place(path.substr(0, slash)) &&
         std::ranges::count_if(path, of_name) + 1 == std::ssize(path);
}

std::string folder_in_hub(const std::string& hub, const std::string& name) {
  const auto slash = name.find('/');
  return fmt::format("{}/{}{}--{}", hub, of_models, name.substr(0, slash), name.substr(slash + 1));
}

}  // namespace tessera
