// Losses and questions: what ranks say to each other when something is wrong.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "topology/failure/watch.hpp"

namespace tessera {
namespace {

constexpr double question_seconds = 1.5;  // for the ranks' answers, and twice that for rank 0's

}  // namespace

void Watch::tell_lost(int rank, int from) {
  // Before others learn of it and end the run.
  if (rank_ == 0 && rank > 0 && lost_ < 0)
    if (const Member& member = members_[static_cast<std::size_t>(rank)]; member.heard > 0)
      log_line(LogLevel::warning, fmt::format("rank {} on {} was lost {:.1f} s after its last report: {}", rank, host(rank),
                                              now_seconds() - member.heard, member.note.describe()));
  int none = -1;
  if (!lost_.compare_exchange_strong(none, rank)) return;  // the first one: others may have ended over it
  for (std::size_t i = 0; i < link_count(); ++i)
    if (neighbour(i) != from) link(i).send(MessageKind::lost, std::to_string(rank));
}

void Watch::take_note(const std::string& text) {
  const int rank = std::atoi(text.c_str());
  if (rank <= 0 || std::cmp_greater_equal(rank, members_.size())) return;
  Member& member = members_[static_cast<std::size_t>(rank)];
  member.note = Note::parse(std::string_view(text).substr(std::min(text.find('\n'), text.size() - 1) + 1));
  member.heard = now_seconds();
  member.asked = false;
}

void Watch::ask_all(int asker) {
  askers_.insert(asker);
  if (askers_.size() > 1) return;  // it is under way
  asked_at_ = now_seconds();
  for (std::size_t r = 1; r < members_.size(); ++r) members_[r].asked = members_[r].reached && !members_[r].ended;
  send_down(MessageKind::tell, "");
}

std::vector<RankNote> Watch::notes(std::optional<double> silent_after) const {
  std::vector<RankNote> all;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Member& m = members_[r];
    const double age = r == 0 ? 0 : now_seconds() - m.heard;
    const bool answers = r == 0 || (m.reached && (silent_after ? age < *silent_after : !m.asked));
    all.push_back({static_cast<int>(r), answers, m.ended, age, r == 0 ? whereabouts_.note() : m.note});
  }
  for (RankNote& note : all)
    for (int above = plan_.tree.parent(note.rank); above > 0 && !note.answered; above = plan_.tree.parent(above))
      if (!all[static_cast<std::size_t>(above)].answered) note.behind = above;
  return all;
}

void Watch::end_question_when_answered() {
  if (askers_.empty()) return;
  const bool open = std::ranges::any_of(members_, [](const Member& m) { return m.asked && !m.ended; });
  if (open && now_seconds() - asked_at_ < question_seconds) return;
  const std::string text = print_notes(notes({}));
  for (int asker : std::exchange(askers_, {})) send_to(asker, MessageKind::notes, fmt::format("{}\n{}", asker, text));
  for (Member& m : members_) m.asked = false;
}

std::string Watch::explain(const std::string& wait) {
  std::unique_lock lock(mutex_);
  if (rank_ != 0 && !reached_) return "the state of the other ranks is unknown, because rank 0 could not be reached at the start";
  notes_.reset();
  send_up(MessageKind::ask, std::to_string(rank_));
  if (rank_ == 0) wake();
  const auto limit = std::chrono::duration<double>(2 * question_seconds);
  answered_.wait_for(lock, limit, [this] { return notes_.has_value() || (rank_ != 0 && links_.up.socket() < 0); });
  if (notes_) return explain_wait(parse_notes(*notes_), plan_.hosts, wait);
  const int parent = plan_.tree.parent(rank_);
  if (parent > 0)
    return fmt::format("rank 0 on {} does not answer through rank {} on {}: one of them is stopped, or its node hangs", host(0), parent,
                       host(parent));
  return fmt::format("rank 0 on {} does not answer: it is stopped, or its node hangs", host(0));
}

}  // namespace tessera
