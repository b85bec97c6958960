// Modes of a deck: the enums of keys that take one of fixed words, each beside its words. The schema takes the choices of a key from here,
// "auto" apart where the program puts something in its place. A new choice is an enumerator and its word.
#pragma once
#include "base/orthogonal_steps.hpp"  // optimizer.newton_schulz
#include "base/words.hpp"

namespace tessera {

/// run.device
enum class RunDevice : std::uint8_t { automatic, host, cuda };
template <>
inline constexpr auto enum_words<RunDevice> = std::to_array<std::string_view>({"auto", "host", "cuda"});

/// run.lanes
enum class RunLanes : std::uint8_t { automatic, threads, inline_order };
template <>
inline constexpr auto enum_words<RunLanes> = std::to_array<std::string_view>({"auto", "threads", "inline"});

/// model.rope_scaling
enum class RopeMode : std::uint8_t { none, llama3, linear, dynamic, yarn, longrope };
template <>
inline constexpr auto enum_words<RopeMode> = std::to_array<std::string_view>({"none", "llama3", "linear", "dynamic", "yarn", "longrope"});

/// model.positions
enum class PositionMode : std::uint8_t { rope, none };
template <>
inline constexpr auto enum_words<PositionMode> = std::to_array<std::string_view>({"rope", "none"});

/// model.rope_pairs
enum class RopePairs : std::uint8_t { halves, neighbours };
template <>
inline constexpr auto enum_words<RopePairs> = std::to_array<std::string_view>({"halves", "neighbours"});

/// model.norm_placement
enum class NormPlacement : std::uint8_t { pre, post, both, parallel };
template <>
inline constexpr auto enum_words<NormPlacement> = std::to_array<std::string_view>({"pre", "post", "both", "parallel"});

/// model.norm_form
enum class NormForm : std::uint8_t { weight, one_plus_weight, layer_norm, layer_norm_no_bias };
template <>
inline constexpr auto enum_words<NormForm> = std::to_array<std::string_view>({"weight", "one_plus_weight", "layer_norm",
                                                                              "layer_norm_no_bias"});

/// model.activation
enum class Activation : std::uint8_t { silu, gelu_tanh, gelu, clamped_silu, relu_squared, xielu };
template <>
inline constexpr auto enum_words<Activation> = std::to_array<std::string_view>({"silu", "gelu_tanh", "gelu", "clamped_silu", "relu_squared",
                                                                                "xielu"});

/// model.router_balance
enum class RouterBalance : std::uint8_t { loss, bias };
template <>
inline constexpr auto enum_words<RouterBalance> = std::to_array<std::string_view>({"loss", "bias"});

/// reference.model
enum class ReferenceModel : std::uint8_t { none, start };
template <>
inline constexpr auto enum_words<ReferenceModel> = std::to_array<std::string_view>({"none", "start"});

/// preference.objective, one of them
enum class PreferenceObjective : std::uint8_t { dpo, robust, hinge, ipo, sigmoid_norm, apo_zero, apo_down, simpo, cpo, sft };
template <>
inline constexpr auto enum_words<PreferenceObjective> = std::to_array<std::string_view>({"dpo", "robust", "hinge", "ipo", "sigmoid_norm",
                                                                                         "apo_zero", "apo_down", "simpo", "cpo", "sft"});

/// preference.reference
enum class PreferenceReference : std::uint8_t { none, adapter, copy, file };
template <>
inline constexpr auto enum_words<PreferenceReference> = std::to_array<std::string_view>({"none", "adapter", "copy", "file"});

/// model.router_scores
enum class RouterScores : std::uint8_t { softmax, sigmoid };
template <>
inline constexpr auto enum_words<RouterScores> = std::to_array<std::string_view>({"softmax", "sigmoid"});

/// lora.scaling
enum class LoraScaling : std::uint8_t { standard, rslora };
template <>
inline constexpr auto enum_words<LoraScaling> = std::to_array<std::string_view>({"standard", "rslora"});

/// data.packing
enum class Packing : std::uint8_t { concatenate, documents };
template <>
inline constexpr auto enum_words<Packing> = std::to_array<std::string_view>({"concatenate", "documents"});

/// data.too_long
enum class TooLong : std::uint8_t { refuse, truncate, split };
template <>
inline constexpr auto enum_words<TooLong> = std::to_array<std::string_view>({"refuse", "truncate", "split"});

/// optimizer.moments_rounding
enum class MomentsRounding : std::uint8_t { stochastic, nearest };
template <>
inline constexpr auto enum_words<MomentsRounding> = std::to_array<std::string_view>({"stochastic", "nearest"});

/// optimizer.muon_scale
enum class MuonScale : std::uint8_t { match_rms_adamw, original };
template <>
inline constexpr auto enum_words<MuonScale> = std::to_array<std::string_view>({"match_rms_adamw", "original"});

/// learning_rate.schedule
enum class RateSchedule : std::uint8_t {
  cosine,
  linear,
  constant,
  wsd,
  // DeepSpeed's classes, each with its exact numbers
  warmup_lr,
  warmup_decay_lr,
  warmup_cosine_lr,
  one_cycle,
  lr_range_test
};
template <>
inline constexpr auto enum_words<RateSchedule> = std::to_array<std::string_view>({"cosine", "linear", "constant", "wsd", "warmup_lr",
                                                                                  "warmup_decay_lr", "warmup_cosine_lr", "one_cycle",
                                                                                  "lr_range_test"});

/// learning_rate.warmup_type
enum class WarmupType : std::uint8_t { linear, log };
template <>
inline constexpr auto enum_words<WarmupType> = std::to_array<std::string_view>({"linear", "log"});

/// learning_rate.decay_type: Megatron-LM's --lr-wsd-decay-style.
enum class DecayType : std::uint8_t { linear, cosine, exponential, minus_sqrt };
template <>
inline constexpr auto enum_words<DecayType> = std::to_array<std::string_view>({"linear", "cosine", "exponential", "minus_sqrt"});

/// precision.fp8
enum class Fp8Recipe : std::uint8_t { none, tensorwise, tensorwise_delayed, rowwise, blockwise };
template <>
inline constexpr auto enum_words<Fp8Recipe> = std::to_array<std::string_view>({"none", "tensorwise", "tensorwise_delayed", "rowwise",
                                                                               "blockwise"});

/// zero.overlap_comm
enum class OverlapComm : std::uint8_t { automatic, yes, no };
template <>
inline constexpr auto enum_words<OverlapComm> = std::to_array<std::string_view>({"auto", "true", "false"});

/// zero.offload_optimizer.device, zero.offload_param.device and activation.offload
enum class OffloadDevice : std::uint8_t { none, host, nvme };
template <>
inline constexpr auto enum_words<OffloadDevice> = std::to_array<std::string_view>({"none", "host", "nvme"});

/// activation.recompute
enum class Recompute : std::uint8_t { automatic, none, selective, full };
template <>
inline constexpr auto enum_words<Recompute> = std::to_array<std::string_view>({"auto", "none", "selective", "full"});

/// context.method
enum class ContextMethod : std::uint8_t { ulysses, ring };
template <>
inline constexpr auto enum_words<ContextMethod> = std::to_array<std::string_view>({"ulysses", "ring"});

/// pipeline.schedule
enum class PipelineSchedule : std::uint8_t { one_forward_one_backward, interleaved, zero_bubble };
template <>
inline constexpr auto enum_words<PipelineSchedule> = std::to_array<std::string_view>({"1f1b", "interleaved", "zero_bubble"});

/// guards.spike: what a run does about a step whose loss or gradient norm is far above those before it.
enum class SpikeMode : std::uint8_t { off, warn, skip, rollback };
template <>
inline constexpr auto enum_words<SpikeMode> = std::to_array<std::string_view>({"off", "warn", "skip", "rollback"});

/// topology.hierarchical
enum class Hierarchical : std::uint8_t { automatic, never };
template <>
inline constexpr auto enum_words<Hierarchical> = std::to_array<std::string_view>({"auto", "never"});

/// watchdog.action
enum class WatchdogAction : std::uint8_t { off, warn, end };
template <>
inline constexpr auto enum_words<WatchdogAction> = std::to_array<std::string_view>({"off", "warn", "end"});

/// kernels.cuda_graph: whether a GPU's executor makes a graph of a program the second time it runs, and launches that from then on.
enum class GraphMode : std::uint8_t {
  automatic,  ///< on, but for programs of very many tasks and where CUDA refuses
  on,
  off
};
template <>
inline constexpr auto enum_words<GraphMode> = std::to_array<std::string_view>({"auto", "on", "off"});

/// kernels.attention
enum class AttentionMode : std::uint8_t { automatic, native, cudnn };
template <>
inline constexpr auto enum_words<AttentionMode> = std::to_array<std::string_view>({"auto", "native", "cudnn"});

}  // namespace tessera
