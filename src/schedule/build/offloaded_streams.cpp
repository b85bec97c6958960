#include "schedule/build/offloaded_streams.hpp"

#include <fmt/format.h>

#include <set>

#include "schedule/build/offloaded_state.hpp"

namespace tessera {
namespace {

/// Passes between the last forward use of a stream and its next use above which it is offloaded, and passes before that use at which it
/// comes back: a layer's.
constexpr int least_absence = 4, ahead = 2;

}  // namespace

void OffloadedStreams::plan(const Events& events) {
  offloaded_.clear();
  if (out_.frame.deck.activation.offload == OffloadDevice::none) return;
  std::map<int, int> last_forward;  // event by stream
  std::set<int> back;               // streams whose first use in the backward pass has come
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    const SegmentPass& p = passes_.at(events[index(e)]);
    for (const Operand& o : p.operands) {
      const ValueKind kind = passes_.value(p, o).kind;
      if (kind != ValueKind::stream_in && kind != ValueKind::stream_out) continue;
      const SegmentNumber leaves = kind == ValueKind::stream_in ? p.segment.before() : p.segment;
      const int stream = passes_.stream(leaves);
      if (p.kind == PassKind::forward)
        last_forward[stream] = e;
      else if (const int from = last_forward.at(stream);
               back.insert(stream).second && !step_.stream_dropped(leaves) && e - from >= least_absence)
        offloaded_[stream] = {from, e - ahead};
    }
  }
}

void OffloadedStreams::emit_copies(int event, bool leave) {
  for (const auto& [stream, absence] : offloaded_) {
    if ((leave ? absence.leaves_after : absence.returns_before) != event) continue;
    const std::string here = fmt::format("stream.{}", stream);
    const std::int64_t bytes = out_.buffers[out_.buffers.named(here)].bytes;
    const bool on_disk = out_.frame.deck.activation.offload == OffloadDevice::nvme;
    const Use away =
        out_.buffers.first_of("away." + here, Category::activations, on_disk ? Tier::nvme : out_.frame.below_tier, bytes, Access::write);
    const Use passing = on_disk ? out_.buffers.staging("streams", bytes, Access::write) : away;
    if (!leave && on_disk) emit_disk(out_, "read", here, {{passing, away}});
    const Use back = leave ? out_.buffers.absent()
                           : out_.buffers.first_of(returned(stream), Category::activations, out_.frame.local_tier, bytes, Access::write);
    const Use from = leave ? out_.buffers.whole(here, Access::read) : Use{passing.buffer, 0, bytes, Access::read};
    out_.emit({.name = fmt::format("{} {}", leave ? "download" : "upload", here),
               .op = Copy{},
               .lane = leave ? Lane::download : Lane::upload,
               .uses = {leave ? passing : back, from},
               .bytes_moved = static_cast<double>(bytes)});
    if (leave && on_disk) emit_disk(out_, "write", here, {{away, passing}});
  }
}

}  // namespace tessera
