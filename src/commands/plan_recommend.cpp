// tessera plan DECK --recommend and --sweep: which layout of a step is the fastest that fits a machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.hpp"

#include "base/check.hpp"
#include "base/log.hpp"
#include "commands/plan_options.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/parallel.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/simulate/figures.hpp"
#include "schedule/simulate/recommend.hpp"

namespace tessera {
namespace {

/// A search for one number of ranks, with all that it started from.
struct Searched {
  const PlanOptions& options;
  const MachineProfile& machine;
  Deck deck;
  Placement placement;
  Recommendation found = {};
  double slowdown = 1;   ///< of what was found
  Figures figures = {};  ///< on which its prediction rests
};

LimitsOf limits_of(const Searched& s, std::int64_t more = 0) {
  return [ranks = s.placement.ranks(), more](const Deck& deck) { return limits_with(deck, ranks, more); };
}

/// The first choice of another machine.
struct WhatIf {
  std::string what;
  int ranks = 1;
  std::optional<Choice> first = {};
  std::string why = {};  ///< it is no faster
};

Placement placement_of(const PlanOptions& o, const Deck& deck, const MachineProfile& machine, int ranks) {
  const int per_node = ranks_per_node(o, machine), threads = threads_of(o, deck, machine, per_node);
  kernels::plan_for_threads(threads);
  const bool side_by_side = deck.run.device == RunDevice::cuda || lane_mode(deck, ranks, threads) == LaneMode::threads;
  return {.mesh = make_mesh(deck, ranks), .ranks_per_node = per_node, .lanes_side_by_side = side_by_side};
}

int data_ranks(const Choice& choice) { return batch_ranks(make_mesh(choice.deck, choice.prediction.ranks)); }

std::string words(const Choice& choice) { return words_of(choice.changes); }

std::string memory_text(const Choice& choice) { return memory_text(choice.bytes, limits_with(choice.deck, choice.prediction.ranks)); }

/// What has to be known of a choice beside its figures.
std::vector<std::string> notes_of(const Choice& choice, const Deck& deck) {
  std::vector<std::string> notes;
  if (choice.deck.batch.micro != deck.batch.micro) notes.emplace_back("batch.micro is part of a run's identity: another run, no resume");
  if (choice.deck.zero.offload_optimizer.nvme_path != deck.zero.offload_optimizer.nvme_path)
    notes.emplace_back("nvme_path is an example: name a folder on the local disks");
  return notes;
}

std::string cost_text(const PlanOptions& o, const MachineProfile& machine, const Prediction& p) {
  return o.tokens.empty() && price_of(o, machine) == 0 ? "" : "; " + run_cost_text(o, machine, p.ranks, p.tokens_per_second);
}

void add_cost(Json& out, const PlanOptions& o, const MachineProfile& machine, const Prediction& p) {
  const double price = price_of(o, machine);
  if (price > 0) out["cost_per_billion_tokens"] = cost_of_billion_tokens(price, p.ranks, p.tokens_per_second);
  if (!o.tokens.empty()) out["run"] = run_json(o, machine, p.ranks, p.tokens_per_second);
}

[[noreturn]] void nothing_fits(const Searched& s) {
  fail(ExitCode::memory,
       "none of {} choices of zero.stage, offload, activation.recompute, batch.micro, prefetch and reuse fits {} of {}; the smallest plan "
       "needs {} on each rank ({}). More ranks, a smaller batch.sequence_length or a smaller model needs less.",
       s.found.choices, s.placement.ranks() == 1 ? "a rank" : fmt::format("{} ranks", s.placement.ranks()), s.machine.name,
       human_bytes(static_cast<double>(memory_bytes(s.found.least))), memory_text(s.found.least, limits_with(s.deck, s.placement.ranks())));
}

Searched search(const PlanOptions& options, const MachineProfile& machine) {
  const Deck deck = require_deck(parse_for(options, machine));
  if (deck.mesh.pp > 1)
    fail(ExitCode::usage,
         "--recommend and --sweep search layouts with pipeline stages only with --meshes: add it, set mesh.pp = 1, or ask for the plan of "
         "this deck without them");
  return {.options = options, .machine = machine, .deck = deck, .placement = placement_of(options, deck, machine, options.ranks)};
}

/// A deck that names its number of ranks is asked for another one.
PlanOptions with_ranks(PlanOptions options, int ranks) {
  options.ranks = ranks;
  options.overrides.emplace_back("mesh.dp=auto");
  return options;
}

/// Why another machine gains nothing: empty micro-batches, or the part of a step that grows.
std::string why_no_gain(const Choice& here, const Choice& there) {
  if (there.prediction.tokens_per_second > here.prediction.tokens_per_second) return "";
  const double empty = empty_share(there.deck, data_ranks(there));
  if (empty > empty_share(here.deck, data_ranks(here)))
    return fmt::format("batch.global = {} over {} ranks leaves {:.1f} % of the micro-batches empty", there.deck.batch.global,
                       data_ranks(there), 100 * empty);
  return why_slower(here.prediction, there.prediction);
}

/// Another node, and more memory for kernels: what each would allow.
std::vector<WhatIf> what_ifs(const Searched& s, Recommender& recommender) {
  std::vector<WhatIf> rows;
  constexpr std::int64_t more_memory = 20'000'000'000;
  const int ranks = s.placement.ranks(), per_node = s.placement.ranks_per_node;
  if (s.machine.network.bandwidth > 0 && ranks % per_node == 0) {
    const PlanOptions o = with_ranks(s.options, ranks + per_node);
    const Searched more = search(o, s.machine);
    rows.push_back({.what = "one more node",
                    .ranks = o.ranks,
                    .first = Recommender(more.deck, s.machine, more.placement).best(limits_of(more)).first});
    if (rows.back().first) rows.back().why = why_no_gain(*s.found.first, *rows.back().first);
  }
  if (limits_with(s.deck, ranks)[static_cast<std::size_t>(kernel_memory(s.deck))])
    rows.push_back({.what = s.deck.run.device == RunDevice::cuda ? "20 GB more of each GPU" : "20 GB more for each rank",
                    .ranks = ranks,
                    .first = recommender.best(limits_of(s, more_memory)).first});
  return rows;
}

void write_deck(const Searched& s) {
  const Prediction& p = s.found.first->prediction;
  write_recommended(s.options, s.found.first->changes,
                    fmt::format("{:.0f} tokens/s are predicted, a step of {}, MFU {:.1f} %; memory: {}", p.tokens_per_second,
                                time_text(p.step.seconds), 100 * p.mfu_full, memory_text(*s.found.first)),
                    p.ranks, s.machine.name);
}

Json choice_json(const Choice& choice, const Searched& s) {
  const PlanOptions& o = s.options;
  Json changes = Json::array(), bytes;
  for (const Change& change : choice.changes) changes.push_back(change.text);
  for (const MemoryKind kind : all_memory_kinds) bytes[name_of(kind)] = bytes_of(choice.bytes, kind);
  Json out = {{"changes", changes},
              {"notes", notes_of(choice, s.deck)},
              {"bytes_per_rank", bytes},
              {"prediction", prediction_json(choice.prediction)}};
  add_cost(out, o, s.machine, choice.prediction);
  return out;
}

Json recommendation_json(const Searched& s, const std::optional<Choice>& now, const std::vector<WhatIf>& others) {
  const Recommendation& r = s.found;
  Json out = {{"deck", s.options.path},
              {"machine", s.machine.name},
              {"profile", s.options.machine},
              {"ranks", s.placement.ranks()},
              {"choices", r.choices},
              {"planned", r.planned},
              {"simulated", r.simulated},
              {"first", choice_json(*r.first, s)},
              {"slowdown", s.slowdown},
              {"figures", {{"used", s.figures.used}, {"assumed", s.figures.assumed}}},
              {"as_it_is", now ? choice_json(*now, s) : Json()},
              {"runner_up", Json()},
              {"what_if", Json::array()}};
  if (r.runner_up) {
    out["runner_up"] = choice_json(*r.runner_up, s);
    out["runner_up"]["why"] = why_slower(r.first->prediction, r.runner_up->prediction);
  }
  for (const WhatIf& row : others) {
    out["what_if"].push_back({{"what", row.what}, {"ranks", row.ranks}, {"first", row.first ? choice_json(*row.first, s) : Json()}});
    if (!row.why.empty()) out["what_if"].back()["why"] = row.why;
  }
  if (!s.options.write.empty()) out["written"] = s.options.write;
  return out;
}

void print_recommendation(const Searched& s, const std::optional<Choice>& now, const std::vector<WhatIf>& others) {
  const Recommendation& r = s.found;
  const Choice& first = *r.first;
  const double rate = first.prediction.tokens_per_second;
  const auto percent = [&](double other) { return fmt::format("{:+.1f} %", 100 * (other / rate - 1)); };
  put("machine   {} ({}): {} rank{} on {}\n", s.machine.name, s.options.machine, first.prediction.ranks,
      first.prediction.ranks == 1 ? "" : "s", first.prediction.nodes == 1 ? "a node" : fmt::format("{} nodes", first.prediction.nodes));
  put("searched  {} choices: {} planned, {} simulated\n", r.choices, r.planned, r.simulated);
  put("choose    {}\n", words(first));
  if (first.recompute) put("          recomputes {}\n", describe(*first.recompute, {.layers = {{0, first.deck.model.layers}}}));
  for (const std::string& note : notes_of(first, s.deck)) put("note      {}\n", note);
  put("batch     {}\n", describe_batch(first.deck, data_ranks(first)));
  put("memory    {}\n", memory_text(first));
  put("predicted{}\n", print_prediction(first.prediction, 5));
  if (const std::string assumed = describe_assumed(s.figures); !assumed.empty()) put("assumed   {}\n", assumed);
  put("cost      {}\n", run_cost_text(s.options, s.machine, first.prediction.ranks, rate));
  put("{}\n", slowdown_line(s.slowdown));
  if (!first.changes.empty())
    put("as it is  {}\n",
        now ? fmt::format("{:.0f} tokens/s ({})", now->prediction.tokens_per_second, percent(now->prediction.tokens_per_second))
            : "does not fit");
  if (r.runner_up)
    put("runner-up {}: {:.0f} tokens/s ({}): {}\n", words(*r.runner_up), r.runner_up->prediction.tokens_per_second,
        percent(r.runner_up->prediction.tokens_per_second), why_slower(first.prediction, r.runner_up->prediction));
  for (const WhatIf& row : others) {
    if (!row.first) {
      put("what if   {}: nothing fits\n", row.what);
      continue;
    }
    const double there = row.first->prediction.tokens_per_second;
    put("what if   {}: {:.0f} tokens/s ({}), {:.0f} a rank, with {}{}{}\n", row.what, there, percent(there), there / row.ranks,
        words(*row.first), cost_text(s.options, s.machine, row.first->prediction), row.why.empty() ? "" : ": " + row.why);
  }
  if (!s.options.write.empty()) put("written   {}\n", s.options.write);
}

int recommend_one(const PlanOptions& o, const MachineProfile& machine) {
  Searched s = search(o, machine);
  Recommender recommender(s.deck, machine, s.placement);
  s.found = recommender.best(limits_of(s));
  if (!s.found.first) nothing_fits(s);
  s.slowdown = slowdown(*s.found.first, machine, s.placement, limits_of(s));
  s.figures = figures_of_choice(*s.found.first, machine, s.placement);
  const std::optional<Choice> now = choice_as_is(s.deck, machine, s.placement, limits_of(s));
  const std::vector<WhatIf> others = what_ifs(s, recommender);
  if (!o.write.empty()) write_deck(s);
  if (o.json)
    put("{}\n", recommendation_json(s, now, others).dump(2, BadText::replace));
  else
    print_recommendation(s, now, others);
  return 0;
}

int sweep(const PlanOptions& options, const MachineProfile& machine) {
  Json rows = Json::array();
  bool any = false;
  if (!options.json) put("{:>6} {:>6} {:>12} {:>9} {:>7}  choice\n", "ranks", "nodes", "tokens/s", "a rank", "MFU");
  for (const int ranks : options.sweep) {
    const PlanOptions o = with_ranks(options, ranks);
    Searched s = search(o, machine);
    s.found = Recommender(s.deck, machine, s.placement).best(limits_of(s));
    any |= s.found.first.has_value();
    rows.push_back({{"ranks", ranks}, {"first", s.found.first ? choice_json(*s.found.first, s) : Json()}});
    if (options.json) continue;
    if (!s.found.first) {
      put("{:>6} nothing fits: the smallest plan needs {} on each rank\n", ranks,
          human_bytes(static_cast<double>(memory_bytes(s.found.least))));
      continue;
    }
    const Prediction& p = s.found.first->prediction;
    put("{:>6} {:>6} {:>12.0f} {:>9.0f} {:>5.1f} %  {}{}\n", ranks, p.nodes, p.tokens_per_second, p.tokens_per_second / ranks,
        100 * p.mfu_full, words(*s.found.first), cost_text(o, machine, p));
  }
  if (options.json) put("{}\n", Json({{"deck", options.path}, {"machine", machine.name}, {"sweep", rows}}).dump(2, BadText::replace));
  return any ? 0 : static_cast<int>(ExitCode::memory);
}

}  // namespace

MemoryLimits limits_with(const Deck& deck, int ranks, std::int64_t more) {
  MemoryLimits limits = stated_limits(deck, ranks);
  const bool one_memory = deck.run.device != RunDevice::cuda && deck.memory.device == 0;
  if (auto& limit = limits[static_cast<std::size_t>(one_memory ? MemoryKind::host : kernel_memory(deck))]) limit->bytes += more;
  return limits;
}

std::string memory_text(const TierBytes& bytes, const MemoryLimits& limits) {
  std::string text;
  for (const MemoryKind kind : all_memory_kinds) {
    const std::int64_t needed = bytes_of(bytes, kind);
    const auto& limit = limits[static_cast<std::size_t>(kind)];
    if (needed == 0 || (kind == MemoryKind::pinned && !limit)) continue;  // without a limit of its own a part of the host's
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", name_of(kind), human_bytes(static_cast<double>(needed)),
                        limit ? fmt::format(" of {}", human_bytes(static_cast<double>(limit->bytes))) : "");
  }
  return text + " on each rank";
}

std::string slowdown_line(double slowdown) {
  constexpr const char* plain = "the step without ZeRO and offload, if memory had no limit";
  constexpr double as_written = 0.995;  // what is "1.00 times" is no speed-up
  return slowdown < as_written ? fmt::format("speed-up  {:.2f} times as fast as {}", 1 / slowdown, plain)
                               : fmt::format("slowdown  {:.2f} times {}", slowdown, plain);
}

std::string words_of(const std::vector<Change>& changes) { return changes.empty() ? "the deck as it is" : overrides_of(changes); }

void write_recommended(const PlanOptions& o, const std::vector<Change>& changes, const std::string& found, int ranks,
                       const std::string& machine) {
  Deck deck = require_deck(read_deck(o, o.overrides, 0));
  for (const Change& change : changes) change.apply(deck);
  std::string text =
      fmt::format("# Found by `tessera plan {} --recommend{}` for {} ranks of {}:\n# {}\n# {}.\n#\n#   tessera plan {} --ranks {} {}\n\n",
                  o.path, o.meshes ? " --meshes" : "", ranks, machine, words_of(changes), found, o.write, ranks, machine_words(o));
  text += print_deck(deck);
  io::AtomicFile out(o.write);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

int recommend(const PlanOptions& options) {
  const MachineProfile machine = *machine_of(options);
  return options.recommend ? recommend_one(options, machine) : sweep(options, machine);
}

}  // namespace tessera
