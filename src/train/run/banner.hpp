// What a run says of itself before its first step.
#pragma once
#include <string>

#include "train/engine/engine.hpp"

namespace tessera {

struct BannerFacts {
  const ParsedDeck& parsed;
  std::string ranks;       ///< where each is
  std::string mesh, path;  ///< path of the collectives
  LaneMode lanes = LaneMode::inline_order;
  int threads = 1;  ///< a rank
  std::string binding;
  std::string mfu_of;                  ///< what the ranks' FLOPs are a share of
  std::vector<std::string> attention;  ///< describe_attention()
  const Engine& engine;
};

/// Rank 0 logs one screen: the keys that somebody chose, what `auto` became, mesh, parameters, FLOPs per token and memory.
void print_banner(const BannerFacts& facts);

/// The same in full, for RunFolder::plan(): with optimizer groups, kernels, the environment of GPUs and the memory table.
std::string whole_plan(const BannerFacts& facts);

}  // namespace tessera
