// What follows from several keys together: values of `auto`, and contradictions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "deck/kinds_of_layers.hpp"
#include "deck/nearest.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

void resolve_run(Draft& draft) {
  RunKeys& run = draft.deck.run;
  if (draft.is_auto("run.name")) {
    std::string stem = std::filesystem::path(draft.file).stem().string();
    run.name = stem.empty() ? "run" : stem;
    draft.note("run.name", toml_string(run.name), "file name of the deck");
  }
  if (draft.is_auto("run.output_dir") && draft.good({"run.name"})) {
    run.output_dir = "runs/" + run.name;
    draft.note("run.output_dir", toml_string(run.output_dir), "runs/NAME");
  }
}

void resolve_model(Draft& draft) {
  ModelKeys& m = draft.deck.model;
  if (draft.is_auto("model.kv_heads") && draft.good({"model.heads"})) {
    m.kv_heads = m.heads;
    draft.note("model.kv_heads", fmt::format("{}", m.kv_heads), "model.heads: every query head has its own keys and values");
  }
  // 0 is auto too: it is what the field means before it is resolved.
  bool wanted = draft.good({"model.head_dim", "model.width", "model.heads"}) && m.head_dim == 0;
  if (wanted && m.width % m.heads != 0) {
    draft.fault({"model.width", "model.heads"},
                fmt::format("model.width {} is not divisible by model.heads {}, so model.head_dim = \"auto\" has no value; "
                            "nearest valid model.width: {}; or give model.head_dim",
                            m.width, m.heads, multiples_around(m.width, m.heads)));
    draft.entries.find("model.head_dim")->second.faulty = true;
  } else if (wanted) {
    m.head_dim = m.width / m.heads;
    draft.note("model.head_dim", fmt::format("{}", m.head_dim), fmt::format("model.width {} / model.heads {}", m.width, m.heads));
  }
}

void resolve_experts(Draft& draft) {
  ModelKeys& m = draft.deck.model;
  if (!draft.good({"model.experts", "model.expert_ff_width", "model.ff_width"}) || m.experts == 0 || m.expert_ff_width != 0) return;
  m.expert_ff_width = m.ff_width;
  draft.note("model.expert_ff_width", fmt::format("{}", m.expert_ff_width), "model.ff_width");
}

/// Elements of the largest unit: of a layer without its experts, of these, or of embedding or head.
std::int64_t largest_unit(const ModelKeys& m) {
  const auto width = static_cast<double>(m.width);  // sizes are checked later: products may exceed 64 bits
  const auto features = [](std::int64_t n) { return 3 * static_cast<double>(n); };
  const double attention = 2 * static_cast<double>(m.head_dim) * static_cast<double>(m.heads + m.kv_heads);
  const double experts = features(m.expert_ff_width) * static_cast<double>(m.experts);
  const double dense = any_dense(m) ? features(m.ff_width) : 0;
  const double routed = m.experts == 0 ? 0 : static_cast<double>(m.experts) + features(m.shared_ff_width);
  const double layer = attention + std::max(dense, routed);
  return static_cast<std::int64_t>(std::min(1e18, width * std::max({static_cast<double>(m.vocab + m.learned_positions), layer, experts})));
}

/// The rules by which Hugging Face fills `auto` in a DeepSpeed configuration, but for prefetch: what is smaller than a unit is none.
void resolve_zero(Draft& draft) {
  ZeroKeys& z = draft.deck.zero;
  std::int64_t width = draft.deck.model.width;
  if (!draft.good({"model.width"})) return;
  auto put = [&](std::string_view key, std::int64_t& field, std::int64_t value, std::string_view rule) {
    if (!draft.is_auto(key)) return;
    field = value;
    draft.note(key, fmt::format("{}", value), fmt::format("{}, model.width {}", rule, width));
  };
  put("zero.reduce_bucket_size", z.reduce_bucket_size, width * width, "width squared");
  put("zero.param_persistence_threshold", z.param_persistence_threshold, 10 * width, "10 x width");
  if (draft.is_auto("zero.prefetch_bucket_size") &&
      draft.good({"model.head_dim", "model.heads", "model.kv_heads", "model.ff_width", "model.vocab", "model.experts",
                  "model.expert_ff_width", "model.shared_ff_width", "model.dense_layers", "model.kinds"})) {
    z.prefetch_bucket_size = largest_unit(draft.deck.model);
    draft.note("zero.prefetch_bucket_size", fmt::format("{}", z.prefetch_bucket_size), "the largest unit of the model");
  }
}

void check_names(Draft& draft) {
  for (std::string_view key : {"run.name", "run.output_dir", "run.resume"}) {
    if (draft.good({key}) && std::get<std::string>(read_value(*find_key(key), draft.deck).value).empty()) {
      draft.fault({key}, "must not be empty");
    }
  }
  if (draft.good({"run.name"}) && draft.deck.run.name.find('/') != std::string::npos) {
    draft.fault({"run.name"},
                fmt::format("{} is a path, not a name; a folder is set with run.output_dir", toml_string(draft.deck.run.name)));
  }
}

/// A shell replaces ~ and $NAME in its words; a deck's paths stand as they are, and would make folders of these names.
void check_paths(Draft& draft) {
  if (draft.stored) return;
  const auto fault_of = [&](const Key& key, const std::string& path) -> std::string {
    const bool home = path == "~" || path.starts_with("~/");
    if (!home && path.find('$') == path.npos) return "";
    return fmt::format(
        "{} is used as written, so {} would be the name of a folder. Write the path in full, or give it on the command line, where the "
        "shell replaces it: {}=\"{}\"",
        toml_string(path), home ? "~" : path.substr(path.find('$'), path.find('/', path.find('$')) - path.find('$')), key.name,
        home ? "$HOME" + path.substr(1) : path);
  };
  for (const Key& key : deck_keys()) {
    if ((key.unit != "path" && key.unit != "folder or digest" && key.unit != "name or path") || !draft.good({key.name}) ||
        !draft.entry(key.name).given)
      continue;
    const Literal value = read_value(key, draft.deck);
    std::vector<std::string> written;
    if (const auto* text = std::get_if<std::string>(&value.value)) written.push_back(*text);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value.value)) written = *texts;
    for (const std::string& path : written)
      if (const std::string fault = fault_of(key, path); !fault.empty()) draft.fault({key.name}, fault);
  }
}

void check_model(Draft& draft) {
  const ModelKeys& m = draft.deck.model;
  if (draft.good({"model.heads", "model.kv_heads"}) && m.kv_heads > 0 && m.heads % m.kv_heads != 0) {
    draft.fault({"model.kv_heads", "model.heads"},
                fmt::format("model.heads {} is not divisible by model.kv_heads {}: each key and value head serves the same number of "
                            "query heads; nearest valid model.kv_heads: {}",
                            m.heads, m.kv_heads, one_of(divisors_near(m.heads, m.kv_heads))));
  }
  const std::string from = draft.is_auto("model.head_dim") ? fmt::format(" (model.width {} / model.heads {})", m.width, m.heads) : "";
  if (draft.good({"model.head_dim"}) && m.head_dim > largest_head_dim)
    draft.fault({"model.head_dim", "model.heads", "model.width"},
                fmt::format("a head dim of {}{} is more than {}, the most that attention takes; set model.head_dim, or more model.heads",
                            m.head_dim, from, largest_head_dim));
  if (draft.good({"model.head_dim"}) && m.head_dim % 2 != 0) {
    draft.fault({"model.head_dim", "model.heads", "model.width"},
                fmt::format("a head dim of {}{} is odd, and rotary positions rotate pairs of features; set model.head_dim to {} or {}",
                            m.head_dim, from, std::max<std::int64_t>(2, m.head_dim - 1), m.head_dim + 1));
  }
  check_kinds(draft);
  check_blocks(draft);
  check_rotation(draft);
}

/// Groups that a token's experts are chosen from.
void check_groups_of_experts(Draft& draft) {
  const ModelKeys& m = draft.deck.model;
  if (!draft.good({"model.expert_groups", "model.groups_per_token"})) return;
  if (m.expert_groups == 1) {
    if (draft.differs("model.groups_per_token"))
      draft.idle("model.groups_per_token", "model.expert_groups",
                 "has no effect with model.expert_groups = 1; set that or leave this key out");
    return;
  }
  if (draft.good({"model.router_scores"}) && m.router_scores != RouterScores::sigmoid)
    draft.fault({"model.expert_groups", "model.router_scores"},
                "groups of experts need sigmoid scores in this version; set model.router_scores = \"sigmoid\" or model.expert_groups = 1");
  const std::int64_t of_group = m.experts / m.expert_groups;
  if (m.experts % m.expert_groups != 0 || of_group < 2) {
    std::vector<std::int64_t> valid = divisors_near(m.experts, m.expert_groups, static_cast<std::size_t>(m.experts));
    std::erase_if(valid, [&](std::int64_t n) { return m.experts / n < 2 || n > most_expert_groups; });
    draft.fault({"model.expert_groups", "model.experts"},
                fmt::format("model.expert_groups {} does not divide model.experts {} into equal groups of two or more; valid: {}",
                            m.expert_groups, m.experts, valid.empty() ? "1" : one_of(valid)));
  } else if (m.groups_per_token > m.expert_groups) {
    draft.fault({"model.groups_per_token", "model.expert_groups"},
                fmt::format("model.groups_per_token {} is more than model.expert_groups {}; set it to at most {}", m.groups_per_token,
                            m.expert_groups, m.expert_groups));
  } else if (draft.good({"model.experts_per_token"}) && m.experts_per_token > m.groups_per_token * of_group) {
    draft.fault({"model.groups_per_token", "model.experts_per_token", "model.expert_groups"},
                fmt::format("{} of {} groups have {} experts, fewer than model.experts_per_token {}; set model.groups_per_token to {}",
                            m.groups_per_token, m.expert_groups, m.groups_per_token * of_group, m.experts_per_token,
                            (m.experts_per_token + of_group - 1) / of_group));
  }
}

void check_experts(Draft& draft) {
  if (!draft.good({"model.experts"})) return;
  const ModelKeys& m = draft.deck.model;
  if (m.experts == 0) {
    for (const Key& key : deck_keys())
      if (key.name != "model.experts" && draft.differs(key.name) &&
          (key.read_by == ReadBy::router || key.read_by == ReadBy::balance || key.name == "model.dense_layers" ||
           key.section() == "experts"))
        draft.idle(key.name, "model.experts", "has no effect with model.experts = 0; set model.experts or leave this key out");
    return;
  }
  if (draft.good({"model.router_balance"}) && m.router_balance != RouterBalance::bias && draft.differs("model.router_bias_rate"))
    draft.idle("model.router_bias_rate", "model.router_balance",
               "has no effect unless model.router_balance = \"bias\"; set that or leave this key out");
  if (draft.good({"model.experts_per_token"}) && m.experts_per_token > m.experts)
    draft.fault({"model.experts_per_token", "model.experts"},
                fmt::format("model.experts_per_token {} is more than model.experts {}; set it to at most {}", m.experts_per_token,
                            m.experts, m.experts));
  if (draft.good({"model.dense_layers", "model.layers"}) && m.dense_layers >= m.layers)
    draft.fault(
        {"model.dense_layers", "model.layers"},
        fmt::format("model.dense_layers {} leaves no layer with experts, of model.layers {}; set it to at most {}, or model.experts = 0",
                    m.dense_layers, m.layers, m.layers - 1));
  if (draft.good({"model.shared_ff_width", "model.shared_gate"}) && m.shared_ff_width == 0 && draft.differs("model.shared_gate"))
    draft.idle("model.shared_gate", "model.shared_ff_width",
               "has no effect without a shared expert; set model.shared_ff_width or leave this key out");
  check_groups_of_experts(draft);
}

}  // namespace

void check_batch(Draft& draft) {
  if (!draft.good({"batch.global", "batch.micro"})) return;
  const std::int64_t global = draft.deck.batch.global, micro = draft.deck.batch.micro;
  if (global % micro == 0) return;
  draft.fault({"batch.global", "batch.micro"},
              fmt::format("batch.global {} is not divisible by batch.micro {} (sequences); nearest valid batch.global: {}; nearest valid "
                          "batch.micro: {}",
                          global, micro, multiples_around(global, micro), one_of(divisors_near(global, micro))));
}

namespace {

void check_evaluation(Draft& draft) {
  const Deck& d = draft.deck;
  if (!draft.good({"evaluate.every", "data.validation"})) return;
  if (d.evaluate.every > 0 && d.data.validation.empty()) {
    draft.fault({"evaluate.every"}, "evaluation needs data.validation, a file of tokens; give it, or set evaluate.every = 0");
  }
}

/// What the disk tier needs to be told.
void check_nvme(Draft& draft) {
  const ZeroKeys& zero = draft.deck.zero;
  const bool state = zero.offload_optimizer.device == OffloadDevice::nvme, parameters = zero.offload_param.device == OffloadDevice::nvme;
  const bool streams = draft.deck.activation.offload == OffloadDevice::nvme;
  if ((state || parameters || streams) && zero.offload_optimizer.nvme_path.empty() && zero.offload_param.nvme_path.empty())
    draft.fault({parameters && !state ? "zero.offload_param.nvme_path" : "zero.offload_optimizer.nvme_path"},
                "nvme needs a folder on a local disk; name it, for example \"/local\"");
}

void check_offload(Draft& draft) {
  if (!draft.good({"activation.offload", "zero.offload_optimizer.device", "zero.offload_param.device", "zero.stage"})) return;
  const ZeroKeys& zero = draft.deck.zero;
  if (zero.offload_optimizer.device != OffloadDevice::none && zero.stage == 0)
    draft.fault({"zero.offload_optimizer.device", "zero.stage"},
                "zero.offload_optimizer needs stage 1, 2 or 3, where each rank updates its own part; set zero.stage = 1 or more");
  check_nvme(draft);
  if (draft.good({"checkpoint.async"}) && draft.deck.checkpoint.async &&
      (zero.offload_optimizer.device == OffloadDevice::nvme || zero.offload_param.device == OffloadDevice::nvme))
    draft.fault({"checkpoint.async", "zero.offload_optimizer.device", "zero.offload_param.device"},
                "an asynchronous save needs a copy of the state in host memory, and this state is on disks because it does not fit there; "
                "set checkpoint.async = false, or name a disk of the nodes with checkpoint.staging instead");
  if (draft.good({"checkpoint.neighbour_every"}) && draft.deck.checkpoint.neighbour_every > 0 &&
      (zero.offload_optimizer.device == OffloadDevice::nvme || zero.offload_param.device == OffloadDevice::nvme))
    draft.fault({"checkpoint.neighbour_every", "zero.offload_optimizer.device", "zero.offload_param.device"},
                "in-memory replicas take four copies of each rank's state in host memory, and this state is on disks because not even one "
                "fits there; set checkpoint.neighbour_every = 0 and save more often (checkpoint.every)");
  if (zero.offload_param.device == OffloadDevice::none) return;
  if (zero.stage != 3)
    draft.fault({"zero.offload_param.device", "zero.stage"},
                fmt::format("only stage 3 gathers parameters for each use, and zero.stage is {}; set it to 3", zero.stage));
  if (zero.offload_optimizer.device == OffloadDevice::none)
    draft.fault(
        {"zero.offload_param.device", "zero.offload_optimizer.device"},
        "the optimizer's state is six times as large as the parameters, so offload it first; set zero.offload_optimizer.device too");
  if (zero.offload_optimizer.ratio < 1)
    draft.fault(
        {"zero.offload_optimizer.ratio", "zero.offload_param.device"},
        "the part that kernels update needs its parameters with the kernels; leave ratio at 1, or zero.offload_param.device at \"none\"");
}

void check_lanes(Draft& draft) {
  if (!draft.good({"zero.overlap_comm", "run.lanes"})) return;
  const OverlapComm overlap = draft.deck.zero.overlap_comm;
  const RunLanes lanes = draft.deck.run.lanes;
  if (overlap == OverlapComm::yes && lanes == RunLanes::inline_order) {
    draft.fault({"zero.overlap_comm", "run.lanes"},
                "zero.overlap_comm = true needs separate communication lanes, and run.lanes = \"inline\" has none; set run.lanes to "
                "\"auto\" or \"threads\", or overlap_comm to \"auto\" or false");
  } else if (overlap == OverlapComm::no && lanes == RunLanes::threads) {
    draft.fault({"run.lanes", "zero.overlap_comm"},
                "run.lanes = \"threads\" runs communication in parallel with compute, which zero.overlap_comm = false forbids; set one of "
                "them to \"auto\"");
  }
}

/// One deck serves both backends, so a key for one of them alone is legal with the other; but it is not silent.
void note_idle_device_keys(Draft& draft) {
  if (!draft.good({"run.device"})) return;
  if (draft.deck.run.device != RunDevice::host) {
    if (draft.differs("topology.hierarchical"))
      draft.resolved.push_back("note: topology.hierarchical has no effect with run.device = \"cuda\": NCCL knows the nodes");
    if (draft.deck.run.profile && draft.deck.run.device == RunDevice::cuda)
      draft.resolved.push_back("note: run.profile has no effect with run.device = \"cuda\": `nsys profile` times kernels of a GPU");
    return;
  }
  for (std::string_view key : {"topology.share_gpu", "kernels.gemm_search", "kernels.cuda_graph", "kernels.attention", "memory.pinned"})
    if (draft.differs(key)) draft.resolved.push_back(fmt::format("note: {} has no effect with run.device = \"host\"", key));
}

void check_attention(Draft& draft) {
  if (!draft.good({"kernels.attention", "precision.compute", "model.head_dim", "run.device"})) return;
  if (draft.deck.kernels.attention != AttentionMode::cudnn || draft.deck.run.device == RunDevice::host) return;
  if (draft.deck.precision.compute == DType::f32)
    draft.fault({"kernels.attention", "precision.compute"},
                "cuDNN has no attention in fp32; set precision.compute = \"bf16\" or "
                "kernels.attention = \"native\"");
  if (draft.deck.model.head_dim % 8 != 0)
    draft.fault({"kernels.attention", "model.head_dim"}, "cuDNN's head dims are multiples of 8; set kernels.attention = \"native\"");
}

void check_processors(Draft& draft) {
  if (!draft.good({"topology.mixed_processors", "run.reproducible"})) return;
  if (draft.deck.topology.mixed_processors && draft.deck.run.reproducible)
    draft.fault({"topology.mixed_processors", "run.reproducible"},
                "equal bits need equal instructions on all ranks; leave one of the two out, or set ONEDNN_MAX_CPU_ISA on all nodes to an "
                "instruction set that all of them have");
}

void check_packing(Draft& draft) {
  if (!draft.good({"kernels.pack_weights", "run.reproducible", "zero.stage"}) || !draft.deck.kernels.pack_weights) return;
  if (draft.deck.run.reproducible)
    draft.fault({"kernels.pack_weights", "run.reproducible"},
                "packed products sum in another order, and only some stages have them; leave one of the two out");
  if (draft.deck.zero.stage == 3)
    draft.fault(
        {"kernels.pack_weights", "zero.stage"},
        "stage 3 gathers weights for each use, so it has none to pack; set kernels.pack_weights = false or zero.stage to 0, 1 or 2");
}

void check_activation(Draft& draft) {
  if (!draft.good({"activation.recompute", "activation.every"})) return;
  const ActivationKeys& a = draft.deck.activation;
  if (draft.good({"activation.keep"}) && !a.keep.empty() && a.recompute == Recompute::none)
    draft.fault({"activation.keep", "activation.recompute"},
                "activation.recompute = \"none\" recomputes nothing; leave activation.keep out, or set recompute to \"selective\", "
                "\"full\" or \"auto\"");
  if (a.every == 1 || a.recompute == Recompute::full) return;
  draft.idle("activation.every", "activation.recompute",
             fmt::format("only activation.recompute = \"full\" drops streams between layers, and it is \"{}\"; leave activation.every out "
                         "or set recompute to \"full\"",
                         word_of(a.recompute)));
}

void check_retention(Draft& draft) {
  if (!draft.good({"checkpoint.every", "checkpoint.keep", "checkpoint.keep_every"})) return;
  const CheckpointKeys& c = draft.deck.checkpoint;
  if (c.keep_every == 0) return;
  if (c.keep == 0)
    draft.fault({"checkpoint.keep_every", "checkpoint.keep"},
                "checkpoint.keep = 0 keeps all; set it to the number of newest ones, or leave keep_every out");
  if (c.every == 0)
    draft.fault({"checkpoint.keep_every", "checkpoint.every"},
                "with checkpoint.every = 0 no checkpoint is saved before the end; set it to a divisor of checkpoint.keep_every");
  else if (c.keep_every % c.every != 0)
    draft.fault(
        {"checkpoint.keep_every", "checkpoint.every"},
        fmt::format(
            "checkpoint.keep_every = {} includes steps that checkpoint.every = {} does not save; nearest valid checkpoint.keep_every: {}",
            c.keep_every, c.every,
            c.keep_every < c.every ? fmt::format("{}", c.every)
                                   : fmt::format("{} or {}", c.keep_every / c.every * c.every, (c.keep_every / c.every + 1) * c.every)));
}

void check_staging(Draft& draft) {
  if (!draft.good({"checkpoint.staging", "checkpoint.async"})) return;
  if (!draft.deck.checkpoint.staging.empty() && draft.deck.checkpoint.async)
    draft.fault({"checkpoint.staging", "checkpoint.async"},
                "both continue steps while a save is written, one from the node's disk, one from its memory; leave one out");
}

void check_neighbours(Draft& draft) {
  if (!draft.good({"checkpoint.neighbour_every"}) || draft.deck.checkpoint.neighbour_every > 0) return;
  for (const char* key : {"checkpoint.neighbour_folder", "checkpoint.allow_same_node"})
    if (draft.differs(key))
      draft.idle(key, "checkpoint.neighbour_every", "has no effect with checkpoint.neighbour_every = 0; set that, or leave this key out");
}

void check_proof_of_resumes(Draft& draft) {
  if (!draft.good({"checkpoint.verify_resume", "run.reproducible"})) return;
  if (draft.deck.checkpoint.verify_resume && !draft.deck.run.reproducible)
    draft.fault({"checkpoint.verify_resume", "run.reproducible"},
                "equal bits of a step need run.reproducible = true; set that, or leave verify_resume out");
}

/// Limits that a stage does not use stay legal, so that one deck serves every stage; but they are not silent.
void note_idle_limits(Draft& draft) {
  if (!draft.good({"zero.stage"})) return;
  std::int64_t stage = draft.deck.zero.stage;
  auto idle = [&](std::string_view key, const char* stages) {
    if (draft.differs(key))
      draft.resolved.push_back(fmt::format("note: {} has no effect at zero.stage = {}; it applies to {}", key, stage, stages));
  };
  if (stage < 3) {
    for (auto key :
         {"zero.prefetch_bucket_size", "zero.param_persistence_threshold", "zero.max_live_parameters", "zero.max_reuse_distance"}) {
      idle(key, "stage 3");
    }
  }
  if (stage == 0 || stage == 3) idle("zero.allgather_bucket_size", "stages 1 and 2");
  const ZeroKeys& z = draft.deck.zero;
  for (const auto& [key, size] :
       {std::pair{"zero.reduce_bucket_size", z.reduce_bucket_size}, std::pair{"zero.allgather_bucket_size", z.allgather_bucket_size}})
    if (draft.good({"run.device", key}) && draft.deck.run.device == RunDevice::cuda && draft.differs(key) && size < gpu_bucket)
      draft.resolved.push_back(fmt::format("note: {} is {} on GPUs, where shards are sent whole", key, gpu_bucket));
}

}  // namespace

void resolve_auto(Draft& draft, int ranks) {
  resolve_run(draft);
  resolve_model(draft);
  resolve_experts(draft);
  resolve_zero(draft);
  resolve_optimizer(draft);
  check_mesh(draft, ranks);
}

void check_rules(Draft& draft) {
  check_names(draft);
  check_paths(draft);
  check_model(draft);
  check_experts(draft);
  check_sizes(draft);
  check_length(draft);
  check_batch(draft);
  check_optimizer(draft);
  check_momentum(draft);
  check_trust_ratio(draft);
  check_moments(draft);
  check_signs(draft);
  check_evaluation(draft);
  check_best(draft);
  check_samples(draft);
  check_metrics(draft);
  check_guards(draft);
  check_lanes(draft);
  check_offload(draft);
  check_attention(draft);
  check_lora(draft);
  check_preference(draft);
  check_quantized(draft);
  check_data(draft);
  check_precision(draft);
  check_processors(draft);
  check_packing(draft);
  check_activation(draft);
  check_retention(draft);
  check_staging(draft);
  check_neighbours(draft);
  check_proof_of_resumes(draft);
  check_pipeline(draft);
  note_idle_limits(draft);
  note_idle_device_keys(draft);
}

}  // namespace tessera
