// A rank's engine and what belongs to it: cores or a GPU, plans of all phases, communicators, the feed of batches.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "memory/runtime.hpp"
#include "topology/devices/binding.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "train/data/batch_feed.hpp"
#include "train/engine/device_overhead.hpp"
#include "train/engine/engine.hpp"
#include "train/engine/machine_rate.hpp"
#include "train/observe/run_position.hpp"

namespace tessera {

class RunEngine {
 public:
  /// All must outlive it.
  RunEngine(World& world, const ParsedDeck& parsed) : world_(world), parsed_(parsed), deck_(parsed.deck) {}
  /// Collective. Both must outlive the engine; `validation` may be null. Logs one screen on rank 0.
  void build(TrainingData& train, SampleFile* validation, RunPosition& position);

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  BatchFeed& feed() { return *feed_; }
  Yardstick& yardstick() { return *yardstick_; }
  /// Null without a GPU.
  DeviceOverhead* overhead() { return overhead_ ? &*overhead_ : nullptr; }
  LaneMode lanes() const { return lanes_; }
  /// The whole plan in words, on rank 0.
  const std::string& plan() const { return plan_; }

 private:
  bool on_gpus() const { return deck_.run.device == RunDevice::cuda; }
  void bind();
  /// NCCL takes its memory before the plan takes what is left.
  void connect_gpus();
  std::vector<RunPlan> plan_phases() const;
  void measure_yardstick();
  void show();

  World& world_;
  const ParsedDeck& parsed_;
  const Deck& deck_;
  const Mesh mesh_ = make_mesh(deck_, world_.ranks());
  Binding binding_;
  GpuBinding gpu_;
  int threads_ = 1;
  LaneMode lanes_ = LaneMode::inline_order;
  std::optional<Yardstick> yardstick_;
  std::string mfu_of_, path_, plan_;  ///< mfu_of_: a line on the yardstick; path_: of collectives
  std::optional<KernelRuntime> runtime_;
  std::optional<Node> node_;
  RankLinks links_;
  std::optional<DeviceOverhead> overhead_;
  std::optional<Engine> engine_;
  std::optional<BatchFeed> feed_;
  std::optional<DescribedWork> work_;  ///< of the engine: destroyed first
};

}  // namespace tessera
