// Hugging Face's cache: models--ORG--NAME, with a folder of the model for each commit in snapshots/, whose files are links into blobs/.
#pragma once
#include <optional>
#include <string>

namespace tessera {

struct CachedModel {
  std::string snapshot;  ///< the folder of a model; "" where the cache has none
  std::string name;      ///< "Llama-3-8B"
  std::string others;    ///< sentences that say why it may be another snapshot that is meant; "": none can be
};

/// Where the path is the cache, a model in it, or a part of one: what refs/main leads to, else the first.
std::optional<CachedModel> cached_model(const std::string& path);

/// "ORG/NAME", with nothing there.
bool is_name_of_hub(const std::string& path);

/// The folder of such a model in the cache `hub`.
std::string folder_in_hub(const std::string& hub, const std::string& name);

}  // namespace tessera
