#include "train/run/banner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.hpp"
#include "base/version.hpp"
#include "deck/ramp.hpp"
#include "model/record/flops.hpp"
#include "model/table/frozen.hpp"
#include "model/table/lora.hpp"
#include "optimizer/groups.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "schedule/plan/limits.hpp"
#include "schedule/plan/step_cost.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {

void print_banner(const BannerFacts& f) {
  const Deck& deck = f.parsed.deck;
  info("Tessera {}: {}", version(), describe(program_identity()));
  info("\n{}", print_deck(deck));
  for (const std::string& line : f.parsed.resolved) info("auto: {}", line);
  info("ranks       {}", f.ranks);
  info("mesh        {}; collectives by {}; lanes {}", f.mesh, f.path, f.lanes == LaneMode::threads ? "on threads" : "inline");
  info("machine     {} threads a rank; {}; {}", f.threads, f.binding, f.mfu_of);
  if (deck.run.device == RunDevice::cuda)
    for (const std::string& line : describe_gpu_environment()) info("environment {}", line);
  for (const std::string& line : f.attention) info("kernels     {}", line);
  info("model       {} parameters in {} units; {}", human_count(static_cast<double>(parameter_count(f.engine.layout().table))),
       f.engine.layout().units.size(), describe_flops(deck));
  if (const std::string lora = describe_lora(deck.model, f.engine.layout().table); !lora.empty()) info("lora        {}", lora);
  if (const std::string fp8 = describe_fp8(f.engine.layout().table, deck.precision); !fp8.empty()) info("fp8         {}", fp8);
  if (const std::string frozen = describe_frozen(f.engine.layout().table); !frozen.empty()) info("frozen      {}", frozen);
  for (const std::string& line : describe_groups(deck.optimizer, f.engine.layout().table)) info("optimizer   {}", line);
  info("batch       {}", describe_batch(deck, f.engine.data().size));
  for (const std::string& line : describe_ramp(deck, f.engine.data().size)) info("phases      {}", line);
  if (const Stage& stage = f.engine.planned().request.stage; stage.count > 1)
    info("pipeline    {} stages of {} layers, {}; at best {:.1f} % of a step is bubble", stage.count,
         fmt::join(layers_of_stages(deck, f.engine.planned().request.mesh), ", "), word_of(deck.pipeline.schedule),
         100 * even_bubble(deck.pipeline, stage.count, f.engine.accumulation()));
  info("recompute   {}",
       describe_recompute(f.engine.planned().request, recompute_gain(f.engine.planned().request, f.engine.schedule(), f.engine.plan())));
  if (const std::string how = f.engine.how_disks_work(); !how.empty()) info("disk        {}", how);
  info("memory      of this rank, planned and allocated\n{}", print_memory(f.engine.schedule(), f.engine.plan()));
  if (phases_of(deck) > 1)
    info("  all phases {:>10}   (what the largest needs of each tier is allocated; above is the first)",
         human_bytes(static_cast<double>(memory_bytes(f.engine.room()))));
}

}  // namespace tessera
