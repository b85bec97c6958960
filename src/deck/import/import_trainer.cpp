// Arguments of Hugging Face's Trainer that have a meaning together, its defaults, and how they fill in a configuration of DeepSpeed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <tuple>

#include "deck/import/importer.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

constexpr std::string_view default_note = "the Trainer's default";

double number(const Importer& in, std::string_view key, double fallback) { return in.given(key) ? in.given(key)->number() : fallback; }

std::string whole(double value) { return fmt::format("{}", static_cast<std::int64_t>(value)); }

void put_length(Importer& in) {
  constexpr std::string_view steps = "max_steps", epochs = "num_train_epochs";
  if (number(in, steps, -1) > 0) {
    in.put("run.steps", whole(number(in, steps, 0)), steps);
    if (in.given(epochs)) in.note(epochs, "max_steps replaces it, as in the Trainer");
    return;
  }
  if (in.given(steps)) in.note(steps, "it is not above 0, so num_train_epochs sets the length of the run");
  if (const JsonNode* node = in.given(epochs))
    in.put("run.epochs", node->written, epochs, "the start counts the steps");
  else
    in.assume("run.epochs", "3.0", std::string(default_note));
}

void put_batch(Importer& in) {
  import_batch(in, {.all = "", .micro = "per_device_train_batch_size", .steps = "gradient_accumulation_steps", .default_micro = 8});
}

void put_names(Importer& in) {
  constexpr std::string_view name = "run_name", of_data = "data_seed";
  if (const JsonNode* node = in.given(name); node && !node->written.empty()) {
    if (node->written.find('/') == std::string::npos)
      in.put("run.name", toml_string(node->written), name);
    else
      in.note(name, "it is a path and no run name, so the name comes from the deck's file name");
  }
  if (const JsonNode* node = in.given(of_data)) {
    const std::string seed = in.line("run.seed") ? in.line("run.seed")->value : "42";
    if (node->written == seed)
      in.note(of_data, "as it is here");
    else if (!in.overridden("run.seed"))
      in.fault(of_data,
               fmt::format("is {} and seed is {}, but there is only one seed here; leave it out, or set run.seed=N on the command line",
                           node->written, seed));
  }
  in.assume("run.seed", "42", std::string(default_note));
}

void put_optimizer(Importer& in) {
  if (const std::string word = in.word_of("optim"); !word.empty()) in.put("optimizer.type", toml_string(word), "optim");
  for (const auto& [ours, value] : {std::pair("optimizer.learning_rate", "5e-5"), std::pair("optimizer.weight_decay", "0.0"),
                                    std::pair("optimizer.gradient_clipping", "1.0")})
    in.assume(ours, value, std::string(default_note));
  // The Trainer says these of every optimizer, and hands them to those that read them.
  const std::string type = in.line("optimizer.type") ? in.line("optimizer.type")->value : toml_string("adamw");
  const auto row = std::ranges::find(optimizers(), type, [](const Optimizer& o) { return toml_string(o.name); });
  for (const auto& [theirs, leaf, value] :
       {std::tuple("adam_beta1", "beta1", "0.9"), std::tuple("adam_beta2", "beta2", "0.999"), std::tuple("adam_epsilon", "eps", "1e-8")}) {
    const std::string ours = fmt::format("optimizer.{}", leaf);
    if (row != optimizers().end() && std::ranges::find(row->keys, leaf) == row->keys.end()) {
      if (in.given(theirs)) in.note(theirs, fmt::format("{} does not read it", row->name));
    } else if (const JsonNode* node = in.given(theirs)) {
      in.put(ours, node->written, theirs);
    } else {
      in.assume(ours, value, std::string(default_note));
    }
  }
}

/// The last learning rate of a cosine that does not end at 0.
void put_floor(Importer& in) {
  constexpr std::string_view share = "lr_scheduler_kwargs.min_lr_rate", rate = "lr_scheduler_kwargs.min_lr",
                             ours = "learning_rate.min_ratio";
  if (in.given(share)) return in.put(ours, in.given(share)->written, share);
  if (!in.given(rate)) return;
  in.put(ours, shortest(in.given(rate)->number() / std::strtod(in.line("optimizer.learning_rate")->value.c_str(), nullptr)), rate,
         "over learning_rate");
}

void put_warmup(Importer& in, bool none) {
  constexpr std::string_view steps = "warmup_steps", ratio = "warmup_ratio";
  constexpr std::string_view unused = "lr_scheduler_type \"constant\" has no warmup in the Trainer; constant_with_warmup has";
  const double count = number(in, steps, 0), share = number(in, ratio, 0);
  for (const std::string_view key : {steps, ratio})
    if (none && in.given(key)) in.note(key, number(in, key, 0) == 0 ? "no warmup" : unused);
  if (none) return;
  const bool of_steps = count != 0 || share == 0;
  if (in.given(ratio) && of_steps) in.note(ratio, share == 0 ? "no warmup" : "warmup_steps replaces it, as in the Trainer");
  if (in.given(steps) && !of_steps) in.note(steps, "warmup_ratio says it");
  if (of_steps && in.given(steps)) {
    const bool part = count > 0 && count < 1;
    in.put(part ? "learning_rate.warmup_ratio" : "learning_rate.warmup_steps", part ? in.given(steps)->written : whole(count), steps);
  } else if (!of_steps) {
    in.put("learning_rate.warmup_ratio", in.given(ratio)->written, ratio);
  }
}

void put_schedule(Importer& in) {
  constexpr std::string_view type = "lr_scheduler_type", ours = "learning_rate.schedule";
  const JsonNode* node = in.given(type);
  const std::string word = node ? in.word_of(type) : "linear";
  if (node)
    in.put(ours, toml_string(word), type);
  else
    in.assume(ours, "\"linear\"", std::string(default_note));
  put_warmup(in, node && lower_case(node->written) == "constant");
  put_floor(in);
  if (word == "linear" || word == "cosine") in.assume("learning_rate.min_ratio", "0.0", "the Trainer's schedules end at 0");
}

void put_precision(Importer& in) {
  if (in.is_true("fp16") && in.is_true("bf16")) in.fault("fp16", "bf16 is true too; leave one of the two out");
  if (in.is_true("fp16")) return in.put("precision.compute", "\"fp16\"", "fp16");
  if (in.is_true("bf16")) return in.put("precision.compute", "\"bf16\"", "bf16");
  in.assume("precision.compute", "\"fp32\"", "no other type is requested, so the Trainer computes in fp32");
}

/// Whole steps between events, of a strategy and a count of steps.
void put_interval(Importer& in, std::string_view strategy, std::string_view steps, double fallback, std::string_view ours) {
  const std::string word = in.given(strategy) ? in.word_of(strategy) : "steps";
  if (in.overridden(ours)) {
    for (const std::string_view key : {strategy, steps})
      if (in.given(key)) in.note(key, fmt::format("{} of the command line replaces it", ours));
    return;
  }
  const double count = number(in, steps, fallback);
  if (word == "best" && ours == "checkpoint.every") {
    in.put(ours, "0", strategy);
    in.put("checkpoint.keep_best", "true", strategy);
    if (in.given(steps)) in.note(steps, fmt::format("{} \"best\" makes it ineffective", strategy));
  } else if (word == "no") {
    in.put(ours, "0", strategy);
    if (in.given(steps)) in.note(steps, fmt::format("{} \"no\" makes it ineffective", strategy));
  } else if (word != "steps") {
    in.fault(strategy, fmt::format("{} is refused: intervals are whole steps here; write \"steps\", or set {}=N on the command line",
                                   shortened(in.given(strategy)->literal.str()), ours));
  } else if (count < 1) {
    in.fault(steps, fmt::format("{} is refused: intervals are whole steps here; give them, or set {}=N on the command line",
                                in.given(steps)->written, ours));
  } else if (in.given(steps)) {
    in.put(ours, whole(count), steps);
  } else {
    in.assume(ours, whole(count), std::string(default_note));
  }
}

void put_events(Importer& in) {
  constexpr std::string_view log = "logging_steps", old = "evaluation_strategy";
  const ImportedLine* assumed = in.line("run.log_every");
  const double every = number(in, log, assumed ? std::strtod(assumed->value.c_str(), nullptr) : 500);
  put_interval(in, "save_strategy", "save_steps", 500, "checkpoint.every");
  in.assume("checkpoint.keep", "0", "the Trainer keeps all if save_total_limit is missing");
  if (every < 1 && !in.overridden("run.log_every"))
    in.fault(log, fmt::format("{} is refused: intervals are whole steps here; give them, or set run.log_every=N on the command line",
                              in.given(log)->written));
  else if (in.given(log))
    in.put("run.log_every", whole(std::max(every, 1.0)), log);
  else
    in.assume("run.log_every", "500", std::string(default_note));
  const std::string_view strategy = in.given(old) && !in.given("eval_strategy") ? old : "eval_strategy";
  if (!in.given(strategy)) {
    if (in.given("eval_steps")) in.note("eval_steps", "without eval_strategy there are no evaluations, as in the Trainer");
    return;
  }
  put_interval(in, strategy, "eval_steps", std::max(every, 1.0), "evaluate.every");
  if (const ImportedLine* line = in.line("evaluate.every"); line && line->value != "0")
    in.assume("data.validation", "\"data/validation.h5\"", "FILL IN: tokens to evaluate on");
}

/// The best checkpoint is that of the lowest validation loss.
void put_best(Importer& in) {
  constexpr std::string_view load = "load_best_model_at_end", metric = "metric_for_best_model", greater = "greater_is_better";
  const bool saves_best = in.given("save_strategy") && in.word_of("save_strategy") == "best";
  if (in.given(load) && !saves_best) in.put("checkpoint.keep_best", in.is_true(load) ? "true" : "false", load);
  if (in.given(load) && saves_best) in.note(load, "save_strategy \"best\" keeps it already");
  const bool chooses = in.is_true(load) || in.given("early_stopping_patience") || saves_best;
  const bool said = in.overridden("checkpoint.keep_best");
  for (const std::string_view key : {metric, greater})
    if (in.given(key) && (said || !chooses))
      in.note(key, said ? "checkpoint.keep_best of the command line replaces it" : "it has no effect: load_best_model_at_end is not true");
  if (said || !chooses) return;
  if (const JsonNode* node = in.given(metric)) {
    if (node->is("loss") || node->is("eval_loss"))
      in.note(metric, "the best checkpoint is the one with the lowest validation loss");
    else
      in.fault(metric, fmt::format("{} is refused: an evaluation measures only the validation loss; write \"loss\", or set "
                                   "checkpoint.keep_best=false on the command line and compare checkpoints with `tessera evaluate`",
                                   shortened(node->literal.str())));
  }
  if (!in.given(greater)) return;
  if (in.is_true(greater))
    in.fault(greater, "true is refused: a lower loss is better; set it to false, or set checkpoint.keep_best=false on the command line");
  else
    in.note(greater, "a lower loss is better");
}

/// The words of `fsdp`: a text of them, a list, or a truth.
std::vector<std::string> fsdp_words(const JsonNode* node) {
  const std::vector<std::string> numbers = {"1", "2", "3", "4"}, names = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"};
  std::vector<std::string> words;
  const auto split = [&](const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      const auto number = std::ranges::find(numbers, word);  // as torch counts them
      words.push_back(number == numbers.end() ? lower_case(word) : names[static_cast<std::size_t>(number - numbers.begin())]);
    }
  };
  if (!node) return {};
  if (node->kind == JsonNode::Kind::list)
    for (const JsonNode& child : node->children) split(child.written);
  else
    split(node->written);
  return words;
}

}  // namespace

void import_shards(Importer& in, const ShardNames& names) {
  const std::vector<std::string> words = fsdp_words(in.given(names.words));
  const auto has = [&](const char* word) { return std::ranges::find(words, word) != words.end(); };
  const auto known = {"true", "false", "full_shard", "shard_grad_op", "no_shard", "offload", "auto_wrap"};
  for (const std::string& word : words)
    if (std::ranges::find(known, word) == known.end() && !in.overridden("zero.stage"))
      in.fault(names.words, fmt::format("{} is refused: supported are full_shard, shard_grad_op, no_shard, offload and auto_wrap; set "
                                        "zero.stage=N on the command line, and mesh.replicate=N for groups that each hold the whole state",
                                        toml_string(shortened(word))));
  const bool on = names.on || (!words.empty() && !has("false"));
  const std::string kept = in.given(names.reshard) ? lower_case(in.given(names.reshard)->written) : "";
  const bool keeps = has("shard_grad_op") || kept == "false" || kept == "shard_grad_op";
  const std::string_view said = in.given(names.words) ? names.words : names.reshard;
  if (on && in.given(said))
    in.put("zero.stage", has("no_shard") ? "0" : keeps ? "2" : "3", said);
  else if (on)
    in.assume("zero.stage", "3", "without a strategy parameters are sharded too");
  else
    for (const std::string_view key : {names.reshard, names.offload, names.words})
      if (in.given(key)) in.note(key, "fsdp is off");
  if (!on || (!has("offload") && !in.is_true(names.offload))) return;
  const std::string_view from = has("offload") ? names.words : names.offload;
  in.put("zero.offload_optimizer.device", "\"host\"", from);
  in.put("zero.offload_param.device", "\"host\"", from);
}

void import_trainer_keys(Importer& in) {
  import_preferences(in);
  import_lengths(in);
  put_length(in);
  put_batch(in);
  put_names(in);
  put_optimizer(in);
  put_schedule(in);
  put_precision(in);
  put_events(in);
  put_best(in);
  import_reports(in);
  import_adapters(in);
  import_shards(in, {.words = "fsdp", .reshard = "fsdp_config.reshard_after_forward", .offload = "fsdp_config.cpu_offload"});
}

namespace {

/// What the Trainer does, whatever the other file says.
constexpr std::string_view of_the_trainer[] = {"run.log_every", "activation.recompute"};

bool same(const std::string& a, const std::string& b) {
  char *end_a = nullptr, *end_b = nullptr;
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
  return a == b || (*end_a == '\0' && *end_b == '\0' && x == y);
}

}  // namespace

void Importer::fill_from(const Importer& trainer) {
  notes_.insert(notes_.end(), trainer.notes_.begin(), trainer.notes_.end());
  faults_.insert(faults_.end(), trainer.faults_.begin(), trainer.faults_.end());
  const auto open = [&](std::string_view ours) {
    const ImportedLine* mine = line(ours);
    return !mine || mine->from.empty() || autos_.contains(mine->from);
  };
  // A scheduler of DeepSpeed's says all of a schedule, but for a warmup that is auto: the Trainer then makes none.
  const bool scheduled = !open("learning_rate.schedule"),
             warmup_open = line("learning_rate.warmup_steps") && is_auto("scheduler.params.warmup_num_steps");
  const auto of_the_scheduler = [&](std::string_view ours) {
    if (ours == "optimizer.beta1" || ours == "optimizer.beta2") return cycles_momentum(*this);
    const bool warmup = ours == "learning_rate.warmup_steps" || ours == "learning_rate.warmup_ratio";
    return scheduled && ours.starts_with("learning_rate.") && !(warmup && warmup_open);
  };
  for (const auto& [ours, theirs] : trainer.lines_) {
    if (of_the_scheduler(ours)) {
      if (!theirs.from.empty()) note(theirs.from, fmt::format("the scheduler of {} replaces it, as in the Trainer", file_));
    } else if (open(ours) || (!theirs.from.empty() && std::ranges::find(of_the_trainer, ours) != std::end(of_the_trainer))) {
      lines_[ours] = theirs;
    } else if (const ImportedLine& mine = *line(ours); !theirs.from.empty() && !same(theirs.value, mine.value)) {
      faults_.push_back({theirs.file, theirs.place.line, theirs.place.column, theirs.from,
                         fmt::format("sets {} to {}, and {} of {} sets {}; make them equal, or write \"auto\" there", theirs.value, ours,
                                     mine.from, mine.file, mine.value)});
    }
  }
  // Passes and steps say the same thing, as do a warmup's share and its steps.
  for (const auto& [one, other] :
       {std::pair("run.epochs", "run.steps"), std::pair("learning_rate.warmup_ratio", "learning_rate.warmup_steps")})
    if (trainer.line(one) && line(other)) lines_.erase(lines_.find(open(other) ? other : one));
}

}  // namespace tessera
