#include "report/page/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/types.hpp"
#include "deck/schema/schema.hpp"
#include "report/page/html.hpp"

namespace tessera {
namespace {

using Found = std::optional<Advice>;

constexpr double exposed_least = 0.05;    // of a step
constexpr double data_least = 0.02;       // of a step
constexpr double optimizer_least = 0.15;  // of a step
constexpr double stall_least = 0.02;      // of the run
constexpr double free_least = 0.25;       // of a tier's limit

/// "3.4 % of a step (12.1 ms)"
std::string of_step(const RunFigures& f, double share) {
  return fmt::format("{} of a step ({})", percent(share), span_text(share * f.step_seconds));
}

/// Micro-batches twice as large, where the batch has so many.
std::string larger_micro(const RunFigures& f, const Deck& deck) {
  const std::int64_t data_ranks =
      std::max<std::int64_t>(1, f.ranks / std::max<std::int64_t>(1, deck.mesh.tp * deck.mesh.pp * deck.mesh.cp));
  const std::int64_t twice = 2 * deck.batch.micro;
  return deck.batch.global % (twice * data_ranks) == 0 ? fmt::format("batch.micro={}", twice) : "";
}

Found exposed_gathers(const RunFigures& f, const Deck& deck) {
  const double share = f.share("all_gather");
  if (share < exposed_least) return {};
  Advice a{.share = share, .found = fmt::format("Gathers of parameters that no compute hides take {}.", of_step(f, share)), .remedy = {}};
  if (deck.zero.overlap_comm == OverlapComm::no) {
    a.remedy = "Run them in parallel with compute.", a.change = "zero.overlap_comm=auto";
  } else if (deck.zero.stage == 3 && deck.zero.prefetch_bucket_size == 0) {
    a.remedy = "Nothing is prefetched: allow it.", a.change = "zero.prefetch_bucket_size=auto";
  } else if (deck.zero.stage == 3 && deck.zero.hpz_partition_size == 1 && f.ranks_per_node > 1 && f.ranks > f.ranks_per_node) {
    a.remedy = "Keep a second copy of the parameters on each node, so that gathers of the backward pass stay inside it.";
    a.change = fmt::format("zero.hpz_partition_size={}", f.ranks_per_node);
  } else if (const std::string micro = larger_micro(f, deck); deck.zero.stage == 3 && !micro.empty()) {
    a.remedy = "Stage 3 gathers each layer for every micro-batch: fewer and larger ones gather less.", a.change = micro;
  } else if (deck.zero.stage == 3) {
    a.remedy = "Keep the parameters on each rank, if memory allows.", a.change = "zero.stage=2";
  } else {
    a.remedy = "Gather updated parameters in fewer pieces.", a.change = "zero.allgather_bucket_size=500000000";
  }
  return a;
}

Found exposed_reductions(const RunFigures& f, const Deck& deck) {
  const double share = f.share("reduce_scatter") + f.share("all_reduce");
  if (share < exposed_least) return {};
  Advice a{.share = share, .found = fmt::format("Sums of gradients that no compute hides take {}.", of_step(f, share)), .remedy = {}};
  if (deck.zero.overlap_comm == OverlapComm::no)
    a.remedy = "Run them in parallel with the backward pass.", a.change = "zero.overlap_comm=auto";
  else if (const std::string micro = larger_micro(f, deck); deck.zero.stage >= 2 && !micro.empty())
    a.remedy = "From stage 2 on every micro-batch sends its gradients: fewer and larger ones send less.", a.change = micro;
  else
    a.remedy = "A larger batch needs a sum for more tokens; but it changes the training.",
    a.change = fmt::format("batch.global={}", 2 * deck.batch.global);
  return a;
}

Found exposed_exchanges(const RunFigures& f, const Deck& deck) {
  const double share = f.share("all_to_all") + f.share("rotate");
  if (share < exposed_least) return {};
  Advice a{.share = share,
           .found = fmt::format("Exchanges of tokens, heads or keys between ranks that no compute hides take {}.", of_step(f, share)),
           .remedy = {}};
  if (deck.mesh.cp > 1)
    a.remedy = "Let fewer ranks share a sequence.", a.change = fmt::format("mesh.cp={}", deck.mesh.cp / 2);
  else if (deck.mesh.ep > 1)
    a.remedy = "Let fewer ranks share the experts.", a.change = fmt::format("mesh.ep={}", deck.mesh.ep / 2);
  else
    a.remedy = "Send gradients unquantized.", a.change = "zero.quantized_gradients=false";
  return a;
}

Found bubbles(const RunFigures& f, const Deck& deck) {
  const double share = f.share("pipeline");
  if (share < exposed_least || deck.mesh.pp < 2) return {};
  Advice a{.share = share, .found = fmt::format("Stages of the pipeline wait for each other for {}.", of_step(f, share)), .remedy = {}};
  if (deck.batch.micro > 1 && deck.batch.micro % 2 == 0)
    a.remedy = "More and smaller micro-batches shorten the bubble.", a.change = fmt::format("batch.micro={}", deck.batch.micro / 2);
  else if (deck.pipeline.schedule == PipelineSchedule::one_forward_one_backward)
    a.remedy = "Interleaved stages start earlier.", a.change = "pipeline.schedule=interleaved";
  else
    a.remedy = "Fewer stages wait less.", a.change = fmt::format("mesh.pp={}", deck.mesh.pp / 2);
  return a;
}

Found offload(const RunFigures& f, const Deck& deck) {
  const double copies = f.share("upload") + f.share("download"), disk = f.share("disk_read") + f.share("disk_write");
  const double share = copies + disk;
  if (share < exposed_least) return {};
  Advice a{.share = share,
           .found = disk > copies ? fmt::format("Reads and writes of disks that no compute hides take {}.", of_step(f, share))
                                  : fmt::format("Copies between the memory of kernels and of the host that no compute hides take {}.",
                                                of_step(f, share)),
           .remedy = {}};
  const OffloadOptimizerKeys& o = deck.zero.offload_optimizer;
  if (disk > copies)
    a.remedy = "Give the disks more pieces at once.", a.change = fmt::format("nvme.queue_depth={}", 2 * deck.nvme.queue_depth);
  else if (o.device != OffloadDevice::none && !o.pin_memory)
    a.remedy = "Pinned memory is copied faster.", a.change = "zero.offload_optimizer.pin_memory=true";
  else if (o.device == OffloadDevice::host && o.ratio > 0.25)
    a.remedy = "Leave a part of the optimizer's state with the kernels.",
    a.change = fmt::format("zero.offload_optimizer.ratio={:.2f}", o.ratio / 2);
  else if (deck.zero.offload_param.device != OffloadDevice::none)
    a.remedy = "Keep parameters with the kernels, if memory allows.", a.change = "zero.offload_param.device=none";
  else
    a.remedy = "Keep activations with the kernels, if memory allows.", a.change = "activation.offload=none";
  return a;
}

Found data_starves(const RunFigures& f, const Deck& deck) {
  const double share = f.share("data");
  if (share < data_least) return {};
  return Advice{.share = share,
                .found = fmt::format("Reading batches takes {}.", of_step(f, share)),
                .remedy = fmt::format(
                    "Put the token files ({}) on a faster file system, or on a disk of each node, and name them there with data.train.",
                    deck.data.train.empty() ? "data.train" : deck.data.train.front())};
}

Found optimizer(const RunFigures& f, const Deck& deck) {
  const double share = f.share("optimizer");
  if (share < optimizer_least) return {};
  Advice a{.share = share, .found = fmt::format("The optimizer takes {}.", of_step(f, share)), .remedy = {}};
  if (deck.zero.stage == 0 && f.ranks > 1)
    a.remedy = "Every rank updates everything: let each update its part.", a.change = "zero.stage=1";
  else if (deck.zero.offload_optimizer.device == OffloadDevice::host && deck.zero.offload_optimizer.ratio > 0.25)
    a.remedy = "It runs on the host: leave a part of it with the kernels.",
    a.change = fmt::format("zero.offload_optimizer.ratio={:.2f}", deck.zero.offload_optimizer.ratio / 2);
  else
    a.remedy = "A larger batch needs an update for more tokens; but it changes the training.",
    a.change = fmt::format("batch.global={}", 2 * deck.batch.global);
  return a;
}

Found waits(const RunFigures& f, const Deck& deck) {
  const double share = f.share("waits") + f.share("host");
  if (share < exposed_least) return {};
  Advice a{.share = share, .found = fmt::format("For {} no task of the rank is running.", of_step(f, share)), .remedy = {}};
  if (deck.kernels.cuda_graph == GraphMode::off)
    a.remedy = "Start a step's kernels as one graph.", a.change = "kernels.cuda_graph=auto";
  else
    a.remedy = "Larger micro-batches are fewer and longer tasks.", a.change = larger_micro(f, deck);
  return a;
}

/// What free memory could buy, by what the deck pays for the lack of it.
Found free_memory(const RunFigures& f, const Deck& deck) {
  const TierUse* most = nullptr;
  for (const TierUse& tier : f.memory)
    if (tier.limit && *tier.limit > 0 && (!most || *tier.limit - tier.bytes > *most->limit - most->bytes) &&
        (tier.tier == "device" || (deck.run.device != RunDevice::cuda && tier.tier == "host")))
      most = &tier;
  if (!most) return {};
  const double share = 1 - static_cast<double>(most->bytes) / static_cast<double>(*most->limit);
  if (share < free_least) return {};
  Advice a{.share = 0,
           .found = fmt::format("{} of {} of memory ({}) are free on each rank: {}.",
                                human_bytes(static_cast<double>(*most->limit - most->bytes)),
                                human_bytes(static_cast<double>(*most->limit)), most->tier, percent(share)),
           .remedy = {}};
  if (deck.zero.offload_param.device != OffloadDevice::none)
    a.remedy = "It could keep parameters with the kernels.", a.change = "zero.offload_param.device=none";
  else if (deck.zero.offload_optimizer.device != OffloadDevice::none)
    a.remedy = "It could keep the optimizer's state with the kernels.", a.change = "zero.offload_optimizer.device=none";
  else if (deck.activation.offload != OffloadDevice::none)
    a.remedy = "It could keep activations with the kernels.", a.change = "activation.offload=none";
  else if (deck.activation.recompute != Recompute::none)
    a.remedy = "It could keep activations that are recomputed now.", a.change = "activation.recompute=none";
  else if (deck.zero.stage == 3 && f.ranks > 1)
    a.remedy = "It could keep whole parameters, which stage 3 gathers.", a.change = "zero.stage=2";
  else if (const std::string micro = larger_micro(f, deck); !micro.empty())
    a.remedy = "It could hold larger micro-batches.", a.change = micro;
  else
    return {};
  return a;
}

Found slow(const RunFigures& f, const Deck&) {
  if (f.slow.empty()) return {};
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(f.slow.size(), 4); ++i)
    names += fmt::format("{}{} (by {})", i > 0 ? ", " : "", f.slow[i].rank, percent(f.slow[i].excess));
  const auto more = static_cast<std::int64_t>(f.slow.size()) - 4;
  return Advice{
      .share = f.slow.front().excess,
      .found = fmt::format("In the traced step {} computed longer than the others, which wait for {}: {}{}.",
                           f.slow.size() == 1 ? "a rank" : fmt::format("{} ranks", f.slow.size()), f.slow.size() == 1 ? "it" : "them",
                           names, more > 0 ? fmt::format(" and {} more", more) : ""),
      .remedy = "Run `tessera report` under the launch of all ranks to see other differences of their nodes: clocks, threads, neighbours."};
}

Found stalls(const RunFigures& f, const Deck& deck) {
  if (f.stall_share < stall_least) return {};
  Advice a{
      .share = f.stall_share,
      .found = fmt::format("Steps wait for saves for {} of the time; a save takes {}.", percent(f.stall_share), span_text(f.save_seconds)),
      .remedy = {}};
  if (!deck.checkpoint.async)
    a.remedy = "Write saves while steps continue.", a.change = "checkpoint.async=true";
  else
    a.remedy = "Save half as often.", a.change = fmt::format("checkpoint.every={}", 2 * std::max<std::int64_t>(1, deck.checkpoint.every));
  a.of_step = false;
  return a;
}

Found stood_still(const RunFigures& f, const Deck& deck) {
  if (f.stalls.empty()) return {};
  double excess = 0;
  for (const StalledStep& stall : f.stalls) excess += stall.seconds - stall.usual;
  const StalledStep& longest = *std::ranges::max_element(f.stalls, {}, &StalledStep::seconds);
  const double wall = f.goodput ? f.goodput->wall : 0;
  Advice a{.share = wall > 0 ? excess / wall : 0,
           .found = fmt::format("{} stalled, for {} in all{}. The longest: {}.",
                                f.stalls.size() == 1 ? "A step" : fmt::format("{} steps", f.stalls.size()), span_text(excess),
                                wall > 0 ? fmt::format(", {} of the run's time", percent(excess / wall)) : "", longest.text),
           .remedy = "Look at the log of that time."};
  if (deck.run.notify.empty()) a.remedy = "Set a command that tells you when it happens.", a.change = "run.notify=COMMAND";
  a.of_step = false;
  return a;
}

Found lost_work(const RunFigures& f, const Deck& deck) {
  if (!f.goodput || f.goodput->wall <= 0) return {};
  const double share = f.goodput->lost / f.goodput->wall;
  if (share < stall_least) return {};
  Advice a{.share = share,
           .found = fmt::format("{} of the run's time went into steps that a later start repeated ({} starts, {} of them without an end).",
                                percent(share), f.starts, f.killed),
           .remedy = "Save more often: a start resumes from the last checkpoint."};
  if (deck.checkpoint.every > 1) a.change = fmt::format("checkpoint.every={}", (deck.checkpoint.every + 1) / 2);
  a.of_step = false;
  return a;
}

Found starts(const RunFigures& f, const Deck& deck) {
  if (!f.goodput || f.goodput->wall <= 0 || f.starts < 2) return {};
  const double share = f.goodput->starting / f.goodput->wall;
  if (share < exposed_least) return {};
  Advice a{.share = share,
           .found = fmt::format("{} starts took {} of the run's time until their first steps.", f.starts, percent(share)),
           .remedy = "Ask the scheduler for longer jobs."};
  if (deck.run.device == RunDevice::cuda && deck.kernels.gemm_search)
    a.remedy = "Ask the scheduler for longer jobs, or turn off the search for matrix products.", a.change = "kernels.gemm_search=false";
  a.of_step = false;
  return a;
}

Found no_number(const RunFigures& f, const Deck& deck) {
  if (f.without_loss == 0) return {};
  Advice a{.share = 1, .found = fmt::format("The loss of {} steps is not finite.", f.without_loss), .remedy = {}};
  if (deck.optimizer.gradient_clipping == 0)
    a.remedy = "Clip gradients.", a.change = "optimizer.gradient_clipping=1.0";
  else
    a.remedy = "Return to a checkpoint before them with a lower rate.",
    a.change = fmt::format("optimizer.learning_rate={:g}", deck.optimizer.learning_rate / 2);
  a.of_step = false;
  return a;
}

constexpr AdviceRule rules[] = {{"no_number", no_number},
                                {"exposed_gathers", exposed_gathers},
                                {"exposed_reductions", exposed_reductions},
                                {"exposed_exchanges", exposed_exchanges},
                                {"bubbles", bubbles},
                                {"offload", offload},
                                {"data", data_starves},
                                {"optimizer", optimizer},
                                {"waits", waits},
                                {"slow_ranks", slow},
                                {"saves", stalls},
                                {"stalls", stood_still},
                                {"lost_work", lost_work},
                                {"starts", starts},
                                {"free_memory", free_memory}};

}  // namespace

std::span<const AdviceRule> advice_rules() { return rules; }

std::vector<Advice> advise(const RunFigures& figures, const Deck& deck, const AskSimulator& ask) {
  std::vector<Advice> all;
  const bool asks_rules = is_allowed(deck, figures.ranks);  // a deck of an older version may be refused as it is
  for (const AdviceRule& rule : rules)
    if (Found advice = rule.of(figures, deck)) {
      if (asks_rules && !advice->change.empty() && !is_allowed(deck, figures.ranks, {advice->change})) continue;
      all.push_back(std::move(*advice));
    }
  std::ranges::stable_sort(all, std::greater(), &Advice::share);
  std::map<std::string, std::string> answers;
  for (Advice& advice : all) {
    const Key* key = find_key(advice.change.substr(0, advice.change.find('=')));
    if (key && key->identity) advice.remedy += " It is a part of a run's identity, so it needs a new run.";
    if (!ask || !advice.of_step || advice.change.empty()) continue;
    const auto [answer, fresh] = answers.try_emplace(advice.change);
    if (fresh) answer->second = ask(advice.change);
    advice.simulated = answer->second;
  }
  return all;
}

}  // namespace tessera
