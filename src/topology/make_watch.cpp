#include "topology/make_watch.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/log.hpp"
#include "topology/failure/link.hpp"

namespace tessera {
namespace {

constexpr double link_seconds = 15;  // for all ranks to be connected

}  // namespace

std::unique_ptr<Watch> make_watch(const World& world, std::vector<std::string> hosts) {
  std::optional<LinkListener> listener;
  std::string offer, reason;
  if (world.rank() == 0) try {
      listener.emplace(world.place().nodes == 1);
      offer = listener->offer();
    } catch (const Error& error) {
      reason = error.what();
    }
  offer = world.broadcast_text(offer);
  std::vector<Link> links;
  if (listener)
    links = listener->accept_all(world.ranks(), link_seconds);
  else if (world.rank() == 0)
    links.resize(static_cast<std::size_t>(world.ranks()));
  else
    links.push_back(offer.empty() ? Link() : connect_link(offer, world.rank(), link_seconds, reason));
  listener.reset();
  const std::vector<std::string> reasons = world.gather_text(reason);
  std::vector<int> unreached;
  for (int r = 1; r < world.ranks() && world.rank() == 0; ++r)
    if (links[static_cast<std::size_t>(r)].socket() < 0) unreached.push_back(r);
  if (!unreached.empty()) {
    const std::string& why = reasons[0].empty() ? reasons[static_cast<std::size_t>(unreached.front())] : reasons[0];
    warning(
        "{} cannot be reached over TCP{}: their loss is noticed when a collective waits too long, and who keeps the others waiting is not "
        "said of them",
        name_ranks(unreached, hosts), why.empty() ? "" : fmt::format(" ({})", why));
  }
  return std::make_unique<Watch>(world.rank(), std::move(hosts), std::move(links));
}

}  // namespace tessera
