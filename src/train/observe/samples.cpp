#include "train/observe/samples.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "deck/schema/value.hpp"
#include "topology/failure/signals.hpp"
#include "train/text/decoder.hpp"
#include "train/text/sampling.hpp"

namespace tessera {

Samples::Samples(const RunParts& run, ProgressLog& progress) : run_(run), progress_(progress) {
  if (!run.samples) return;
  run.world.together([&] {
    if (run.world.rank() == 0) file_.emplace(run.folder.samples(), run.first_step + 1);
  });
}

Verdict Samples::after(const StepEnd& end) {
  if (!run_.samples || (end.done % run_.deck.samples.every != 0 && end.done != run_.deck.run.steps)) return Verdict::go_on;
  run_.position.turn_to("the texts of [samples]");
  run_.engine.settle();
  for (std::size_t k = 0; k < run_.samples->tokens.size(); ++k) {
    if (run_.world.sum(std::int64_t{stop_requested()}) > 0) {
      progress_.note(fmt::format("step {}: {} of {} samples are left out, because the run was asked to stop", end.done,
                                 run_.samples->tokens.size() - k, run_.samples->tokens.size()));
      break;
    }
    make(end.done, k);
  }
  return Verdict::go_on;
}

void Samples::make(std::int64_t step, std::size_t k) {
  const std::vector<std::int32_t>& prompt = run_.samples->tokens[k];
  Language* language = run_.samples->language.get();  // rank 0's
  if (language) language->begin(prompt);
  Decoder decoder(run_.engine);
  for (const std::int32_t token : prompt) decoder.next(token);
  std::string text, fault;
  std::int64_t tokens = 0;
  while (true) {
    // A rank that computes with other instructions may find another token the likeliest.
    const auto token = static_cast<std::int32_t>(run_.world.sum(std::int64_t{language ? choose(decoder, step, k, fault) : 0}));
    if (token < 0) break;
    ++tokens;
    if (language) text += language->say(token);
    if (decoder.length() == run_.deck.samples.tokens) break;
    decoder.next(token);
  }
  if (language) say(step, k, text + language->rest(), tokens, fault);
}

std::int32_t Samples::choose(const Decoder& decoder, std::int64_t step, std::size_t k, std::string& fault) const try {
  const SampleKeys& keys = run_.deck.samples;
  if (decoder.length() >= keys.tokens) return -1;
  const auto seed = static_cast<std::uint64_t>(run_.deck.run.seed + (step << 16)) + k;
  const std::int32_t token =
      keys.temperature > 0 ? sample_token(decoder.logits(), keys.temperature, keys.top_k, seed, decoder.length()) : decoder.likeliest();
  return run_.samples->language->ends(token) ? -1 : token;
} catch (const Error& error) {
  fault = error.what();
  return -1;
}

void Samples::say(std::int64_t step, std::size_t k, const std::string& text, std::int64_t tokens, const std::string& fault) {
  const std::string& prompt = run_.samples->prompts[k];
  progress_.note(
      fmt::format("step {}: {} continues: {}{}", step, toml_string(prompt), toml_string(text), fault.empty() ? "" : " " + fault));
  run_.claim->renew();
  file_->write({{"step", step}, {"time", unix_seconds()}, {"prompt", prompt}, {"text", text}, {"tokens", tokens}});
}

}  // namespace tessera
