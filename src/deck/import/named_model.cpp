#include "deck/import/named_model.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "deck/environment.hpp"
#include "models/hub_cache.hpp"
#include "models/llmc_model.hpp"
#include "models/mistral_model.hpp"

namespace tessera {
namespace {

/// As huggingface_hub finds it.
std::string hub_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto hub = environment(name); hub && !hub->empty()) return *hub;
  if (const auto home = environment("HF_HOME"); home && !home->empty()) return *home + "/hub";
  if (const auto cache = environment("XDG_CACHE_HOME"); cache && !cache->empty()) return *cache + "/huggingface/hub";
  return environment("HOME").value_or("") + "/.cache/huggingface/hub";
}

/// Also where that cannot be told: who reads it says why, and no other model takes its place.
bool holds_config(const std::string& folder) {
  std::error_code unknown;
  return std::filesystem::exists(std::filesystem::path(folder) / "config.json", unknown) || unknown;
}

}  // namespace

NamedModel find_model(const std::string& given) {
  if (given.ends_with(".json") || is_llmc_model(given) || is_mistral_model(given) || holds_config(given)) return {given, "", ""};
  const auto cached = cached_model(is_name_of_hub(given) ? folder_in_hub(hub_folder(), given) : given);
  if (!cached || cached->snapshot.empty()) return {given, "", ""};
  if (!cached->others.empty()) return {"", "", fmt::format("it is not the folder of one model.{}", cached->others)};
  return {cached->snapshot, fmt::format("{}: the model is taken from {}", given, cached->snapshot), ""};
}

}  // namespace tessera
