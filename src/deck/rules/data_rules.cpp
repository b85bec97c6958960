// How documents of the data become sequences, and what does not go with it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

/// Of a mixture; the interleave of files counts in millionths.
constexpr double least_share = 1e-6;

void check_files(Draft& draft) {
  if (!draft.good({"data.train"})) return;
  const std::vector<std::string>& files = draft.deck.data.train;
  if (files.empty() || std::ranges::find(files, "") != files.end()) return draft.fault({"data.train"}, "must not be empty");
  std::set<std::filesystem::path> seen;
  for (const std::string& file : files)
    if (!seen.insert(std::filesystem::path(file).lexically_normal()).second)
      draft.fault({"data.train"}, fmt::format("names {} twice; name it once, and add up both weights in data.weights", toml_string(file)));
}

/// The numbers of `key` are one for each file, or none. A file that an override puts in the place of a mixture drops those of the mixture.
bool serves_files(Draft& draft, std::string_view key, const std::vector<double>& numbers) {
  const std::size_t files = draft.deck.data.train.size();
  if (numbers.empty() || numbers.size() == files) return true;
  const std::string message = fmt::format("needs one number for each file of data.train, in their order; here {} {} for {} {}",
                                          numbers.size() == 1 ? "is" : "are", numbers.size(), files, files == 1 ? "file" : "files");
  if (files == 1)
    draft.idle(key, "data.train", message);
  else
    draft.fault({key}, message);
  return false;
}

void check_mixture(Draft& draft) {
  if (!draft.good({"data.train", "data.weights", "data.epochs"})) return;
  const DataKeys& data = draft.deck.data;
  serves_files(draft, "data.epochs", data.epochs);
  if (data.train.size() > 1 && data.weights.empty())
    return draft.fault(
        {"data.train"},
        fmt::format(
            "names {} files; set data.weights to the share of the run's sequences that each file gives, for example data.weights = [{}]",
            data.train.size(), fmt::join(std::vector<int>(data.train.size(), 1), ", ")));
  if (!serves_files(draft, "data.weights", data.weights)) return;
  const double sum = std::accumulate(data.weights.begin(), data.weights.end(), 0.0);
  for (std::size_t i = 0; i < data.weights.size(); ++i)
    if (data.weights[i] < least_share * sum)
      draft.fault({"data.weights"},
                  fmt::format("{} for {} is less than a millionth of the sum of all weights; leave the file out, or raise its weight",
                              shortest(data.weights[i]), toml_string(data.train[i])));
}

/// What knows no documents.
void check_document_mask(Draft& draft) {
  const Deck& d = draft.deck;
  if (!draft.good({"data.document_mask"}) || !d.data.document_mask) return;
  if (draft.good({"kernels.attention", "run.device"}) && d.kernels.attention == AttentionMode::cudnn && d.run.device != RunDevice::host)
    draft.fault({"data.document_mask", "kernels.attention"},
                "only our own attention masks documents, and kernels.attention is \"cudnn\"; set it to \"auto\" or \"native\", or "
                "data.document_mask = false");
}

/// Sequences of whole documents.
void check_packed_documents(Draft& draft) {
  const DataKeys& data = draft.deck.data;
  if (!draft.good({"data.packing", "data.document_mask", "data.too_long"})) return;
  if (data.packing == Packing::documents && !data.document_mask)
    draft.fault({"data.packing", "data.document_mask"},
                "packing puts unrelated documents into one sequence, and without a mask they would see each other; with data.packing = "
                "\"documents\" set data.document_mask = true");
  const bool pairs = draft.good({"preference.objective"}) && draft.deck.preference.on();
  if (pairs && data.too_long == TooLong::split)
    draft.fault({"data.too_long", "preference.objective"}, "a pair that is split is none; set data.too_long = \"truncate\" or \"refuse\"");
  if (!pairs && data.packing != Packing::documents && data.too_long != TooLong::refuse)
    draft.idle("data.too_long", "data.packing",
               "has no effect with data.packing = \"concatenate\", which takes documents of any length; set data.packing = \"documents\" "
               "or leave this key out");
}

}  // namespace

void check_data(Draft& draft) {
  check_files(draft);
  check_mixture(draft);
  check_document_mask(draft);
  check_packed_documents(draft);
}

}  // namespace tessera
