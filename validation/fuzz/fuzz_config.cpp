// config.json of Hugging Face: a model that is accepted has sizes, and differs in nothing from itself.
#include "deck/import/model_source.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {

const ExitCode refusal = ExitCode::usage;

void read_input(std::string_view bytes) {
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(std::string(bytes), "config.json", faults);
  if (!faults.empty()) return;
  if (source.architecture.empty() || !model_differences(source.model, source).empty()) defect("an accepted model that is none");
}

}  // namespace tessera::fuzz
