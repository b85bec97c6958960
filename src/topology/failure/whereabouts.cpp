#include "topology/failure/whereabouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/clock.hpp"

namespace tessera {
namespace {

/// Cuts the next field off a line.
std::string_view take(std::string_view& line) {
  const std::size_t end = std::min(line.find('\t'), line.size());
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return field;
}

template <class T>
T number(std::string_view field) {
  T value{};
  std::from_chars(field.data(), field.data() + field.size(), value);
  return value;
}

std::string in_one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\t') c = ' ';
  return text;
}

}  // namespace

std::string Note::print() const {
  std::string text = fmt::format("work\t{}\t{:.2f}\t{}\t{}\n", work.step, work.still, work.program, in_one_line(work.beside));
  for (const TaskAt& at : work.tasks) text += fmt::format("task\t{}\t{:.1f}\t{}\n", at.lane, at.seconds, in_one_line(at.task));
  for (const auto& [what, seconds] : waits) text += fmt::format("wait\t{:.1f}\t{}\n", seconds, what);
  if (work.spent.steps > 0) text += fmt::format("steps\t{}\t{}\n", work.spent.role, work.spent.steps);
  for (const auto& [kind, seconds] : work.spent.seconds) text += fmt::format("spent\t{:.6f}\t{}\n", seconds, kind);
  return text;
}

Note Note::parse(std::string_view text) {
  Note note;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view what = take(line);
    if (what == "work") {
      note.work.step = number<std::int64_t>(take(line));
      note.work.still = number<double>(take(line));
      note.work.program = take(line);
      note.work.beside = line;
    } else if (what == "task") {
      const std::string_view lane = take(line);
      const double seconds = number<double>(take(line));
      note.work.tasks.push_back({std::string(lane), std::string(line), seconds});
    } else if (what == "wait") {
      const double seconds = number<double>(take(line));
      note.waits[std::string(line)] = seconds;
    } else if (what == "steps") {
      note.work.spent.role = number<int>(take(line));
      note.work.spent.steps = number<std::int64_t>(take(line));
    } else if (what == "spent") {
      const double seconds = number<double>(take(line));
      note.work.spent.seconds[std::string(line)] = seconds;
    }
  }
  return note;
}

std::string Note::describe() const {
  std::string text, runs;
  for (const auto& [what, seconds] : waits) text += fmt::format("{}has waited {:.0f} s in {}", text.empty() ? "" : ", ", seconds, what);
  for (const TaskAt& at : work.tasks)
    runs += fmt::format("{}{}: `{}` for {:.0f} s", runs.empty() ? "" : ", ", at.lane, at.task, at.seconds);
  if (!work.beside.empty()) runs += fmt::format("{}{}", runs.empty() ? "" : "; ", work.beside);
  if (!runs.empty()) text += fmt::format("{}runs {}", text.empty() ? "" : "; ", runs);
  if (text.empty()) return "runs no task and waits in no collective";
  return work.step > 0 ? fmt::format("{} (step {})", text, work.step) : text;
}

void Whereabouts::begin_wait(const void* who, std::string what) {
  what = in_one_line(std::move(what));
  std::lock_guard lock(mutex_);
  waits_[who] = {std::move(what), now_seconds()};
}

void Whereabouts::end_wait(const void* who) {
  std::lock_guard lock(mutex_);
  waits_.erase(who);
}

void Whereabouts::set_work(std::function<RankWork()> describe) {
  std::lock_guard lock(mutex_);
  work_ = std::move(describe);
}

Note Whereabouts::note() const {
  std::lock_guard lock(mutex_);
  Note note;
  for (const auto& [who, wait] : waits_) note.waits[wait.what] = now_seconds() - wait.begin;
  if (work_) note.work = work_();
  return note;
}

}  // namespace tessera
