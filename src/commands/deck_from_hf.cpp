// tessera deck from-hf DIR [--chat] [--lora R] [--data FOLDER]: the deck of a run that begins with a Hugging Face model.
#include "commands/deck_from_hf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.hpp"
#include "base/log.hpp"
#include "exchange/own_head.hpp"
#include "io/files/path_state.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera {
namespace {

std::int64_t longest_document(const io::TokenFile& file) {
  const std::vector<std::int64_t> begins = file.read_documents();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < begins.size(); ++i)
    longest = std::max(longest, (i + 1 < begins.size() ? begins[i + 1] : file.tokens()) - begins[i]);
  return longest;
}

/// Tokens of both documents of the longest pair.
std::int64_t longest_pair(const io::TokenFile& file) {
  const std::vector<std::int64_t> begins = file.read_documents();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i + 1 < begins.size(); i += 2)
    longest = std::max(longest, (i + 2 < begins.size() ? begins[i + 2] : file.tokens()) - begins[i]);
  return longest;
}

void require_kind(const io::TokenFile& file, bool dpo) {
  const bool pairs = file.set() == io::TokenSet::pairs;
  if (dpo && !pairs)
    fail(ExitCode::usage,
         "--dpo learns from pairs, but {} holds none. Write them: tessera tokenize --tokenizer MODEL PAIRS FOLDER --preferences",
         file.path());
  if (!dpo && file.set() != io::TokenSet::documents)
    fail(ExitCode::usage, "{} holds {}, and the deck would learn texts. {}", file.path(),
         pairs ? "preference pairs" : "completions with labels", pairs ? "Give --dpo." : "Tokenize texts.");
}

/// What `tessera tokenize` left in a folder.
TuningData data_in(const std::string& folder, bool chat, bool dpo) {
  TuningData data{.train = folder + "/train.h5", .validation = folder + "/val.h5"};
  if (io::look_at(data.train).nothing())
    fail(ExitCode::usage, "--data {}: there is no {}. Write it first: tessera tokenize --tokenizer MODEL INPUT {}{} --validation 0.05",
         folder, data.train, folder,
         dpo    ? " --preferences"
         : chat ? " --chat"
                : "");
  const io::TokenFile file(data.train);
  require_kind(file, dpo);
  if (dpo) data.pairs = file.documents() / 2, data.longest_pair = longest_pair(file);
  data.tokens = file.tokens(), data.documents = file.documents(), data.masked = file.masked();
  data.longest = longest_document(file);
  if (chat && !data.masked)
    fail(ExitCode::usage,
         "--chat: every token of {} counts in the loss, so it was not made from conversations. Write it with: tessera tokenize --chat, or "
         "leave --chat out here",
         data.train);
  if (io::look_at(data.validation).nothing()) {
    data.validation.clear();
    return data;
  }
  const io::TokenFile validation(data.validation);
  require_kind(validation, dpo);
  data.longest = std::max(data.longest, longest_document(validation));
  if (dpo) data.longest_pair = std::max(data.longest_pair, longest_pair(validation));
  return data;
}

}  // namespace

int print_imported(const std::string& path, const ImportedDeck& imported) {
  for (const std::string& note : imported.notes) info("{}", note);
  if (imported.faults.empty()) return put("{}", imported.text), 0;
  std::string all = fmt::format("{} was not made into a deck. It has {}:", path,
                                imported.faults.size() == 1 ? "a fault" : fmt::format("{} faults", imported.faults.size()));
  for (const Fault& f : imported.faults) all += "\n  " + f.str();
  throw Error(ExitCode::usage, all);
}

void add_from_hf(const Command& deck) {
  auto request = std::make_shared<ImportRequest>();
  auto data = std::make_shared<std::string>();
  request->own_head = has_own_head;
  const Command app = deck.command("from-hf", "Print the deck of a run that starts from a Hugging Face model");
  app.option("DIR", request->path,
             "The model's folder (also in Hugging Face's cache, or in Mistral's own layout), or only its config.json; or a checkpoint of "
             "llm.c, FILE.bin")
      .required();
  app.option("key=value", request->overrides, "Keys of the deck that the model's folder does not give");
  app.option("--data", *data,
             "Folder of `tessera tokenize`. The deck takes its train.h5 and val.h5, and a sequence length, batch, evaluations and saves "
             "that suit them");
  app.flag("--chat", request->tuning.chat, "The data are conversations: sequences hold whole ones, which do not see each other");
  app.flag("--dpo", request->tuning.dpo,
           "The data are preference pairs: the deck learns by DPO, with the model without adapters (--lora) or a frozen copy as reference")
      .excludes("--chat");
  app.option("--lora", request->tuning.lora, "Train low-rank adapters of this rank and leave the model unchanged; 0: train the whole model")
      .between(0, 4096)
      .shows_default();
  app.option("--ranks", request->ranks, "Ranks of the launch: also checks rules that depend on them").between(1, 10000000);
  app.footer(
      "Examples:\n  tessera deck from-hf models/Llama-3.2-1B --data data > llama.toml\n  tessera deck from-hf models/Llama-3.2-1B-Instruct "
      "--chat --lora 16 --data data/chats > chat.toml\n  mpiexec -n 4 tessera train llama.toml");
  app.does([request, data] {
    if (!data->empty()) request->tuning.data = data_in(*data, request->tuning.chat, request->tuning.dpo);
    return print_imported(request->path, import_huggingface(*request));
  });
}

}  // namespace tessera
