// What goes with the best evaluation, with early stopping, and with texts that a run makes on its way.
#include <fmt/format.h>

#include "deck/rules/draft.hpp"

namespace tessera {

void check_best(Draft& draft) {
  if (!draft.good({"evaluate.every", "evaluate.patience", "checkpoint.keep_best"})) return;
  const Deck& d = draft.deck;
  if (d.checkpoint.keep_best && d.evaluate.every == 0)
    draft.fault({"checkpoint.keep_best", "evaluate.every"},
                "the best checkpoint is the one with the lowest validation loss, and evaluate.every = 0 measures none; set evaluate.every "
                "and data.validation, or checkpoint.keep_best = false");
  if (d.evaluate.patience > 0 && d.evaluate.every == 0)
    draft.fault({"evaluate.patience", "evaluate.every"},
                "evaluations decide when the run stops, and evaluate.every = 0 makes none; set evaluate.every and data.validation, or "
                "evaluate.patience = 0");
  if (d.evaluate.patience == 0 && draft.differs("evaluate.min_improvement"))
    draft.idle("evaluate.min_improvement", "evaluate.patience",
               "has no effect with evaluate.patience = 0; set evaluate.patience, or leave this key out");
}

void check_samples(Draft& draft) {
  if (!draft.good({"samples.every", "samples.tokens", "samples.prompts", "samples.file", "samples.temperature"})) return;
  const SampleKeys& s = draft.deck.samples;
  if (s.every == 0) {
    for (const char* key : {"samples.prompts", "samples.file", "samples.tokens", "samples.temperature", "samples.top_k"})
      if (draft.differs(key))
        draft.idle(key, "samples.every", "has no effect with samples.every = 0; set samples.every, or leave this key out");
    return;
  }
  if (s.prompts.empty() && s.file.empty())
    draft.fault({"samples.prompts", "samples.every"},
                "a sample needs a prompt; give samples.prompts = [\"...\"] or samples.file, or set samples.every = 0");
  if (s.temperature == 0 && draft.differs("samples.top_k"))
    draft.idle("samples.top_k", "samples.temperature",
               "has no effect with samples.temperature = 0, which takes the most likely token; raise it, or leave this key out");
  for (const auto& [key, ranks] : {std::pair{"mesh.tp", draft.deck.mesh.tp}, std::pair{"mesh.pp", draft.deck.mesh.pp},
                                   std::pair{"mesh.cp", draft.deck.mesh.cp}, std::pair{"mesh.ep", draft.deck.mesh.ep}})
    if (draft.good({key}) && ranks > 1)
      draft.fault({"samples.every", key},
                  fmt::format("each rank needs whole layers to make a sample, and {} = {} cuts them; set samples.every = 0, and use "
                              "`tessera generate RUN`, which reads the run's newest checkpoint",
                              key, ranks));
  const RopeMode scaling = draft.deck.model.rope_scaling;
  if (draft.good({"model.rope_scaling"}) && (scaling == RopeMode::dynamic || scaling == RopeMode::longrope))
    draft.fault({"samples.every", "model.rope_scaling"},
                fmt::format("with model.rope_scaling = \"{}\" rotations depend on the length of a text, and a sample's length differs from "
                            "that of training sequences; set samples.every = 0, and use `tessera generate RUN`",
                            word_of(scaling)));
  if (const std::int64_t most = draft.deck.model.learned_positions;
      draft.good({"model.learned_positions"}) && most > 0 && s.tokens - 1 > most)
    draft.fault(
        {"samples.tokens", "model.learned_positions"},
        fmt::format("a sample of {} tokens needs {} positions, and the model has {} position vectors; set samples.tokens = {} or less",
                    s.tokens, s.tokens - 1, most, most + 1));
}

}  // namespace tessera
