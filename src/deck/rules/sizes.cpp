// Sizes that several keys make together. Each key has a range of its own, but products of them are counted in 64 bits, and a schedule has a
// task for each piece: what passes here can be planned.
#include <fmt/format.h>

#include <algorithm>

#include "deck/kinds_of_layers.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

constexpr double most_projected = 1 << 24;  // features of all query heads: the range of any width
constexpr double most_parameters = 1e14;
constexpr double most_tokens = (std::int64_t{1} << 31) - 1;      // of a micro-batch: libraries of matrix products count rows in 32 bits
constexpr double most_elements = 1.0 * (std::int64_t{1} << 50);  // of one kind, on a rank
constexpr double most_run_tokens = 1.0 * (std::int64_t{1} << 62);
constexpr double most_tensors = 1e6;
constexpr double most_pieces = 1e6;  // of the whole model

double number(std::int64_t n) { return static_cast<double>(n); }

/// `key` counts what has `each` of something: together at most `most`. A fault names the largest value that fits.
void check_count(Draft& draft, std::string_view key, std::int64_t value, double each, double most, std::string_view what) {
  if (number(value) * each <= most) return;
  const auto fits = static_cast<std::int64_t>(most / each);
  const std::string mend = fits >= 1 ? fmt::format("set {} to at most {}", key, fits) : "even 1 is too much with the other keys unchanged";
  draft.fault({key}, fmt::format("{} makes {} {}, more than can be planned ({}); {}", value, human_count(number(value) * each), what,
                                 human_count(most), mend));
}

/// Inner features of all feed-forward blocks of a layer, and of those that a token passes through; where layers differ, of one that has
/// more.
double larger_features(const ModelKeys& m, std::int64_t experts) {
  const double dense = any_dense(m) ? number(m.ff_width) : 0;
  return m.experts == 0 ? dense : std::max(dense, number(experts) * number(m.expert_ff_width) + number(m.shared_ff_width));
}
double all_features(const ModelKeys& m) { return larger_features(m, m.experts); }
double features_of_token(const ModelKeys& m) { return larger_features(m, m.experts_per_token); }

double layer_parameters(const ModelKeys& m) {
  return number(m.width) * (number(m.head_dim) * number(2 * m.heads + 2 * m.kv_heads) + number(m.experts)) +
         3 * number(m.width) * all_features(m);
}

double table_parameters(const ModelKeys& m) { return number(m.width) * (number(m.vocab) * (m.tied ? 1 : 2) + number(m.learned_positions)); }

/// Elements of a token in all layers, with room for gradients of them.
double activations_of_token(const ModelKeys& m) {
  const double rows = m.experts == 0 ? 0 : 2 * number(m.experts_per_token) * number(m.width) + number(m.experts);
  const double layer = number(4 * m.width) + rows + number(m.head_dim) * number(2 * m.heads + 2 * m.kv_heads) + 3 * features_of_token(m);
  return layer * number(m.layers);
}

void check_model_size(Draft& draft) {
  const ModelKeys& m = draft.deck.model;
  check_count(draft, "model.heads", m.heads, number(m.head_dim), most_projected, "features of queries");
  check_count(draft, "model.vocab", m.vocab, number(m.width) * (m.tied ? 1 : 2), most_parameters / 2, "parameters of embedding and head");
  check_count(draft, "model.learned_positions", m.learned_positions, number(m.width), most_parameters / 2, "parameters of positions");
  check_count(draft, "model.layers", m.layers, layer_parameters(m), most_parameters / 2, "parameters of layers");
  if (m.experts > 0) check_count(draft, "model.experts", m.experts, 3 * number(m.layers), most_tensors, "matrices of experts");
}

void check_pieces(Draft& draft) {
  const ZeroKeys& z = draft.deck.zero;
  const double all = number(draft.deck.model.layers) * layer_parameters(draft.deck.model) + table_parameters(draft.deck.model);
  for (auto [key, size] :
       {std::pair{"zero.reduce_bucket_size", z.reduce_bucket_size}, std::pair{"zero.allgather_bucket_size", z.allgather_bucket_size},
        std::pair{"zero.sub_group_size", z.sub_group_size}}) {
    constexpr double least = 256;  // pieces are whole blocks
    if (!draft.good({key}) || all / std::max(least, number(size)) <= most_pieces) continue;
    draft.fault({key}, fmt::format("{} cuts {} parameters into more than {} pieces, each with tasks of a step; set {} to at least {}", size,
                                   human_count(all), human_count(most_pieces), key, static_cast<std::int64_t>(all / most_pieces) + 1));
  }
}

void check_batch_size(Draft& draft, bool model) {
  const Deck& d = draft.deck;
  const double T = number(d.batch.sequence_length);
  check_count(draft, "batch.micro", d.batch.micro, T, most_tokens, "tokens of a micro-batch");
  if (model && d.model.experts > 0)
    check_count(draft, "batch.micro", d.batch.micro, T * number(d.model.experts_per_token), most_tokens, "rows of experts");
  if (model) check_count(draft, "batch.micro", d.batch.micro, T * activations_of_token(d.model), most_elements, "elements of activations");
  if (draft.good({"batch.global"})) check_count(draft, "batch.global", d.batch.global, T, most_elements, "tokens of a step");
  if (draft.good({"evaluate.batches"}))
    check_count(draft, "evaluate.batches", d.evaluate.batches, T * number(d.batch.micro), most_elements, "tokens of an evaluation");
}

}  // namespace

void check_run_size(Draft& draft) {
  const Deck& d = draft.deck;
  if (draft.good({"batch.sequence_length", "batch.global", "run.steps"}))
    check_count(draft, "run.steps", d.run.steps, number(d.batch.sequence_length) * number(d.batch.global), most_run_tokens,
                "tokens of the run");
}

void check_sizes(Draft& draft) {
  const Deck& d = draft.deck;
  const bool model = draft.good({"model.layers", "model.width", "model.heads", "model.kv_heads", "model.head_dim", "model.ff_width",
                                 "model.vocab", "model.experts", "model.dense_layers", "model.kinds", "model.experts_per_token",
                                 "model.expert_ff_width", "model.shared_ff_width"});
  if (model) check_model_size(draft);
  if (model) check_pieces(draft);
  if (draft.good({"batch.micro", "batch.sequence_length"})) check_batch_size(draft, model);
  if (draft.good({"kernels.loss_chunk", "model.vocab"}))
    check_count(draft, "kernels.loss_chunk", d.kernels.loss_chunk, number(d.model.vocab), most_elements, "logits at once");
}

}  // namespace tessera
