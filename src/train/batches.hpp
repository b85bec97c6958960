// Fills micro-batches from token files.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "deck/deck.hpp"
#include "io/tokens/tokens.hpp"
#include "train/token_check.hpp"

namespace tessera {

/// One token file seen as samples of T+1 tokens: sample k begins at token k*T, its targets are the same tokens one further on.
class SampleFile {
 public:
  /// Throws Error(data) when the file holds not one sample, or declares a vocabulary larger than `vocab`.
  SampleFile(const std::string& path, std::int64_t sequence_length, std::int64_t vocab);
  std::int64_t samples() const { return samples_; }
  std::int64_t tokens() const { return file_.tokens(); }
  /// Throws Error(data) where a token is outside the vocabulary or not what was written; see check_tokens.
  void check(const World* world) { check_tokens(file_, vocab_, world); }
  std::string tokenizer() const { return file_.tokenizer(); }
  /// Some targets may not count in the loss: they are kernels::no_target.
  bool masked() const { return file_.masked(); }
  /// Row `row` of a micro-batch whose rows have these positions of the T inputs and T targets of a sample, one range after the other;
  /// those that nobody asks for are empty.
  void read(std::int64_t sample, std::span<const Range> positions, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
            std::int64_t row);

 private:
  io::TokenFile file_;
  std::int64_t T_, vocab_, samples_;
  std::vector<std::int32_t> scratch_;
};

}  // namespace tessera
