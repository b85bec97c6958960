#include "base/model_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>

#include "base/regular_file.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// What cannot be looked at is none of these.
bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// As a shell takes it for one word.
std::string word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_./+=:@%,-").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// Without the slash at its end; of "." what it stands for.
fs::path whole(const std::string& path) {
  std::error_code ignored;
  const fs::path full = fs::absolute(path, ignored).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

std::set<fs::path> folders_in(const fs::path& folder) {
  std::set<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored))
    if (it->is_directory(ignored)) found.insert(it->path());
  return found;
}

struct Snapshot {
  std::string path, model;  ///< "" where the cache has no snapshot; "Llama-3-8B"
};

/// Of `models--ORG--NAME`: what refs/main leads to, else the first.
Snapshot snapshot_of(const fs::path& model) {
  const std::string name = model.filename().string();
  Snapshot found{.path = "", .model = name.substr(std::min(name.size(), name.rfind("--") == name.npos ? 0 : name.rfind("--") + 2))};
  std::string commit, why;
  if (read_regular((model / "refs/main").string(), 4096, commit, why)) commit.erase(std::min(commit.size(), commit.find_first_of(" \r\n")));
  const std::set<fs::path> snapshots = folders_in(model / "snapshots");
  if (!commit.empty() && snapshots.contains(model / "snapshots" / commit))
    found.path = (model / "snapshots" / commit).string();
  else if (!snapshots.empty())
    found.path = snapshots.begin()->string();
  return found;
}

/// Where the path is the cache, a model in it, or a part of one.
std::optional<Snapshot> in_cache(const fs::path& path) {
  constexpr std::array parts{"snapshots", "blobs", "refs"};
  const bool part = std::ranges::find(parts, path.filename().string()) != parts.end();
  if (const fs::path model = part ? path.parent_path() : path;
      there(model / "snapshots") && (there(model / "blobs") || there(model / "refs")))
    return snapshot_of(model);
  for (const fs::path& hub : {path, path / "hub"})
    for (const fs::path& model : folders_in(hub))
      if (model.filename().string().starts_with("models--") && there(model / "snapshots")) return snapshot_of(model);
  return {};
}

/// "ORG/NAME", with nothing there.
bool is_name_of_hub(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == path.npos || slash + 1 == path.size() || path.find('/', slash + 1) != path.npos || there(path)) return false;
  const auto of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.'; };
  const auto begins = [&](std::size_t at) { return std::isalnum(static_cast<unsigned char>(path[at])) != 0; };
  // A folder of this place that is mistyped is no name of the hub.
  return begins(0) && begins(slash + 1) && !there(path.substr(0, slash)) && std::ranges::count_if(path, of_name) + 1 == std::ssize(path);
}

std::string download(const std::string& hub_name) {
  const std::string name = hub_name.substr(hub_name.find('/') + 1);
  return fmt::format("hf download {} --local-dir models/{}", hub_name, name);
}

bool is_model(const fs::path& folder) {
  constexpr std::array weights{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"};
  return there(folder / "config.json") && std::ranges::any_of(weights, [&](const char* name) { return there(folder / name); });
}

std::string import_line(const std::string& folder, const std::string& name) {
  return fmt::format("`tessera import {} {}` makes a checkpoint of it, {}", word(folder), word("runs/" + name),
                     word("runs/" + name + "/checkpoints/latest"));
}

}  // namespace

std::string instead_of_model(const std::string& path) {
  const fs::path full = whole(path);
  if (const auto cached = in_cache(full)) {
    if (cached->path.empty()) return " It is a folder of Hugging Face's cache, without a snapshot: download the model again.";
    return fmt::format(" It is a folder of Hugging Face's cache: give the snapshot in it, {}.", word(cached->path));
  }
  if (there(full / "checkpoints/latest"))
    return fmt::format(" It is a run: `tessera consolidate {} OUT` makes a model's folder of it, and run.resume={} begins with it.",
                       word(path + "/checkpoints/latest"), word(path + "/checkpoints/latest"));
  if (there(full / "checkpoint.h5"))
    return fmt::format(" It is a checkpoint: `tessera consolidate {} OUT` makes a model's folder of it, and run.resume={} begins with it.",
                       word(path), word(path));
  if (is_name_of_hub(path))
    return fmt::format(" Where it is the name of a model on Hugging Face, a folder of this machine is wanted: `{}` gets it.",
                       download(path));
  return "";
}

std::string instead_of_checkpoint(const std::string& path) {
  const fs::path full = whole(path);
  if (is_model(full)) return fmt::format(" It is the folder of a Hugging Face model: {}.", import_line(path, full.filename().string()));
  if (const auto cached = in_cache(full); cached && !cached->path.empty())
    return fmt::format(" It is a folder of Hugging Face's cache: {}.", import_line(cached->path, cached->model));
  if (is_name_of_hub(path)) {
    const std::string name = path.substr(path.find('/') + 1);
    return fmt::format(" Where it is the name of a model on Hugging Face: `{}` gets it, and {}.", download(path),
                       import_line("models/" + name, name));
  }
  return "";
}

}  // namespace tessera
