// A grid of real schedules: stages, ranks, types, limits. What the tests of memory plan, order and executor run over.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "../model/random_models.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/plan/memory_plan.hpp"

namespace tessera::test {

struct Setting {
  std::string name;
  std::vector<std::string> overrides;
  int rank = 0, ranks = 1;
  std::int64_t evaluation = 0;
  bool training = true;
  TextSize text = {};
  int tp = 1, cp = 1, pp = 1, ep = 1;  ///< of the ranks
};

inline BuildRequest request_of(const Setting& s) {
  const Mesh mesh{{s.pp, 1, s.ranks / (s.tp * s.cp * s.pp * s.ep), s.cp, s.ep, s.tp}};
  BuildRequest request = request_for(tiny_deck(s.overrides, s.ranks), mesh, s.rank, s.training ? Purpose::training : Purpose::evaluation);
  request.evaluation_micro_batches = s.evaluation;
  request.text = s.text;
  return request;
}

/// How often all ranks together update each element of each tensor, in the order of the table.
inline std::vector<std::vector<int>> updates_of(Setting s) {
  std::vector<std::vector<int>> count;
  for (const Parameter& p : request_of(s).layout.table) count.emplace_back(static_cast<std::size_t>(p.shape.elements()), 0);
  for (s.rank = 0; s.rank < s.ranks; ++s.rank) {
    const BuildRequest mine = request_of(s);
    const Schedule schedule = build_schedule(mine);
    const Program& program = schedule.updates_late() ? schedule.program(ProgramKind::update) : schedule.program(ProgramKind::train);
    for (const auto& phase : program.phases)
      for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
        if (const auto* step = std::get_if<OptimizerStep>(&task.op))
          for (const Piece& piece : step->pieces) {
            const Unit& unit = *std::ranges::find_if(mine.layout.units, [&](const Unit& u) { return task.name == "optimizer " + u.name; });
            for_each_run(mine.layout, unit, piece, [&](const NaturalRun& run) {
              for (std::int64_t i = 0; i < run.elements; ++i)
                ++count[static_cast<std::size_t>(piece.parameter)][static_cast<std::size_t>(run.tensor_offset + i)];
            });
          }
  }
  return count;
}

inline Schedule schedule_of(const Setting& s) { return build_schedule(request_of(s)); }

/// Stages 0-3 x ranks 1-5 x fp32 and bf16 x reproducible or not, with limits that bite and limits that do not.
inline std::vector<Setting> settings() {
  const std::vector<std::string> tight = {
      "zero.prefetch_bucket_size=12000", "zero.max_live_parameters=16000",      "zero.max_reuse_distance=0", "zero.reduce_bucket_size=3000",
      "zero.allgather_bucket_size=3000", "zero.param_persistence_threshold=40", "zero.sub_group_size=1024"};
  const std::vector<std::string> wide = {"zero.prefetch_bucket_size=50000000", "zero.max_reuse_distance=0",
                                         "zero.param_persistence_threshold=1000"};
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (int ranks = 1; ranks <= 5; ++ranks)
      for (bool bf16 : {false, true})
        for (bool reproducible : {false, true}) {
          const bool narrow = (stage + ranks + bf16) % 2 == 0;
          Setting s{.name = fmt::format("stage{}_ranks{}_{}{}{}", stage, ranks, bf16 ? "bf16" : "fp32", reproducible ? "_reproducible" : "",
                                        narrow ? "_tight" : ""),
                    .overrides = narrow ? tight : wide,
                    .rank = ranks - 1,
                    .ranks = ranks,
                    .evaluation = ranks % 2 ? 3 : 0};
          s.overrides.push_back(fmt::format("zero.stage={}", stage));
          s.overrides.push_back(fmt::format("precision.compute={}", bf16 ? "bf16" : "fp32"));
          s.overrides.push_back(fmt::format("run.reproducible={}", reproducible));
          // One, two, three and many micro-batches a rank: each builds its sections in another way.
          const int micros = (stage + 2 * reproducible + bf16) % 4 + 1;
          s.overrides.push_back(fmt::format("batch.global={}", 2 * ranks * micros));
          if (micros == 1 && ranks % 2) s.overrides.push_back("precision.gradients=bf16");
          const bool offloads = stage > 0 && (stage + ranks + reproducible) % 2, parameters = offloads && stage == 3 && bf16 != (ranks > 2);
          const auto tier = [](bool disk) { return disk ? "nvme" : "host"; };
          s.overrides.push_back("zero.offload_optimizer.nvme_path=/tmp");
          if (offloads) s.overrides.push_back(fmt::format("zero.offload_optimizer.device={}", tier(ranks % 2)));
          if (parameters) s.overrides.push_back(fmt::format("zero.offload_param.device={}", tier(ranks % 3 == 0)));
          if (offloads && !parameters && bf16) s.overrides.push_back("zero.offload_optimizer.ratio=0.5");
          if ((stage + ranks) % 3 == 0) s.overrides.push_back(fmt::format("activation.offload={}", tier(stage % 2)));
          if (reproducible && !(offloads && ranks % 2) && !(parameters && ranks % 3 == 0)) s.overrides.push_back("checkpoint.async=true");
          if (ranks % 2 == 0) s.overrides.push_back("zero.overlap_comm=true");
          if (ranks == 2) s.overrides.push_back("model.tied=true");
          if (ranks == 3) s.overrides.push_back("model.qk_norm=true");
          if (ranks == 4) s.overrides.push_back("model.qkv_bias=true");
          if (ranks == 5) s.overrides.push_back("model.layers=4");
          s.overrides.push_back(fmt::format("activation.recompute={}",
                                            std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + ranks) % 3]));
          if ((stage + ranks) % 3 == 1) s.overrides.push_back(fmt::format("activation.every={}", 1 + ranks % 3));
          all.push_back(s);
        }
  all.push_back({.name = "inference", .overrides = {}, .evaluation = 2, .training = false});
  all.push_back({.name = "text", .overrides = {"model.qk_norm=true"}, .training = false, .text = {.prompt = 5, .capacity = 9}});
  all.push_back({.name = "text_beside_training",
                 .overrides = {"zero.stage=3", "zero.param_persistence_threshold=0", "precision.compute=bf16"},
                 .rank = 1,
                 .ranks = 2,
                 .evaluation = 2,
                 .text = {.prompt = 20, .capacity = 30, .likeliest = true}});
  return all;
}

/// Tensor-parallel ranks over all stages: alone and with data-parallel ones, a vocabulary that they share unevenly, offload, recompute, key
/// heads for all and for fewer.
inline std::vector<Setting> tensor_settings() {
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const int dp : {1, 2, 3})
      for (const bool reproducible : {false, true}) {
        Setting s{.name = fmt::format("stage{}_tp2_dp{}{}", stage, dp, reproducible ? "_reproducible" : ""),
                  .overrides = {fmt::format("zero.stage={}", stage), fmt::format("run.reproducible={}", reproducible),
                                fmt::format("batch.global={}", 2 * dp * (1 + stage)), "mesh.tp=2", "zero.param_persistence_threshold=100",
                                fmt::format("precision.compute={}", (stage + dp) % 2 ? "fp32" : "bf16"),
                                fmt::format("activation.recompute={}",
                                            std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + dp) % 3])},
                  .rank = 2 * dp - 1,
                  .ranks = 2 * dp,
                  .evaluation = dp == 2 ? 3 : 0,
                  .tp = 2};
        if (dp == 2) s.overrides.insert(s.overrides.end(), {"model.tied=true", "zero.overlap_comm=true"});
        if (dp == 3) s.overrides.insert(s.overrides.end(), {"model.qk_norm=true", "model.qkv_bias=true"});
        if (stage > 0 && reproducible) s.overrides.push_back("zero.offload_optimizer.device=host");
        if (stage > 1 && dp == 1) s.overrides.push_back("activation.offload=host");
        all.push_back(s);
      }
  // More ranks than key heads: neighbours have the same one.
  for (int stage = 0; stage <= 3; ++stage)
    for (const int dp : {1, 2}) {
      const int tp = (stage + dp) % 2 ? 4 : 2, heads = tp == 4 ? 2 - stage / 2 : 1;
      Setting s{
          .name = fmt::format("stage{}_tp{}_dp{}_{}_shared_keys", stage, tp, dp, heads),
          .overrides = {fmt::format("zero.stage={}", stage), fmt::format("run.reproducible={}", dp == 1),
                        fmt::format("batch.global={}", 4 * dp), fmt::format("mesh.tp={}", tp), fmt::format("model.kv_heads={}", heads),
                        "zero.param_persistence_threshold=100", fmt::format("precision.compute={}", stage % 2 ? "fp32" : "bf16"),
                        fmt::format("model.qk_norm={}", stage > 1), fmt::format("model.qkv_bias={}", stage > 0),
                        fmt::format("activation.recompute={}",
                                    std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + dp) % 3])},
          .rank = tp * dp - 1,
          .ranks = tp * dp,
          .evaluation = dp == 2 ? 3 : 0,
          .tp = tp};
      if (stage > 0 && dp == 2) s.overrides.push_back("zero.offload_optimizer.device=host");
      all.push_back(s);
    }
  return all;
}

/// Context-parallel ranks over all stages: alone, with data-parallel and with tensor-parallel ones, several sequences and one, offload,
/// recompute.
inline std::vector<Setting> context_settings_of(const std::string& method) {
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const int dp : {1, 2})
      for (const int tp : {1, 2})
        for (const bool reproducible : {false, true}) {
          const bool ring = method == "ring";
          const int cp = stage == 2 && tp == 1 ? (ring ? 3 : 4) : 2;
          Setting s{
              .name = fmt::format("stage{}_cp{}{}_dp{}{}{}", stage, cp, ring ? "_ring" : "", dp, tp == 1 ? "" : "_tp2",
                                  reproducible ? "_reproducible" : ""),
              .overrides = {fmt::format("zero.stage={}", stage), fmt::format("run.reproducible={}", reproducible),
                            fmt::format("model.kv_heads={}", dp == 2 ? 2 : 4), fmt::format("batch.micro={}", 1 + stage % 2),
                            fmt::format("batch.global={}", 2 * dp * (1 + stage)), fmt::format("mesh.cp={}", cp),
                            fmt::format("context.method={}", method), fmt::format("mesh.tp={}", tp), "zero.param_persistence_threshold=100",
                            fmt::format("precision.compute={}", (stage + dp) % 2 ? "fp32" : "bf16"),
                            fmt::format("activation.recompute={}",
                                        std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + dp) % 3])},
              .rank = dp * cp * tp - 1,
              .ranks = dp * cp * tp,
              .evaluation = dp == 2 ? 3 : 0,
              .tp = tp,
              .cp = cp};
          if (dp == 2) s.overrides.insert(s.overrides.end(), {"model.tied=true", "zero.overlap_comm=true"});
          if (dp == 1) s.overrides.insert(s.overrides.end(), {"model.qk_norm=true", "model.qkv_bias=true"});
          if (stage > 0 && reproducible) s.overrides.push_back("zero.offload_optimizer.device=host");
          if (stage > 1 && dp == 1) s.overrides.push_back("activation.offload=host");
          all.push_back(s);
        }
  return all;
}
/// Of both methods: first all that exchange heads, then as many rings.
inline std::vector<Setting> context_settings() {
  std::vector<Setting> all = context_settings_of("ulysses");
  for (const Setting& s : context_settings_of("ring")) all.push_back(s);
  return all;
}

/// A stage of a pipeline, over all stages of ZeRO: alone and beside each other axis, first, middle and last stages, fewer and more
/// micro-batches than stages, what both ends share, offload, recompute.
inline std::vector<Setting> pipeline_settings() {
  std::vector<Setting> all;
  for (int zero = 0; zero <= 3; ++zero)
    for (const int dp : {1, 2})
      for (int stage = 0; stage < 3; ++stage) {
        const int micros = std::vector{1, 2, 3, 8}[static_cast<std::size_t>(zero + stage + dp) % 4], tp = dp == 2 && stage == 1 ? 2 : 1;
        const bool reproducible = (zero + stage) % 2;
        Setting s{
            .name = fmt::format("zero{}_stage{}of3_dp{}_tp{}_micros{}{}", zero, stage, dp, tp, micros, reproducible ? "_reproducible" : ""),
            .overrides = {"model.layers=5", "mesh.pp=3", fmt::format("mesh.tp={}", tp), fmt::format("zero.stage={}", zero),
                          fmt::format("run.reproducible={}", reproducible), fmt::format("batch.global={}", 2 * dp * micros),
                          "zero.param_persistence_threshold=100", fmt::format("precision.compute={}", (zero + dp) % 2 ? "fp32" : "bf16"),
                          fmt::format("activation.recompute={}",
                                      std::vector{"none", "full", "selective"}[static_cast<std::size_t>(zero + dp) % 3])},
            .rank = stage * dp * tp + dp * tp - 1,
            .ranks = 3 * dp * tp,
            .evaluation = stage == 1 ? 0 : 2,
            .tp = tp,
            .pp = 3};
        if (dp == 2 && zero > 0) s.overrides.push_back(fmt::format("zero.offload_optimizer.device={}", zero == 2 ? "nvme" : "host"));
        if (dp == 2) s.overrides.insert(s.overrides.end(), {"zero.offload_optimizer.nvme_path=/tmp", "activation.every=1"});
        if (!reproducible) s.overrides.push_back("model.tied=true");
        if (tp == 2) s.overrides.push_back("zero.overlap_comm=true");
        all.push_back(s);
      }
  for (int zero = 0; zero <= 3; ++zero)
    for (const int tp : {1, 2}) {
      Setting s{.name = fmt::format("zero{}_stage{}of2_cp2_tp{}", zero, zero % 2, tp),
                .overrides = {"model.layers=5", "mesh.pp=2", "mesh.cp=2", fmt::format("mesh.tp={}", tp), fmt::format("zero.stage={}", zero),
                              fmt::format("run.reproducible={}", zero % 2 == 1), "zero.param_persistence_threshold=100",
                              fmt::format("activation.recompute={}", tp == 1 ? "selective" : "none")},
                .rank = zero % 2 * 4 * tp + 2 * tp,
                .ranks = 8 * tp,
                .evaluation = 2,
                .tp = tp,
                .cp = 2,
                .pp = 2};
      if (zero % 2 == 0) s.overrides.push_back("model.tied=true");
      all.push_back(s);
    }
  return all;
}

/// The same in other orders: gradients of weights apart, and two runs of layers a stage.
inline std::vector<Setting> ordered_settings() {
  std::vector<Setting> all;
  for (const Setting& plain : pipeline_settings())
    for (const std::string order : {"zero_bubble", "interleaved"}) {
      Setting& s = all.emplace_back(plain);
      s.name = order + "_" + plain.name;
      s.overrides.push_back("pipeline.schedule=" + order);
      if (order == "interleaved") s.overrides.push_back("model.layers=7");
    }
  return all;
}

/// Expert-parallel ranks over all stages: alone, with data-parallel ones and on stages of a pipeline, with room for all rows and for some,
/// with a shared expert, two and four parts of the experts, offload, recompute, empty micro-batches.
inline std::vector<Setting> expert_settings() {
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const int dp : {1, 2})
      for (const int pp : {1, 2})
        for (const bool reproducible : {false, true}) {
          const int ep = (stage + dp + reproducible) % 3 == 0 ? 4 : 2, ranks = pp * dp * ep;
          Setting s{
              .name = fmt::format("stage{}_ep{}_dp{}{}{}", stage, ep, dp, pp == 1 ? "" : "_pp2", reproducible ? "_reproducible" : ""),
              .overrides = {"model.experts=4", "model.expert_ff_width=40", fmt::format("mesh.ep={}", ep), fmt::format("mesh.pp={}", pp),
                            fmt::format("zero.stage={}", stage), fmt::format("run.reproducible={}", reproducible),
                            fmt::format("batch.global={}", 2 * dp * ep * (1 + stage) - 2 * (stage % 2)),
                            fmt::format("experts.capacity_factor={}", dp == 2 ? "\"dropless\"" : "1.25"),
                            fmt::format("model.shared_ff_width={}", stage % 2 ? 24 : 0), "zero.param_persistence_threshold=100",
                            fmt::format("precision.compute={}", (stage + dp) % 2 ? "fp32" : "bf16"),
                            fmt::format("activation.recompute={}",
                                        std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + dp) % 3])},
              .rank = ranks - 1,
              .ranks = ranks,
              .evaluation = dp == 2 ? 3 : 0,
              .pp = pp,
              .ep = ep};
          if (dp == 2) s.overrides.push_back("zero.overlap_comm=true");
          if (dp == 1 && pp == 2) s.overrides.push_back("pipeline.schedule=zero_bubble");
          if (stage > 0 && reproducible) s.overrides.push_back("zero.offload_optimizer.device=host");
          if (stage > 1 && pp == 1) s.overrides.push_back("activation.offload=host");
          all.push_back(s);
        }
  return all;
}

/// Experts beside tensor- and context-parallel ranks over all stages: alone, with data-parallel and expert-parallel ones, on stages of a
/// pipeline in its orders, with a shared expert above and below the threshold and without, with room for all rows and for some.
inline std::vector<Setting> experts_beside_settings() {
  struct Sizes {
    int tp, cp, ep, pp, dp;
  };
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const Sizes& m : {Sizes{2, 1, 1, 1, 1}, Sizes{1, 2, 1, 1, 2}, Sizes{2, 1, 2, 1, 1}, Sizes{1, 2, 2, 1, 1}, Sizes{2, 2, 2, 1, 1},
                           Sizes{2, 1, 1, 2, 1}, Sizes{2, 1, 2, 2, 1}}) {
      const int ranks = m.tp * m.cp * m.ep * m.pp * m.dp;
      const bool reproducible = (stage + m.ep) % 2;
      Setting s{
          .name = fmt::format("stage{}_tp{}_cp{}_ep{}_pp{}_dp{}", stage, m.tp, m.cp, m.ep, m.pp, m.dp),
          .overrides = {"model.experts=4", "model.expert_ff_width=40", "model.kv_heads=4", fmt::format("mesh.tp={}", m.tp),
                        fmt::format("mesh.cp={}", m.cp), fmt::format("mesh.ep={}", m.ep), fmt::format("mesh.pp={}", m.pp),
                        fmt::format("zero.stage={}", stage), fmt::format("run.reproducible={}", reproducible),
                        fmt::format("batch.global={}", 2 * m.dp * m.ep * (1 + stage)),
                        fmt::format("experts.capacity_factor={}", m.cp == 1 ? "\"dropless\"" : "1.25"),
                        fmt::format("model.shared_ff_width={}", std::vector{24, 2, 0, 24}[static_cast<std::size_t>(stage)]),
                        "zero.param_persistence_threshold=100", fmt::format("precision.compute={}", (stage + m.tp) % 2 ? "fp32" : "bf16"),
                        fmt::format("activation.recompute={}",
                                    std::vector{"none", "full", "selective"}[static_cast<std::size_t>(stage + m.cp) % 3])},
          .rank = ranks - 1,
          .ranks = ranks,
          .evaluation = m.ep == 2 ? 3 : 0,
          .tp = m.tp,
          .cp = m.cp,
          .pp = m.pp,
          .ep = m.ep};
      if (stage > 0 && reproducible) s.overrides.push_back("zero.offload_optimizer.device=host");
      if ((stage + m.tp + m.pp) % 2) s.overrides.push_back("model.router_balance=bias");
      if (m.pp == 2) s.overrides.push_back(fmt::format("pipeline.schedule={}", m.ep == 2 && stage % 2 ? "1f1b" : "zero_bubble"));
      all.push_back(s);
    }
  return all;
}

}  // namespace tessera::test
