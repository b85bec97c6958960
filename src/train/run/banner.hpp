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

/// Resolved deck, mesh, parameters, FLOPs per token and the memory table, on rank 0.
void print_banner(const BannerFacts& facts);

}  // namespace tessera
