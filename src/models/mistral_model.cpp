#include "models/mistral_model.hpp"

#include <filesystem>

namespace tessera {
namespace {

/// Or something that cannot be looked at, or a link to nothing: reading it then names it, and no other file takes its place.
bool has(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  return std::filesystem::symlink_status(std::filesystem::path(folder) / name, ignored).type() != std::filesystem::file_type::not_found;
}

bool has_tensors(const std::string& folder, const std::string& stem) {
  return has(folder, stem + ".safetensors") || has(folder, stem + ".safetensors.index.json");
}

}  // namespace

bool is_mistral_model(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder, ignored) && has(folder, "params.json") && has_tensors(folder, "consolidated") &&
         !has_tensors(folder, "model");
}

std::string stem_of_model(const std::string& folder) { return is_mistral_model(folder) ? "consolidated" : "model"; }

}  // namespace tessera
