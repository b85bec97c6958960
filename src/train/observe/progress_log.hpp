// What a person watches: the lines of steps, and what is to be said of one.
#pragma once
#include "train/observe/observer.hpp"

namespace tessera {

class ProgressLog : public Observer {
 public:
  explicit ProgressLog(const RunParts& run);
  Verdict after(const StepEnd& end) override;
  void finish(std::int64_t done) override;
  void note(const std::string& line) { progress_.note(line); }
  void warn(const std::string& line) { progress_.warn(line); }

 private:
  void note_first_step();
  const RunParts& run_;
  Progress progress_;
};

}  // namespace tessera
