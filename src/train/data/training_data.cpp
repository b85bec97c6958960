#include "train/data/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "train/data/data_order.hpp"
#include "train/data/run_tokenizer.hpp"

namespace tessera {
namespace {

/// Up to about as many passes repeated data are worth nearly as much as new ones (Muennighoff et al., arXiv:2305.16264).
constexpr double worthwhile_epochs = 4;
/// A fine-tuning set is passed over 2 to 5 times; tiny runs that learn one file by heart know what they do.
constexpr double most_epochs_of_one_file = 10;
constexpr double most_sequences = 1e18;  // of a run: more tokens than one may have

/// The interleave of a deck's files: one file has all samples, whatever its weight.
Interleave interleave_of(const DataKeys& data) {
  return Interleave(data.train.size() == 1 ? std::vector<std::int64_t>{1} : whole_shares(data.weights));
}

}  // namespace

PreferenceUse preference_use(const Deck& deck) {
  if (!deck.preference.on()) return {};
  if (deck.preference.reference == PreferenceReference::file)
    fail(ExitCode::usage,
         "preference.reference: log-probabilities from a file are not in this version yet; set \"copy\", or \"adapter\" with lora.rank");
  return {.set = io::TokenSet::pairs, .reference = deck.preference.reference_file};
}

std::vector<FileShare> shares_of_files(const Deck& deck) {
  const Interleave interleave = interleave_of(deck.data);
  std::vector<FileShare> shares;
  for (std::size_t k = 0; k < deck.data.train.size(); ++k)
    shares.push_back({.path = deck.data.train[k],
                      .share = static_cast<double>(interleave.shares()[k]) / static_cast<double>(interleave.period()),
                      .samples = interleave.count(static_cast<int>(k), samples_in(deck, deck.run.steps))});
  return shares;
}

CountedSteps count_steps(const Deck& deck) {
  std::int64_t samples = 0;
  for (const std::string& path : deck.data.train)
    samples += SampleFile(path, deck.batch.sequence_length, deck.model.vocab, deck.data, deck.run.seed, preference_use(deck)).samples();
  // Rounded up, but not for the rounding of the product.
  const double wanted = std::ceil(deck.run.epochs * static_cast<double>(samples) * (1 - 1e-12));
  return {.steps = steps_that_take(deck, static_cast<std::int64_t>(std::clamp(wanted, 1.0, most_sequences))),
          .why = fmt::format("{} sequences of data.train a pass / batch.global {}{}, rounded up", samples, deck.batch.global,
                             deck.batch.ramp.empty() ? "" : " after the phases of batch.ramp")};
}

CountedSteps count_steps_if_readable(const Deck& deck) {
  try {
    return count_steps(deck);
  } catch (const Error& error) {
    return {.steps = 0, .why = fmt::format("a start counts the samples of data.train; here {}", error.what())};
  }
}

std::vector<std::string> data_warnings_if_readable(const Deck& deck) {
  if (deck.run.steps == 0) return {};
  try {
    return TrainingData(deck).warnings();
  } catch (const Error&) {
    return {};  // a start says why
  }
}

std::string describe(const FileShare& file) {
  const std::string share = fmt::format("{:.4g} % of the samples", 100 * file.share);
  return file.samples > 0 ? fmt::format("{}, {} sequences", share, file.samples) : share;
}

TrainingData::TrainingData(const Deck& deck, const PreferenceUse& use)
    : seed_(static_cast<std::uint64_t>(deck.run.seed)),
      shares_(shares_of_files(deck)),
      most_epochs_(deck.data.epochs),
      before_last_step_(samples_in(deck, deck.run.steps - 1)),
      interleave_(interleave_of(deck.data)) {
  most_epochs_.resize(deck.data.train.size(), 0);
  for (const std::string& path : deck.data.train) {
    files_.emplace_back(path, deck.batch.sequence_length, deck.model.vocab, deck.data, deck.run.seed, use);
    for (const SampleFile& earlier : files_) require_same_tokenizer(earlier, files_.back());
  }
  require_epochs();
  require_margins();
}

void TrainingData::require_margins() const {
  for (const SampleFile& file : files_)
    if (file.margins() != files_.front().margins())
      fail(ExitCode::data,
           "the pairs of {} have {}margins, and those of {} have {}. Tokenize one of them again, without margins by --ignore "
           "margin,score_chosen,score_rejected.",
           files_.front().path(), files_.front().margins() ? "" : "no ", file.path(), file.margins() ? "some" : "none");
}

std::int64_t TrainingData::sequences(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    const Found at = find(sample);
    sum += files_[at.file].sequences(at.sequence.sample);
  }
  return sum;
}

double TrainingData::epochs(std::size_t file) const {
  return static_cast<double>(shares_[file].samples) / static_cast<double>(files_[file].samples());
}

void TrainingData::require_epochs() const {
  for (std::size_t k = 0; k < files_.size(); ++k)
    if (most_epochs_[k] > 0 && static_cast<double>(interleave_.count(static_cast<int>(k), before_last_step_)) >
                                   most_epochs_[k] * static_cast<double>(files_[k].samples()))
      fail(ExitCode::data,
           "the run takes {} sequences of {}, which has {}: {:.2f} passes over it, but data.epochs allows {:g}. Lower run.steps (or "
           "run.epochs) or the file's weight in data.weights, or raise data.epochs.",
           shares_[k].samples, files_[k].path(), files_[k].samples(), epochs(k), most_epochs_[k]);
}

void TrainingData::require_different_files() const {
  for (std::size_t k = 0; k < files_.size(); ++k)
    for (std::size_t j = 0; j < k; ++j)
      if (files_[k].holds_the_same(files_[j]))
        fail(ExitCode::data, "{} and {} hold the same tokens. Name one of them in data.train, and add up both weights in data.weights.",
             files_[j].path(), files_[k].path());
}

void TrainingData::check(const World* world) {
  for (SampleFile& file : files_) file.check(world);
  const auto compare = [this] { require_different_files(); };
  world ? world->together(compare) : compare();
  if (world && world->rank() != 0) return;
  for (const std::string& line : lines()) info("{}", line);
  for (const std::string& line : warnings()) warning("{}", line);
}

std::vector<std::string> TrainingData::warnings() const {
  std::vector<std::string> warnings;
  const bool mixture = files_.size() > 1;
  const double most = mixture ? worthwhile_epochs : most_epochs_of_one_file;
  for (std::size_t k = 0; k < files_.size(); ++k)
    if (most_epochs_[k] == 0 && epochs(k) > most)
      warnings.push_back(
          fmt::format("the run passes over {} {:.1f} times; beyond {:g} passes {}. Lower {}, or give the file a number in data.epochs if "
                      "this is intended.",
                      files_[k].path(), epochs(k), most, mixture ? "repeated text teaches less and less" : "a model memorises its text",
                      mixture ? "its weight" : "run.steps or run.epochs"));
  return warnings;
}

std::vector<io::CheckpointData> TrainingData::records() const {
  std::vector<io::CheckpointData> records;
  for (const SampleFile& file : files_) records.push_back(file.record());
  for (std::size_t k = 0; k < records.size(); ++k) records[k].share = shares_[k].share;
  return records;
}

bool TrainingData::masked() const {
  return std::ranges::any_of(files_, [](const SampleFile& file) { return file.masked(); });
}

TrainingData::Found TrainingData::find(const Sequence& of_run) const {
  const Interleave::Place place = interleave_.at(of_run.sample);
  const auto k = static_cast<std::size_t>(place.source);
  return {k, {sample_at(seed_of_file(seed_, k), files_[k].samples(), place.number), of_run.part, of_run.parts}};
}

std::int64_t TrainingData::longest(const Sequence& of_run) const {
  const Found at = find(of_run);
  return files_[at.file].longest(at.sequence);
}

std::int64_t TrainingData::read(const Sequence& of_run, std::span<const Range> positions, const MicroBatch& to, std::int64_t row) {
  const Found at = find(of_run);
  const std::int64_t padding = files_[at.file].read(at.sequence, positions, to, row);
  if (to.groups.empty()) return padding;
  std::size_t places = 0;
  for (const Range& part : positions) places += static_cast<std::size_t>(part.size());
  std::ranges::fill(to.groups.subspan(static_cast<std::size_t>(row) * places, places), static_cast<std::int32_t>(at.file));
  return padding;
}

std::vector<std::int64_t> TrainingData::served(std::int64_t cursor) const {
  std::vector<std::int64_t> counts;
  for (std::size_t k = 0; k < files_.size(); ++k) counts.push_back(interleave_.count(static_cast<int>(k), cursor));
  return counts;
}

std::vector<std::string> TrainingData::lines() const {
  std::vector<std::string> lines;
  for (std::size_t k = 0; k < files_.size(); ++k)
    lines.push_back(fmt::format("{}: {} of the run, {:.2f} passes over its {}", files_[k].path(), describe(shares_[k]), epochs(k),
                                files_[k].samples()));
  return lines;
}

}  // namespace tessera
