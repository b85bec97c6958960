#include "train/engine/run_value_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.hpp"
#include "train/engine/evaluation_record.hpp"

namespace tessera {
namespace {

/// The first few, and how many more.
std::string names_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 4;
  const std::string shown =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())), ", "));
  return names.size() <= most ? shown : fmt::format("{} and {} more", shown, names.size() - most);
}

}  // namespace

std::byte* RunValueState::address(const RunValue& value) const {
  const std::string& buffer = plan_.schedule.buffers[static_cast<std::size_t>(value.use.buffer)].name;
  return memory_.address(memory_.host_side(buffer), value.use.offset);
}

void RunValueState::write(const RunValue& value, double number) const {
  if (value.type == DType::f32)
    *reinterpret_cast<float*>(address(value)) = static_cast<float>(number);
  else
    *reinterpret_cast<std::int64_t*>(address(value)) = static_cast<std::int64_t>(number);
}

void RunValueState::begin() const {
  for (const RunValue& value : plan_.schedule.values)
    value.is_list() ? write(value, std::span<const float>{}) : write(value, value.initial);
}

void RunValueState::write(const RunValue& value, std::span<const float> numbers) const {
  const std::span<float> all(reinterpret_cast<float*>(address(value)), static_cast<std::size_t>(value.count));
  const std::size_t known = std::min(numbers.size(), all.size());
  std::ranges::copy(numbers.first(known), all.begin());
  std::ranges::fill(all.subspan(known), static_cast<float>(value.initial));
}

void RunValueState::write(const RunValue& value, const io::CheckpointValue& saved) const {
  if (value.is_list() == saved.list) value.is_list() ? write(value, saved.numbers) : write(value, saved.number);
}

void RunValueState::set(const std::vector<io::CheckpointValue>& values) const {
  for (const RunValue& value : plan_.schedule.values)
    if (const auto found = std::ranges::find(values, value.name, &io::CheckpointValue::name); found != values.end()) write(value, *found);
}

std::vector<io::CheckpointValue> RunValueState::saved() const {
  std::vector<io::CheckpointValue> values;
  for (const RunValue& value : plan_.schedule.values) {
    const std::byte* at = address(value);
    if (value.is_list()) {
      std::vector<float> numbers(reinterpret_cast<const float*>(at), reinterpret_cast<const float*>(at) + value.count);
      while (!numbers.empty() && numbers.back() == 0) numbers.pop_back();
      values.push_back({.name = value.name, .numbers = std::move(numbers), .list = true});
      continue;
    }
    const bool real = value.type == DType::f32;
    values.push_back({.name = value.name,
                      .integer = !real,
                      .number = real ? static_cast<double>(*reinterpret_cast<const float*>(at))
                                     : static_cast<double>(*reinterpret_cast<const std::int64_t*>(at))});
  }
  return values;
}

void RunValueState::load(const io::SavedState& from) const {
  begin();
  const io::CheckpointMeta& meta = from.meta();
  set(meta.values);
  std::vector<std::string> anew;
  for (const RunValue& value : plan_.schedule.values) {
    if (std::ranges::find(meta.values, value.name, &io::CheckpointValue::name) != meta.values.end()) continue;
    if (value.name == "applied_updates")  // older versions skipped none, and wrote none of these
      write(value, static_cast<double>(meta.step));
    else if (value.name == "sample_cursor")
      write(value, static_cast<double>(meta.sample_cursor));
    else if (value.name != "samples_left_out")
      anew.push_back(value.name);
  }
  std::vector<std::string> left;
  for (const io::CheckpointValue& saved : meta.values)
    if (std::ranges::find(plan_.schedule.values, saved.name, &RunValue::name) == plan_.schedule.values.end() &&
        !EvaluationRecord::names(saved.name))
      left.push_back(saved.name);
  if (plan_.request.rank == 0 && !left.empty())
    info("{} has values that this deck's run does not keep; they are dropped: {}", from.name(), names_of(left));
  if (plan_.request.rank == 0 && !anew.empty())
    info("{} lacks these values of the run, which start from their initial values: {}", from.name(), names_of(anew));
}

}  // namespace tessera
