// Tasks: questions with choices, and documents, scored by the likelihoods that a model gives their tokens.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "generate/inference.hpp"

namespace tessera {

/// A line of a task file: {"context", "choices", "answer"}, where the answer is the number of a choice from 0 on, or {"text"}.
struct TaskItem {
  std::int64_t line = 0;
  std::string context, text;
  std::vector<std::string> choices;  ///< none: a document
  std::size_t answer = 0;
  bool question() const { return !choices.empty(); }
};

/// Reads all lines; blank ones are passed over. Throws Error(data) that names the line.
std::vector<TaskItem> read_task(const std::string& path);

struct ScoredText;  ///< task_tokens.hpp

/// What a model makes of a question.
struct Answered {
  std::vector<double> log_likelihoods;  ///< of each choice after the context
  std::size_t chosen = 0;               ///< the likeliest choice, of equal ones the first
  std::size_t chosen_by_byte = 0;       ///< the same by log-likelihood over bytes: a longer choice is no less likely for its length
};
/// What a model makes of a document.
struct Read {
  std::int64_t tokens = 0, bytes = 0;
  double loss = 0;  ///< minus the log-likelihood of all of them
};

/// A model that is asked. As lm-evaluation-harness does it (github.com/EleutherAI/lm-evaluation-harness): a context that is too long loses
/// its beginning, and a document is read in windows of as many tokens as the model was trained with, each after the token before it.
class Examiner {
 public:
  /// Loads the checkpoint for sequences as long as the items of the file `path` ask for, at most those of its deck. `tokenizer` is a folder
  /// with a tokenizer.json; "": the one beside the checkpoint's run, or bytes. Throws Error(usage) where there is none and the vocabulary
  /// is not the byte tokenizer's, Error(data) where a choice is longer than a sequence.
  Examiner(const std::string& checkpoint, const std::string& device, std::vector<TaskItem> items, const std::string& path,
           const std::string& tokenizer = "");
  ~Examiner();

  const std::vector<TaskItem>& items() const { return items_; }
  /// Of item i, which is a question; and which is a document.
  Answered answer(std::size_t i);
  Read read(std::size_t i);
  std::int64_t step() const { return model_.step; }

 private:
  /// Minus the log-likelihood of the last `counted` tokens after those before them.
  double loss_of(std::span<const std::int32_t> tokens, std::int64_t counted);
  LoadedModel load(const std::string& checkpoint, const std::string& device, const std::string& path, const std::string& tokenizer);

  std::vector<TaskItem> items_;
  std::vector<std::vector<ScoredText>> texts_;  ///< of each item
  LoadedModel model_;
};

}  // namespace tessera
