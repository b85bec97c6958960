#include "models/model_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/shell_word.hpp"
#include "models/foreign_model.hpp"
#include "models/hub_cache.hpp"
#include "models/mistral_model.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// What cannot be looked at is none of these.
bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Without the slash at its end; of "." what it stands for.
fs::path whole(const std::string& path) {
  std::error_code ignored;
  const fs::path full = fs::absolute(path, ignored).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

std::string download(const std::string& hub_name) {
  const std::string name = hub_name.substr(hub_name.find('/') + 1);
  return fmt::format("hf download {} --local-dir models/{}", hub_name, name);
}

bool is_model(const fs::path& folder) {
  constexpr std::array weights{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"};
  return is_mistral_model(folder.string()) ||
         (there(folder / "config.json") && std::ranges::any_of(weights, [&](const char* name) { return there(folder / name); }));
}

std::string import_line(const std::string& folder, const std::string& name) {
  return fmt::format("`tessera import {} {}` makes a checkpoint from it, {}", shell_word(folder), shell_word("runs/" + name),
                     shell_word("runs/" + name + "/checkpoints/latest"));
}

}  // namespace

std::string instead_of_model(const std::string& path) {
  const fs::path full = whole(path);
  if (const auto cached = cached_model(path)) {
    if (cached->snapshot.empty()) return " It is a folder of Hugging Face's cache, without a snapshot: download the model again.";
    return fmt::format(" It is a folder of Hugging Face's cache: give the snapshot in it, {}.", shell_word(cached->snapshot));
  }
  if (there(full / "checkpoints/latest"))
    return fmt::format(" It is a run: `tessera consolidate {} OUT` makes a model's folder from it, and run.resume={} starts from it.",
                       shell_word(path + "/checkpoints/latest"), shell_word(path + "/checkpoints/latest"));
  if (there(full / "checkpoint.h5"))
    return fmt::format(
        " It is a checkpoint: `tessera consolidate {} OUT` makes a model's folder from it, and run.resume={} starts from it.",
        shell_word(path), shell_word(path));
  if (is_name_of_hub(path))
    return fmt::format(" If it is the name of a model on Hugging Face, a folder on this machine is needed: `{}` gets it.", download(path));
  return "";
}

std::string instead_of_checkpoint(const std::string& path) {
  const fs::path full = whole(path);
  if (is_model(full)) return fmt::format(" It is the folder of a Hugging Face model: {}.", import_line(path, full.filename().string()));
  if (const auto cached = cached_model(path); cached && !cached->snapshot.empty())
    return fmt::format(" It is a folder of Hugging Face's cache: {}.", import_line(cached->snapshot, cached->name));
  if (is_name_of_hub(path)) {
    const std::string name = path.substr(path.find('/') + 1);
    return fmt::format(" If it is the name of a model on Hugging Face: `{}` gets it, and {}.", download(path),
                       import_line("models/" + name, name));
  }
  return "";
}

}  // namespace tessera
