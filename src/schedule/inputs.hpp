// Inputs of a micro-batch: what the host writes before a program. An input is a kind of value that texts read, and a row here: buffers,
// uploads and addresses for whoever fills it follow.
#pragma once
#include <string_view>

#include "model/record/segment.hpp"
#include "model/table/shape.hpp"

namespace tessera {

struct InputRow {
  const char* name;  ///< of the buffer, which has a slot a micro-batch
  ValueKind kind;
  std::int64_t bytes;                          ///< of a number
  std::int64_t (*numbers)(const ModelShape&);  ///< of a micro-batch on this rank
};

inline std::int64_t inputs_a_token(const ModelShape& s) { return s.tokens(); }
inline std::int64_t inputs_a_place_of_attention(const ModelShape& s) { return inside_attention(s).tokens(); }
inline std::int64_t inputs_a_text(const ModelShape& s) { return s.sequences(); }
inline std::int64_t one_input(const ModelShape&) { return 1; }

inline constexpr InputRow input_rows[] = {
    {"tokens", ValueKind::tokens, 4, inputs_a_token},
    {"targets", ValueKind::targets, 4, inputs_a_token},
    {"row_weights", ValueKind::row_weights, 4, inputs_a_token},
    {"token_groups", ValueKind::token_groups, 4, inputs_a_token},
    {"sequences", ValueKind::sequences, 4, inputs_a_token},
    {"sequence_counts", ValueKind::sequence_counts, 4, inputs_a_text},
    {"reference_logps", ValueKind::reference_logps, 8, inputs_a_text},
    {"positions", ValueKind::positions, 4, inputs_a_token},
    {"padding", ValueKind::padding, 4, inputs_a_token},
    {"token_numbers", ValueKind::token_numbers, 8, inputs_a_token},
    {"document_starts", ValueKind::document_starts, 4, inputs_a_place_of_attention},
    {"weights", ValueKind::micro_batch_weight, 8, one_input},
};

/// Null where no row has the name, or the kind.
constexpr const InputRow* input_of(std::string_view name) {
  for (const InputRow& row : input_rows)
    if (row.name == name) return &row;
  return nullptr;
}
constexpr const InputRow* input_of(ValueKind kind) {
  for (const InputRow& row : input_rows)
    if (row.kind == kind) return &row;
  return nullptr;
}

}  // namespace tessera
