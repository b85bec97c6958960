// Texts that the model continues every samples.every steps, with the weights that the ranks train: in the log and in RUN/samples.jsonl.
#pragma once
#include "train/observe/progress_log.hpp"
#include "train/text/sample_texts.hpp"

namespace tessera {

class Samples : public Observer {
 public:
  /// Collective. Rows of steps that are made again are cut off.
  Samples(const RunParts& run, ProgressLog& progress);
  Verdict after(const StepEnd& end) override;

 private:
  /// Text number `k` after a step, to its end. All ranks run the same programs; rank 0 says which token follows.
  void make(std::int64_t step, std::size_t k);
  /// Rank 0's: the token that follows, or -1 where none does.
  std::int32_t choose(const class Decoder& decoder, std::int64_t step, std::size_t k, std::string& fault) const;
  void say(std::int64_t step, std::size_t k, const std::string& text, std::int64_t tokens, const std::string& fault);

  const RunParts& run_;
  ProgressLog& progress_;
  std::optional<io::MetricsFile> file_;  ///< rank 0's
};

}  // namespace tessera
