#include "train/engine/evaluation_record.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view count = "evaluations", targets_of = "evaluation_targets", best_loss = "best_validation_loss",
                           reference_loss = "improved_validation_loss", without_one = "evaluations_without_improvement",
                           last_one = "evaluation_step";
constexpr std::array names_of_all{count, targets_of, io::best_step_value, best_loss, reference_loss, without_one, last_one};

}  // namespace

bool EvaluationRecord::take(std::int64_t step, double loss, std::int64_t of_targets, double min_improvement) {
  const bool comparable = evaluations == 0 || targets == of_targets;
  if (!comparable) *this = {};
  targets = of_targets, last_step = step;
  if (best_step < 0 || loss < best) before = best, before_step = best_step, best = loss, best_step = step;
  if (evaluations == 0 || loss < reference - min_improvement)
    reference = loss, without = 0;
  else
    ++without;
  ++evaluations;
  return comparable;
}

void EvaluationRecord::lose(std::int64_t step) {
  if (best_step == step) best = before, best_step = before_step;
  if (before_step == step || before_step == best_step) before_step = -1;
}

std::vector<io::CheckpointValue> EvaluationRecord::values() const {
  if (evaluations == 0) return {};
  const auto whole = [](std::string_view name, std::int64_t number) {
    return io::CheckpointValue{.name = std::string(name), .integer = true, .number = static_cast<double>(number)};
  };
  std::vector<io::CheckpointValue> values{whole(count, evaluations), whole(targets_of, targets), whole(without_one, without),
                                          whole(last_one, last_step)};
  values.push_back({.name = std::string(reference_loss), .number = reference});
  if (best_step < 0) return values;
  values.push_back(whole(io::best_step_value, best_step));
  values.push_back({.name = std::string(best_loss), .number = best});
  return values;
}

EvaluationRecord EvaluationRecord::of(const std::vector<io::CheckpointValue>& values) {
  EvaluationRecord record;
  const auto read = [&](std::string_view name, auto& field) {
    const auto found = std::ranges::find(values, name, &io::CheckpointValue::name);
    if (found != values.end()) field = static_cast<std::remove_reference_t<decltype(field)>>(found->number);
  };
  read(count, record.evaluations), read(targets_of, record.targets), read(without_one, record.without);
  read(last_one, record.last_step), read(reference_loss, record.reference), read(io::best_step_value, record.best_step),
      read(best_loss, record.best);
  return record;
}

bool EvaluationRecord::names(std::string_view value) { return std::ranges::find(names_of_all, value) != names_of_all.end(); }

}  // namespace tessera
