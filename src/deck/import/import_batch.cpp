// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks, of which a file gives some.
#include <fmt/format.h>

#include <cstdlib>

#include "deck/import/importer.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most = 1'000'000'000;  // sequences

constexpr const char* settle = "change one of them, or set batch.global=N on the command line";

/// A count, which the command line's `ours` takes the place of; 0 where it is not given. `faulty` is set where it is no count.
std::int64_t count(Importer& in, std::string_view key, std::string_view ours, bool& faulty) {
  const JsonNode* node = in.given(key);
  if (!ours.empty() && in.overridden(ours)) {
    if (node) in.note(key, fmt::format("{} of the command line replaces it", ours));
    const std::int64_t said = std::atoll(in.override_of(ours).c_str());
    return said > 0 && said <= most ? said : 0;  // else the deck's key refuses it
  }
  if (!node || in.is_auto(key)) return 0;
  const double value = node->number();
  if (value >= 1 && value <= most) return static_cast<std::int64_t>(value);
  in.fault(key, fmt::format("{} is out of range: at least 1 and at most {}", node->written, most));
  faulty = true;
  return 0;
}

/// Ranks that divide the batch: those of the launch without those that the file cuts layers and sequences by. 0: not known.
std::int64_t data_ranks(const Importer& in) {
  std::int64_t ranks = in.request().ranks;
  for (const std::string_view axis : {"mesh.cp", "mesh.tp"})
    if (const ImportedLine* line = in.line(axis))
      if (const std::int64_t n = std::atoll(line->value.c_str()); n > 1 && ranks % n == 0) ranks /= n;
  return ranks;
}

struct Batch {
  BatchNames names;
  std::int64_t all = 0, micro = 0, steps = 0;  // 0: not known
};

void put_all(Importer& in, std::int64_t all, std::string_view from, const std::string& comment = "") {
  if (all > most) return in.fault(from, fmt::format("makes a batch of {} sequences, more than {}", all, most));
  in.put("batch.global", fmt::format("{}", all), from, comment);
}

/// The global batch where the file does not give it.
void multiply(Importer& in, const Batch& b) {
  const std::int64_t ranks = data_ranks(in), steps = std::max<std::int64_t>(b.steps, 1);
  const std::string_view key = in.given(b.names.steps) && !in.given(b.names.micro) ? b.names.steps : b.names.micro;
  if (ranks == 0)
    return in.fault(
        key,
        fmt::format("the global batch is {} x {} x the ranks of the launch, and no file gives the ranks; add --ranks N, or batch.global=N",
                    b.micro, steps));
  const double product = static_cast<double>(b.micro) * static_cast<double>(steps) * static_cast<double>(ranks);
  if (product > most) return in.fault(b.names.micro, fmt::format("makes a batch of more than {} sequences on {} ranks", most, ranks));
  const std::string comment = fmt::format("{} x {} {} x {} ranks", b.micro, b.names.steps, steps, ranks);
  const std::string_view from = in.given(b.names.micro) ? b.names.micro : b.names.steps;
  if (in.given(from))
    put_all(in, b.micro * steps * ranks, from, comment);
  else
    in.assume("batch.global", fmt::format("{}", b.micro * steps * ranks), comment);
}

/// The micro-batch where the file does not give it.
void divide(Importer& in, const Batch& b) {
  const std::int64_t ranks = data_ranks(in), steps = std::max<std::int64_t>(b.steps, 1);
  put_all(in, b.all, b.names.all);
  if (ranks == 0)
    return in.fault(
        b.names.all,
        fmt::format("the micro-batch is {} / ({} x the ranks of the launch), and no file gives the ranks; add --ranks N, or batch.micro=N",
                    b.all, steps));
  if (b.all % (steps * ranks) != 0)
    return in.fault(b.names.all, fmt::format("{} is not divisible by {} ranks x {} accumulation step{}; {}", b.all, ranks, steps,
                                             steps == 1 ? "" : "s", settle));
  in.put("batch.micro", fmt::format("{}", b.all / (steps * ranks)), b.names.all, fmt::format("over {} ranks", ranks));
}

/// All three are given: they must agree with each other and with the ranks.
bool agree(Importer& in, const Batch& b) {
  const std::int64_t a_rank = b.micro * b.steps, ranks = data_ranks(in);
  if (b.all % a_rank != 0) {
    in.fault(b.names.all,
             fmt::format("{} is not {} {} x {} {} x a number of ranks; {}", b.all, b.names.micro, b.micro, b.names.steps, b.steps, settle));
    return false;
  }
  if (ranks == 0 || b.all / a_rank == ranks) return true;
  const std::string there = ranks == in.request().ranks ? "" : fmt::format(" groups of {}", in.request().ranks / ranks);
  const std::int64_t theirs = b.all / a_rank;
  in.fault(b.names.all, fmt::format("{} = {} {} x {} {} x {} rank{}, and --ranks says {}{}; {}", b.all, b.names.micro, b.micro,
                                    b.names.steps, b.steps, theirs, theirs == 1 ? "" : "s", ranks, there, settle));
  return false;
}

}  // namespace

void import_batch(Importer& in, const BatchNames& names, bool trainer) {
  bool faulty = false;
  Batch b{names, count(in, names.all, "batch.global", faulty), count(in, names.micro, "batch.micro", faulty),
          count(in, names.steps, "", faulty)};
  if (faulty) return;
  const bool automatic = in.is_auto(names.micro) && b.micro == 0;
  if (automatic) b.micro = 8;
  if (in.is_auto(names.steps) && b.all == 0) b.steps = 1;
  if (b.all == 0 && b.micro == 0 && names.default_micro > 0) {
    b.micro = names.default_micro;
    in.assume("batch.micro", fmt::format("{}", b.micro),
              names.micro.empty() ? "FILL IN: sequences that a rank passes through the model at once"
                                  : fmt::format("the default of {}", names.micro));
  } else if (b.all == 0 && b.micro == 0) {
    if (trainer && in.given(names.steps)) in.note(names.steps, "the Trainer's arguments set the batch");
    if (!trainer)
      in.fault(names.all,
               fmt::format(
                   "is missing, and so is {}; DeepSpeed needs one of them: add it, or set batch.global=N batch.micro=N on the command line",
                   names.micro));
    return;
  }
  if (b.micro > 0 && (in.given(names.micro) || in.overridden("batch.micro")))
    in.put("batch.micro", fmt::format("{}", b.micro), names.micro,
           automatic ? "auto: the default of the Trainer's per_device_train_batch_size"
                     : "sequences that a rank passes through the model at once");
  const bool product = b.all == 0 && !in.overridden("batch.global");
  if (!product && in.given(names.steps))
    in.note(names.steps, "micro-batches of a rank are batch.global / (batch.micro x ranks), rounded up");
  if (in.overridden("batch.global") && b.micro > 0) return put_all(in, b.all, names.all);
  if (b.all == 0 && trainer && (automatic || in.is_auto(names.steps))) return;
  if (b.all == 0) return multiply(in, b);
  if (b.micro == 0) return divide(in, b);
  if (b.steps == 0 || in.overridden("batch.micro") || agree(in, b)) put_all(in, b.all, names.all);
}

}  // namespace tessera
