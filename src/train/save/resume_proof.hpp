// checkpoint.verify_resume: whether a run that goes on from a checkpoint makes the steps that the run made which saved it. Beside a
// checkpoint stand the loss and the gradient norm of the two steps after it, to the bit, and a digest of the state after each: weights and
// moments, whatever the layout. Nothing is computed for it but these digests and the two steps after a run's last save.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "topology/world.hpp"

namespace tessera {

struct Deck;

/// "resume_proof.json", in a step folder: removed, copied and moved with it, and no part of what its checksums cover.
std::string resume_proof_file(const std::string& step_folder);

/// All ranks call the same functions in the same order; without the key nothing is read, compared or written.
class ResumeProof {
 public:
  /// So many steps after a checkpoint are compared.
  static constexpr std::int64_t steps = 2;
  /// The run goes on from `checkpoint` ("": none) and saves below `root`; `data` are rank 0's records of what it is trained on. A proof
  /// that is damaged, or of another save than the checkpoint beside it, is AgreedError(checkpoint).
  ResumeProof(const World& world, const Deck& deck, std::string root, const std::string& checkpoint, std::vector<io::CheckpointData> data);

  /// A step is done. AgreedError(checkpoint) that names step and figures where they are not those of the run that saved the checkpoint; a
  /// line for the log where the last of them is as it must be, else "". `state` gives the digest of all ranks' state, where it is asked
  /// for: on all of them.
  std::string after(const StepFigures& step, const std::function<std::string()>& state);
  /// A save of the state after so many steps begins, and stands.
  void save_begins(std::int64_t step);
  void save_stands(std::int64_t step);
  bool on() const { return on_; }
  /// Whether steps are still to be compared.
  bool open() const { return to_compare_ > 0; }

 private:
  struct Figures {
    std::int64_t step = 0;
    double loss = 0, grad_norm = 0, learning_rate = 0;
    std::string state;  ///< "" in older proofs
  };
  struct Pending {
    std::int64_t step = 0;
    bool stands = false;
    std::vector<Figures> figures = {};
  };

  void read(const std::string& checkpoint);
  void compare(const Figures& found);
  void write(const Pending& save) const;

  const World& world_;
  const Deck& deck_;
  std::vector<io::CheckpointData> data_;
  bool on_;
  std::string root_, checkpoint_, saved_by_;  // the last two: what the run went on from, and which program saved it
  std::vector<Figures> expected_;             // rank 0's: those still to come
  std::int64_t to_compare_ = 0;               // how many they are, on all ranks
  std::int64_t begun_ = -steps;               // the latest save
  std::vector<Pending> pending_;              // rank 0's
};

}  // namespace tessera
