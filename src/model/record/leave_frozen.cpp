#include "model/record/leave_frozen.hpp"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

bool trains(const Segment& segment) {
  return std::ranges::any_of(segment.values, [](const ValueInfo& v) { return v.kind == ValueKind::weight_gradient; });
}

/// Gradients of frozen tensors become memory of the pass.
bool drop_gradients(Segment& segment, const Layout& layout) {
  bool any = false;
  for (std::size_t id = 0; id < segment.values.size(); ++id) {
    ValueInfo& v = segment.values[id];
    if (v.kind != ValueKind::weight_gradient) continue;
    const TensorRef place = layout.find(v.name);
    if (!layout.units[static_cast<std::size_t>(place.unit)].frozen) continue;
    v = {.kind = ValueKind::activation, .name = "gradient of " + v.name, .bytes = 4 * place.elements};
    any = true;
    // No sum goes on in it.
    for (Call& call : segment.backward)
      for (Touch& touch : call.touches)
        if (index(touch.value) == id) touch.access = Access::write;
  }
  return any;
}

/// Leaves the calls of the backward text that something comes of: gradients, sums of the step, with `goes_on` the gradient of the stream,
/// and what those read. Calls that write a part of a value each are all taken to be needed for it.
void drop_idle_calls(Segment& segment, bool goes_on) {
  std::vector<bool> needed(segment.values.size(), false);
  for (std::size_t v = 0; v < needed.size(); ++v) {
    const ValueKind kind = segment.values[v].kind;
    needed[v] = kind == ValueKind::weight_gradient || kind == ValueKind::scalars || kind == ValueKind::router_totals ||
                kind == ValueKind::group_losses || kind == ValueKind::preference_totals || (goes_on && kind == ValueKind::d_stream);
  }
  std::vector<Call> left;
  for (auto call = segment.backward.rbegin(); call != segment.backward.rend(); ++call) {
    if (std::ranges::none_of(call->touches,
                             [&](const Touch& t) { return needed[index(t.value)] && (t.access != Access::read || call->makes_nothing()); }))
      continue;
    for (const Touch& touch : call->touches)
      if (touch.access != Access::write) needed[index(touch.value)] = true;
    left.push_back(std::move(*call));
  }
  segment.backward.assign(std::make_move_iterator(left.rbegin()), std::make_move_iterator(left.rend()));
}

}  // namespace

void leave_frozen(std::vector<Segment>& segments, const Layout& layout, std::size_t bottom) {
  if (std::ranges::none_of(layout.units, [](const Unit& unit) { return unit.frozen && unit.tower.empty(); })) return;
  std::vector<bool> changed;
  for (Segment& segment : segments) changed.push_back(drop_gradients(segment, layout));
  std::size_t lowest = 0;
  while (lowest < bottom && !trains(segments[lowest])) ++lowest;
  const bool ends = lowest < bottom;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (ends && s < lowest)
      segments[s].backward.clear();
    else if (changed[s] || (ends && s == lowest))
      drop_idle_calls(segments[s], !(ends && s == lowest));
  }
}

}  // namespace tessera
