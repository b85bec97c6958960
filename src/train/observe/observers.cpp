#include "train/observe/observers.hpp"

#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "train/observe/checkpoints.hpp"
#include "train/observe/copies_watch.hpp"
#include "train/observe/evaluation.hpp"
#include "train/observe/exposition.hpp"
#include "train/observe/guards.hpp"
#include "train/observe/ledger.hpp"
#include "train/observe/metrics_log.hpp"
#include "train/observe/neighbour_copies.hpp"
#include "train/observe/progress_log.hpp"
#include "train/observe/proof_of_steps.hpp"
#include "train/observe/replays.hpp"
#include "train/observe/samples.hpp"
#include "train/observe/stalls.hpp"
#include "train/observe/step_breakdown.hpp"
#include "train/observe/step_profile.hpp"
#include "train/observe/step_trace.hpp"
#include "train/observe/warnings.hpp"

namespace tessera {
namespace {

struct ObserverRow {
  const std::type_info& type;
  std::shared_ptr<Observer> (*make)(Observers& all);
};

template <class T>
T& need(Observers& all) {
  return all.get<T>();
}
template <>
Saver& need<Saver>(Observers& all) {
  return all.get<Checkpoints>().saver();
}

/// An observer that is made from the run and other observers.
template <class T, class... Needs>
ObserverRow row() {
  return {typeid(T), [](Observers& all) -> std::shared_ptr<Observer> { return std::make_shared<T>(all.run, need<Needs>(all)...); }};
}

/// In the order in which they see a step: what strangers see of a step that ends the run, what ends it or takes it back, what is seen of a
/// step before what it leads to, and saves last.
const ObserverRow rows[] = {
    row<Exposition>(),
    row<Replays>(),
    row<Guards, Saver, ProgressLog>(),
    row<CopiesWatch, Saver, ProgressLog>(),
    row<Stalls, ProgressLog>(),
    row<StepBreakdown, ProgressLog>(),
    row<MetricsLog, Exposition>(),
    // The ledger outlives the steps.
    {typeid(Ledger), [](Observers& all) { return std::shared_ptr<Observer>(std::shared_ptr<void>(), &all.run.ledger); }},
    row<ProgressLog>(),
    row<Warnings, MetricsLog, ProgressLog>(),
    {typeid(ProofOfSteps),
     [](Observers& all) -> std::shared_ptr<Observer> {
       return std::make_shared<ProofOfSteps>(all.run, need<ProgressLog>(all), all.another);
     }},
    row<StepTrace, ProgressLog>(),
    row<StepProfile, ProgressLog>(),
    row<Evaluation, Guards, MetricsLog, ProgressLog>(),
    row<Samples, ProgressLog>(),
    row<NeighbourCopies, Saver, ProgressLog>(),
    row<Checkpoints, MetricsLog, ProgressLog, Warnings>(),
};

}  // namespace

Observers::Observers(const RunParts& r, AnotherStep a) : run(r), another(std::move(a)), in_order_(std::size(rows)) {
  for (const ObserverRow& row : rows) of(row.type);
}

Observers::~Observers() {
  while (!made_.empty()) made_.pop_back();
}

Observer& Observers::of(const std::type_info& type) {
  for (std::size_t i = 0; i < in_order_.size(); ++i) {
    if (rows[i].type != type) continue;
    if (!in_order_[i]) in_order_[i] = made_.emplace_back(rows[i].make(*this)).get();
    return *in_order_[i];
  }
  fail(ExitCode::internal, "{} is no observer", type.name());
}

}  // namespace tessera
