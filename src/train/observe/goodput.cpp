#include "train/observe/goodput.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

namespace tessera {
namespace {

constexpr GoodputPart parts[] = {
    {"productive", &Goodput::productive, "steps whose result was kept"},
    {"stalled", &Goodput::stalled, "steps that stalled: their time beyond the median of the steps before them"},
    {"saving", &Goodput::saving, "steps that waited for saves"},
    {"evaluating", &Goodput::evaluating, "evaluations"},
    {"starting", &Goodput::starting, "from each launch to its first step"},
    {"lost", &Goodput::lost, "steps that a later start repeated"},
    {"queued", &Goodput::queued, "from a start's last sign of life to the next launch"},
    {"other", &Goodput::other, "everything else"},
};

double number_of(const Json& fields, std::string_view key, double otherwise = 0) {
  return io::field_number(fields, key).value_or(otherwise);
}
std::int64_t integer_of(const Json& fields, std::string_view key) {
  const Json* found = fields.find(key);
  return found && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

StepWork work_of(const Json* json) {
  if (!json || !json->is_object()) return {};
  return {.steps = integer_of(*json, "steps"),
          .seconds = number_of(*json, "seconds"),
          .tokens = number_of(*json, "tokens"),
          .full_rate_seconds = number_of(*json, "full_rate_seconds"),
          .full_rate_seconds_causal = number_of(*json, "full_rate_seconds_causal"),
          .stalled = number_of(*json, "stalled")};
}

/// What `steps` steps come to that are as these, none of which stood still.
StepWork times(StepWork work, double factor, std::int64_t steps) {
  work.steps = steps;
  work.seconds -= std::exchange(work.stalled, 0);
  for (double StepWork::*figure :
       {&StepWork::seconds, &StepWork::tokens, &StepWork::full_rate_seconds, &StepWork::full_rate_seconds_causal})
    work.*figure *= factor;
  return work;
}

double sum_of_parts(const Goodput& g) {
  double sum = 0;
  for (const GoodputPart& part : parts) sum += g.*part.seconds;
  return sum;
}

}  // namespace

StepWork& StepWork::operator+=(const StepWork& more) {
  steps += more.steps, seconds += more.seconds, tokens += more.tokens;
  full_rate_seconds += more.full_rate_seconds, full_rate_seconds_causal += more.full_rate_seconds_causal;
  stalled += more.stalled;
  return *this;
}

StepWork& StepWork::operator-=(const StepWork& less) {
  steps -= less.steps, seconds -= less.seconds, tokens -= less.tokens;
  full_rate_seconds -= less.full_rate_seconds, full_rate_seconds_causal -= less.full_rate_seconds_causal;
  stalled -= less.stalled;
  return *this;
}

StepWork work_of_step(double seconds, double tokens_per_second, double mfu_full, double mfu_causal, double stalled) {
  return {.steps = 1,
          .seconds = seconds,
          .tokens = tokens_per_second * seconds,
          .full_rate_seconds = mfu_full * seconds,
          .full_rate_seconds_causal = mfu_causal * seconds,
          .stalled = stalled};
}

std::optional<Mfu> mfu_of_row(const io::MetricRow& row) {
  const bool of_peak = io::row_number(row, "mfu").has_value();
  const auto full = io::row_number(row, of_peak ? "mfu" : "of_product"),
             causal = io::row_number(row, of_peak ? "mfu_causal" : "of_product_causal");
  if (!full) return {};
  return Mfu{.full = *full, .causal = causal.value_or(0), .of_peak = of_peak};
}

Json work_json(const StepWork& work) {
  return {{"steps", work.steps},
          {"seconds", work.seconds},
          {"tokens", work.tokens},
          {"full_rate_seconds", work.full_rate_seconds},
          {"full_rate_seconds_causal", work.full_rate_seconds_causal},
          {"stalled", work.stalled}};
}

std::optional<StepRow> step_row(const io::MetricRow& row) {
  const auto number = [&](std::string_view name) { return io::row_number(row, name).value_or(0); };
  const Mfu mfu = mfu_of_row(row).value_or(Mfu());
  if (std::ranges::find(row, "loss", &io::MetricRow::value_type::first) == row.end() || number("seconds") <= 0) return std::nullopt;
  return StepRow{.time = number("time"),
                 .step = static_cast<std::int64_t>(number("step")),
                 .work = work_of_step(number("seconds"), number("tokens_per_second"), mfu.full, mfu.causal, number("stalled_seconds"))};
}

std::span<const GoodputPart> goodput_parts() { return parts; }

io::NamedNumbers seconds_of_parts(const Goodput& g) {
  io::NamedNumbers seconds;
  for (const GoodputPart& part : parts) seconds.emplace_back(part.name, g.*part.seconds);
  return seconds;
}

Json goodput_json(const Goodput& g) {
  Json json{{"share", g.share()}, {"wall", g.wall}};
  for (const GoodputPart& part : parts) json[part.name] = g.*part.seconds;
  json.update({{"starts", g.starts},
               {"done", g.done},
               {"tokens_per_second", g.tokens_per_second()},
               {"mfu", g.mfu()},
               {"mfu_causal", g.mfu_causal()},
               {"work", work_json(g.work)}});
  if (g.estimated) json["estimated"] = true;
  return json;
}

GoodputAccount::GoodputAccount(const io::Event& event) {
  const Json& sums = event.fields.at("goodput");
  for (const GoodputPart& part : parts) sums_.*part.seconds = number_of(sums, part.name);
  sums_.other = 0;  // what is left of the wall, as always
  sums_.work = work_of(sums.find("work"));
  sums_.done = integer_of(sums, "done"), sums_.starts = integer_of(sums, "starts");
  first_ = event.time - number_of(sums, "wall");
  seen_ = idle_until_ = event.time;
  trains_ = event.event != "start";
}

void GoodputAccount::add_starting(double until) {
  if (!trains_) sums_.starting += std::max(0.0, until - idle_until_);
}

void GoodputAccount::add_start(const io::Event& event) {
  const double launched = number_of(event.fields, "launched", event.time);
  const StepWork kept = work_of(event.fields.find("kept"));
  if (!begun()) {
    first_ = seen_ = launched, before_ = kept;
  } else {
    seen_ = std::max(seen_, number_of(event.fields, "last_row"));
    add_starting(seen_);
    sums_.queued += std::max(0.0, launched - seen_);
    // A start that made no step may not have cut what it found: then this one has found it again.
    const bool found_again = !trains_ && event.step + integer_of(event.fields, "lost_steps") > resumed_from_;
    if (found_again) sums_.lost = lost_before_;
    lost_before_ = sums_.lost;
    sums_.lost += number_of(event.fields, "lost_seconds");
    // Of before the history.
    if (kept.steps < before_.steps) sums_.lost = std::max(0.0, sums_.lost - (before_.seconds - kept.seconds)), before_ = kept;
  }
  sums_.work = kept, sums_.work -= before_;
  sums_.done = event.step;
  ++sums_.starts;
  idle_until_ = std::max(launched, seen_), trains_ = false, resumed_from_ = event.step;
}

void GoodputAccount::add(const io::Event& event) {
  if (event.event == "start") add_start(event);
  if (!begun()) return;
  if (event.event == "training") add_starting(event.time), trains_ = true;
  if (event.event == "save" || event.event == "save_weights")
    sums_.saving += std::max(0.0, number_of(event.fields, "stall_seconds") - number_of(event.fields, "in_steps"));
  if (event.event == "evaluation") sums_.evaluating += number_of(event.fields, "seconds");
  seen_ = std::max(seen_, event.time);
}

void GoodputAccount::add(const StepRow& row) {
  sums_.work += row.work;
  sums_.done = row.step;
  seen_ = std::max(seen_, row.time);
}

Goodput GoodputAccount::at(double time) const {
  GoodputAccount until = *this;
  const double end = std::max(time, seen_);
  until.add_starting(end);
  Goodput g = until.sums_;
  g.stalled = std::min(g.work.stalled, std::max(0.0, g.work.seconds));
  g.productive = g.work.seconds - g.stalled;
  const double sum = sum_of_parts(g);
  g.wall = std::max(end - first_, sum);  // clocks of nodes differ, and are put right while a run goes on
  g.other = g.wall - sum;
  return g;
}

double GoodputAccount::rest(double time) const {
  const Goodput g = at(time);
  return std::max(time, seen_) - first_ - (g.wall - g.other);
}

Goodput goodput(std::span<const io::Event> events, std::span<const StepRow> rows, double time) {
  GoodputAccount account;
  double known = 0;  // rows of later times are not in the account
  const auto sums = std::ranges::find_if(events | std::views::reverse, [](const io::Event& event) {
                      const Json* json = event.fields.find("goodput");
                      return json && json->is_object();
                    }).base();
  auto at = events.begin();
  if (sums != events.begin()) account = GoodputAccount(*(sums - 1)), known = (sums - 1)->time, at = sums;
  for (; at != events.end(); ++at) {
    account.add(*at);
    if (at->event == "start") known = at->time;
  }
  if (!account.begun()) return {};
  std::vector<StepRow> after;
  StepWork all;
  for (const StepRow& row : rows)
    if (row.time > known && row.step > (after.empty() ? account.sums_.done : after.back().step)) after.push_back(row), all += row.work;
  if (const std::int64_t missing = after.empty() ? 0 : after.front().step - account.sums_.done - 1; missing > 0) {
    account.sums_.work += times(all, static_cast<double>(missing) / static_cast<double>(after.size()), missing);
    account.sums_.estimated = true;
  }
  for (const StepRow& row : after) account.add(row);
  // What is estimated has taken no longer than there was.
  if (account.sums_.estimated) account.sums_.work.seconds -= std::max(0.0, -account.rest(time));
  return account.at(time);
}

}  // namespace tessera
