#include "train/batches.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"

namespace tessera {

SampleFile::SampleFile(const std::string& path, std::int64_t sequence_length, std::int64_t vocab)
    : file_(path), T_(sequence_length), vocab_(vocab) {
  if (file_.declared_vocab() > vocab)
    fail(ExitCode::data, "{} was tokenized with a vocabulary of {} and model.vocab is {}. Set model.vocab={} (or a larger multiple of 64).",
         path, file_.declared_vocab(), vocab, file_.declared_vocab());
  samples_ = (file_.tokens() - 1) / T_;
  if (samples_ < 1)
    fail(ExitCode::data,
         "{} holds {} tokens, fewer than one sample of batch.sequence_length + 1 = {}. Use more text or a shorter sequence.", path,
         file_.tokens(), T_ + 1);
  scratch_.resize(static_cast<std::size_t>(T_ + 1));
}

void SampleFile::read(std::int64_t sample, std::span<const Range> positions, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets, std::int64_t row) {
  if (inputs.empty() && targets.empty()) return;
  std::int64_t width = 0;
  for (const Range& part : positions) width += part.size();
  std::int64_t at = row * width;
  for (const Range& part : positions) {
    const std::span<std::int32_t> tokens = std::span(scratch_).first(static_cast<std::size_t>(part.size() + 1));
    file_.read(sample * T_ + part.begin, tokens, vocab_);
    if (!inputs.empty()) std::copy(tokens.begin(), tokens.end() - 1, inputs.begin() + at);
    if (!targets.empty()) {
      std::copy(tokens.begin() + 1, tokens.end(), targets.begin() + at);
      file_.drop_uncounted(sample * T_ + part.begin + 1,
                           targets.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(part.size())), kernels::no_target);
    }
    at += part.size();
  }
}

}  // namespace tessera
