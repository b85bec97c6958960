// What the axes of the mesh ask of a deck: that they make up the launch, and divide what their ranks share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "deck/kinds_of_layers.hpp"
#include "deck/nearest.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

/// The axes must make up the launch; dp takes what the others leave.
void check_ranks(Draft& draft, int ranks) {
  MeshKeys& mesh = draft.deck.mesh;
  if (!draft.good({"mesh.dp", "mesh.pp", "mesh.cp", "mesh.ep", "mesh.tp"}) || ranks <= 0) return;
  const std::int64_t others = mesh.pp * mesh.cp * mesh.ep * mesh.tp;
  std::vector<std::string> cut;
  for (const auto& [key, size] :
       {std::pair("mesh.pp", mesh.pp), std::pair("mesh.cp", mesh.cp), std::pair("mesh.ep", mesh.ep), std::pair("mesh.tp", mesh.tp)})
    if (size > 1) cut.emplace_back(key);
  const std::string named = fmt::format("{}", fmt::join(cut, " x "));
  const std::string there = fmt::format("there {} {} rank{}", ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s");
  if (ranks % others != 0) {
    draft.fault({cut.front()}, fmt::format("{0} is {1} and {2}; start {3}, or set {0} = {4}", named, others, there,
                                           multiples_around(ranks, others), one_of(divisors_near(ranks, others))));
    draft.entries.find("mesh.dp")->second.faulty = true;
  } else if (mesh.dp == 0) {
    mesh.dp = ranks / others;
    draft.note("mesh.dp", fmt::format("{}", mesh.dp),
               others == 1 ? "all ranks of the launch" : fmt::format("what {} leaves of the launch", named));
  } else if (mesh.dp * others != ranks) {
    draft.fault({"mesh.dp"}, fmt::format("mesh.dp is {}{} and {}; start {} or set mesh.dp = \"auto\"", mesh.dp,
                                         others == 1 ? "" : fmt::format(" and {} {}", named, others), there, mesh.dp * others));
    draft.entries.find("mesh.dp")->second.faulty = true;
  }
}

/// Whether so many tensor-parallel ranks have whole key and value heads each, or parts of one.
bool shares_keys(const ModelKeys& m, std::int64_t tp) {
  return m.kv_heads % tp == 0 || (tp % m.kv_heads == 0 && m.head_dim % (tp / m.kv_heads) == 0);
}

/// Key and value heads of fewer than these ranks are cut into parts.
void check_keys_of_tensor_axis(Draft& draft) {
  const std::int64_t tp = draft.deck.mesh.tp;
  const ModelKeys& m = draft.deck.model;
  if (!draft.good({"model.kv_heads", "model.head_dim"}) || m.kv_heads == 0 || shares_keys(m, tp)) return;  // 0: auto, of faulty heads
  const std::int64_t heads = draft.good({"model.heads"}) ? m.heads : m.kv_heads;
  std::vector<std::int64_t> valid = divisors_near(heads, tp, static_cast<std::size_t>(heads));
  std::erase_if(valid, [&](std::int64_t n) { return !shares_keys(m, n); });
  const std::string ways = fmt::format("valid mesh.tp: {}", one_of(valid));
  if (tp % m.kv_heads != 0)
    draft.fault({"mesh.tp", "model.kv_heads"},
                fmt::format("mesh.tp {} neither divides model.kv_heads {} (key and value heads) nor is a multiple of them; {}", tp,
                            m.kv_heads, ways));
  else
    draft.fault({"mesh.tp", "model.head_dim", "model.kv_heads"},
                fmt::format("with mesh.tp {} each of model.kv_heads {} (key and value heads) is shared by {} ranks, which does not divide "
                            "its model.head_dim {} (features); {}",
                            tp, m.kv_heads, tp / m.kv_heads, m.head_dim, ways));
}

/// What tensor-parallel ranks share must divide by them.
void check_tensor_axis(Draft& draft) {
  const std::int64_t tp = draft.deck.mesh.tp;
  if (!draft.good({"mesh.tp"}) || tp == 1) return;
  const ModelKeys& m = draft.deck.model;
  struct Shared {
    const char* key;
    std::int64_t n;
    const char* what;
  };
  for (const Shared& s : {Shared{"model.heads", m.heads, "query heads"}, Shared{"model.ff_width", m.ff_width, "features"}}) {
    // Experts are not cut: each rank does its own rows of the stream.
    const bool uncut =
        std::string_view(s.key) == "model.ff_width" && draft.good({"model.experts", "model.dense_layers", "model.kinds"}) && !any_dense(m);
    if (!draft.good({s.key}) || s.n % tp == 0 || uncut) continue;
    draft.fault({"mesh.tp", s.key}, fmt::format("mesh.tp {} does not divide {} {} ({}); nearest valid mesh.tp: {}", tp, s.key, s.n, s.what,
                                                one_of(divisors_near(s.n, tp))));
  }
  check_keys_of_tensor_axis(draft);
  if (draft.good({"batch.micro", "batch.sequence_length"}))
    if (const std::int64_t cp = draft.deck.mesh.cp, tokens = draft.deck.batch.micro * draft.deck.batch.sequence_length / cp;
        tokens % tp != 0)
      draft.fault(
          {"mesh.tp", "batch.micro", "batch.sequence_length"},
          fmt::format("mesh.tp {} does not divide the {} tokens of a micro-batch, batch.micro x batch.sequence_length{}; nearest valid "
                      "mesh.tp: {}",
                      tp, tokens, cp == 1 ? "" : " / mesh.cp", one_of(divisors_near(tokens, tp))));
  if (draft.good({"model.vocab"}) && m.vocab < tp)
    draft.fault({"mesh.tp", "model.vocab"}, fmt::format("mesh.tp {} is more than model.vocab {}: a rank would have no token", tp, m.vocab));
}

/// In a ring a rank has two chunks of each sequence.
void check_ring(Draft& draft) {
  const std::int64_t cp = draft.deck.mesh.cp, T = draft.deck.batch.sequence_length;
  if (!draft.good({"batch.sequence_length"}) || T % (2 * cp) == 0) return;
  draft.fault({"mesh.cp", "batch.sequence_length"},
              fmt::format("with context.method = \"ring\" each of mesh.cp {} ranks has two equal chunks of a sequence, and {} does not "
                          "divide batch.sequence_length {} (tokens); nearest valid mesh.cp: {}; nearest valid batch.sequence_length: {}",
                          cp, 2 * cp, T, T % 2 == 0 ? one_of(divisors_near(T / 2, cp)) : "1", multiples_around(T, 2 * cp)));
}

/// What context-parallel ranks share inside attention when they exchange tokens for heads.
void check_heads_of_context(Draft& draft) {
  const std::int64_t cp = draft.deck.mesh.cp, tp = draft.deck.mesh.tp, T = draft.deck.batch.sequence_length;
  const ModelKeys& m = draft.deck.model;
  if (!draft.good({"model.heads", "model.kv_heads"}) || m.heads % tp != 0 || !shares_keys(m, tp)) return;  // named there
  const std::int64_t H = m.heads / tp, G = std::max<std::int64_t>(1, m.kv_heads / tp);
  const auto of_rank = [&](std::int64_t n) { return tp == 1 ? "" : fmt::format("; {} of a tensor-parallel rank", n); };
  const auto shares = [&](std::int64_t n) { return G % n == 0 || n % G == 0; };
  std::vector<std::int64_t> valid = divisors_near(H, cp, static_cast<std::size_t>(H));
  std::erase_if(valid, [&](std::int64_t n) { return !shares(n); });
  const std::string ways = fmt::format("valid mesh.cp: {}; context.method = \"ring\" does not divide heads{}", one_of(valid),
                                       T % (2 * cp) == 0 ? "" : fmt::format(", for a batch.sequence_length that {} divides", 2 * cp));
  if (H % cp != 0)
    draft.fault({"mesh.cp", "model.heads"}, fmt::format("mesh.cp {} does not divide model.heads {} (query heads{}), which context.method = "
                                                        "\"ulysses\" divides among ranks inside attention; {}",
                                                        cp, m.heads, of_rank(H), ways));
  if (!shares(cp))
    draft.fault({"mesh.cp", "model.kv_heads"},
                fmt::format("mesh.cp {} neither divides model.kv_heads {} (key and value heads{}), which context.method = \"ulysses\" "
                            "divides among ranks inside attention, nor is a multiple of them; {}",
                            cp, m.kv_heads, of_rank(G), ways));
}

/// What context-parallel ranks share must divide by them: tokens of a sequence, and for Ulysses heads.
void check_context_axis(Draft& draft) {
  const std::int64_t cp = draft.deck.mesh.cp;
  if (!draft.good({"mesh.cp", "mesh.tp"})) return;
  const bool ring = draft.good({"context.method"}) && draft.deck.context.method == ContextMethod::ring;
  if (cp == 1 && ring) draft.idle("context.method", "mesh.cp", "has no effect with mesh.cp = 1; set mesh.cp or leave this key out");
  if (cp == 1) return;
  if (ring) return check_ring(draft);
  if (const std::int64_t T = draft.deck.batch.sequence_length; draft.good({"batch.sequence_length"}) && T % cp != 0)
    draft.fault({"mesh.cp", "batch.sequence_length"},
                fmt::format("mesh.cp {} does not divide batch.sequence_length {} (tokens); nearest valid mesh.cp: {}; nearest valid "
                            "batch.sequence_length: {}",
                            cp, T, one_of(divisors_near(T, cp)), multiples_around(T, cp)));
  check_heads_of_context(draft);
}

/// Each rank has as many experts.
void check_expert_axis(Draft& draft) {
  const std::int64_t ep = draft.deck.mesh.ep, experts = draft.deck.model.experts;
  if (!draft.good({"mesh.ep", "model.experts"}) || ep == 1) return;
  if (experts == 0)
    draft.fault({"mesh.ep"}, fmt::format("mesh.ep {} divides a layer's experts among ranks, and this model has none (model.experts = 0); "
                                         "set mesh.ep = 1, and these ranks are data-parallel",
                                         ep));
  else if (experts % ep != 0)
    draft.fault({"mesh.ep", "model.experts"}, fmt::format("mesh.ep {} does not divide model.experts {}; nearest valid mesh.ep: {}", ep,
                                                          experts, one_of(divisors_near(experts, ep))));
}

/// Groups of data-parallel ranks with the whole state each.
void check_replicas(Draft& draft, int ranks) {
  const std::int64_t replicate = draft.deck.mesh.replicate, dp = draft.deck.mesh.dp;
  if (!draft.good({"mesh.replicate"}) || replicate == 1) return;
  if (ranks > 0 && draft.good({"mesh.dp"}) && dp % replicate != 0)
    draft.fault({"mesh.replicate", "mesh.dp"},
                fmt::format("mesh.replicate {} does not divide the {} data-parallel ranks; nearest valid mesh.replicate: {}", replicate, dp,
                            one_of(divisors_near(dp, replicate))));
  if (draft.good({"zero.stage"}) && draft.deck.zero.stage == 0)
    draft.fault({"mesh.replicate", "zero.stage"},
                "with zero.stage = 0 each rank has the whole state already; set zero.stage to 1, 2 or 3, or mesh.replicate = 1");
  if (draft.good({"zero.offload_optimizer.device"}) && draft.deck.zero.offload_optimizer.device != OffloadDevice::none)
    draft.fault({"mesh.replicate", "zero.offload_optimizer.device"},
                "gradients that are offloaded after each micro-batch cannot be summed over replicas in this version; set mesh.replicate = "
                "1, or zero.offload_optimizer.device = \"none\"");
}

/// Groups of ranks that hold a compute copy each (ZeRO++ hpZ).
void check_copies(Draft& draft, int ranks) {
  const std::int64_t size = draft.deck.zero.hpz_partition_size, dp = draft.deck.mesh.dp;
  if (!draft.good({"zero.hpz_partition_size"}) || size == 1) return;
  if (draft.good({"zero.stage"}) && draft.deck.zero.stage != 3)
    draft.fault(
        {"zero.hpz_partition_size", "zero.stage"},
        fmt::format("with zero.stage = {} each rank has a whole compute copy; set zero.stage = 3, or leave zero.hpz_partition_size at 1",
                    draft.deck.zero.stage));
  if (draft.good({"mesh.replicate"}) && draft.deck.mesh.replicate > 1)
    draft.fault({"zero.hpz_partition_size", "mesh.replicate"},
                "replicas already gather only inside their group, because each has the whole state; leave one of the two at 1");
  if (draft.good({"zero.offload_param.device"}) && draft.deck.zero.offload_param.device != OffloadDevice::none)
    draft.fault({"zero.hpz_partition_size", "zero.offload_param.device"},
                "a compute copy in each group takes the memory that offloaded parameters save; leave zero.hpz_partition_size at 1, or "
                "zero.offload_param.device at \"none\"");
  if (ranks <= 0 || !draft.good({"mesh.dp", "mesh.cp", "mesh.ep"})) return;
  const std::int64_t each = draft.deck.mesh.cp * draft.deck.mesh.ep;
  if (size % each == 0 && dp % (size / each) == 0) return;
  std::vector<std::int64_t> valid = divisors_near(dp, std::max<std::int64_t>(1, size / each));
  for (std::int64_t& n : valid) n *= each;
  draft.fault({"zero.hpz_partition_size", "mesh.dp"},
              fmt::format("zero.hpz_partition_size {} does not divide the {} ranks that share parameters (mesh.dp {}{}{}) into equal "
                          "groups; nearest valid zero.hpz_partition_size: {}",
                          size, dp * each, dp, draft.deck.mesh.cp > 1 ? fmt::format(" x mesh.cp {}", draft.deck.mesh.cp) : "",
                          draft.deck.mesh.ep > 1 ? fmt::format(" x mesh.ep {}", draft.deck.mesh.ep) : "", one_of(valid)));
}

}  // namespace

void check_mesh(Draft& draft, int ranks) {
  check_ranks(draft, ranks);
  check_replicas(draft, ranks);
  check_copies(draft, ranks);
  check_expert_axis(draft);
  check_tensor_axis(draft);
  check_context_axis(draft);
}

namespace {

/// What the keys of a pipeline say where there is none, or no such schedule.
void check_pipeline_in_use(Draft& draft) {
  const PipelineKeys& keys = draft.deck.pipeline;
  const bool alone = draft.deck.mesh.pp == 1, known = draft.good({"pipeline.schedule", "pipeline.virtual_stages"});
  if (alone && !keys.layers.empty())
    draft.idle("pipeline.layers", "mesh.pp", "has no effect with mesh.pp = 1; set mesh.pp or leave this key out");
  if (alone && known && keys.schedule != PipelineSchedule::one_forward_one_backward)
    draft.idle("pipeline.schedule", "mesh.pp", "has no effect with mesh.pp = 1; set mesh.pp or leave this key out");
  if (known && keys.schedule != PipelineSchedule::interleaved && draft.differs("pipeline.virtual_stages"))
    draft.idle("pipeline.virtual_stages", "pipeline.schedule",
               "has no effect unless pipeline.schedule = \"interleaved\"; set that or leave this key out");
}

/// Each stage of a pipeline has a layer, and with virtual stages each run of layers.
void check_stages(Draft& draft) {
  const std::int64_t pp = draft.deck.mesh.pp, layers = draft.deck.model.layers;
  const PipelineKeys& keys = draft.deck.pipeline;
  const std::vector<std::int64_t>& cut = keys.layers;
  const bool interleaved = draft.good({"pipeline.schedule", "pipeline.virtual_stages"}) && keys.schedule == PipelineSchedule::interleaved;
  const std::int64_t runs = pp * (interleaved ? keys.virtual_stages : 1);
  if (pp > layers)
    draft.fault(
        {"mesh.pp", "model.layers"},
        fmt::format("mesh.pp {} is more than model.layers {}: a stage would have no layer; set mesh.pp to at most {}", pp, layers, layers));
  else if (runs > layers)
    draft.fault({"pipeline.virtual_stages", "mesh.pp", "model.layers"},
                fmt::format("mesh.pp {} x pipeline.virtual_stages {} is more than model.layers {}: a run of layers would have none; {}", pp,
                            keys.virtual_stages, layers,
                            layers / pp >= 2 ? fmt::format("set pipeline.virtual_stages to at most {}", layers / pp)
                                             : "set pipeline.schedule to \"1f1b\" or \"zero_bubble\""));
  else if (!cut.empty() && std::ssize(cut) != runs)
    draft.fault(
        {"pipeline.layers", "mesh.pp"},
        fmt::format("pipeline.layers has {} numbers and there are {} {}; give one a {}, or [] to have them chosen", cut.size(), runs,
                    interleaved ? "runs of layers, mesh.pp x pipeline.virtual_stages" : "stages", interleaved ? "run" : "stage"));
  else if (const std::int64_t sum = std::accumulate(cut.begin(), cut.end(), std::int64_t{0}); !cut.empty() && sum != layers)
    draft.fault(
        {"pipeline.layers", "model.layers"},
        fmt::format("pipeline.layers adds up to {} layers and model.layers is {}; with the other numbers unchanged the last would be {}",
                    sum, layers, layers - sum + cut.back()));
}

}  // namespace

/// Each stage of a pipeline has a layer, and lanes of its own for what it sends and receives.
void check_pipeline(Draft& draft) {
  if (!draft.good({"mesh.pp", "pipeline.layers", "model.layers"})) return;
  check_pipeline_in_use(draft);
  if (draft.deck.mesh.pp == 1) return;
  check_stages(draft);
  const Deck& d = draft.deck;
  if (draft.good({"precision.gradients"}) && d.pipeline.schedule == PipelineSchedule::interleaved && d.precision.gradients == DType::bf16)
    draft.fault({"pipeline.schedule", "precision.gradients"},
                "tensors that several runs of layers share are reduced once for each run, and each bf16 sum would be rounded again; with "
                "precision.gradients = \"bf16\" set pipeline.schedule to \"1f1b\" or \"zero_bubble\"");
  if (draft.good({"run.lanes"}) && d.run.lanes == RunLanes::inline_order)
    draft.fault(
        {"run.lanes", "mesh.pp"},
        "a stage sends and receives at the same time, which one thread cannot do; with mesh.pp set run.lanes to \"auto\" or \"threads\"");
  if (draft.good({"zero.overlap_comm"}) && d.zero.overlap_comm == OverlapComm::no)
    draft.fault({"zero.overlap_comm", "mesh.pp"},
                "a stage sends while it computes; with mesh.pp set zero.overlap_comm to \"auto\" or true");
  if (draft.good({"activation.offload"}) && d.activation.offload != OffloadDevice::none)
    draft.fault({"activation.offload", "mesh.pp"},
                "a stage holds streams of several micro-batches at a time, and cannot offload them in this version; with mesh.pp leave "
                "activation.offload at \"none\"");
}

}  // namespace tessera
