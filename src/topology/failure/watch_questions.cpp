#include "topology/failure/watch_questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"

namespace tessera {
namespace {

constexpr double question_seconds = 1.5;  // for the ranks' answers, and twice that for rank 0's

}  // namespace

void WatchQuestions::take_note(const std::string& text) {
  const int rank = std::atoi(text.c_str());
  if (rank <= 0 || std::cmp_greater_equal(rank, common_.members.size())) return;
  WatchMember& member = common_.members[static_cast<std::size_t>(rank)];
  member.note = Note::parse(std::string_view(text).substr(std::min(text.find('\n'), text.size() - 1) + 1));
  member.heard = now_seconds();
  member.asked = false;
}

void WatchQuestions::ask_all(int asker) {
  askers_.insert(asker);
  if (askers_.size() > 1) return;  // it is under way
  asked_at_ = now_seconds();
  for (std::size_t r = 1; r < common_.members.size(); ++r)
    common_.members[r].asked = common_.members[r].reached && !common_.members[r].ended;
  common_.send_down(MessageKind::tell, "");
}

void WatchQuestions::end_when_answered() {
  if (askers_.empty()) return;
  const bool open = std::ranges::any_of(common_.members, [](const WatchMember& m) { return m.asked && !m.ended; });
  if (open && now_seconds() - asked_at_ < question_seconds) return;
  const std::string text = print_notes(common_.notes({}));
  for (int asker : std::exchange(askers_, {})) common_.send_to(asker, MessageKind::notes, fmt::format("{}\n{}", asker, text));
  for (WatchMember& m : common_.members) m.asked = false;
}

std::string WatchQuestions::explain(const std::string& wait) {
  std::unique_lock lock(common_.mutex);
  if (common_.rank != 0 && !reached_) return "the state of the other ranks is unknown, because rank 0 could not be reached at the start";
  notes_.reset();
  common_.send_up(MessageKind::ask, std::to_string(common_.rank));
  if (common_.rank == 0) common_.wake();
  const auto limit = std::chrono::duration<double>(2 * question_seconds);
  answered_.wait_for(lock, limit, [this] { return notes_.has_value() || (common_.rank != 0 && common_.links.up.socket() < 0); });
  if (notes_) return explain_wait(parse_notes(*notes_), common_.plan.hosts, wait);
  const int parent = common_.plan.tree.parent(common_.rank);
  if (parent > 0)
    return fmt::format("rank 0 on {} does not answer through rank {} on {}: one of them is stopped, or its node hangs", common_.host(0),
                       parent, common_.host(parent));
  return fmt::format("rank 0 on {} does not answer: it is stopped, or its node hangs", common_.host(0));
}

void WatchQuestions::take_answer(const std::string& text) {
  notes_ = text;
  answered_.notify_all();
}

}  // namespace tessera
