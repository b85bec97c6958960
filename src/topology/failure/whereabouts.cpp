#include "topology/failure/whereabouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/clock.hpp"

namespace tessera {

std::string Note::print() const {
  std::string text = "work\t" + work + "\n";
  for (const auto& [what, seconds] : waits) text += fmt::format("wait\t{:.1f}\t{}\n", seconds, what);
  return text;
}

Note Note::parse(const std::string& text) {
  Note note;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("work\t")) note.work = line.substr(5);
    const std::size_t what = line.find('\t', 5);
    if (line.starts_with("wait\t") && what != line.npos) note.waits[line.substr(what + 1)] = std::strtod(line.c_str() + 5, nullptr);
  }
  return note;
}

std::string Note::describe() const {
  std::string text;
  for (const auto& [what, seconds] : waits) text += fmt::format("{}has waited {:.0f} s in {}", text.empty() ? "" : ", ", seconds, what);
  if (!work.empty()) text += fmt::format("{}runs {}", text.empty() ? "" : "; ", work);
  return text.empty() ? "runs no task and waits in no collective" : text;
}

void Whereabouts::begin_wait(const void* who, std::string what) {
  std::ranges::replace(what, '\n', ' ');
  std::lock_guard lock(mutex_);
  waits_[who] = {std::move(what), now_seconds()};
}

void Whereabouts::end_wait(const void* who) {
  std::lock_guard lock(mutex_);
  waits_.erase(who);
}

void Whereabouts::set_work(std::function<std::string()> describe) {
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
