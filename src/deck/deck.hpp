// The deck: everything that a run is told, as typed values. A row of schema_*.cpp declares each key once and binds it to a field here.
// The initial value of a field is the default of its key, and stands nowhere else. 0 is "auto" where the key takes that word.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/types.hpp"
#include "deck/modes.hpp"

namespace tessera {

struct RunKeys {
  std::string name = "auto", output_dir = "auto", resume = "auto";
  RunDevice device = RunDevice::automatic;
  RunLanes lanes = RunLanes::automatic;
  std::string init;        // folder of a Hugging Face model; empty: weights are drawn
  std::int64_t steps = 0;  // 0: those of epochs
  double epochs = 0;       // passes over the data; 0: steps says how long the run is
  std::int64_t seed = 1, threads = 0, log_every = 1;
  std::int64_t breakdown_every = 0;  // steps; 0: no breakdown
  bool profile = false;
  std::string trace = "0";         // steps to be timed task by task: "12", "3..5"; "0": none
  std::string machine;             // path of a machine profile, for what is predicted; empty: none
  std::string notify;              // a command of the shell; empty: none
  std::int64_t notify_limit = 10;  // seconds
  bool reproducible = false, overwrite = false;
  friend bool operator==(const RunKeys&, const RunKeys&) = default;
};

/// Steps as the log counts them, both ends with it.
struct StepRange {
  std::int64_t first = 0, last = 0;  ///< 0: none
  bool holds(std::int64_t step) const { return first <= step && step <= last; }
};
/// "12", "3..5"; "0" is none. Nothing where the text is no range.
std::optional<StepRange> step_range(const std::string& text);

/// The router's kernels have a bit for each.
inline constexpr std::int64_t most_expert_groups = 64;

/// The device kernels keep a head's features in a block's shared memory and registers.
inline constexpr std::int64_t largest_head_dim = 256;

struct LoraKeys {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 16, dropout = 0;
  std::vector<std::string> targets = {}, modules_to_save = {};
  LoraScaling scaling = LoraScaling::standard;
  std::string init;  // folder of an adapter; empty: drawn
  friend bool operator==(const LoraKeys&, const LoraKeys&) = default;
};

/// A kind of layers. What it leaves out is as [model] says it.
struct KindKeys {
  std::string name;  // a letter of model.pattern
  std::optional<std::int64_t> window = {};
  std::optional<PositionMode> positions = {};
  std::optional<double> rope_theta = {};
  std::optional<RopeMode> rope_scaling = {};
  std::optional<bool> experts = {};  // false: one feed-forward block in the place of the model's
  friend bool operator==(const KindKeys&, const KindKeys&) = default;
};

struct ModelKeys {
  std::int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, ff_width = 0, vocab = 0;
  double norm_eps = 1e-5, init_std = 0.02;
  bool tied = false, qk_norm = false, wide_qk_norm = false, qkv_bias = false, attention_out_bias = false, attention_sinks = false;
  NormPlacement norm_placement = NormPlacement::pre;
  NormForm norm_form = NormForm::weight;
  Activation activation = Activation::silu;
  bool gated = true, mlp_bias = false;
  double gate_limit = 7;       // of clamped_silu
  double embedding_scale = 1;  // 0: the root of the width
  double residual_scale = 1, logit_scale = 1;
  bool head_bias = false;
  double attention_scale = 0;                       // 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  double rope_theta = 10000;
  RopeMode rope_scaling = RopeMode::none;
  double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  std::int64_t rope_original_context = 8192;
  double rope_beta_fast = 32, rope_beta_slow = 1;
  double rope_attention_factor = 0;                                     // 0: by the factor
  std::vector<double> rope_short_factors = {}, rope_long_factors = {};  // of longrope, for each pair of features
  bool rope_truncate = true;
  double rotary_fraction = 1;  // share of a head's features that is rotated
  RopePairs rope_pairs = RopePairs::halves;
  std::int64_t window = 0;  // keys that a query sees at most; 0: all before it
  PositionMode positions = PositionMode::rope;
  std::int64_t learned_positions = 0;  // vectors that tokens' rows are added to, by their positions; 0: none
  std::string pattern = {};            // kinds of layers, a letter each, again and again; empty: all are as these keys say
  std::vector<KindKeys> kinds = {};    // that the pattern names
  std::int64_t max_context = 0;        // that exports declare; 0: batch.sequence_length
  std::int64_t experts = 0;            // of each layer; 0: one feed-forward block
  std::int64_t dense_layers = 0;       // the first, which have one in the place of experts
  std::int64_t experts_per_token = 2, expert_ff_width = 0, shared_ff_width = 0;
  bool shared_gate = true, normalize_top_k = true, expert_bias = false;
  RouterScores router_scores = RouterScores::softmax;
  double router_scale = 1;
  std::int64_t expert_groups = 1, groups_per_token = 1;
  double router_aux_loss = 0, router_z_loss = 0;  // coefficients
  RouterBalance router_balance = RouterBalance::loss;
  double router_bias_rate = 0.001;
  std::vector<std::string> freeze = {};  // patterns of tensors that training leaves as they are
  LoraKeys lora = {};                    // [lora] of a deck
  /// The kind of a layer; null: its letter names none, or there is no pattern.
  const KindKeys* kind_of(std::int64_t layer) const;
  bool has_experts(std::int64_t layer) const;
  friend bool operator==(const ModelKeys&, const ModelKeys&) = default;
};

struct ExpertKeys {
  double capacity_factor = 0;  // 0: dropless
  friend bool operator==(const ExpertKeys&, const ExpertKeys&) = default;
};

/// A frozen copy of the model beside the one that trains.
struct ReferenceKeys {
  ReferenceModel model = ReferenceModel::none;
  friend bool operator==(const ReferenceKeys&, const ReferenceKeys&) = default;
};

struct PreferenceKeys {
  std::vector<std::string> objective = {};  // words of PreferenceObjective; none: the loss is that of tokens
  std::vector<double> weights = {};
  double beta = 0.1, label_smoothing = 0, gamma = 0.5, alpha = 1;
  PreferenceReference reference = PreferenceReference::none;
  std::string reference_file;
  bool of_reference = false;  // no key: the deck is that of the model that makes the reference
  bool on() const { return !objective.empty(); }
  bool runs_reference() const { return reference == PreferenceReference::adapter || reference == PreferenceReference::copy; }
  friend bool operator==(const PreferenceKeys&, const PreferenceKeys&) = default;
};

/// Steps at the begin of a run whose batches are others: until so many are done.
struct RampPhase {
  std::int64_t until_step = 0;
  std::int64_t global = 0, sequence_length = 0;  // sequences, tokens; 0: those of [batch]
  friend bool operator==(const RampPhase&, const RampPhase&) = default;
};

struct BatchKeys {
  std::int64_t global = 0, micro = 0;  // sequences
  std::int64_t sequence_length = 0;    // tokens
  std::vector<RampPhase> ramp = {};    // in the order of their steps
  std::int64_t parts = 1;              // sequences that a sample is cut into: no key, but what deck_in_phase says of a phase
  std::int64_t last_global = 0;        // of the run's last phase, where this is another: no key either
  friend bool operator==(const BatchKeys&, const BatchKeys&) = default;
};

struct DataKeys {
  std::vector<std::string> train;       // token files
  std::vector<double> weights, epochs;  // of each of them
  std::string validation;               // a token file
  std::string tokenizer = {};           // a folder, or a digest
  std::string chat_template = {};       // a name, or a file
  BinIds bin_ids = BinIds::automatic;
  bool document_mask = false;
  Packing packing = Packing::concatenate;
  TooLong too_long = TooLong::refuse;
  friend bool operator==(const DataKeys&, const DataKeys&) = default;
};

/// What one optimizer reads of [optimizer], or of a group.
struct UpdateKeys {
  std::string type = "adamw";  // a row of optimizer/texts/table.cpp
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool bias_correction = true;
  double momentum = 0;
  bool nesterov = false;
  double min_trust_ratio = 0.01, max_trust_ratio = 10, decay_rate = 0.8, update_clipping = 1;
  OrthogonalSteps newton_schulz = OrthogonalSteps::quintic;
  MuonScale muon_scale = MuonScale::match_rms_adamw;
  DType moments = DType::f32;
  MomentsRounding moments_rounding = MomentsRounding::stochastic;  // to bf16
  std::int64_t freeze_step = 100'000;                              // updates of 1-bit Adam's warmup
  bool warms_up = false;  // it does through all steps: no key, but what deck_in_phase says of a phase
  friend bool operator==(const UpdateKeys&, const UpdateKeys&) = default;
};

/// Tensors with an update of their own.
struct OptimizerGroup {
  std::vector<std::string> tensors = {};  // patterns
  std::optional<double> learning_rate = {}, weight_decay = {};
  std::optional<UpdateKeys> update = {};     // of another optimizer
  std::vector<std::string_view> given = {};  // keys of it that the deck says, in the order of the schema; others have its defaults
  friend bool operator==(const OptimizerGroup&, const OptimizerGroup&) = default;
};

struct OptimizerKeys : UpdateKeys {
  double learning_rate = 0, weight_decay = 0.1, gradient_clipping = 1;
  std::vector<OptimizerGroup> groups = {};  // the first that has a tensor
  friend bool operator==(const OptimizerKeys&, const OptimizerKeys&) = default;
};

/// Of DeepSpeed's OneCycle; the cycle's largest rate is optimizer.learning_rate.
struct OneCycleKeys {
  double min_lr = 0;
  std::int64_t first_step_size = 2000, second_step_size = 2000;  // updates of the rise and of the fall
  std::int64_t first_stair_count = 0, second_stair_count = 0;    // 0: continuous
  std::int64_t decay_step_size = 0;                              // updates after the cycle; 0: no decay
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double min_mom = 0.8, max_mom = 0.9, decay_mom_rate = 0;
  friend bool operator==(const OneCycleKeys&, const OneCycleKeys&) = default;
};

/// Of DeepSpeed's LRRangeTest, which begins at optimizer.learning_rate.
struct RangeTestKeys {
  std::int64_t step_size = 2000;  // updates
  double step_rate = 1;
  bool staircase = false;
  friend bool operator==(const RangeTestKeys&, const RangeTestKeys&) = default;
};

struct LearningRateKeys {
  RateSchedule schedule = RateSchedule::cosine;
  std::int64_t warmup_steps = 0, decay_steps = 0;
  double warmup_ratio = 0;  // of run.steps; 0: warmup_steps says it
  double min_ratio = 0.1;
  WarmupType warmup_type = WarmupType::linear;
  DecayType decay_type = DecayType::linear;        // of wsd
  double warmup_min_lr = 0, warmup_min_ratio = 0;  // where a warmup of DeepSpeed's begins
  OneCycleKeys one_cycle = {};
  RangeTestKeys lr_range_test = {};
  friend bool operator==(const LearningRateKeys&, const LearningRateKeys&) = default;
};

/// Of fp16: scales are powers of two.
struct LossScaleKeys {
  std::int64_t initial_power = 16;
  std::int64_t window = 1000, hysteresis = 2;  // steps; overflows
  bool consecutive_hysteresis = false;
  double minimum = 1, fixed = 0;  // fixed 0: it moves
  double initial() const { return fixed > 0 ? fixed : std::ldexp(1.0, static_cast<int>(initial_power)); }
  friend bool operator==(const LossScaleKeys&, const LossScaleKeys&) = default;
};

struct PrecisionKeys {
  DType compute = DType::bf16;
  DType gradients = DType::f32;                               // sums of a step
  Fp8Recipe fp8 = Fp8Recipe::none;                            // of products of linear layers
  std::vector<std::string> fp8_skip = {"head", "embedding"};  // patterns of tensors whose products stay in the compute type
  std::int64_t fp8_history = 1024;                            // of tensorwise_delayed: steps whose largest magnitudes count
  std::int64_t fp8_margin = 0;                                // and powers of two that its scales leave above them
  LossScaleKeys loss_scale = {};
  bool scales_loss() const { return compute == DType::f16; }
  friend bool operator==(const PrecisionKeys&, const PrecisionKeys&) = default;
};

struct OffloadParamKeys {
  OffloadDevice device = OffloadDevice::none;
  bool pin_memory = true;
  std::string nvme_path;        // folders
  std::int64_t max_in_cpu = 0;  // elements of the shards that stay on the host beside nvme
  friend bool operator==(const OffloadParamKeys&, const OffloadParamKeys&) = default;
};

struct OffloadOptimizerKeys {
  OffloadDevice device = OffloadDevice::none;
  double ratio = 1;               // share of the elements that is offloaded
  std::string nvme_path;          // folders
  std::int64_t buffer_count = 4;  // pieces on their way between tiers
  bool pin_memory = true;
  bool pipeline_read = true, pipeline_write = true, fast_init = true;  // with nvme
  friend bool operator==(const OffloadOptimizerKeys&, const OffloadOptimizerKeys&) = default;
};

/// Least elements of a bucket on GPUs.
inline constexpr std::int64_t gpu_bucket = std::int64_t{1} << 31;

/// Of gradients in blocks of codes (LoCo).
struct ErrorFeedbackKeys {
  bool enabled = false;
  double beta = 0.8;
  std::int64_t reset_interval = 1024;  // updates
  friend bool operator==(const ErrorFeedbackKeys&, const ErrorFeedbackKeys&) = default;
};

struct ZeroKeys {
  std::int64_t stage = 0;
  OverlapComm overlap_comm = OverlapComm::automatic;
  bool contiguous_gradients = true, reduce_scatter = true, round_robin_gradients = false;
  // Of elements.
  std::int64_t reduce_bucket_size = 500'000'000, allgather_bucket_size = 500'000'000, prefetch_bucket_size = 0;
  std::int64_t param_persistence_threshold = 100'000, max_live_parameters = 1'000'000'000, max_reuse_distance = 1'000'000'000;
  std::int64_t sub_group_size = 1'000'000'000;
  std::int64_t hpz_partition_size = 1;
  bool quantized_weights = false, quantized_gradients = false;
  ErrorFeedbackKeys error_feedback;
  OffloadOptimizerKeys offload_optimizer;
  OffloadParamKeys offload_param;
  friend bool operator==(const ZeroKeys&, const ZeroKeys&) = default;
};

struct NvmeKeys {
  std::int64_t block_size = 1 << 20;  // bytes
  std::int64_t queue_depth = 8, threads = 1;
  std::int64_t block_bytes() const { return (block_size + 4095) / 4096 * 4096; }  // as disks take them
  bool encrypt = false, wipe = false;
  friend bool operator==(const NvmeKeys&, const NvmeKeys&) = default;
};

/// What `tessera preflight` names: shares of the median that a rank is slower by, and the state of a node.
struct PreflightKeys {
  double slower = 0.1, slower_exchange = 0.1, slower_disk = 0.5;  // of products and copies; between ranks; of folders
  double temperature = 95;                                        // degrees; 0: any
  std::int64_t throttled = 0;                                     // events of processors meanwhile
  std::int64_t mended_errors = 100, memory_errors = 0;            // of memory, since the node was started
  std::int64_t free_space = 0;                                    // bytes of a folder; 0: a GiB
  std::int64_t least_free() const { return free_space > 0 ? free_space : std::int64_t{1} << 30; }
  bool same_nodes = false;  // nodes that differ are a fault
  friend bool operator==(const PreflightKeys&, const PreflightKeys&) = default;
};

struct WatchdogKeys {
  std::int64_t limit = 0;  // seconds; 0: auto
  WatchdogAction action = WatchdogAction::warn;
  friend bool operator==(const WatchdogKeys&, const WatchdogKeys&) = default;
};

struct ActivationKeys {
  Recompute recompute = Recompute::none;
  std::int64_t every = 1;              // layers between two kept streams
  std::vector<std::string> keep = {};  // values, or kinds of segments, that are not made again
  OffloadDevice offload = OffloadDevice::none;
  friend bool operator==(const ActivationKeys&, const ActivationKeys&) = default;
};

struct MeshKeys {
  std::int64_t dp = 0, tp = 1, pp = 1, cp = 1, ep = 1;  // dp 0: auto
  std::int64_t replicate = 1;                           // of dp: groups that have the whole state each
  friend bool operator==(const MeshKeys&, const MeshKeys&) = default;
};

struct ContextKeys {
  ContextMethod method = ContextMethod::ulysses;
  friend bool operator==(const ContextKeys&, const ContextKeys&) = default;
};

struct PipelineKeys {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  std::int64_t virtual_stages = 2;        // of each stage, with schedule interleaved
  std::vector<std::int64_t> layers = {};  // of each stage or virtual stage; none: auto
  friend bool operator==(const PipelineKeys&, const PipelineKeys&) = default;
};

struct TopologyKeys {
  bool share_gpu = false;                               // several ranks on one GPU
  bool mixed_processors = false;                        // ranks may compute with other instructions
  Hierarchical hierarchical = Hierarchical::automatic;  // of groups over several nodes
  std::int64_t start_timeout = 300;                     // seconds
  std::int64_t collective_timeout = 300;                // seconds
  friend bool operator==(const TopologyKeys&, const TopologyKeys&) = default;
};

struct CheckpointKeys {
  std::int64_t every = 0, keep = 2, keep_every = 0;  // steps; checkpoints; steps
  bool keep_best = false;                            // that of the lowest validation loss is saved, and stays
  std::int64_t weights_every = 0;                    // steps between saves of weights alone; 0: none
  bool async = false;                                // saves are written beside the steps
  std::string files = "rank";                        // "rank", "node" or a number: how many a save has
  std::string staging;                               // a folder of the node's own disk; "": none
  std::int64_t retries = 3;                          // of a save that failed
  bool verify_resume = false;                        // the steps after a resume are compared with those of the run that saved
  std::int64_t neighbour_every = 0;                  // steps between copies of the state in other nodes' memory; 0: none
  std::string neighbour_folder = "/dev/shm";         // where they lie
  bool allow_same_node = false;                      // a rank's copy may lie on its own node
  /// Whether the state is copied beside a step, for whoever writes it then.
  bool copies_state() const { return async || neighbour_every > 0; }
  friend bool operator==(const CheckpointKeys&, const CheckpointKeys&) = default;
};

/// What a run does by itself about steps that are not as they should be.
struct GuardKeys {
  std::int64_t skip_limit = 0;  // steps in a row that may be passed over; 0: the first one that is not finite ends the run
  SpikeMode spike = SpikeMode::off;
  double threshold = 6;                             // robust z-score from which a step is a spike
  std::int64_t window = 64;                         // steps that it is measured by
  std::int64_t rollback_limit = 3;                  // times that a run goes back without a new checkpoint between
  std::int64_t digest_every = 0, replay_every = 0;  // steps; 0: never
  /// Steps of the windows; 0: no spike is looked for.
  std::int64_t steps_judged_by() const { return spike == SpikeMode::off ? 0 : window; }
  friend bool operator==(const GuardKeys&, const GuardKeys&) = default;
};

struct EvaluateKeys {
  std::int64_t every = 0, batches = 16;  // steps; micro-batches
  std::int64_t patience = 0;             // evaluations in a row without an improvement that end the run; 0: none do
  double min_improvement = 0;            // of the loss
  /// Whether the step is evaluated, of a run of so many.
  bool due(std::int64_t step, std::int64_t steps) const { return every > 0 && (step % every == 0 || step == steps); }
  friend bool operator==(const EvaluateKeys&, const EvaluateKeys&) = default;
};

/// What a run writes beside metrics.jsonl.
struct MetricsKeys {
  bool csv = false, tensorboard = false;
  std::string prometheus;         ///< HOST:PORT where rank 0 serves /metrics; empty: nowhere
  std::string prometheus_folder;  ///< where a node exporter reads files; empty: none
  std::string wandb;              ///< a project of Weights & Biases; empty: none
  std::string wandb_team, wandb_group;
  std::string mlflow;      ///< an experiment of MLflow; empty: none
  std::string mlflow_uri;  ///< where MLflow keeps it; empty: where its environment says
  friend bool operator==(const MetricsKeys&, const MetricsKeys&) = default;
};

/// Texts that a run makes on its way, for people to read.
struct SampleKeys {
  std::int64_t every = 0, tokens = 128;  // steps; tokens of a text, its prompt included
  std::vector<std::string> prompts = {};
  std::string file;  // of prompts, one a line
  double temperature = 0;
  std::int64_t top_k = 0;
  friend bool operator==(const SampleKeys&, const SampleKeys&) = default;
};

struct KernelKeys {
  std::int64_t loss_chunk = 0;  // tokens of logits held at once; 0: auto
  bool pack_weights = false;    // packed copies of whole weight matrices
  bool gemm_search = true;      // on a GPU: times algorithms of matrix products at the start
  GraphMode cuda_graph = GraphMode::automatic;
  AttentionMode attention = AttentionMode::automatic;  // on a GPU
  friend bool operator==(const KernelKeys&, const KernelKeys&) = default;
};

struct MemoryKeys {
  std::int64_t device = 0;  // bytes of a rank's GPU, or that a host rank computes in; 0: what there is
  std::int64_t host = 0;    // bytes a rank may plan for; 0: what the node has, shared by its ranks
  std::int64_t pinned = 0;  // of them pinned for copies to and from a GPU; 0: no limit of their own
  friend bool operator==(const MemoryKeys&, const MemoryKeys&) = default;
};

/// A deck after parsing, overrides and resolution of `auto`.
struct Deck {
  RunKeys run;
  ModelKeys model;
  ExpertKeys experts;
  ReferenceKeys reference;
  PreferenceKeys preference;
  BatchKeys batch;
  DataKeys data;
  OptimizerKeys optimizer;
  LearningRateKeys learning_rate;
  PrecisionKeys precision;
  ZeroKeys zero;
  ActivationKeys activation;
  MeshKeys mesh;
  ContextKeys context;
  PipelineKeys pipeline;
  TopologyKeys topology;
  CheckpointKeys checkpoint;
  EvaluateKeys evaluate;
  GuardKeys guards;
  SampleKeys samples;
  MetricsKeys metrics;
  KernelKeys kernels;
  MemoryKeys memory;
  NvmeKeys nvme;
  PreflightKeys preflight;
  WatchdogKeys watchdog;
  friend bool operator==(const Deck&, const Deck&) = default;
};

/// One thing wrong with a deck. `line` and `column` are 0 where the fault has no place in a file (an override, a missing key).
struct Fault {
  std::string file;
  int line = 0, column = 0;
  std::string key, message;  // message says what is wrong and what to do, nearest key included
  std::string str() const;   // "file:line:column: key: message"
};

/// Where a value stands: a line of a file, or an override, which has no line.
struct DeckPlace {
  std::string file;
  int line = 0, column = 0;
};

struct ParsedDeck {
  Deck deck;
  std::vector<Fault> faults;                     // empty: the deck may be used
  std::vector<std::string> resolved;             // "zero.overlap_comm = false (auto: one thread per rank)": what `auto` became and why
  std::map<std::string, DeckPlace> places = {};  // of each key that was given
};

/// The optimizer steps that run.epochs passes over a deck's data are.
struct CountedSteps {
  std::int64_t steps = 0;  ///< 0: they cannot be counted here
  std::string why;         ///< what they are counted from, or why they cannot be
};
using CountSteps = std::function<CountedSteps(const Deck&)>;

/// Reads a TOML file, applies `key=value` overrides in order, checks every key, its type, unit and range and the rules between keys.
/// All faults are collected. `ranks` is the number of data-parallel ranks when it is known (0: not known; rules that need it are skipped).
/// `count` is asked where a deck without other faults gives run.epochs: its steps take their place. Without it, or where it knows none,
/// run.steps stays 0, and with it learning_rate.warmup_ratio as it is.
ParsedDeck parse_deck(const std::string& path, const std::vector<std::string>& overrides, int ranks, const CountSteps& count = {});
/// The same from text (checkpoints carry their deck); `name` stands for the file in messages.
ParsedDeck parse_deck_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides, int ranks,
                           const CountSteps& count = {});
/// The deck that a run left in its folder or a checkpoint. Where that run's kernels worked binds nobody: run.device becomes `device`.
ParsedDeck parse_stored_deck(const std::string& text, const std::string& name, const std::string& device = "auto");
/// Whether the rules take the deck with these overrides: what the program proposes is asked here first.
bool is_allowed(const Deck& deck, int ranks, const std::vector<std::string>& overrides = {});
/// Throws Error(usage) that lists every fault, one a line; otherwise the deck.
Deck require_deck(const ParsedDeck& parsed);

/// The whole deck as TOML, every key with its resolved value, in schema order. parse_deck_text(print_deck(d)) == d.
std::string print_deck(const Deck& deck);
/// Markdown table of all keys, made from the schema: docs/deck.md is this text.
std::string deck_reference();
/// Digest of print_deck: ranks compare it before they start.
Hash128 deck_hash(const Deck& deck);
/// Digest over the keys that define the trained function and its order of data (model, batch.global, batch.micro, sequence length, data,
/// optimizer, learning rate, precision, seed, steps, reproducible, init), not how it is laid out: an output folder belongs to one such
/// digest. A key that came after the first runs has no part in it where it has its default.
Hash128 deck_identity(const Deck& deck);
/// The keys of that digest in which two decks differ: "model.layers = 4, here 6".
std::vector<std::string> identity_differences(const Deck& there, const Deck& here);
/// The same over all keys.
std::vector<std::string> deck_differences(const Deck& there, const Deck& here);

}  // namespace tessera
