#include "train/data/batch_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.hpp"
#include "schedule/build/micro_batches.hpp"
#include "train/data/documents.hpp"

namespace tessera {
namespace {

/// Runs `f`; a failure says what it was met in.
template <class F>
void within(const std::string& what, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    throw Error(error.code, what + ": " + error.what());
  }
}

}  // namespace

BatchFeed::BatchFeed(const World& world, Engine& engine, TrainingData& train, SampleFile* validation)
    : world_(world), engine_(engine), train_(train), validation_(validation) {}

MicroBatch BatchFeed::micro_batch(std::int64_t m) {
  return {.tokens = engine_.tokens(m),
          .targets = engine_.targets(m),
          .document_starts = engine_.document_starts(m),
          .in_ring = engine_.schedule().shape.ring,
          .weights = engine_.row_weights(m),
          .groups = engine_.token_groups(m),
          .padding = engine_.padding(m),
          .preferences = {.sequences = engine_.input<std::int32_t>("sequences", m),
                          .counts = engine_.input<std::int32_t>("sequence_counts", m),
                          .reference_logps = engine_.input<double>("reference_logps", m)}};
}

void BatchFeed::clear_sequences(std::int64_t m) {
  const MicroBatch to = micro_batch(m);
  std::ranges::fill(to.preferences.sequences, -1), std::ranges::fill(to.preferences.counts, 0);
  std::ranges::fill(to.preferences.reference_logps, 0.0);
}

void BatchFeed::number_tokens(std::int64_t m, std::int64_t row, const Sequence& sequence) {
  const std::span<std::int64_t> numbers = engine_.token_numbers(m);
  if (numbers.empty()) return;
  const std::int64_t T = deck().batch.sequence_length, first = (sequence.sample * sequence.parts + sequence.part) * T;
  auto to = numbers.begin() + row * (std::ssize(numbers) / deck().batch.micro);
  for (const Range& part : engine_.positions())
    for (std::int64_t t = part.begin; t < part.end; ++t) *to++ = first + t;
}

void BatchFeed::read(std::int64_t step) {
  const std::int64_t A = engine_.accumulation();
  const std::vector<Range> positions = engine_.positions();
  padding_ = 0;
  if (engine_.schedule().shape.rotation.by_longest) turn_by_longest();
  for (std::int64_t m = 0; m < A; ++m) {
    const std::optional<std::int64_t> number = micro_batch_at(deck(), engine_.data().size, engine_.data().rank, m);
    // A micro-batch that only keeps ranks in step has no weight. Its magnitudes would count in scales of later steps: it is the step's
    // first.
    const bool repeats = !number && deck().precision.fp8 == Fp8Recipe::tensorwise_delayed;
    if (!number && !repeats) {
      const MicroBatch empty = micro_batch(m);
      std::ranges::fill(empty.tokens, 0), std::ranges::fill(empty.document_starts, 0);
      std::ranges::fill(empty.targets, 0), std::ranges::fill(empty.weights, 0), std::ranges::fill(empty.groups, -1);
      std::ranges::fill(empty.padding, 0);
      clear_sequences(m);
      continue;
    }
    const std::int64_t first = engine_.run_values().sample_cursor, B = deck().batch.micro;
    clear_sequences(m);
    within(fmt::format("step {}", step + 1), [&] {
      MicroBatch to = micro_batch(m);
      for (std::int64_t row = 0; row < B; ++row) {
        const Sequence next = sequence_at(first, number.value_or(0) * B + row, deck().batch.parts);
        const std::int64_t padding = train_.read(next, positions, to, row);
        if (deck().preference.on()) to.preferences.first += train_.sequences(next.sample, 1);
        number_tokens(m, row, next);
        if (number) padding_ += padding;
      }
    });
    if (repeats) std::ranges::fill(micro_batch(m).weights, 0), std::ranges::fill(micro_batch(m).groups, -1), clear_sequences(m);
  }
  steps_ = step + 1;
}

void BatchFeed::turn_by_longest() {
  std::int64_t longest = 1;
  for (std::int64_t number = 0; number < deck().batch.global; ++number)
    longest = std::max(longest, train_.longest(sequence_at(engine_.run_values().sample_cursor, number, deck().batch.parts)));
  engine_.turn_by(longest);
}

void BatchFeed::turn_by_longest_of_evaluation() {
  std::int64_t longest = 1;
  for (std::int64_t number = 0; number < deck().evaluate.batches * deck().batch.micro; ++number) {
    const Sequence next = sequence_at(0, number, deck().batch.parts);
    longest = std::max(longest, validation_->longest({next.sample % validation_->samples(), next.part, next.parts}));
  }
  engine_.turn_by(longest);
}

std::int64_t BatchFeed::counted(std::int64_t padding) const {
  const Coordinates at = coordinates_of(engine_.planned().request.mesh, world_.rank());
  const bool first =
      std::ranges::all_of(std::array{Axis::tp, Axis::cp, Axis::pp}, [&](Axis axis) { return at[static_cast<std::size_t>(axis)] == 0; });
  return first ? padding : 0;
}

std::int64_t BatchFeed::document_squares() const {
  if (!deck().data.document_mask) return 0;
  const Coordinates at = coordinates_of(engine_.planned().request.mesh, world_.rank());
  const ModelShape& s = engine_.schedule().shape;
  const bool counts = std::ranges::all_of(std::array{Axis::tp, Axis::cp, Axis::pp}, [&](Axis axis) {
    return at[static_cast<std::size_t>(axis)] == 0 || (axis == Axis::cp && s.ring);
  });
  std::int64_t mine = 0;
  for (std::int64_t m = 0; m < engine_.accumulation() && counts; ++m)
    if (micro_batch_at(deck(), engine_.data().size, engine_.data().rank, m))
      mine += squares_of_documents(engine_.document_starts(m), inside_attention(s).T);
  return mine;
}

std::optional<StepReport> BatchFeed::evaluate(const std::function<bool()>& stop) {
  const std::int64_t of_pass = engine_.planned().request.evaluation_micro_batches * engine_.data().size, batches = deck().evaluate.batches;
  StepReport report;
  if (engine_.schedule().shape.rotation.by_longest) turn_by_longest_of_evaluation();
  for (std::int64_t first = 0; first < batches; first += of_pass) {
    const std::int64_t padding = read_evaluation(first);
    report = engine_.evaluate({.tokens = std::min(of_pass, batches - first) * deck().batch.micro * deck().batch.sequence_length,
                               .padding = counted(padding),
                               .goes_on = first > 0,
                               .stop = stop()});
    if (report.stop != 0 && first + of_pass < batches) return {};
  }
  return report;
}

std::int64_t BatchFeed::read_evaluation(std::int64_t first) {
  const std::int64_t per_rank = engine_.planned().request.evaluation_micro_batches, B = deck().batch.micro;
  const std::vector<Range> positions = engine_.positions();
  std::int64_t padding = 0;
  for (std::int64_t m = 0; m < per_rank; ++m) {
    const std::int64_t number = first + m * engine_.data().size + engine_.data().rank;
    const bool counts = number < deck().evaluate.batches;
    engine_.set_weight(m, counts ? 1 : 0);
    std::ranges::fill(engine_.token_groups(m), -1);
    std::ranges::fill(engine_.token_numbers(m), -1);  // nothing is dropped
    clear_sequences(m);
    within(fmt::format("the evaluation after step {}", steps_), [&] {
      MicroBatch to = micro_batch(m);
      for (std::int64_t row = 0; row < B; ++row) {
        const Sequence next = sequence_at(0, number * B + row, deck().batch.parts);
        const Sequence wrapped{next.sample % validation_->samples(), next.part, next.parts};
        const std::int64_t here = validation_->read(wrapped, positions, to, row);
        if (deck().preference.on()) to.preferences.first += validation_->sequences(wrapped.sample);
        if (counts) padding += here;
      }
    });
    if (!counts) std::ranges::fill(engine_.row_weights(m), 0), clear_sequences(m);
  }
  return padding;
}

}  // namespace tessera
