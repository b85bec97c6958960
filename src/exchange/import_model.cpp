#include "exchange/import_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "deck/import/import.hpp"
#include "deck/import/named_model.hpp"
#include "exchange/carried_files.hpp"
#include "exchange/initial_weights.hpp"
#include "exchange/own_head.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/byte_progress.hpp"
#include "model/table/layout.hpp"
#include "model/towers/towers.hpp"
#include "models/foreign_model.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/request.hpp"
#include "train/data/run_tokenizer.hpp"
#include "train/engine/program_identity.hpp"
#include "train/engine/saved_layout.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse_without_weights(const std::string& model) {
  const std::string foreign = foreign_weights(find_model(model).folder);
  fail(ExitCode::data, "{}: it has no weights: neither model.safetensors nor model.safetensors.index.json is there.{}", model,
       foreign.empty() ? " Get the whole model." : foreign);
}

/// The deck that the model's folder makes.
Deck deck_of(const ImportModelOptions& o) {
  const ImportedDeck made =
      import_huggingface({.path = o.model, .model = "", .overrides = o.overrides, .ranks = 0, .own_head = has_own_head});
  if (!made.faults.empty()) {
    std::string all = fmt::format("{} cannot be imported:", o.model);
    for (const Fault& fault : made.faults) all += "\n  " + fault.str();
    throw Error(ExitCode::usage, all);
  }
  if (const std::string note = find_model(o.model).note; !note.empty()) info("{}", note);  // the others follow with the weights
  Deck deck = require_deck(parse_deck_text(made.text, o.model, {}, 0));
  if (deck.model.lora.rank > 0)
    fail(ExitCode::usage, "lora.rank = {}: an import is the model alone. Give [lora] to the run that begins with run.init = {}.",
         deck.model.lora.rank, o.model);
  if (deck.run.init.empty()) refuse_without_weights(o.model);
  return deck;
}

/// Elements [at, at + out.size()) of a unit that one rank keeps: tensors as they stand in the files, zeros between them and where a tensor
/// is none of the model's.
void fill(const Layout& layout, const Unit& unit, const InitialWeights& weights, std::int64_t at, std::span<float> out) {
  std::ranges::fill(out, 0.0f);
  for (const Piece& piece : pieces_in(unit, at, at + static_cast<std::int64_t>(out.size()))) {
    const Parameter& parameter = layout.table[static_cast<std::size_t>(piece.parameter)];
    if (!weights.has(parameter)) continue;
    const auto part = out.subspan(static_cast<std::size_t>(piece.unit_offset - at), static_cast<std::size_t>(piece.elements));
    weights.read(parameter, unit.slots[static_cast<std::size_t>(piece.slot)].box, piece.slot_offset, part);
  }
}

}  // namespace

ImportModelResult import_model(const ImportModelOptions& o) {
  Deck deck = deck_of(o);
  InitialWeights weights(deck, true);
  weights.read_once();
  const std::string root = o.run + "/checkpoints";
  const io::CheckpointSurvey there = io::survey_checkpoints(root);
  if (!there.entries.empty() || there.latest || !there.fault.empty())
    fail(ExitCode::usage, "{}: there are checkpoints already. Choose another folder, or remove them.", root);
  // One shard of one group, in the layout of one rank.
  const RunTokenizer tokenizer = find_tokenizer(deck, "", "");
  if (const std::string foreign = tokenizer.folder.empty() ? foreign_tokenizer(deck.run.init) : ""; !foreign.empty())
    warning("{} has no tokenizer.json.{}", deck.run.init, foreign);
  deck.zero.stage = 0, deck.run.init.clear(), deck.data.tokenizer = tokenizer.digest;
  const Layout layout = layout_for(without_towers(deck), Mesh{}, 0);
  const Holding holding{&layout, std::vector<std::vector<int>>(layout.units.size(), {0})};
  const SavedLayout saved = saved_layout(std::span(&holding, 1), std::array{master_group}, 1);
  ImportModelResult result{.checkpoint = root + "/" + io::checkpoint_name(0), .model = weights.describe()};
  for (const io::CheckpointUnit& unit : saved.checkpoint.units) result.bytes += 4 * unit.elements;
  io::ByteProgress progress("import", result.bytes, o.progress);
  std::mutex one_tells;
  std::vector<io::ShardSlice> slices;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    const Unit& unit = layout.units[u];
    const io::ShardSource::Fetch fetch = [&](std::int64_t at, std::span<float> out) {
      fill(layout, unit, weights, at, out);
      const std::lock_guard guard(one_tells);  // a shard's writers fetch from several threads
      progress.add(static_cast<std::int64_t>(out.size_bytes()));
    };
    const int saved_unit = saved.units.front()[u];
    slices.push_back(
        {.group = 0, .unit = saved_unit, .data = {saved.checkpoint.units[static_cast<std::size_t>(saved_unit)].elements, fetch}});
  }
  io::begin_checkpoint(root, 0);
  try {
    io::write_shard(root, 0, saved.checkpoint, 0, slices);
    io::write_index(root, saved.checkpoint,
                    {.step = 0,
                     .sample_cursor = 0,
                     .seed = static_cast<std::uint64_t>(deck.run.seed),
                     .deck = print_deck(deck),
                     .identity = deck_identity(deck).hex(),
                     .version = version(),
                     .program = describe(program_identity()),
                     .lineage = io::Lineage(1)});
    keep_files(tokenizer, o.run);
    io::commit_checkpoint(root, 0, {});
  } catch (...) {  // whatever it was: nothing unfinished stays, and it goes on to who says it
    io::discard_checkpoint(root, 0);
    throw;
  }
  return result;
}

}  // namespace tessera
