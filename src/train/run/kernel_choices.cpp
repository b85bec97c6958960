#include "train/run/kernel_choices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/own_files.hpp"
#include "deck/environment.hpp"
#include "model/table/shape.hpp"

namespace tessera {

std::string kernel_choices_file(const Deck& deck, const GpuBinding& gpu) {
  const bool attention = model_shape(deck).attention.path == kernels::AttentionPath::fastest;
  if (deck.run.device != RunDevice::cuda || (!deck.kernels.gemm_search && !attention) || deck.run.reproducible || gpu.sharing > 1)
    return "";
  const auto cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (cache || home) return (cache ? *cache : *home + "/.cache") + "/tessera/kernels.json";
  // Where everybody may write: in a folder of this user's, or nowhere.
  const std::string own = fmt::format("{}/tessera-{}", std::filesystem::temp_directory_path().string(), geteuid());
  return make_own_folder(own).empty() ? own + "/kernels.json" : "";
}

}  // namespace tessera
