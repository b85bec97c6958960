// Losses of pairs, as arguments of TRL's DPOConfig, CPOConfig, ORPOConfig and KTOConfig say them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "deck/import/importer.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

constexpr std::string_view loss_key = "loss_type", weights_key = "loss_weights", beta_key = "beta", smoothing_key = "label_smoothing",
                           alpha_key = "cpo_alpha", gamma_key = "simpo_gamma";
constexpr std::string_view of_pairs[] = {weights_key, beta_key, smoothing_key, alpha_key, gamma_key};
constexpr std::string_view of_orpo[] = {"padding_value", "max_completion_length", "is_encoder_decoder"};
constexpr std::string_view objective = "preference.objective", of_rewards = "center_rewards_coefficient";

using Names = std::vector<std::string>;

struct Objectives {
  Names words;
  std::string_view from;  ///< the key that says them; empty if the command line does
};

bool has_any(const Names& words, std::initializer_list<std::string_view> some) {
  return std::ranges::any_of(words, [&](const std::string& word) { return std::ranges::find(some, word) != some.end(); });
}

/// A text, or a list of some.
Names words_in(const JsonNode& node) {
  Names words;
  if (node.kind != JsonNode::Kind::list) words.push_back(lower_case(node.written));
  for (const JsonNode& child : node.children) words.push_back(lower_case(child.written));
  return words;
}

/// Of a deck's value: "dpo", or ["dpo", "sft"].
Names words_in(const std::string& value) {
  Names words(1);
  for (const char c : value) {
    if (c == ',') words.emplace_back();
    if (std::string_view("[]\"', ").find(c) == std::string_view::npos) words.back() += c;
  }
  return words;
}

bool is_of_cpo(const Importer& in) {
  const JsonNode* said = in.given(loss_key);
  return in.named(alpha_key) || in.named(gamma_key) || (said && said->is("simpo"));
}

/// Losses of tokens, as SFTConfig says them. False: the word is none of them.
bool take_loss_of_tokens(Importer& in, const Names& words) {
  if (has_any(words, {"nll", "chunked_nll"})) {
    in.note(loss_key, "the loss is the mean over the tokens that count");
  } else if (has_any(words, {"dft"})) {
    in.fault(loss_key, "\"dft\" is refused: its loss is not in this version; set \"nll\"");
  } else {
    return false;
  }
  return true;
}

/// What CPOConfig says. Its SimPO adds the loss of chosen completions unless cpo_alpha is 0.
Objectives objectives_of_cpo(Importer& in) {
  const JsonNode* said = in.given(loss_key);
  const std::string_view from = said ? loss_key : in.given(alpha_key) ? alpha_key : gamma_key;
  Names words = said ? words_in(*said) : Names{"sigmoid"};
  for (std::string& word : words) {
    if (word == "hinge" || word == "ipo")
      in.fault(loss_key, fmt::format("\"{}\" of CPOConfig compares without a reference, which is not in this version; set \"sigmoid\" or "
                                     "\"simpo\"",
                                     word));
    if (word == "sigmoid") word = "cpo";
  }
  const JsonNode* share = in.given(alpha_key);
  if (!has_any(words, {"simpo"}) || (share && share->number() == 0)) return {words, from};
  words.emplace_back("sft");
  in.put("preference.weights", fmt::format("[1.0, {}]", share ? share->written : "1.0"), share ? alpha_key : from,
         "CPOConfig adds cpo_alpha times the loss of chosen completions; 0 is SimPO's own loss");
  return {words, from};
}

/// Nothing if the loss is that of tokens.
std::optional<Objectives> objectives_of(Importer& in) {
  const JsonNode* said = in.given(loss_key);
  if (in.overridden(objective)) {
    if (said) in.note(loss_key, fmt::format("{} of the command line replaces it", objective));
    return Objectives{words_in(in.override_of(objective)), ""};
  }
  if (in.named(of_rewards) && !in.met(of_rewards))  // else its row refuses it
    in.fault(of_rewards,
             "is a key of RewardConfig, even if it is null, and reward models are not in this version; leave it out if the loss "
             "is another");
  if (is_of_cpo(in)) return objectives_of_cpo(in);
  if (said) {
    Names words = words_in(*said);
    if (take_loss_of_tokens(in, words)) return std::nullopt;
    std::ranges::replace(words, "sigmoid", "dpo");
    return Objectives{words, loss_key};
  }
  if (in.given(beta_key) && std::ranges::any_of(of_orpo, [&](std::string_view key) { return in.named(key); }))
    return Objectives{{"orpo"}, beta_key};
  for (const std::string_view key : of_pairs) {
    if (!in.given(key)) continue;
    in.fault(
        key,
        "belongs to several of TRL's configurations, and no key tells which; add \"loss_type\" (\"sigmoid\" is DPOConfig's default), or "
        "set preference.objective=dpo on the command line");
    break;
  }
  return std::nullopt;
}

/// Of a value that only some objectives read.
void put_read(Importer& in, std::string_view theirs, std::string_view ours, bool is_read, const std::string& comment = "") {
  const JsonNode* node = in.given(theirs);
  if (!node) return;
  if (is_read)
    in.put(ours, node->written, theirs, comment);
  else
    in.note(theirs, "no loss of this file reads it, in TRL neither");
}

void put_values(Importer& in, const Objectives& of) {
  const Names& words = of.words;
  const JsonNode* list = in.given(weights_key);
  Names shares;
  if (list)
    for (const JsonNode& child : list->children) shares.push_back(child.written);
  if (list) in.put("preference.weights", fmt::format("[{}]", fmt::join(shares, ", ")), weights_key);
  put_read(in, beta_key, "preference.beta", words != Names{"sft"}, has_any(words, {"orpo"}) ? "what the paper calls lambda" : "");
  put_read(in, smoothing_key, "preference.label_smoothing", has_any(words, {"dpo", "robust", "simpo", "cpo"}),
           has_any(words, {"dpo"}) ? "TRL ignores it with sigmoid, here the loss is cDPO's; 0.0 is TRL's loss" : "");
  put_read(in, gamma_key, "preference.gamma", has_any(words, {"simpo"}));
  if (!has_any(words, {"simpo"}))
    put_read(in, alpha_key, "preference.alpha", has_any(words, {"cpo"}));
  else if (in.given(alpha_key) && in.given(alpha_key)->number() == 0)
    in.note(alpha_key, "0: SimPO's own loss");
  else if (in.given(alpha_key) && of.from.empty())
    in.note(alpha_key, fmt::format("{} of the command line replaces it", objective));
}

/// What TRL's configurations have in place of the Trainer's defaults.
void put_defaults(Importer& in) {
  constexpr const char* why = "the default of TRL's configurations";
  in.assume("optimizer.learning_rate", "1e-6", why);
  if (!in.given("bf16") && !in.is_true("fp16")) in.assume("precision.compute", "\"bf16\"", why);
  if (!in.given("logging_steps")) in.assume("run.log_every", "10", why);
  if (!in.met("gradient_checkpointing") && !in.met("activation_checkpointing")) in.assume("activation.recompute", "\"full\"", why);
}

}  // namespace

bool has_preferences(const Importer& in) { return in.line(objective) || in.overridden(objective); }

void import_preferences(Importer& in) {
  const std::optional<Objectives> of = objectives_of(in);
  if (!of) {
    for (const std::string_view key : of_pairs)
      if (in.given(key)) in.note(key, "it belongs to losses of pairs");
    return;
  }
  Names quoted;
  for (const std::string& word : of->words) quoted.push_back(toml_string(word));
  if (!of->from.empty()) in.put(objective, quoted.size() == 1 ? quoted[0] : fmt::format("[{}]", fmt::join(quoted, ", ")), of->from);
  put_values(in, *of);
  if (has_any(of->words, {"dpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero", "apo_down"})) {
    const bool adapter = in.is_true("use_peft") && !in.given("lora_modules_to_save");
    in.assume("preference.reference", adapter ? "\"adapter\"" : "\"copy\"",
              adapter ? "the model without its adapters, as in TRL" : "a frozen copy of the start, as in TRL");
  }
  in.assume("data.document_mask", "true", "both texts of a pair lie in one sequence");
  put_defaults(in);
}

void import_lengths(Importer& in) {
  constexpr std::string_view ours = "batch.sequence_length", trl_default = "2048";
  const bool pairs = has_preferences(in);
  for (const std::string_view key : {std::string_view("max_length"), std::string_view("max_seq_length")})
    if (const JsonNode* node = in.given(key)) {
      const auto tokens = static_cast<std::int64_t>(node->number());
      in.put(ours, fmt::format("{}", pairs ? 2 * tokens : tokens), key,
             pairs ? "twice that: both texts of a pair lie in one sequence" : "");
    }
  const ImportedLine* objectives = in.line(objective);
  if (pairs && objectives && !in.named("max_length") && !in.named("max_seq_length"))
    in.put(ours, std::string(trl_default), objectives->from, "twice TRL's default max_length: both texts of a pair lie in one sequence");
}

}  // namespace tessera
