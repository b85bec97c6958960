// Tasks: questions with choices, and documents, scored by the likelihoods that a model gives their tokens.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "generate/inference.hpp"
#include "generate/task_pass.hpp"
#include "io/tokenizer/worker.hpp"
#include "io/tokens/json_input.hpp"

namespace tessera {

/// A line of a task file: {"context", "choices", "answer"}, where the answer is the number of a choice from 0 on, or {"text"}. In the place
/// of the context may stand {"messages"}, a conversation after which it is the model's turn.
struct TaskItem {
  std::int64_t line = 0;
  std::string context, text;
  std::string messages = {};         ///< a list of JSON; "": the context stands there itself
  std::vector<std::string> choices;  ///< none: a document
  std::size_t answer = 0;
  bool question() const { return !choices.empty(); }
};

/// Reads all lines; blank ones are passed over. Keys of which nothing is made go to `unused`. Throws Error(data) that names the line.
std::vector<TaskItem> read_task(const std::string& path, io::UnusedKeys& unused);

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

/// Texts of as many tokens together go through a model in one pass.
inline constexpr std::int64_t host_pass_tokens = 2048, gpu_pass_tokens = 16384;

/// What makes tokens of a task's texts.
struct TaskTokenizer {
  std::string folder = {};                  ///< with a tokenizer.json; "": the one beside the checkpoint's run, or bytes
  std::string chat_template = {};           ///< io::TokenizerSource
  std::int64_t memory = io::worker_memory;  ///< bytes that its process may take; 0: any
};

/// A model that is asked. As lm-evaluation-harness does it (github.com/EleutherAI/lm-evaluation-harness): a context that is too long loses
/// its beginning, and a document is read in windows of as many tokens as the model was trained with, each after the token before it.
/// Choices and windows go through the model many at a time, packed into rows as documents that do not see each other. A model whose experts
/// drop tokens takes one at a time, since which they drop depends on who else is there.
class Examiner {
 public:
  /// Loads the checkpoint for sequences as long as the items of the file `path` ask for, at most those of its deck. Throws Error(usage)
  /// where there is no tokenizer and the vocabulary is not the byte tokenizer's, Error(data) where a choice is longer than a sequence.
  /// `pass_tokens`: of a pass; 0: as many as the device likes and memory has room for; 1: each text alone.
  Examiner(const std::string& checkpoint, RunDevice device, std::vector<TaskItem> items, const std::string& path,
           const TaskTokenizer& tokenizer = {}, std::int64_t pass_tokens = 0);
  ~Examiner();

  const std::vector<TaskItem>& items() const { return items_; }
  /// Of item i, which is a question; and which is a document.
  Answered answer(std::size_t i);
  Read read(std::size_t i);
  std::int64_t step() const { return model_.step; }

 private:
  /// Losses of an item's pieces: minus the log-likelihood of what each scores.
  std::span<const double> losses_of(std::size_t item);
  /// The next pieces go through the model.
  void make_pass();
  /// The pieces of all items, of rows of at most T places; `path` names the file in an error.
  void cut(std::int64_t T, const std::string& path);
  LoadedModel load(const std::string& checkpoint, RunDevice device, const std::string& path, const TaskTokenizer& tokenizer,
                   std::int64_t pass_tokens);

  std::vector<TaskItem> items_;
  std::vector<std::vector<ScoredText>> texts_;  ///< of each item
  std::vector<TaskPiece> pieces_;               ///< item by item
  std::vector<std::size_t> first_piece_;        ///< of each item, and where the last one's end
  std::vector<double> losses_;                  ///< of the first pieces
  LoadedModel model_;
};

}  // namespace tessera
