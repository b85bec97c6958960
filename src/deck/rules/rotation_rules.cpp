// Which keys of the rotary frequencies go with which scaling, and how much of a head is rotated.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "deck/kinds_of_layers.hpp"
#include "deck/rules/draft.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

/// A key, and the scalings that read it.
struct Use {
  std::string_view key;
  std::vector<RopeMode> scalings;
};
const std::array<Use, 10>& uses() {
  using enum RopeMode;
  static const std::array<Use, 10> all = {{{"model.rope_factor", {llama3, linear, dynamic, yarn, longrope}},
                                           {"model.rope_low_freq_factor", {llama3}},
                                           {"model.rope_high_freq_factor", {llama3}},
                                           {"model.rope_original_context", {llama3, dynamic, yarn, longrope}},
                                           {"model.rope_beta_fast", {yarn}},
                                           {"model.rope_beta_slow", {yarn}},
                                           {"model.rope_attention_factor", {yarn, longrope}},
                                           {"model.rope_short_factors", {longrope}},
                                           {"model.rope_long_factors", {longrope}},
                                           {"model.rope_truncate", {yarn}}}};
  return all;
}

std::string words_of(const std::vector<RopeMode>& scalings) {
  std::vector<std::string_view> words;
  for (const RopeMode scaling : scalings) words.push_back(word_of(scaling));
  return fmt::format("\"{}\"", fmt::join(words, "\" or \""));
}

/// Two keys of which the first must be the larger.
void require_above(Draft& draft, std::string_view key, double value, std::string_view least_key, double least) {
  if (!draft.good({key, least_key}) || value > least) return;
  draft.fault({key, least_key}, fmt::format("{} {} must be above {} {}", key, shortest(value), least_key, shortest(least)));
}

void check_longrope(Draft& draft) {
  const ModelKeys& m = draft.deck.model;
  const std::int64_t pairs = rotated_features(m) / 2;
  const std::pair<std::string_view, const std::vector<double>*> lists[] = {{"model.rope_short_factors", &m.rope_short_factors},
                                                                           {"model.rope_long_factors", &m.rope_long_factors}};
  if (draft.good({"model.rope_original_context"}) && m.rope_original_context < 2)
    draft.fault({"model.rope_original_context", "model.rope_scaling"},
                "model.rope_original_context is 1, and longrope divides by its logarithm, which is 0; set it to 2 tokens or more");
  for (const auto& [key, factors] : lists)
    if (draft.good({key, "model.head_dim", "model.rotary_fraction"}) && std::ssize(*factors) != pairs)
      draft.fault({key, "model.rope_scaling"}, fmt::format("{} has {} numbers, but {} pairs of features of a head are rotated; give one "
                                                           "for each, or set model.rope_scaling to another than \"longrope\"",
                                                           key, factors->size(), pairs));
}

void check_turned(Draft& draft) {
  const ModelKeys& m = draft.deck.model;
  if (!draft.good({"model.head_dim", "model.rotary_fraction"})) return;
  const std::int64_t rotated = rotated_features(m);
  if (m.rotary_fraction != 1 && (rotated < 2 || rotated % 2 != 0))
    return draft.fault({"model.rotary_fraction", "model.head_dim"},
                       fmt::format("model.rotary_fraction {} of {} features of a head makes {} (rounded down), and features are rotated in "
                                   "pairs; set a fraction that makes an even number of them",
                                   shortest(m.rotary_fraction), m.head_dim, rotated));
  if (m.rope_scaling == RopeMode::dynamic && rotated <= 2)
    draft.fault({"model.head_dim", "model.rope_scaling"},
                rotated == m.head_dim
                    ? "dynamic scaling raises the base to a power of head_dim / (head_dim - 2); set model.head_dim to 4 or more"
                    : "dynamic scaling raises the base to a power of n / (n - 2), with n rotated features of a head, and n is 2 here; set "
                      "model.rotary_fraction or model.head_dim so that n is 4 or more");
}

}  // namespace

void check_rotation(Draft& draft) {
  if (!draft.good({"model.rope_scaling"})) return;
  const ModelKeys& m = draft.deck.model;
  for (const Use& use : uses())
    if (draft.differs(use.key) && std::ranges::find(use.scalings, m.rope_scaling) == use.scalings.end())
      draft.idle(use.key, "model.rope_scaling",
                 fmt::format("has no effect with model.rope_scaling = \"{}\"; set model.rope_scaling = {} or leave this key out",
                             word_of(m.rope_scaling), words_of(use.scalings)));
  if (m.rope_scaling == RopeMode::llama3)
    require_above(draft, "model.rope_high_freq_factor", m.rope_high_freq_factor, "model.rope_low_freq_factor", m.rope_low_freq_factor);
  if (m.rope_scaling == RopeMode::yarn)
    require_above(draft, "model.rope_beta_fast", m.rope_beta_fast, "model.rope_beta_slow", m.rope_beta_slow);
  if (m.rope_scaling == RopeMode::longrope) check_longrope(draft);
  check_turned(draft);
}

}  // namespace tessera
