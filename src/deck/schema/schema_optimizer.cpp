// Keys of the deck: the update and its rate.
#include "deck/schema/schema_rows.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera::schema {

std::vector<Key> optimizer_keys() {
  return {
      // [optimizer]
      {KEY(optimizer.type), .type = text, .choices = optimizer_names(), .identity = true, .refused = refused_optimizers(),
       .help = "Update rule. Weight decay applies to matrices only."},
      {KEY(optimizer.learning_rate), .type = real, .required = true, .limits = {.above = 0, .most = 1000}, .identity = true,
       .help = "Peak learning rate, reached at the end of the warmup."},
      {KEY(optimizer.beta1), .type = real, .limits = {.least = 0, .below = 1}, .identity = true,
       .help = "Decay of the mean of the gradients."},
      {KEY(optimizer.beta2), .type = real, .limits = {.least = 0, .below = 1}, .identity = true,
       .help = "Decay of the mean of the squared gradients, or of the only mean that an optimizer keeps."},
      {KEY(optimizer.eps), .type = real, .limits = {.above = 0, .most = 1}, .identity = true,
       .help = "Added to the square root of the second moment."},
      {KEY(optimizer.bias_correction), .type = boolean, .identity = true, .silent = true,
       .help = "Corrects for moments that start at 0: in update n the first is divided by 1 - beta1^n, the second by 1 - beta2^n. false "
               "uses them uncorrected."},
      {KEY(optimizer.momentum), .type = real, .limits = {.least = 0, .below = 1}, .identity = true, .silent = true,
       .help = "Share of a step's direction that is added to the next one's; 0: none, and no state is kept."},
      {KEY(optimizer.nesterov), .type = boolean, .identity = true, .silent = true,
       .help = "Nesterov's momentum: a step uses the momentum as it will be after this step."},
      {KEY(optimizer.min_trust_ratio), .type = real, .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Lowest ratio of a tensor's norm to its update's norm. The update is multiplied by the ratio; it is 1 if a norm is 0."},
      {KEY(optimizer.max_trust_ratio), .type = real, .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Largest such ratio."},
      {KEY(optimizer.decay_rate), .type = real, .limits = {.above = 0, .most = 10}, .identity = true, .silent = true,
       .help = "In update t the mean of squares decays by 1 - t^-decay_rate. It replaces beta2."},
      {KEY(optimizer.update_clipping), .type = real, .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Limit of the root mean square of a tensor's update, before the learning rate. A larger update is scaled down to it."},
      {KEY(optimizer.newton_schulz), .type = text, .identity = true, .silent = true,
       .help = "Polynomials of the five steps that make a momentum orthogonal: quintic (Megatron-LM's default), simple, the same "
               "polynomial five times (Jordan's Muon, DeepSpeed's), or polar_express (nanochat's)."},
      {KEY(optimizer.muon_scale), .type = text, .identity = true, .silent = true,
       .help = "Factor of an orthogonal matrix, besides the learning rate. match_rms_adamw: 0.2 sqrt(max(rows, columns)); matrices then "
               "change as much as with AdamW, and one learning rate serves both (Moonlight). original: sqrt(max(1, rows / columns)) "
               "(Jordan's Muon, DeepSpeed's)."},
      {KEY(optimizer.freeze_step), .type = integer, .unit = "updates", .limits = {.least = 1, .most = 1e12}, .identity = true,
       .silent = true,
       .help = "Updates of 1-bit Adam's warmup, which are plain Adam's without bias correction. After it the mean of squares is frozen and "
               "gradients stay on their ranks. Ranks then exchange momenta with one bit per element."},
      {KEY(optimizer.moments), .type = text, .choices = {"fp32", "bf16"}, .identity = true, .silent = true,
       .help = "Type of the state that the optimizer keeps of each parameter, besides its fp32 weight. With bf16 a moment takes 2 bytes "
               "instead of 4. Checkpoints hold fp32 for both."},
      {KEY(optimizer.moments_rounding), .type = text, .identity = true, .silent = true,
       .help = "Rounding with optimizer.moments = \"bf16\". stochastic rounds up or down at random, more often to the nearer value, so "
               "that small changes add up over steps. nearest loses changes below 1/256 of a moment, as in second moments with a beta2 "
               "close to 1. The random number comes from value, gradient and step, so bits do not depend on the layout."},
      {KEY(optimizer.weight_decay), .type = real, .limits = {.least = 0, .most = 1000}, .identity = true,
       .help = "Weight decay of matrices, times the learning rate. Biases and norm weights have none. adam and sgd add it to the gradient, "
               "as L2 regularisation; the others decouple it."},
      {KEY(optimizer.gradient_clipping), .type = real, .unit = "norm", .limits = {.least = 0, .most = 1e12}, .identity = true,
       .help = "Largest norm of the whole gradient. A larger gradient is scaled down to it; 0: no clipping."},
      {KEY(optimizer.groups), .type = groups, .identity = true, .silent = true,
       .help = "Tensors with their own settings, a table [[optimizer.groups]] each. `tensors` is a list of patterns of names, as in "
               "model.freeze, or \"all-linear\": the matrices of layers. `learning_rate` is the peak, and the schedule scales it as it "
               "does optimizer.learning_rate. `weight_decay` applies to vectors too. `type` is another optimizer, with any of the keys of "
               "[optimizer] that it reads. Keys that are left out have its defaults, except moments, which is that of [optimizer]. If "
               "several groups match a tensor, the first counts. A pattern that matches no trained tensor is refused."}};
}

std::vector<Key> learning_rate_keys() {
  // Of transformers and DeepSpeed.
  const Refusals other_schedules = {
      {"constant_with_warmup", "it is \"constant\" here, with learning_rate.warmup_steps or warmup_ratio"},
      {"warmup_stable_decay", "it is \"wsd\" here, with learning_rate.decay_steps"},
      {"cosine_with_min_lr", "it is \"cosine\" here, with learning_rate.min_ratio"},
      {"cosine_warmup_with_min_lr", "it is \"cosine\" here, with learning_rate.min_ratio"},
      {"warmuplr", "it is \"warmup_lr\" here, with learning_rate.warmup_steps, warmup_type and warmup_min_lr"},
      {"warmupdecaylr", "it is \"warmup_decay_lr\" here, with learning_rate.warmup_steps, warmup_type and warmup_min_lr"},
      {"warmupcosinelr", "it is \"warmup_cosine_lr\" here, with learning_rate.warmup_steps, warmup_type, warmup_min_ratio and min_ratio"},
      {"cosine_with_restarts", "restarts are not in this version; set \"cosine\""},
      {"polynomial", "powers other than 1 are not in this version, and with 1 it is \"linear\""},
      {"inverse_sqrt", "it is not in this version; set \"cosine\" or \"wsd\""},
      {"reduce_lr_on_plateau", "a schedule depends on the step alone; set \"cosine\" or \"wsd\""},
      {"greedy", "a schedule depends on the step alone; set \"cosine\" or \"wsd\""},
      {"onecycle", "it is \"one_cycle\" here, with the keys of [learning_rate.one_cycle]"},
      {"lrrangetest", "it is \"lr_range_test\" here, with the keys of [learning_rate.lr_range_test]"}};
  const Refusals other_decays = {{"1-sqrt", "it is \"minus_sqrt\" here"}, {"sqrt", "it is \"minus_sqrt\" here"}};
  return {
      // [learning_rate]
      {KEY(learning_rate.schedule), .type = text, .identity = true, .refused = other_schedules,
       .help =
           "Learning rate of each update. cosine, linear, constant and wsd have the same warmup, which reaches the peak on its last step. "
           "wsd is constant until its last decay_steps. warmup_lr, warmup_decay_lr, warmup_cosine_lr, one_cycle and lr_range_test are "
           "DeepSpeed's classes with exactly their numbers (docs/schedules.md). A key of another schedule is refused."},
      {KEY(learning_rate.warmup_steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .identity = true,
       .help = "Steps of warmup; the last one has the peak. DeepSpeed's schedules take at least two, and reach the peak one step later "
               "(log) or two (linear)."},
      {KEY(learning_rate.warmup_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .identity = true, .silent = true,
       .help = "Warmup as a share of run.steps, rounded up; it replaces warmup_steps. The run's folder stores the steps, so a run that is "
               "made longer keeps its warmup if that deck gives warmup_steps."},
      {KEY(learning_rate.warmup_type), .type = text, .identity = true,
       .help = "Shape of the warmup. linear: step i of warmup_steps, counted from 1, has i / warmup_steps of the peak. log: log(i) / "
               "log(warmup_steps), which starts at 0. DeepSpeed's warmups: (i - 2) / warmup_steps and log(i - 1) / log(warmup_steps), from "
               "the second step on."},
      {KEY(learning_rate.warmup_min_lr), .type = real, .limits = {.least = 0, .most = 1000}, .identity = true, .silent = true,
       .help = "warmup_lr and warmup_decay_lr: learning rate at the start of the warmup, and at the end of warmup_decay_lr."},
      {KEY(learning_rate.warmup_min_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .identity = true,
       .silent = true,
       .help = "warmup_cosine_lr: share of the peak that the second update has. The first update has a learning rate of 0."},
      {KEY(learning_rate.decay_steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .identity = true,
       .help = "wsd schedule: steps of the decay at the end of the run."},
      {KEY(learning_rate.decay_type), .type = text, .identity = true, .silent = true, .refused = other_decays,
       .help = "wsd schedule: height between floor and peak at a share p of the decay. linear: 1 - p; cosine: (1 + cos(pi p)) / 2; "
               "exponential: 2 x 0.5^p - 1; minus_sqrt: 1 - sqrt(p). p is 1 on the last step."},
      {KEY(learning_rate.min_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .identity = true,
       .help = "cosine, linear, wsd and warmup_cosine_lr: last learning rate as a share of the peak."}};
}

std::vector<Key> cycle_keys() {
  return {
      // [learning_rate.one_cycle]
      {KEY(learning_rate.one_cycle.min_lr), .type = real, .limits = {.least = 0, .most = 1000}, .identity = true, .silent = true,
       .help = "Learning rate at the start and the end of the cycle. Its largest is optimizer.learning_rate."},
      {KEY(learning_rate.one_cycle.first_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
       .identity = true, .silent = true, .help = "Updates in which the learning rate rises and the momentum falls."},
      {KEY(learning_rate.one_cycle.second_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .identity = true, .silent = true, .help = "Updates in which both return. DeepSpeed takes first_step_size if it is not given."},
      {KEY(learning_rate.one_cycle.first_stair_count), .type = integer, .unit = "stairs", .limits = {.least = 0, .most = 1e12},
       .identity = true, .silent = true, .help = "Steps of the rise, as stairs; 0: a line."},
      {KEY(learning_rate.one_cycle.second_stair_count), .type = integer, .unit = "stairs", .limits = {.least = 0, .most = 1e12},
       .identity = true, .silent = true,
       .help = "Steps of the return, as stairs; 0: a line. DeepSpeed takes first_stair_count if it is not given."},
      {KEY(learning_rate.one_cycle.decay_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
       .identity = true, .silent = true,
       .help = "Updates after the cycle that count as one for decay_lr_rate and decay_mom_rate; 0: min_lr and max_mom stay constant."},
      {KEY(learning_rate.one_cycle.decay_lr_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .identity = true, .silent = true,
       .help = "After the cycle: n updates divide min_lr by 1 + decay_lr_rate x n / decay_step_size."},
      {KEY(learning_rate.one_cycle.cycle_momentum), .type = boolean, .identity = true, .silent = true,
       .help = "The momentum (beta1) moves opposite to the learning rate, and beta2 is 0.99; they replace optimizer.beta1 and beta2. Bias "
               "corrections use the update's own beta, 1 - beta^n, as DeepSpeed's Adam does. false keeps the optimizer's values."},
      {KEY(learning_rate.one_cycle.min_mom), .type = real, .limits = {.least = 0, .below = 1}, .identity = true, .silent = true,
       .help = "Momentum at the largest learning rate, and of the first update."},
      {KEY(learning_rate.one_cycle.max_mom), .type = real, .limits = {.least = 0, .below = 1}, .identity = true, .silent = true,
       .help = "Momentum at the start and the end of the cycle."},
      {KEY(learning_rate.one_cycle.decay_mom_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .identity = true, .silent = true,
       .help = "After the cycle: n updates multiply max_mom by 1 + decay_mom_rate x n / decay_step_size. The result stays below 1."},

      // [learning_rate.lr_range_test]
      {KEY(learning_rate.lr_range_test.step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
       .identity = true, .silent = true, .help = "Update n, from 0, has optimizer.learning_rate x (1 + step_rate x n / step_size)."},
      {KEY(learning_rate.lr_range_test.step_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .identity = true, .silent = true,
       .help = "Increase of the learning rate in step_size updates, in multiples of the first learning rate."},
      {KEY(learning_rate.lr_range_test.staircase), .type = boolean, .identity = true, .silent = true,
       .help = "Rounds n / step_size down."}};
}

}  // namespace tessera::schema
