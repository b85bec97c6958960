#include "io/tokenizer/tokenizer_class.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

/// Special tokens that a vocabulary has not get the numbers after its last.
const std::array classes{
    TokenizerClass{.name = "LlamaTokenizer",
                   .tokens = {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}},
                   .before_text = true,
                   .reads_legacy = true},
    TokenizerClass{.name = "CodeLlamaTokenizer",
                   .tokens = {{"unk_token", "<unk>"},
                              {"bos_token", "<s>"},
                              {"eos_token", "</s>"},
                              {"prefix_token", "▁<PRE>"},
                              {"middle_token", "▁<MID>"},
                              {"suffix_token", "▁<SUF>"},
                              {"eot_token", "▁<EOT>"},
                              {"fill_token", "<FILL_ME>"}},
                   .before_text = true,
                   .reads_unknown = true,
                   .framed_by = "bos_token"},
    TokenizerClass{
        .name = "GemmaTokenizer",
        .tokens =
            {{"unk_token", "<unk>"}, {"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}},
        .reads_unknown = true},
    TokenizerClass{.name = "GPT2Tokenizer",
                   .tokens = {{"unk_token", "<|endoftext|>"}, {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}}},
    TokenizerClass{.name = "Qwen2Tokenizer",
                   .tokens = {{"unk_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}}},
    TokenizerClass{.name = "GPTNeoXTokenizer",
                   .tokens = {{"unk_token", "<|endoftext|>"},
                              {"bos_token", "<|endoftext|>"},
                              {"eos_token", "<|endoftext|>"},
                              {"pad_token", "<|padding|>"}}},
    TokenizerClass{.name = "CohereTokenizer",
                   .tokens = {{"unk_token", "<UNK>"},
                              {"bos_token", "<BOS_TOKEN>"},
                              {"eos_token", "<|END_OF_TURN_TOKEN|>"},
                              {"pad_token", "<PAD>"},
                              {"cls_token", "<CLS>"},
                              {"sep_token", "<SEP>"},
                              {"mask_token", "<MASK_TOKEN>"}}}};

/// The class of a kind of model, which counts where tokenizer_config.json names none; "": tokenizer.json as it stands.
struct ModelsOfClass {
  std::string_view name, models;
};
constexpr ModelsOfClass of_models[] = {
    {"GemmaTokenizer", "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma "},
    {"GPT2Tokenizer", "codegen dbrx gpt2 gpt_neo gptj jais2 opt phi starcoder2 "},
    {"Qwen2Tokenizer",
     "internvl qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl "
     "qwen3_vl_moe "},
    {"GPTNeoXTokenizer", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {"CohereTokenizer", "aya_vision cohere cohere2 "},
    {"CodeLlamaTokenizer", "code_llama "},
    {"",
     "aria arctic chatlm ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe gpt_bigcode granite "
     "granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 "
     "kimi_linear llava llava_next mimo_v2_flash minicpm3 minicpmv minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 "
     "mixtral modernbert modernbert-decoder molmo molmo2 nemotron olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl persimmon phi3 "
     "phi3_v phimoe pixtral smolvlm stablelm step3_vl vipllava voxtral "},
};
/// Of these the class that files name is not believed.
constexpr std::string_view wrongly_named = "qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp";

bool has_word(std::string_view words, std::string_view one) {
  std::istringstream all{std::string(words)};
  return std::find(std::istream_iterator<std::string>(all), {}, one) != std::istream_iterator<std::string>();
}

std::optional<std::string_view> class_of_model(std::string_view kind) {
  for (const ModelsOfClass& one : of_models)
    if (has_word(one.models, kind)) return one.name;
  return {};
}

std::string text_of(const Json& object, std::string_view key) {
  return object.contains(key) && object[key].is_string() ? object[key].text() : "";
}

bool is_of_bytes(const Json& part) {
  if (text_of(part, "type") == "ByteLevel") return true;
  for (const char* parts : {"pretokenizers", "decoders"})
    if (part.contains(parts) && part[parts].is_array() && std::any_of(part[parts].begin(), part[parts].end(), is_of_bytes)) return true;
  return false;
}

bool is_of_bytes(std::string_view tokenizer, const char* part) {
  return is_of_bytes(Json::try_parse(member_text(tokenizer, part)).value_or(nullptr));
}

/// Lenient: who needs the file says what is wrong with it.
Json read_beside(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  if (look_at(path).nothing()) return Json::object();
  try {
    const std::string text = read_small_file(path, ExitCode::data);
    const std::optional<Json> read = Json::try_parse(text);
    return read && read->is_object() ? *read : Json(hash_text(text).hex());
  } catch (const Error&) {
    return "it cannot be read";
  }
}

/// The class that transformers takes; "": none.
std::string class_name(const TokenizerFiles& files) {
  const auto& [tokenizer, config, model] = files;
  if (config.contains("auto_map") && (config["auto_map"].is_array() || config["auto_map"].contains("AutoTokenizer"))) return "";
  const std::string kind = text_of(model, "model_type");
  const std::optional<std::string_view> of_kind = class_of_model(kind);
  std::string named = text_of(config, "tokenizer_class");
  if (named.empty()) named = text_of(model, "tokenizer_class");
  if (named.empty()) return std::string(of_kind.value_or(""));
  if (named.ends_with("Fast")) named.resize(named.size() - 4);
  const bool believed = !has_word(wrongly_named, kind);
  if (named == "LlamaTokenizer" && believed && (is_of_bytes(tokenizer, "pre_tokenizer") || is_of_bytes(tokenizer, "decoder"))) return "";
  if (of_kind && (of_kind->empty() || !believed)) return std::string(*of_kind);
  return named;
}

}  // namespace

std::string_view member_text(std::string_view json, std::string_view name) {
  std::string_view found, text;  // the last text at the object's own level is the name of what follows a colon
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      const std::size_t first = ++i;
      while (i < json.size() && json[i] != '"') i += json[i] == '\\' ? 2 : 1;
      if (depth == 1 && begin == 0) text = json.substr(first, std::min(i, json.size()) - first);
    } else if (c == ':' && depth == 1) {
      begin = i + 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']' || c == ',') {
      if (c != ',') --depth;
      if (depth > 1 || (depth == 1 && c != ',')) continue;
      if (begin > 0 && text == name) found = json.substr(begin, i - begin);
      begin = 0;
    }
  }
  return found;
}

TokenizerFiles read_tokenizer_files(const std::string& folder) {
  TokenizerFiles files{.tokenizer = read_small_file(folder + "/tokenizer.json", ExitCode::data, most_tokenizer_bytes),
                       .config = read_beside(folder, "tokenizer_config.json"),
                       .model = read_beside(folder, "config.json")};
  // As in transformers.
  if (const Json more = read_beside(folder, "special_tokens_map.json");
      files.config.is_object() && more.is_object() && !files.config.contains("added_tokens_decoder")) {
    for (const auto& [key, value] : more.items())
      if (!value.is_null()) files.config[key] = value;
  }
  return files;
}

const TokenizerClass* find_tokenizer_class(const TokenizerFiles& files) {
  const std::string name = class_name(files);
  const auto* const found = std::ranges::find(classes, name, &TokenizerClass::name);
  const std::string_view type = member_text(member_text(files.tokenizer, "model"), "type");
  return found != classes.end() && Json::try_parse(type).value_or(nullptr) == "BPE" ? found : nullptr;
}

}  // namespace tessera::io
