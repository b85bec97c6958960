// What a run computes, of keys that have a meaning together: precision, optimizer, schedule, activations. And what no file of DeepSpeed's
// holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "deck/import/importer.hpp"
#include "deck/schema/value.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

/// A number as it was written, what stands for "auto", or nothing where the key is not given.
bool put_number(Importer& in, std::string_view theirs, std::string_view ours, const std::string& comment = "") {
  const JsonNode* node = in.given(theirs);
  if (!node) return false;
  const ForeignKey& row = in.row(theirs);
  const bool whole = row.type == ForeignType::integer;
  if (in.is_auto(theirs))
    in.put(ours, std::string(row.automatic), theirs, fmt::format("auto: {}", row.filled_by));
  else
    in.put(ours, whole ? fmt::format("{}", static_cast<std::int64_t>(node->number())) : node->written, theirs, comment);
  return true;
}

}  // namespace

namespace {

/// The scale of the loss, where the deck computes in fp16; else a word on each key that then says nothing.
void import_loss_scale(Importer& in) {
  constexpr std::string_view fixed = "fp16.loss_scale", initial = "fp16.initial_loss_scale", power = "fp16.initial_scale_power",
                             moving[] = {"fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.consecutive_hysteresis",
                                         "fp16.min_loss_scale"};
  const auto all = {fixed, initial, power, moving[1], std::string_view("fp16.hysteresis"), moving[2], moving[3]};
  const ImportedLine* compute = in.line("precision.compute");
  const std::string type = in.overridden("precision.compute") ? in.override_of("precision.compute") : compute ? compute->value : "";
  if (type.find("fp16") == std::string::npos) {
    for (const std::string_view key : all)
      if (in.given(key)) in.note(key, "it belongs to fp16, and this deck computes in another type");
    return;
  }
  const JsonNode* scale = in.given(fixed);
  const bool number = scale && (scale->kind == JsonNode::Kind::integer || scale->kind == JsonNode::Kind::real);
  if (scale && !number && !scale->is("dynamic")) in.fault(fixed, "expected a number, or \"dynamic\" for a scale that moves");
  const bool moves = !number || scale->number() == 0;
  if (scale) moves ? in.note(fixed, "the scale moves") : in.put("precision.loss_scale.fixed", scale->written, fixed);
  put_number(in, "fp16.hysteresis", "precision.loss_scale.hysteresis");
  if (!moves) {
    for (const std::string_view key : all)
      if (key != fixed && key != "fp16.hysteresis" && in.given(key)) in.note(key, "a fixed scale does not move");
    return;
  }
  put_number(in, power, "precision.loss_scale.initial_power");
  put_number(in, "fp16.loss_scale_window", "precision.loss_scale.window");
  put_number(in, "fp16.min_loss_scale", "precision.loss_scale.minimum");
  if (in.given("fp16.consecutive_hysteresis"))
    in.put("precision.loss_scale.consecutive_hysteresis", in.given("fp16.consecutive_hysteresis")->written, "fp16.consecutive_hysteresis");
  if (const JsonNode* first = in.given(initial)) {
    const double exponent = std::log2(first->number());
    if (first->number() <= 0 || exponent != std::round(exponent))
      in.fault(initial, fmt::format("{} is not a power of two; scales must be, so that they change no digit", first->written));
    else
      in.put("precision.loss_scale.initial_power", fmt::format("{:g}", exponent), initial,
             fmt::format("2^{:g} is {}", exponent, first->written));
  }
}

void import_compute(Importer& in) {
  constexpr std::string_view ours = "precision.compute", bf16 = "bf16.enabled", fp16 = "fp16.enabled", autocast = "torch_autocast.enabled";
  if (in.is_true(fp16) && in.is_true(bf16)) in.fault(fp16, "bf16 is enabled too; leave one of the two out");
  if (in.is_true(fp16)) return in.put(ours, "\"fp16\"", fp16);
  if (in.is_true(bf16)) return in.put(ours, "\"bf16\"", bf16);
  if (in.is_auto(bf16)) return in.put(ours, "\"bf16\"", bf16, "auto: in DeepSpeed the Trainer's --bf16 decides");
  if (in.is_true(autocast)) {
    const std::string word = in.word_of("torch_autocast.dtype");
    if (word == "bf16") return in.put(ours, "\"bf16\"", autocast);
    return in.fault(autocast, "only bfloat16 is supported here; set torch_autocast.dtype to \"bfloat16\"");
  }
  if (in.is_auto(fp16)) return in.put(ours, "\"fp16\"", fp16, "auto: in DeepSpeed the Trainer's --fp16 decides");
  in.assume(ours, "\"fp32\"", "the file enables no other type, and DeepSpeed then computes in fp32");
}

}  // namespace

void import_precision(Importer& in) {
  import_compute(in);
  import_loss_scale(in);
}

namespace {

bool is_false(const Importer& in, std::string_view key) { return in.given(key) && !in.is_true(key); }

/// Two numbers, each at most once.
void put_betas(Importer& in) {
  constexpr std::string_view key = "optimizer.params.betas";
  const JsonNode* node = in.given(key);
  if (cycles_momentum(in)) {
    if (node) in.note(key, "OneCycle sets the betas of each update, as in DeepSpeed");
    return;
  }
  if (!node || in.is_auto(key)) {
    const std::string why = node ? fmt::format("auto: {}", in.row(key).filled_by) : "";
    for (const auto& [ours, value] : {std::pair("optimizer.beta1", "0.9"), std::pair("optimizer.beta2", "0.999")})
      node ? in.put(ours, value, key, why) : in.assume(ours, value, "DeepSpeed's default");
    return;
  }
  const auto is_number = [](const JsonNode& n) { return n.kind == JsonNode::Kind::integer || n.kind == JsonNode::Kind::real; };
  if (node->children.size() != 2 || !std::ranges::all_of(node->children, is_number))
    return in.fault(key, "expected two numbers, for example [0.9, 0.95]");
  in.put("optimizer.beta1", node->children[0].written, key);
  in.put("optimizer.beta2", node->children[1].written, key);
}

/// Matrices of layers and the rest may have a rate each there. Where those differ the matrices become a group. False without Muon.
bool put_rates_of_muon(Importer& in) {
  constexpr std::string_view ours = "optimizer.learning_rate", all = "optimizer.params.lr";
  constexpr std::string_view of_matrices = "optimizer.params.muon_lr", of_rest = "optimizer.params.adam_lr";
  if (in.word_of("optimizer.type") != "muon") return false;
  const auto rate = [&](std::string_view own, double fallback) {
    const std::string_view theirs = in.given(own) ? own : all;
    const JsonNode* node = in.given(theirs);
    return node && !in.is_auto(theirs) ? node->number() : node ? std::stod(std::string(in.row(theirs).automatic)) : fallback;
  };
  // Its classes' own defaults, where no key says a rate.
  const double matrices = rate(of_matrices, 0.02), rest = rate(of_rest, 3e-4);
  if (matrices == rest) return put_number(in, of_matrices, ours) || put_number(in, of_rest, ours) || put_number(in, all, ours);
  if (!put_number(in, in.given(of_rest) ? of_rest : all, ours, "for tensors that Muon does not update"))
    in.assume(ours, shortest(rest), "DeepSpeed's default for tensors that Muon does not update");
  const std::string group = fmt::format("[{{ tensors = [\"all-linear\"], learning_rate = {} }}]", shortest(matrices));
  if (in.given(of_matrices))
    in.put("optimizer.groups", group, of_matrices, "all-linear: the matrices of layers, which Muon updates");
  else
    in.assume("optimizer.groups", group,
              "all-linear: the matrices of layers, which Muon updates, with " + std::string(in.given(all) ? "lr" : "DeepSpeed's default"));
  return true;
}

/// What Muon is there: keys of ours that have another default.
void put_muon(Importer& in) {
  constexpr std::string_view type = "optimizer.type", method = "optimizer.params.ns_method";
  const bool muon = in.word_of(type) == "muon";
  for (const std::string_view theirs : {"optimizer.params.muon_lr", "optimizer.params.adam_lr", "optimizer.params.ns_method"})
    if (!muon && in.given(theirs)) in.fault(theirs, "belongs to Muon; leave it out, or write \"type\": \"Muon\"");
  if (!muon) return;
  if (const std::string word = in.word_of(method); !word.empty() && word != "standard" && word != "gram")
    in.fault(method, "expected \"standard\" or \"gram\", two orders of the same products");
  in.put("optimizer.newton_schulz", "\"simple\"", in.given(method) ? method : type);
  in.put("optimizer.muon_scale", "\"original\"", type);
  if (!in.given("optimizer.params.betas"))
    for (const auto& [ours, value] : {std::pair("optimizer.beta1", "0.9"), std::pair("optimizer.beta2", "0.95")})
      in.assume(ours, value, "DeepSpeed's default with Muon");
  if (!in.given("optimizer.params.eps")) in.assume("optimizer.eps", "1e-10", "DeepSpeed's default with Muon");
}

/// A schedule's own takes the place of the optimizer's, as it does in DeepSpeed.
void put_peak(Importer& in, bool no_optimizer) {
  constexpr std::string_view ours = "optimizer.learning_rate";
  for (const std::string_view theirs :
       {"scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr", "scheduler.params.lr_range_test_min_lr"})
    if (put_number(in, theirs, ours, "the scheduler's rate replaces the optimizer's lr")) return;
  const std::string schedule = in.word_of("scheduler.type");
  if (schedule == "warmup_decay_lr" || schedule == "lr_range_test")
    in.assume(ours, "1e-3", "the scheduler's default, which replaces the optimizer's lr");
  else if (put_rates_of_muon(in) || put_number(in, "optimizer.params.lr", ours))
    return;
  else if (no_optimizer)
    in.assume(ours, "5e-5", "FILL IN: the file has no optimizer; the Trainer's default");
  else
    in.assume(ours, "1e-3", "DeepSpeed's default");
}

void put_switch(Importer& in, std::string_view theirs, std::string_view ours) {
  if (in.given(theirs)) in.put(ours, in.is_true(theirs) ? "true" : "false", theirs);
}

}  // namespace

void import_optimizer(Importer& in) {
  constexpr std::string_view type = "optimizer.type", lr = "optimizer.params.lr";
  const std::string word = in.word_of(type);
  const Optimizer* row = optimizer_of_deepspeed(word);
  // AdamW's weight decay is decoupled whatever its params say.
  const bool coupled = (word == "adam" || word == "deepspeedcpuadam") &&
                       (is_false(in, "optimizer.params.adam_w_mode") || is_false(in, "optimizer.params.adamw_mode"));
  const bool params = in.given(lr) || in.given("optimizer.params.betas") || in.given("optimizer.params.weight_decay");
  constexpr std::string_view of_one_bit[] = {"zerooneadam", "onebitlamb"};
  if (std::ranges::find(of_one_bit, word) != std::end(of_one_bit)) {
    if (!in.overridden("optimizer.type"))
      in.fault(type, fmt::format("{} is refused: of the 1-bit optimizers only OneBitAdam is in this version (DeepSpeed itself refuses them "
                                 "since 0.19.8); write \"OneBitAdam\" or \"AdamW\", or set optimizer.type=adamw on the command line",
                                 in.given(type)->literal.str()));
    in.assume("optimizer.type", "\"adamw\"", "");
  } else if (!word.empty())
    in.put("optimizer.type", toml_string(coupled ? "adam" : row ? row->name : word), type);
  else if (params)
    in.fault("optimizer.params", "DeepSpeed reads no params without optimizer.type; add \"type\": \"AdamW\"");
  else
    in.assume("optimizer.type", "\"adamw\"", "the file has no optimizer");
  put_peak(in, word.empty());
  put_muon(in);
  put_number(in, "optimizer.params.momentum", "optimizer.momentum");
  put_number(in, "optimizer.params.freeze_step", "optimizer.freeze_step", "in DeepSpeed its first step makes no update, but counts");
  put_number(in, "optimizer.params.min_coeff", "optimizer.min_trust_ratio");
  put_number(in, "optimizer.params.max_coeff", "optimizer.max_trust_ratio");
  put_switch(in, "optimizer.params.nesterov", "optimizer.nesterov");
  const auto reads = [&](std::string_view key) { return !row || std::ranges::find(row->keys, key) != row->keys.end(); };
  if (reads("beta1") || in.given("optimizer.params.betas")) put_betas(in);
  put_switch(in, "optimizer.params.bias_correction", "optimizer.bias_correction");
  if (!put_number(in, "optimizer.params.eps", "optimizer.eps") && reads("eps")) in.assume("optimizer.eps", "1e-8", "DeepSpeed's default");
  if (!put_number(in, "optimizer.params.weight_decay", "optimizer.weight_decay", "of matrices only"))
    in.assume("optimizer.weight_decay", "0.0", "DeepSpeed's default");
  constexpr std::string_view halves = "bf16.bf16_optimizer_states";
  if (in.is_true(halves)) in.put("optimizer.moments", "\"bf16\"", halves);
  in.assume("optimizer.gradient_clipping", "1.0", "DeepSpeed's default since June 2026; before that it was 0.0, no clipping");
}

namespace {

/// A class of DeepSpeed's: what it is here, and the parameters that it takes.
struct Scheduler {
  std::string_view name, ours;
  std::vector<std::string_view> parameters;
};

const std::vector<Scheduler> schedulers = {
    {"WarmupLR", "warmup_lr", {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
    {"WarmupDecayLR", "warmup_decay_lr", {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
    {"WarmupCosineLR", "warmup_cosine_lr", {"total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type"}},
    {"OneCycle",
     "one_cycle",
     {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count",
      "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}},
    {"LRRangeTest",
     "lr_range_test",
     {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"}},
};

std::string parameter(std::string_view leaf) { return fmt::format("scheduler.params.{}", leaf); }

/// All parameters of all classes, once each.
std::vector<std::string_view> all_parameters() {
  std::vector<std::string_view> all;
  for (const Scheduler& scheduler : schedulers)
    for (const std::string_view leaf : scheduler.parameters)
      if (std::ranges::find(all, leaf) == all.end()) all.push_back(leaf);
  return all;
}

/// What a cycle is given and does not read in either.
void note_idle_cycle(Importer& in, std::vector<std::string_view>& parameters) {
  const auto drop = [&](std::initializer_list<std::string_view> leaves, std::string_view why) {
    for (const std::string_view leaf : leaves)
      if (std::erase(parameters, leaf) > 0 && in.given(parameter(leaf))) in.note(in.row(parameter(leaf)).name, why);
  };
  const JsonNode *momentum = in.given(parameter("cycle_momentum")), *size = in.given(parameter("decay_step_size"));
  if (momentum && momentum->written == "false")
    drop({"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}, "cycle_momentum is false, and nothing reads it");
  if (!size || size->number() == 0) drop({"decay_lr_rate", "decay_mom_rate"}, "decay_step_size is 0: there is no decay");
}

/// What the second half has where only the first one's is given.
void put_second_half(Importer& in) {
  for (const auto& [first, second, ours] :
       {std::tuple("cycle_first_step_size", "cycle_second_step_size", "learning_rate.one_cycle.second_step_size"),
        std::tuple("cycle_first_stair_count", "cycle_second_stair_count", "learning_rate.one_cycle.second_stair_count")})
    if (const JsonNode* node = in.given(parameter(first)); node && !in.given(parameter(second)))
      in.put(ours, fmt::format("{}", static_cast<std::int64_t>(node->number())), in.row(parameter(first)).name,
             "for the second half too, as in DeepSpeed");
}

void put_warmup(Importer& in) {
  if (!in.given(parameter("warmup_num_steps"))) in.assume("learning_rate.warmup_steps", "1000", "DeepSpeed's default");
  if (!in.given(parameter("warmup_type"))) in.assume("learning_rate.warmup_type", "\"log\"", "DeepSpeed's default");
}

void put_parameter(Importer& in, std::string_view leaf) {
  const std::string theirs = parameter(leaf);
  const ForeignKey& row = in.row(theirs);
  const JsonNode* node = in.given(theirs);
  if (!node || row.ours == "optimizer.learning_rate") return;  // which import_optimizer has put
  if (row.ours == "run.steps" && in.is_auto(theirs))
    in.put(row.ours, "1000", row.name, "FILL IN: auto, which the Trainer computes from its epochs");
  else if (row.type == ForeignType::text)
    in.put(row.ours, toml_string(node->written), row.name);
  else
    put_number(in, row.name, row.ours);
}

}  // namespace

bool cycles_momentum(const Importer& in) {
  constexpr std::string_view ours = "learning_rate.one_cycle.cycle_momentum";
  if (in.word_of("scheduler.type") != "one_cycle" || in.overridden("learning_rate.schedule")) return false;
  if (in.overridden(ours)) return in.override_of(ours) != "false";
  const JsonNode* node = in.given(parameter("cycle_momentum"));
  return !node || node->written == "true";
}

void import_schedule(Importer& in, bool trainer) {
  constexpr std::string_view type = "scheduler.type", ours = "learning_rate.schedule";
  const std::string word = in.word_of(type);
  if (word.empty()) {
    if (std::ranges::any_of(all_parameters(), [&](std::string_view leaf) { return in.given(parameter(leaf)); }))
      in.fault("scheduler.params", "DeepSpeed reads no params without scheduler.type; add \"type\": \"WarmupLR\"");
    return in.assume(ours, "\"constant\"", "the file has no scheduler; a program may pass one to DeepSpeed");
  }
  const auto scheduler = std::ranges::find(schedulers, word, &Scheduler::ours);
  if (scheduler == schedulers.end()) {
    if (!in.overridden(ours))
      in.fault(type, fmt::format("{} is refused: supported are WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest; write "
                                 "one of them, or set learning_rate.schedule=cosine (or linear, constant, wsd) on the command line",
                                 shortened(in.given(type)->literal.str())));
    return in.assume(ours, "\"constant\"", "");
  }
  const bool from_zero = word == "warmup_lr" || word == "warmup_decay_lr";
  in.put(ours, toml_string(word), type,
         from_zero ? "by DeepSpeed's design the first two steps have warmup_min_lr; if that is 0, they do not change the weights" : "");
  std::vector<std::string_view> parameters = scheduler->parameters;
  for (const std::string_view leaf : all_parameters())
    if (in.given(parameter(leaf)) && std::ranges::find(parameters, leaf) == parameters.end())
      in.fault(in.row(parameter(leaf)).name, fmt::format("is not a parameter of {}; leave it out", scheduler->name));
  if (word == "one_cycle") note_idle_cycle(in, parameters), put_second_half(in);
  for (const std::string_view leaf : parameters) put_parameter(in, leaf);
  if (std::ranges::find(parameters, "warmup_num_steps") != parameters.end()) put_warmup(in);
  if (word == "warmup_cosine_lr") in.assume("learning_rate.min_ratio", "1e-4", "WarmupCosineLR's default");
  for (const std::string_view leaf : {"cycle_min_lr", "cycle_max_lr"})
    if (word == "one_cycle" && !in.given(parameter(leaf)) && !in.overridden(ours))
      in.fault(type, fmt::format("needs params.{}; add it", leaf));
  const bool total = std::ranges::find(parameters, "total_num_steps") != parameters.end();
  if (total && !in.given(parameter("total_num_steps")) && !trainer && !in.overridden("run.steps") && !in.overridden("run.epochs"))
    in.fault(type, "needs params.total_num_steps, the steps of the run; add it, or set run.steps=N (or run.epochs=N) on the command line");
}

void import_activation(Importer& in) {
  constexpr std::string_view number = "activation_checkpointing.number_checkpoints", interval = "pipeline.activation_checkpoint_interval";
  constexpr std::string_view recompute = "activation.recompute", every = "activation.every";
  if (in.met("activation_checkpointing"))
    in.put(recompute, "\"full\"", "activation_checkpointing", "in DeepSpeed the model's code turns it on");
  if (const JsonNode* node = in.given(number); node && in.line("model.layers")) {
    const double layers = std::strtod(in.line("model.layers")->value.c_str(), nullptr);
    if (node->number() < 1) return in.fault(number, fmt::format("{} is out of range: at least 1", node->written));
    in.put(every, fmt::format("{}", static_cast<std::int64_t>(std::ceil(layers / node->number()))), number, "model.layers over it");
  }
  if (const JsonNode* node = in.given(interval); node && node->number() > 0) {
    in.put(recompute, "\"full\"", interval);
    put_number(in, interval, every);
  }
}

void import_offload_defaults(Importer& in) {
  const ImportedLine *state = in.line("zero.offload_optimizer.device"), *parameters = in.line("zero.offload_param.device");
  const auto is = [](const ImportedLine* line, std::string_view device) { return line && line->value == toml_string(device); };
  constexpr const char* pinned = "DeepSpeed's default since August 2026; before that it was false";
  if (is(state, "host") || is(state, "nvme")) in.assume("zero.offload_optimizer.pin_memory", "true", pinned);
  if (is(parameters, "host") || is(parameters, "nvme")) in.assume("zero.offload_param.pin_memory", "true", pinned);
  if (is(state, "nvme"))
    for (const std::string_view key :
         {"zero.offload_optimizer.pipeline_read", "zero.offload_optimizer.pipeline_write", "zero.offload_optimizer.fast_init"})
      in.assume(key, "false", "DeepSpeed's default; true, the deck's default, is faster");
  if (is(parameters, "nvme")) in.assume("zero.offload_param.max_in_cpu", "1e9", "DeepSpeed's default: elements of a rank");
}

void import_error_feedback(Importer& in) {
  constexpr std::string_view section = "zero_optimization.zeropp_loco_param";
  if (in.met(section)) in.put("zero.error_feedback.enabled", "true", section);
}

void import_profilers(Importer& in) {
  const ImportedLine* printed = in.line("run.log_every");
  for (const std::string_view key : {"wall_clock_breakdown", "memory_breakdown", "comms_logger.enabled"}) {
    if (in.is_true(key) && !in.line("run.breakdown_every"))
      in.put("run.breakdown_every", printed ? printed->value : "10", key);
    else if (in.is_true(key))
      in.note(key, "run.breakdown_every has it too");
    else if (in.given(key))
      in.note(key, "false is the same as no run.breakdown_every");
  }
  constexpr std::string_view profiler = "flops_profiler.enabled", step = "flops_profiler.profile_step";
  if (in.is_true(profiler))
    in.put("run.trace", in.given(step) ? in.given(step)->written : "1", in.given(step) ? step : profiler);
  else
    for (const std::string_view key : {profiler, step})
      if (in.given(key)) in.note(key, "a profiler that is not enabled; run.trace = N traces step N");
}

void import_rest(Importer& in) {
  import_profilers(in);
  import_wandb(in);
  std::int64_t warmup = 0;
  if (const ImportedLine* line = in.line("learning_rate.warmup_steps")) warmup = std::strtoll(line->value.c_str(), nullptr, 10);
  if (!in.line("run.epochs") && !in.overridden("run.epochs"))
    in.assume("run.steps", fmt::format("{}", std::clamp<std::int64_t>(warmup, 100, 100'000'000'000) * 10),
              "FILL IN: optimizer steps of the run, or epochs = N");
  in.assume("data.train", "\"data/train.h5\"", "FILL IN: tokens, as `tessera tokenize` writes them (or .bin of uint16)");
}

}  // namespace tessera
