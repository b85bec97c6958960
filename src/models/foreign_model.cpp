#include "models/foreign_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/glob.hpp"
#include "base/shell_word.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// A folder, and what stands in it.
struct Listing {
  fs::path folder;
  std::set<std::string> names;

  explicit Listing(const fs::path& of) : folder(of) {
    std::error_code ignored;  // of a folder that cannot be read nothing is known
    for (fs::directory_iterator it(of, ignored), end; it != end; it.increment(ignored)) names.insert(it->path().filename().string());
  }
  /// The first name that a pattern matches, or "".
  std::string first(std::string_view pattern) const {
    const auto found = std::ranges::find_if(names, [&](const std::string& name) { return matches_glob(pattern, name); });
    return found == names.end() ? "" : *found;
  }
  bool has(std::string_view pattern) const { return !first(pattern).empty(); }
  std::string word() const { return shell_word(folder.string()); }
  /// Beside it, for what is made of it.
  std::string out(std::string_view ending = "-safetensors") const { return shell_word(folder.string() + std::string(ending)); }
};

/// python3 -c with arguments; all of it needs no more than torch and transformers.
std::string python(std::string_view code, std::string_view arguments) {
  return fmt::format("`python3 -c 'import sys, torch, transformers as t; {}' {}`", code, arguments);
}

std::string from_pretrained(std::string_view type, std::string_view in, std::string_view out) {
  return python(fmt::format("t.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype={}).save_pretrained(sys.argv[2])", type),
                fmt::format("{} {}", in, out));
}

/// Of the files that are carried along with a model.
std::string with_tokenizer(const Listing& in) {
  return in.has("token*") ? fmt::format(" `cp {}/token* {}` copies its tokenizer there.", in.word(), in.out()) : "";
}

std::string of_torch(const Listing& in) {
  for (const char* pattern : {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"})
    if (const std::string name = in.first(pattern); !name.empty())
      return fmt::format(" {} is a file of PyTorch, which is not read: {} converts it to {}, a folder with model.safetensors.{}", name,
                         from_pretrained("\"auto\"", in.word(), in.out()), in.out(), with_tokenizer(in));
  return "";
}

/// Mistral's own layout is read where all of it is there. What Meta's files say of a model no file says.
std::string of_vendor(const Listing& in) {
  constexpr std::string_view others =
      "The same model's repository on Hugging Face also has config.json, model*.safetensors and tokenizer.json: `hf download ORG/NAME "
      "--exclude {} --local-dir models/NAME` gets them.";
  if (const std::string mistral = in.first("consolidated*.safetensors"); !mistral.empty()) {
    const bool whole = in.names.contains("consolidated.safetensors") || in.names.contains("consolidated.safetensors.index.json");
    return fmt::format(" {} is in Mistral's own layout, but {}, which belongs to it, is missing. {}", mistral,
                       whole ? "params.json" : "consolidated.safetensors.index.json", fmt::format(others, shell_word("consolidated*")));
  }
  const std::string meta = in.first("consolidated.*.pth");
  if (meta.empty()) return "";
  std::error_code ignored;
  if (const fs::path above = fs::absolute(in.folder, ignored).lexically_normal().parent_path(); Listing(above).has("model*.safetensors"))
    return fmt::format(" {} is in Meta's own layout, which is not read; {} has the same model in safetensors: give that.", meta,
                       shell_word(above.string()));
  return fmt::format(" {} is in Meta's own layout (with params.json), which is not read. {}", meta,
                     fmt::format(others, shell_word("original/*")));
}

/// `root` has the steps, `tag` is one of them.
std::string of_zero_step(const Listing& root, const std::string& tag) {
  if (tag.ends_with("_universal") || Listing(root.folder / tag).has("zero"))
    return fmt::format(
        " {} is a universal checkpoint of DeepSpeed, which no tool converts to a model: use the checkpoint that ds_to_universal.py made it "
        "from.",
        tag);
  const std::string script =
      root.has("zero_to_fp32.py") ? shell_word((root.folder / "zero_to_fp32.py").string()) : "-m deepspeed.utils.zero_to_fp32";
  const std::string middle = root.out("-fp32");
  return fmt::format(
      " {} is a checkpoint of DeepSpeed, which is not read. `python3 {} {} {} --tag {}` converts it to pytorch_model.bin. Put the model's "
      "config.json and tokenizer beside it; then {} converts that to {}, a folder with model.safetensors.",
      tag, script, root.word(), middle, shell_word(tag), from_pretrained("\"float32\"", middle, root.out()), root.out());
}

std::string of_deepspeed(const Listing& in) {
  std::error_code ignored;
  const fs::path full = fs::absolute(in.folder, ignored).lexically_normal(), step = full.has_filename() ? full : full.parent_path();
  for (const char* pattern : {"*zero_pp_rank_*_optim_states.pt", "zero_pp_rank_*_model_states.pt", "mp_rank_*_model_states.pt"})
    if (in.has(pattern)) return of_zero_step(Listing(step.parent_path()), step.filename().string());
  std::string plain, universal;  // the last of them
  for (const std::string& name : in.names)
    if (name.starts_with("global_step") && fs::is_directory(in.folder / name, ignored))
      (name.ends_with("_universal") ? universal : plain) = name;
  if (!plain.empty() || !universal.empty()) return of_zero_step(in, plain.empty() ? universal : plain);
  return "";
}

/// What training leaves beside a model is no model.
bool is_state_of_training(const std::string& name) {
  constexpr std::array patterns{"training_args.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*", "*_states.pt", "*_optim_*"};
  return std::ranges::any_of(patterns, [&](const char* pattern) { return matches_glob(pattern, name); });
}

std::string of_state_dict(const Listing& in) {
  for (const std::string& name : in.names) {
    if (!(name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin")) || is_state_of_training(name)) continue;
    return fmt::format(
        " {} is a file of PyTorch, which is not read. If it holds the tensors of the model in config.json, {} converts it to {}, a folder "
        "with model.safetensors.{}",
        name,
        python(
            "m = t.AutoModelForCausalLM.from_config(t.AutoConfig.from_pretrained(sys.argv[1])); m.load_state_dict(torch.load(sys.argv[2], "
            "map_location=\"cpu\", weights_only=True)); m.save_pretrained(sys.argv[3])",
            fmt::format("{} {} {}", in.word(), shell_word((in.folder / name).string()), in.out())),
        in.out(), with_tokenizer(in));
  }
  return "";
}

std::string of_others(const Listing& in) {
  if (in.has("adapter_model.safetensors")) return " It is an adapter of PEFT: name it by lora.init, and its model by run.init.";
  if (const std::string shard = in.first("model-*-of-*.safetensors"); !shard.empty())
    return fmt::format(" {} is there, but model.safetensors.index.json, which names all files, is missing: get it from the model's source.",
                       shard);
  if (const std::string gguf = in.first("*.gguf"); !gguf.empty())
    return fmt::format(" {} is a file of llama.cpp, which is not read: get the model that it was made from.", gguf);
  return "";
}

}  // namespace

std::string foreign_weights(const std::string& folder) {
  const Listing in{fs::path(folder)};
  for (const auto& say : {of_others, of_torch, of_vendor, of_deepspeed, of_state_dict})
    if (const std::string said = say(in); !said.empty()) return said;
  return "";
}

std::string foreign_tokenizer(const std::string& folder) {
  const Listing in{fs::path(folder)};
  if (in.has("tokenizer.json")) return "";
  for (const char* name :
       {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "tekken.json", "tokenizer.model.v3"}) {
    if (!in.names.contains(name)) continue;
    if (std::string_view(name) == "tekken.json" || std::string_view(name) == "tokenizer.model.v3")
      return fmt::format(
          " {} is a tokenizer in Mistral's own form, which is not read: get tokenizer.json of the same model on Hugging Face.", name);
    return fmt::format(
        " {} is a tokenizer in another form. `python3 -c 'import sys, transformers as t; "
        "t.AutoTokenizer.from_pretrained(sys.argv[1]).backend_tokenizer.save(sys.argv[1] + \"/tokenizer.json\")' {}` converts it to "
        "tokenizer.json (with transformers, sentencepiece and protobuf installed).",
        name, in.word());
  }
  return "";
}

}  // namespace tessera
