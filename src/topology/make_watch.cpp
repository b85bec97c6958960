#include "topology/make_watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.hpp"

namespace tessera {
namespace {

constexpr double link_seconds = 15;  // for all ranks to be connected

struct LinkOffer {
  ProcessName process;
  std::string text;  ///< LinkListener's; empty of a rank that has nobody below it, or cannot listen
};

std::string print_offer(const LinkOffer& offer) {
  return fmt::format("{} {} {}\n{}", offer.process.pid, offer.process.namespace_device, offer.process.namespace_inode, offer.text);
}

LinkOffer parse_offer(const std::string& text) {
  LinkOffer offer;
  const std::size_t end = std::min(text.find('\n'), text.size() - 1);
  std::istringstream(text.substr(0, end)) >> offer.process.pid >> offer.process.namespace_device >> offer.process.namespace_inode;
  offer.text = text.substr(end + 1);
  return offer;
}

}  // namespace

WatchNetwork make_links(const WatchTree& tree, int rank, const std::vector<int>& leaders,
                        const std::function<std::vector<std::string>(const std::string&)>& gather) {
  const std::vector<int>& below = tree.children(rank);
  const auto node_of = [&](int r) { return leaders[static_cast<std::size_t>(r)]; };
  std::optional<LinkListener> listener;
  std::string reason;
  if (!below.empty()) try {
      listener.emplace(std::ranges::all_of(below, [&](int child) { return node_of(child) == node_of(rank); }));
    } catch (const Error& error) {
      reason = error.what();
    }
  const std::vector<std::string> offers = gather(print_offer({ProcessName::own(), listener ? listener->offer() : ""}));
  WatchNetwork made;
  for (const std::string& offer : offers) made.processes.push_back(parse_offer(offer).process);
  if (rank != 0)
    made.links.up = connect_link(parse_offer(offers[static_cast<std::size_t>(tree.parent(rank))]).text, rank, link_seconds, reason);
  if (listener)
    made.links.down = listener->accept_all(below, link_seconds);
  else
    made.links.down.resize(below.size());
  listener.reset();
  // Of each rank the ranks below that have not come, and its own reason.
  std::vector<int> missing;
  for (std::size_t i = 0; i < below.size(); ++i)
    if (made.links.down[i].socket() < 0) missing.push_back(below[i]);
  const std::vector<std::string> said = gather(fmt::format("{}\n{}", fmt::join(missing, " "), reason));
  std::vector<bool> reached(said.size(), true);
  for (const std::string& text : said) {
    std::istringstream ranks(text.substr(0, text.find('\n')));
    for (int lost = 0; ranks >> lost;) reached[static_cast<std::size_t>(lost)] = false;
  }
  for (int r = 1; r < tree.ranks(); ++r) {
    bool heard = true;
    for (int at = r; at > 0; at = tree.parent(at)) heard = heard && reached[static_cast<std::size_t>(at)];
    if (!heard) made.unreached.push_back(r);
  }
  for (std::size_t r = 0; r < said.size() && made.reason.empty(); ++r) made.reason = said[r].substr(said[r].find('\n') + 1);
  return made;
}

std::unique_ptr<Watch> make_watch(const World& world, std::vector<std::string> hosts, std::vector<int> leaders) {
  WatchPlan plan{.rank = world.rank(), .hosts = std::move(hosts), .leaders = std::move(leaders), .processes = {}, .tree = {}};
  plan.tree = WatchTree(plan.leaders);
  WatchNetwork made = make_links(plan.tree, plan.rank, plan.leaders, [&](const std::string& mine) { return world.gather_text(mine); });
  plan.processes = std::move(made.processes);
  if (!made.unreached.empty() && plan.rank == 0)
    warning(
        "{} cannot be reached over TCP{}: their loss is noticed only when a collective waits too long, and the watchdog does not see them",
        name_ranks(made.unreached, plan.hosts), made.reason.empty() ? "" : fmt::format(" ({})", made.reason));
  return std::make_unique<Watch>(std::move(plan), std::move(made.links), std::move(made.unreached));
}

}  // namespace tessera
