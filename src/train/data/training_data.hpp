// The files of data.train as one sequence of samples.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "topology/world.hpp"
#include "train/data/batches.hpp"
#include "train/data/interleave.hpp"

namespace tessera {

/// What a run takes of one of its files.
struct FileShare {
  std::string path;
  double share = 1;  ///< of the samples
  std::int64_t samples = 0;
};
/// What the deck's objective takes its files for.
PreferenceUse preference_use(const Deck& deck);
/// Of each file in data.train, by the deck alone.
std::vector<FileShare> shares_of_files(const Deck& deck);
/// The steps of run.epochs passes over a deck's files, as Error(data) where one cannot be used; for parse_deck.
CountedSteps count_steps(const Deck& deck);
/// The same where a plan or a check may do without: no steps then, and why.
CountedSteps count_steps_if_readable(const Deck& deck);
/// TrainingData::warnings(), for a plan: none where the steps are not known or a file cannot be used here.
std::vector<std::string> data_warnings_if_readable(const Deck& deck);
/// "70 % of the samples, 700 sequences"; without the number where the steps are not known.
std::string describe(const FileShare& file);

/// Sample `cursor` of a run is one of the file that the interleave of data.weights gives it to, there in that file's own order of epochs.
/// So the data of a run are a function of the deck, its files and the cursor alone, and a resume needs nothing but the cursor.
class TrainingData {
 public:
  /// Opens all files. Throws Error(data) where one cannot be used (SampleFile), where two are of different tokenizers, or where the run
  /// would pass over one more often than data.epochs allows.
  explicit TrainingData(const Deck& deck) : TrainingData(deck, preference_use(deck)) {}
  /// `use`: of all files; some pairs with margins and others without are Error(data) too.
  TrainingData(const Deck& deck, const PreferenceUse& use);
  /// See SampleFile::check; Error(data) also where two files hold the same tokens. Then rank 0 says how much of each file the run takes.
  /// Collective over `world`; null: this process alone.
  void check(const World* world);
  std::span<const SampleFile> files() const { return files_; }
  /// What the files hold, in their order. After check().
  std::vector<io::CheckpointData> records() const;
  /// Some targets may not count in the loss, those of one file at least.
  bool masked() const;
  /// A sequence, of a sample of the run, into row `row`, and which file it is of; see SampleFile::read.
  std::int64_t read(const Sequence& of_run, std::span<const Range> positions, const MicroBatch& to, std::int64_t row);
  /// Sequences of preferences in the samples [first, first + count) of the run: those of a step do not depend on the ranks.
  std::int64_t sequences(std::int64_t first, std::int64_t count) const;
  /// See SampleFile::longest.
  std::int64_t longest(const Sequence& of_run) const;
  /// Samples of each file among the first `cursor` of the run.
  std::vector<std::int64_t> served(std::int64_t cursor) const;
  /// A line for each file: its share, the samples that the run takes of it, and how many passes over it they are.
  std::vector<std::string> lines() const;
  /// Of each file that the run passes over so often that this may not be meant.
  std::vector<std::string> warnings() const;

 private:
  struct Found {
    std::size_t file;
    Sequence sequence;
  };
  /// A sequence of the run in the file that it is of.
  Found find(const Sequence& of_run) const;
  /// How often the run passes over a file.
  double epochs(std::size_t file) const;
  void require_epochs() const;
  void require_different_files() const;
  void require_margins() const;

  std::uint64_t seed_;
  std::vector<FileShare> shares_;
  std::vector<double> most_epochs_;  ///< of each file; 0: any number
  std::int64_t before_last_step_;    ///< samples: the last step is filled up, whatever they allow
  std::vector<SampleFile> files_;
  Interleave interleave_;
};

}  // namespace tessera
