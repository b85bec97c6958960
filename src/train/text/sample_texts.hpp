// The prompts of [samples]: read and made tokens before the plan, so that what cannot be continued is said before time is spent.
#pragma once
#include <memory>
#include <optional>

#include "topology/world.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/text/language.hpp"

namespace tessera {

struct SampleTexts {
  std::vector<std::string> prompts;               ///< rank 0's
  std::unique_ptr<Language> language;             ///< rank 0's
  std::vector<std::vector<std::int32_t>> tokens;  ///< of each prompt, on all ranks
};

/// None without samples.every. `tokenizer` is rank 0's. Collective. AgreedError: a file that cannot be read, a prompt without room for a
/// token after it, a run without a tokenizer.
std::optional<SampleTexts> read_sample_texts(const World& world, const Deck& deck, const RunTokenizer& tokenizer);

}  // namespace tessera
