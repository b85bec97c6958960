#include "exchange/carried_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <span>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "deck/schema/json_tree.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/tokenizer/tokenizer_class.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// What transformers and others have written beside a model. config.json is kept for ids of tokens; an export has one of its own.
/// tokenizer.json is the last to be copied: where it is, all are.
constexpr std::array kept = std::to_array<std::string_view>(
    {"config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
     "additional_chat_templates", "tokenizer.model", "tokenizer.model.v3", "tekken.json", "spiece.model", "sentencepiece.bpe.model",
     "vocab.json", "vocab.txt", "merges.txt", "tokenizer_config.json", "tokenizer.json"});
constexpr std::array of_ids = std::to_array<std::string_view>({"config.json", "generation_config.json"});
constexpr std::array id_keys = std::to_array<std::string_view>({"bos_token_id", "eos_token_id", "pad_token_id"});

/// Sorted; of a folder that cannot be read none.
std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) names.insert(entry.path().filename().string());
  return names;
}

/// Those of the names that the folder has, in their order; of a folder of templates each.
std::vector<std::string> files_of(const std::string& folder, std::span<const std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string_view one : names) {
    const std::string name(one);
    const io::PathState there = io::look_at(folder + "/" + name);
    if (there.kind == io::PathState::Kind::folder) {
      for (const std::string& inside : names_in(folder + "/" + name))
        if (inside.ends_with(".jinja")) found.push_back(name + "/" + inside);
    } else if (!there.nothing()) {
      found.push_back(name);
    }
  }
  return found;
}

/// Names that begin with a dot are of tools.
void name_what_stays(const std::string& folder) {
  std::vector<std::string> others;
  for (const std::string& name : names_in(folder)) {
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    if (!name.starts_with('.') && !weights && std::ranges::find(kept, name) == kept.end()) others.push_back(printable_name(name));
  }
  for (const std::string& name : names_in(folder + "/additional_chat_templates"))
    if (!name.ends_with(".jinja")) others.push_back("additional_chat_templates/" + printable_name(name));
  if (!others.empty()) info("{}: not copied to the run and its exports: {}", folder, fmt::join(others, ", "));
}

bool is_there(const std::string& folder, std::string_view name) { return !io::look_at(folder + "/" + std::string(name)).nothing(); }

/// A number, null, or a list of numbers as JSON; nothing where it is something else.
std::optional<std::string> id_text(const JsonNode& node) {
  if (node.kind == JsonNode::Kind::null) return "null";
  if (node.kind == JsonNode::Kind::integer) return node.written;
  if (node.kind != JsonNode::Kind::list) return {};
  std::vector<std::string> ids;
  for (const JsonNode& one : node.children) {
    if (one.kind != JsonNode::Kind::integer) return {};
    ids.push_back(one.written);
  }
  return fmt::format("[{}]", fmt::join(ids, ","));
}

}  // namespace

void copy_files(const std::string& from, const std::string& to, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const fs::path path = fs::path(to) / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) io::fail_storage("make the folder", path.parent_path().string(), error.value());
    const std::string text = io::read_small_file(from + "/" + name, ExitCode::data, io::most_tokenizer_bytes);
    io::AtomicFile out(path.string());
    out.file().write(0, text.data(), text.size());
    out.commit();
  }
}

/// In the place of what is there, which is told of.
static void keep_chat_template(const std::string& text, const std::string& path) {
  if (!io::look_at(path).nothing()) {
    if (io::read_small_file(path, ExitCode::data, io::most_tokenizer_bytes) == text) return;
    info("{}: the chat template of data.chat_template replaces the earlier one", path);
  }
  io::AtomicFile out(path);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

void keep_files(const RunTokenizer& tokenizer, const std::string& run) {
  const std::string to = run + "/tokenizer";
  const bool with_tokenizer = !tokenizer.folder.empty() && !is_there(to, "tokenizer.json"),
             with_model = !tokenizer.model.empty() && tokenizer.model != tokenizer.folder;
  if (with_model) {
    const bool alone = tokenizer.folder.empty() && !is_there(to, "tokenizer.json");
    std::vector<std::string> names = files_of(tokenizer.model, alone ? std::span<const std::string_view>(kept) : of_ids);
    std::erase_if(names, [&](const std::string& name) {
      return is_there(to, name) || (!tokenizer.folder.empty() && is_there(tokenizer.folder, name));
    });
    if (!names.empty()) copy_files(tokenizer.model, to, names), name_what_stays(tokenizer.model);
  }
  if (with_tokenizer) copy_files(tokenizer.folder, to, files_of(tokenizer.folder, kept)), name_what_stays(tokenizer.folder);
  if (!tokenizer.chat_template.empty()) keep_chat_template(tokenizer.chat_template, to + "/chat_template.jinja");
}

std::vector<std::string> carried_files(const std::string& folder) {
  return folder.empty() ? std::vector<std::string>() : files_of(folder, std::span(kept).subspan(1));
}

std::optional<TokenIds> carried_ids(const std::string& folder) {
  if (folder.empty() || !is_there(folder, "config.json")) return {};
  const std::string path = folder + "/config.json";
  JsonNode root;
  std::vector<Fault> faults;
  if (!read_json(io::read_small_file(path, ExitCode::data, io::most_tokenizer_bytes), path, root, faults))
    fail(ExitCode::data, "{}\nIt says which tokens end a text: copy it from the model again, or remove it.", faults.front().str());
  TokenIds ids;
  std::vector<JsonNode> said = root.children;
  if (const JsonNode* text = root.member("text_config"))  // of a model of more than text, which may say some of them itself
    for (const JsonNode& node : text->children)
      if (!root.member(node.name)) said.push_back(node);
  for (const JsonNode& node : said) {
    if (std::ranges::find(id_keys, node.name) == id_keys.end()) continue;
    const std::optional<std::string> text = id_text(node);
    if (!text) fail(ExitCode::data, "{}: {} is neither a number, a list of numbers nor null. Correct it.", path, node.name);
    ids.emplace_back(node.name, *text);
  }
  return ids;
}

}  // namespace tessera
