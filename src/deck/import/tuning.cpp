// How a run that begins with a model learns from data that are there: what people do, as lines that may be edited.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/types.hpp"
#include "deck/import/importer.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

constexpr std::int64_t passes = 3, usual_batch = 16, least_batch = 4, most_length = 4096, packed_length = 1024, least_length = 64;
constexpr std::int64_t enough_sequences = 64, enough_updates = 30;

constexpr double preferred_rate = 1e-6, preferred_rate_of_adapters = 2e-5;  // of pairs; the first is TRL's

struct Sizes {
  std::int64_t length, global, steps;
  bool cuts;  ///< the longest document is longer than the model's context
};

std::int64_t power_from(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(n, 1))));
}

/// Sequences that hold the longest document where documents are packed, and are as many as an optimizer needs.
Sizes sizes_for(const TuningData& data, std::int64_t context, bool packs) {
  const std::int64_t most = context > 0 ? context : most_length;
  const std::int64_t need = packs ? std::min(power_from(data.longest - 1), most) : least_length;
  std::int64_t length = std::max(std::min(most, packs ? packed_length : most_length), need);
  while (length / 2 >= std::max(need, least_length) && data.tokens / length < enough_sequences) length /= 2;
  const std::int64_t sequences = std::max<std::int64_t>(data.tokens / length, 1);
  std::int64_t global = usual_batch;
  while (global > least_batch && passes * sequences / global < enough_updates) global /= 2;
  return {length, global, ceil_div(passes * sequences, global), packs && data.longest - 1 > length};
}

/// A pair a sequence, so that batch.global counts them.
Sizes sizes_for_pairs(const TuningData& data, std::int64_t context) {
  const std::int64_t most = context > 0 ? context : most_length, length = std::clamp(power_from(data.longest_pair), least_length, most);
  std::int64_t global = usual_batch;
  while (global > least_batch && data.pairs / global < enough_updates) global /= 2;
  return {length, global, ceil_div(data.pairs, global), data.longest_pair > length};
}

void put_data(Importer& in, const TuningData& data, std::int64_t context, bool packs) {
  const Sizes sizes = data.pairs > 0 ? sizes_for_pairs(data, context) : sizes_for(data, context, packs);
  in.assume("batch.sequence_length", fmt::format("{}", sizes.length),
            data.pairs > 0 ? fmt::format("tokens of a sequence, which holds a pair; the longest has {}", data.longest_pair)
            : packs        ? fmt::format("tokens of a sequence; the longest document has {}", data.longest)
                           : "tokens of a sequence");
  in.assume("batch.global", fmt::format("{}", sizes.global),
            fmt::format("{} of a step, over all ranks: about {} steps", data.pairs > 0 ? "pairs" : "sequences", sizes.steps));
  in.assume("data.train", toml_string(data.train), fmt::format("{} tokens in {} documents", data.tokens, data.documents));
  if (sizes.cuts) in.assume("data.too_long", "\"truncate\"", "some documents are longer than the model's context: their end is cut off");
  in.assume("checkpoint.every", fmt::format("{}", ceil_div(sizes.steps, passes)),
            data.pairs > 0 ? "optimizer steps: about three saves a pass" : "optimizer steps: about one save a pass");
  if (data.validation.empty()) return;
  in.assume("data.validation", toml_string(data.validation), "documents that training never sees");
  in.assume("evaluate.every", fmt::format("{}", std::max<std::int64_t>(sizes.steps / 10, 1)), "optimizer steps: about ten evaluations");
}

}  // namespace

void put_tuning(Importer& in, std::int64_t context, std::int64_t vocab) {
  const Tuning& tuning = in.request().tuning;
  const bool packs = !tuning.dpo && (tuning.chat || (tuning.data && tuning.data->masked));
  if (!in.overridden("run.steps")) in.assume("run.epochs", fmt::format("{}.0", tuning.dpo ? 1 : passes), "passes over the data");
  in.assume("batch.micro", "1", "sequences that a rank passes through the model at once");
  if (tuning.data) {
    put_data(in, *tuning.data, context, packs);
  } else {
    in.assume("batch.global", fmt::format("{}", usual_batch), "FILL IN: sequences of a step, over all ranks");
    in.assume("data.train", "\"data/train.h5\"",
              fmt::format("FILL IN: ids of the model's own tokenizer (.h5{})", vocab <= 65536 ? ", or .bin of uint16" : ""));
    in.assume("checkpoint.every", "200", "optimizer steps");
  }
  if (packs) in.assume("data.packing", "\"documents\"", "sequences hold whole documents, as many as fit");
  if (tuning.dpo) {
    in.assume("preference.objective", "[\"dpo\"]", "learns from pairs which answer is preferred");
    in.assume("preference.beta", "0.1", "how strongly the model is held near the reference");
    in.assume("preference.reference", tuning.lora > 0 ? "\"adapter\"" : "\"copy\"",
              tuning.lora > 0 ? "the model without its adapters" : "a frozen copy of the start");
  }
  if (packs || tuning.dpo || (tuning.data && tuning.data->documents > 1))
    in.assume("data.document_mask", "true", "a document does not see its neighbours");
  if (tuning.lora > 0) {
    in.assume("lora.rank", fmt::format("{}", tuning.lora), "features of the adapters; only they are trained");
    in.assume("lora.alpha", fmt::format("{}.0", 2 * tuning.lora), "adapters count alpha / rank times");
  }
  const double of_pairs = tuning.lora > 0 ? preferred_rate_of_adapters : preferred_rate;
  in.assume("optimizer.learning_rate",
            tuning.dpo        ? fmt::format("{:g}", of_pairs)
            : tuning.lora > 0 ? "2e-4"
                              : "1e-5",
            tuning.dpo        ? "the peak; pairs need a much smaller one than texts"
            : tuning.lora > 0 ? "the peak; adapters start at zero and need a larger one than a whole model"
            : tuning.data     ? "the peak; small, because the weights are trained already"
                              : "FILL IN: the peak; small, because the weights are trained already");
  if ((tuning.data || tuning.chat || tuning.dpo || tuning.lora > 0) && !in.overridden("learning_rate.warmup_steps"))
    in.assume("learning_rate.warmup_ratio", "0.03", "share of the steps in which the learning rate rises to its peak");
}

}  // namespace tessera
