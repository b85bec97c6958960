#include "schedule/trace/kernel_profile.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/plan/memory_passes.hpp"

namespace tessera {
namespace {

/// Rows of less of a step stand together.
constexpr double least_row = 0.005;

double gain_of(const KernelRow& row, const FloorRates& rates) { return row.seconds - row.floor(rates); }

/// "linear layers.3.mlp.w_down" is "linear mlp.w_down": of all layers together.
std::string of_all_layers(const std::string& name) {
  constexpr std::string_view layers = " layers.";
  const std::size_t begin = name.find(layers);
  const std::size_t end = begin == std::string::npos ? begin : name.find('.', begin + layers.size());
  return end == std::string::npos ? name : name.substr(0, begin + 1) + name.substr(end + 1);
}

std::string rate_text(const KernelRow& row) {
  if (row.seconds <= 0) return "";
  if (row.flops > 0) return fmt::format("{:.1f} GFLOP/s", 1e-9 * row.flops / row.seconds);
  return fmt::format("{:.2f} GB/s", 1e-9 * row.bytes / row.seconds);
}

}  // namespace

KernelRow& KernelProfile::row(std::string_view name) {
  const auto found = std::ranges::find(rows_, name, &KernelRow::name);
  return found != rows_.end() ? *found : rows_.emplace_back(KernelRow{.name = std::string(name)});
}

void KernelProfile::add(const Schedule& schedule, const CallSeconds& calls, const Timeline& timeline, double seconds) {
  ++steps_, seconds_ += seconds;
  std::vector<std::int64_t> runs(schedule.passes.size(), 0);
  for (const TaskTime& task : timeline.lanes[static_cast<std::size_t>(Lane::compute)]) {
    if (const auto* pass = std::get_if<RunPass>(&task.task->op)) {
      ++runs[static_cast<std::size_t>(pass->pass)];
    } else if (const std::optional<MemoryPass> pass_over = memory_pass_of(*task.task, schedule)) {
      KernelRow& of =
          row(pass_over->kernel == "stream" ? std::string_view(task.task->name).substr(0, task.task->name.find(' ')) : pass_over->kernel);
      ++of.calls, of.seconds += task.end - task.begin, of.bytes += pass_over->bytes;
    }
  }
  for (std::size_t p = 0; p < runs.size(); ++p) {
    if (runs[p] == 0) continue;
    const SegmentPass& pass = schedule.passes[p];
    const Segment& segment = schedule.segment_of(pass);
    for (std::size_t i = 0; i < pass.calls.size(); ++i) {
      const Call& call = call_of(segment, pass.calls[i]);
      if (!call.run) continue;
      KernelRow& of = row(of_all_layers(call.name));
      of.calls += runs[p], of.seconds += calls[p][i];
      if (const auto* memory = std::get_if<MemoryWork>(&call.work))
        of.bytes += static_cast<double>(runs[p]) * memory->bytes;
      else
        of.flops += static_cast<double>(runs[p]) * call.flops;
    }
  }
}

std::vector<KernelRow> KernelProfile::rows(const FloorRates& rates) const {
  std::vector<KernelRow> sorted = rows_;
  std::ranges::stable_sort(sorted, std::greater{}, [&](const KernelRow& row) { return gain_of(row, rates); });
  return sorted;
}

std::string KernelProfile::print(const FloorRates& rates) const {
  const auto steps = static_cast<double>(steps_);
  std::string text =
      fmt::format("\n  {:32} {:>8} {:>12} {:>8} {:>12} {:>8} {:>16}", "", "calls", "time", "of step", "floor", "share", "rate");
  const auto line = [&](const KernelRow& row, const std::string& rate) {
    text += fmt::format("\n  {:32} {:>8} {:>9.3f} ms {:>6.1f} % {:>9.3f} ms {:>6.1f} % {:>16}", row.name,
                        row.calls > 0 ? fmt::format("{:.0f}", static_cast<double>(row.calls) / steps) : "", 1e3 * row.seconds / steps,
                        100 * row.seconds / seconds_, 1e3 * row.floor(rates) / steps,
                        row.seconds > 0 ? 100 * row.floor(rates) / row.seconds : 0, rate);
  };
  KernelRow others{.name = "others"}, all{.name = "all kernels"};
  double floor_of_others = 0, floor_of_all = 0;
  for (const KernelRow& row : rows(rates)) {
    all.seconds += row.seconds, floor_of_all += row.floor(rates);
    if (row.seconds >= least_row * seconds_)
      line(row, rate_text(row));
    else
      others.calls += row.calls, others.seconds += row.seconds, floor_of_others += row.floor(rates);
  }
  others.bytes = floor_of_others * rates.bytes, all.bytes = floor_of_all * rates.bytes;
  if (others.calls > 0) line(others, "");
  line(all, "");
  text += fmt::format("\n  {:32} {:>8} {:>9.3f} ms {:>6.1f} %   communication, waits, batches, what lies between kernels", "the rest", "",
                      1e3 * (seconds_ - all.seconds) / steps, 100 * (1 - all.seconds / seconds_));
  text += fmt::format("\n  {:32} {:>8} {:>9.3f} ms  100.0 % {:>9.3f} ms {:>6.1f} %", "step", "", 1e3 * seconds_ / steps,
                      1e3 * floor_of_all / steps, 100 * floor_of_all / seconds_);
  return text;
}

Json KernelProfile::json(const FloorRates& rates) const {
  const auto steps = static_cast<double>(steps_);
  Json kernels = Json::array();
  for (const KernelRow& row : rows(rates))
    kernels.push_back({{"name", row.name},
                       {"calls", static_cast<double>(row.calls) / steps},
                       {"seconds", row.seconds / steps},
                       {"flops", row.flops / steps},
                       {"bytes", row.bytes / steps},
                       {"floor_seconds", row.floor(rates) / steps}});
  return {{"steps", steps_},
          {"seconds", seconds_ / steps},
          {"product_flops_per_second", rates.flops},
          {"stream_bytes_per_second", rates.bytes},
          {"kernels", std::move(kernels)}};
}

}  // namespace tessera
