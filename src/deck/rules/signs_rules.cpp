// What goes with an optimizer whose momenta meet as signs: 1-bit Adam.
#include <fmt/format.h>

#include <algorithm>

#include "deck/rules/draft.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

constexpr std::string_view type_key = "optimizer.type";

bool sends_signs(std::string_view type) { return optimizer_named(type).sends_signs; }

/// The axes along which ranks have other parts of the model than their neighbours.
void check_axes(Draft& draft) {
  const MeshKeys& mesh = draft.deck.mesh;
  for (const auto& [key, size] : {std::pair<std::string_view, std::int64_t>{"mesh.tp", mesh.tp},
                                  {"mesh.pp", mesh.pp},
                                  {"mesh.cp", mesh.cp},
                                  {"mesh.ep", mesh.ep},
                                  {"mesh.replicate", mesh.replicate}})
    if (draft.good({key}) && size > 1)
      draft.fault({key, type_key}, fmt::format("1-bit Adam exchanges momenta only over ranks of mesh.dp, which have all tensors whole, and "
                                               "{} is {}; set it to 1, or another optimizer.type",
                                               key, size));
}

void check_groups_of_signs(Draft& draft) {
  const OptimizerKeys& o = draft.deck.optimizer;
  if (!draft.good({type_key, "optimizer.groups"})) return;
  const bool named =
      std::ranges::any_of(o.groups, [&](const OptimizerGroup& group) { return group.update && sends_signs(group.update->type); });
  const bool others = std::ranges::any_of(o.groups, [](const OptimizerGroup& group) { return group.update.has_value(); });
  if (named)
    draft.fault({"optimizer.groups"},
                "has a group of 1-bit Adam, which works only for all tensors, because gradients stay on their ranks; set optimizer.type, "
                "or leave the group's type out");
  else if (others && sends_signs(o.type))
    draft.fault({"optimizer.groups", type_key},
                "has a group with another type, but 1-bit Adam exchanges no gradients after its warmup; leave the type out (learning_rate "
                "and weight_decay work)");
}

}  // namespace

void check_signs(Draft& draft) {
  check_groups_of_signs(draft);
  const Deck& d = draft.deck;
  if (!draft.good({type_key}) || !sends_signs(d.optimizer.type)) return;
  if (draft.good({"zero.stage"}) && d.zero.stage != 0)
    draft.fault(
        {"zero.stage", type_key},
        fmt::format("each rank keeps its own whole momenta with \"{}\"; set zero.stage = 0, or another optimizer.type", d.optimizer.type));
  if (draft.good({"zero.offload_optimizer.device"}) && d.zero.offload_optimizer.device != OffloadDevice::none)
    draft.fault({"zero.offload_optimizer.device", type_key},
                fmt::format("signs of momenta are exchanged where kernels run, with \"{}\"; set it to \"none\", or another optimizer.type",
                            d.optimizer.type));
  if (draft.good({"precision.compute"}) && d.precision.scales_loss())
    draft.fault(
        {"precision.compute", type_key},
        "optimizer.freeze_step counts steps, but fp16 skips the update of some; set it to \"bf16\" or \"fp32\", or another optimizer.type");
  if (draft.good({"run.reproducible", "mesh.dp"}) && d.run.reproducible && d.mesh.dp > 1)
    draft.fault({"run.reproducible", type_key}, fmt::format("each of {} ranks rounds its own momenta to signs, so updates depend on the "
                                                            "number of ranks; set run.reproducible = false, or another optimizer.type",
                                                            d.mesh.dp));
  check_axes(draft);
}

}  // namespace tessera
