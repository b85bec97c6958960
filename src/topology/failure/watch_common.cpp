#include "topology/failure/watch_common.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"

namespace tessera {

WatchCommon::WatchCommon(WatchPlan p, WatchLinks l, std::function<void(int from, const Message&)> deliver)
    : plan(std::move(p)),
      rank(plan.rank),
      links(std::move(l)),
      deliver_(std::move(deliver)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) fail(ExitCode::environment, "no eventfd for the watch over the ranks");
  if (rank == 0) members.resize(plan.hosts.size());
  for (WatchMember& member : members) member.heard = now_seconds();
}

WatchCommon::~WatchCommon() { ::close(wake_); }

void WatchCommon::wake() const {
  const std::uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) return;  // full: it is awake already
}

int WatchCommon::neighbour(std::size_t i) const { return i < links.down.size() ? plan.tree.children(rank)[i] : plan.tree.parent(rank); }

void WatchCommon::send_up(MessageKind kind, const std::string& text) {
  if (rank == 0)
    deliver_(0, {kind, text});
  else
    links.up.send(kind, text);
}

void WatchCommon::send_down(MessageKind kind, const std::string& text) {
  for (Link& child : links.down) child.send(kind, text);
}

void WatchCommon::send_to(int to, MessageKind kind, const std::string& text) {
  if (to == rank) return deliver_(rank, {kind, text});
  const std::vector<int>& children = plan.tree.children(rank);
  const auto found = std::ranges::lower_bound(children, plan.tree.way_down(rank, to));
  if (found != children.end()) links.down[static_cast<std::size_t>(found - children.begin())].send(kind, text);
}

std::vector<RankNote> WatchCommon::notes(std::optional<double> silent_after) const {
  std::vector<RankNote> all;
  for (std::size_t r = 0; r < members.size(); ++r) {
    const WatchMember& m = members[r];
    const double age = r == 0 ? 0 : now_seconds() - m.heard;
    const bool answers = r == 0 || (m.reached && (silent_after ? age < *silent_after : !m.asked));
    all.push_back({static_cast<int>(r), answers, m.ended, age, r == 0 ? whereabouts.note() : m.note});
  }
  for (RankNote& note : all)
    for (int above = plan.tree.parent(note.rank); above > 0 && !note.answered; above = plan.tree.parent(above))
      if (!all[static_cast<std::size_t>(above)].answered) note.behind = above;
  return all;
}

}  // namespace tessera
