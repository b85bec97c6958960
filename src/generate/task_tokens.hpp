// The texts of a task as tokens of the model that is asked: its own tokenizer's, or bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "generate/task.hpp"

namespace tessera {

/// Tokens of which the last `counted` are scored, each after those before it.
struct ScoredText {
  std::vector<std::int32_t> tokens;
  std::int64_t counted = 0;
};

/// Of each item its choices after the context, or the one document. Before a text stands what the tokenizer puts there, or else what ends a
/// document, so that its first token has one before it. A token that is of the context and of the choice counts. A tokenizer without a
/// folder is that of bytes. Throws Error(data) that names the line: a choice of which no token is left, a
/// token that the model lacks.
std::vector<std::vector<ScoredText>> task_tokens(const std::vector<TaskItem>& items, const std::string& path, const TaskTokenizer& chosen,
                                                 std::int64_t vocab);

}  // namespace tessera
