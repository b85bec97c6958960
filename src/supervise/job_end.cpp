#include "supervise/job_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.hpp"

namespace tessera {
namespace {

constexpr std::int64_t longest_job_pause = 3600;  // seconds

/// The text up to a blank, which is taken from it.
std::string take_word(std::string_view& text) {
  const std::size_t blank = std::min(text.find(' '), text.size());
  const std::string word(text.substr(0, blank));
  text.remove_prefix(std::min(blank + 1, text.size()));
  return word;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr != text.data() ? std::optional(number) : std::nullopt;
}

/// What follows the words in the text.
std::optional<std::string_view> rest_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == text.npos ? std::nullopt : std::optional(text.substr(at + words.size()));
}

/// "start 1: status 76, saved 40", "start 1: lost n3 2 Killed", "left out n3", "given up: status 79"
void read_line(std::string_view words, JobRecord& record) {
  if (words.starts_with("left out ")) return void(record.left_out.emplace_back(words.substr(words.rfind(' ') + 1)));
  if (words.starts_with("given up") && !record.ends.empty()) record.ends.back().given_up = true;
  if (!words.starts_with("start ")) return;
  if (const auto status = rest_after(words, ": status ")) {
    const auto saved = rest_after(*status, ", saved ");
    record.ends.push_back({.status = number_of<int>(*status).value_or(0), .saved = saved ? number_of<std::int64_t>(*saved) : std::nullopt});
  } else if (auto lost = rest_after(words, ": lost "); lost && !record.ends.empty()) {
    LostPlace place{.node = take_word(*lost), .rank = take_word(*lost)};
    place.way = *lost;
    record.ends.back().lost = place;
  }
}

std::int64_t doubled(std::int64_t seconds, int times) {
  for (; times > 0 && seconds < longest_job_pause; --times) seconds *= 2;
  return std::min(seconds, longest_job_pause);
}

/// A run that is asked to stop waits too, where it was so before it had saved anything new.
std::int64_t pause_before(const JobRules& rules, bool lost, int tries) {
  if (lost) return doubled(rules.pause_seconds, std::max(tries - 1, 0));
  return tries > 1 ? doubled(rules.pause_seconds, tries - 2) : 0;
}

/// Nodes at which at least two starts ended, and that are not left out.
std::vector<std::string> suspects_of(const JobRecord& record) {
  std::vector<std::string> nodes;
  for (const StartEnd& end : record.ends) {
    if (!end.lost || end.lost->node.empty()) continue;
    const std::string& node = end.lost->node;
    const auto known = [&](const std::vector<std::string>& names) {
      return std::ranges::any_of(names, [&](const std::string& name) { return is_same_node(name, node); });
    };
    if (!known(nodes) && !known(record.left_out) && ends_starts(node, record.ends)) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

JobRecord read_record(std::string_view text) {
  JobRecord record;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    take_word(line), take_word(line);  // day and time
    read_line(line, record);
  }
  return record;
}

JobDecision decide_job(const JobRules& rules, const JobRecord& record) {
  using Next = JobDecision::Next;
  const StartEnd& end = record.ends.back();
  const std::string words = describe_end(end);
  const bool lost = end.status == static_cast<int>(ExitCode::lost);
  if (end.status == static_cast<int>(ExitCode::ok)) return {.next = Next::done, .words = words};
  if (end.status == ended_by_scheduler) return {.next = Next::ended, .status = end.status, .words = "the ranks were ended"};
  if (!lost && end.status != static_cast<int>(ExitCode::interrupted)) return {.next = Next::give_up, .status = end.status, .words = words};
  if (const auto hopeless = hopeless_after(record.ends, rules.tries))
    return {.next = Next::give_up, .status = hopeless->status, .words = words + "; " + hopeless->words};
  return {.next = Next::again,
          .status = end.status,
          .pause_seconds = pause_before(rules, lost, starts_without_progress(record.ends)),
          .suspects = lost ? suspects_of(record) : std::vector<std::string>{},
          .words = words};
}

std::string_view word_of(JobDecision::Next next) {
  constexpr std::string_view words[] = {"done", "ended", "again", "give-up"};
  return words[static_cast<std::size_t>(next)];
}

}  // namespace tessera
