#include "exchange/initial_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/some_of.hpp"
#include "deck/import/model_source.hpp"
#include "deck/schema/value.hpp"
#include "exchange/own_head.hpp"
#include "exchange/text_part_files.hpp"
#include "families/names.hpp"
#include "io/checkpoint/finite.hpp"
#include "model/table/lora.hpp"
#include "models/mistral_model.hpp"
#include "train/engine/engine.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_elements = 1 << 20;  // of a tensor that are read at once

/// What its config.json says, which must be what the deck says.
ModelSource require_model_of_deck(const Deck& deck, bool warn) {
  std::vector<Fault> faults;
  ModelSource source = read_huggingface_folder(deck.run.init, faults);
  if (!faults.empty()) {
    std::string all = fmt::format("run.init = {} names a model that is not supported:", toml_string(deck.run.init));
    for (const Fault& fault : faults) all += "\n  " + fault.str();
    throw Error(ExitCode::usage, all);
  }
  if (source.model.tied && has_own_head(deck.run.init)) take_own_head(source, deck.run.init);
  ModelSource compared = source;
  if (source.model.vocab > 0 && deck.model.vocab > source.model.vocab) {
    compared.model.vocab = deck.model.vocab;
    source.notes.push_back(
        fmt::format("model.vocab = {}, but the model of {} has {} tokens: rows of the others start as the mean of its rows",
                    deck.model.vocab, deck.run.init, source.model.vocab));
  }
  const std::vector<std::string> differences = model_differences(deck.model, compared);
  if (!differences.empty())
    fail(ExitCode::usage,
         "run.init = {} names another model than this deck's [model]:\n  {}\nTake the [model] that `tessera deck from-hf {}` prints.",
         toml_string(deck.run.init), fmt::join(differences, "\n  "), deck.run.init);
  for (const std::string& note : source.notes)
    if (warn) info("{}", note);
  if (warn && source.context > 0 && deck.batch.sequence_length > source.context)
    warning("batch.sequence_length = {} is more than the {} tokens that the model of run.init was made for (max_position_embeddings)",
            deck.batch.sequence_length, source.context);
  return source;
}

/// Files have them, and they say nothing that the deck does not: frequencies of the rotation; a head that is the embedding once more.
bool says_nothing(const std::string& name, const Deck& deck, const TensorNames& names) {
  return name.ends_with("rotary_emb.inv_freq") || (deck.model.tied && name == names.of("head.weight"));
}

/// Of a layer behind the model's that predicts further tokens.
bool of_further_layer(std::string_view name, const ModelSource& source) {
  for (std::int64_t layer = source.model.layers; layer < source.model.layers + source.further_layers; ++layer)
    if (name.starts_with(fmt::format("model.layers.{}.", layer))) return true;
  return false;
}

/// But for rounding to 16 bits.
bool is_constant(const io::SafetensorsModel& model, const io::SafetensorsModel::Tensor& tensor, double value) {
  if (tensor.shape.elements() != 1 || (tensor.type != "F32" && tensor.type != "BF16" && tensor.type != "F16")) return false;
  float there = 0;
  model.read_box(tensor, whole_box(tensor.shape), {&there, 1});
  return std::abs(there - value) <= 0.01 * std::abs(value);
}

/// Every tensor of the deck's model, and no other but what says nothing.
void require_tensors(const io::SafetensorsModel& model, const Deck& deck, const ModelSource& source,
                     const std::vector<ExportTensor>& tensors, bool warn) {
  const TensorNames names(source.family, source.model.head_dim);
  std::map<std::string, Shape, std::less<>> wanted;
  for (const ExportTensor& tensor : tensors) wanted.emplace(tensor.name, tensor.shape);
  std::vector<std::string> missing, shapes, types, constants, others, buffers, further;
  std::set<std::string_view> parts;  // of tensors of four bits
  for (const auto& tensor : tensors) {
    const FileTensor there = find_values(model, tensor);
    if (!there.values) missing.push_back(tensor.name);
    if (!there.is_mxfp4()) continue;
    parts.insert({there.values->name, there.scales->name});
    if (!has_shape(there, tensor.shape))
      shapes.push_back(fmt::format("{} and {} are {} and {}, which cannot become {}", there.values->name, there.scales->name,
                                   there.values->shape.str(), there.scales->shape.str(), tensor.shape.str()));
    for (const auto* part : {there.values, there.scales})
      if (part->type != "U8") types.push_back(fmt::format("{} is {}, but bytes (U8) are read", part->name, part->type));
  }
  for (const io::SafetensorsModel::Tensor& t : model.tensors()) {
    if (parts.contains(t.name)) continue;
    const auto found = wanted.find(t.name);
    if (const std::optional<double> value = names.constant(t.name)) {
      if (!is_constant(model, t, *value)) constants.push_back(fmt::format("{} is not {}", t.name, *value));
    } else if (found == wanted.end() && names.is_buffer(t.name))
      buffers.push_back(t.name);
    else if (found == wanted.end() && of_further_layer(t.name, source))
      further.push_back(t.name);
    else if (found == wanted.end() && !says_nothing(t.name, deck, names))
      others.push_back(t.name);
    else if (found != wanted.end() && !(found->second == t.shape))
      shapes.push_back(fmt::format("{} is {} and must be {}", t.name, t.shape.str(), found->second.str()));
    else if (found != wanted.end() && t.type != "F32" && t.type != "BF16" && t.type != "F16")
      types.push_back(fmt::format("{} is {}", t.name, t.type));
  }
  std::string faults;
  const auto add = [&](const std::vector<std::string>& names, const char* what) {
    if (!names.empty()) faults += fmt::format("\n  {} {}: {}", names.size(), what, some_of(names));
  };
  add(missing, missing.size() == 1 ? "tensor is missing" : "tensors are missing");
  add(shapes, "of another shape");
  add(types, "of a type other than F32, BF16 and F16");
  add(constants, "with another value than its class computes with here");
  add(others, "that this class of model does not have");
  const char* said = is_mistral_model(model.folder()) ? "params.json" : "config.json";
  if (!faults.empty())
    fail(ExitCode::data, "run.init = {}: its tensors do not match the {} in its {}:{}\nGet the model again, or correct its {}.",
         toml_string(model.folder()), source.architecture, said, faults, said);
  if (warn && !buffers.empty())
    info("{}: {} tensors are skipped, because the model computes them itself: {}", model.folder(), buffers.size(), some_of(buffers));
  if (warn && !further.empty())
    info("{}: {} tensors of layers that predict further tokens are left out: {}", model.folder(), further.size(), some_of(further));
}

}  // namespace

InitialWeights::InitialWeights(const Deck& deck, bool warn) : InitialWeights(deck, require_model_of_deck(deck, warn), warn) {}

InitialWeights::InitialWeights(const Deck& deck, const ModelSource& source, bool warn)
    : architecture_(source.architecture), model_(source.text_part ? open_text_model(deck.run.init) : io::SafetensorsModel(deck.run.init)) {
  Deck of_files = deck;
  of_files.model.vocab = source.model.vocab;
  const TensorNames names(source.family, source.model.head_dim);
  std::vector<ExportTensor> tensors = tensors_by(names, parameter_table(of_files.model));
  name_as_files_do(model_, names, tensors);
  require_tensors(model_, of_files, source, tensors, warn);
  for (const ExportTensor& tensor : tensors) {
    const FileTensor there = find_values(model_, tensor);
    for (const TensorPart& part : tensor.parts) places_.emplace(part.ours, Place{there, part});
  }
  find_means(deck);
  if (!deck.model.lora.init.empty()) adapter_.emplace(deck, names);
}

void InitialWeights::read(const Parameter& parameter, const Box& box, std::int64_t at, std::span<float> out) const {
  if (adapter_ && is_saved_with_adapter(parameter)) return adapter_->read(parameter, box, at, out);
  const auto& [tensor, part] = places_.find(parameter.name)->second;
  if (!(part.shape == parameter.shape)) return read_longer(*tensor.values, box, at, out);
  if (part.in_order() && !tensor.is_mxfp4()) return model_.read_finite(*tensor.values, part.of_theirs(box), out, at);
  read_part(model_, tensor, part, box, at, out);
  if (const std::int64_t bad = io::first_not_finite(out); bad >= 0)
    fail(ExitCode::data, "{}: tensor {} has a value that is {} ({}, element {}), so the model is useless. Get it again.",
         model_.path_of(*tensor.values), tensor.values->name, io::text_not_finite(out[static_cast<std::size_t>(bad)]), part.ours,
         element_around(box, at + bad, part.shape));
}

void InitialWeights::find_means(const Deck& deck) {
  for (const Parameter& p : parameter_table(deck.model)) {
    const auto place = places_.find(p.name);
    if (place == places_.end() || place->second.part.shape == p.shape) continue;
    const auto* tensor = place->second.tensor.values;
    const std::int64_t rows = tensor->shape.dims[0], width = tensor->shape.dims[1];
    const std::int64_t at_once = std::max<std::int64_t>(1, most_elements / width);
    std::vector<float> piece(static_cast<std::size_t>(std::min(rows, at_once) * width)), mean(static_cast<std::size_t>(width));
    std::vector<double> sum(mean.size());
    for (std::int64_t r = 0; r < rows; r += at_once) {
      const std::span part = std::span(piece).first(static_cast<std::size_t>(std::min(at_once, rows - r) * width));
      model_.read_box(*tensor, whole_box(tensor->shape), part, r * width);
      for (std::size_t i = 0; i < part.size(); ++i) sum[i % sum.size()] += part[i];
    }
    std::ranges::transform(sum, mean.begin(), [&](double s) { return static_cast<float>(s / static_cast<double>(rows)); });
    means_.emplace(tensor->name, std::move(mean));
  }
}

/// Of a tensor with a row for each token, whose file has fewer.
void InitialWeights::read_longer(const io::SafetensorsModel::Tensor& tensor, const Box& box, std::int64_t at, std::span<float> out) const {
  const std::vector<float>& mean = means_.find(tensor.name)->second;
  for (const Box& inner : flat_range_boxes(box.count, at, at + std::ssize(out))) {
    const Box part = outside(inner, box);
    const std::int64_t rows = std::clamp<std::int64_t>(tensor.shape.dims[0] - part.start[0], 0, part.count[0]), width = part.count[1];
    const auto there = static_cast<std::size_t>(rows * width);
    if (rows > 0) model_.read_finite(tensor, {.start = part.start, .count = {rows, width}}, out.first(there));
    for (std::int64_t r = rows; r < part.count[0]; ++r) std::copy_n(mean.begin() + part.start[1], width, out.begin() + r * width);
    out = out.subspan(static_cast<std::size_t>(part.elements()));
  }
}

std::string InitialWeights::describe() const {
  return fmt::format("{} ({}, {} tensors, {})", model_.folder(), architecture_, model_.tensors().size(),
                     human_bytes(static_cast<double>(model_.bytes()))) +
         (adapter_ ? ", and adapter " + adapter_->describe() : "");
}

void load_initial_weights(const World& world, Engine& engine, const InitialWeights& weights) {
  const double begin = now_seconds();
  world.together([&] {
    engine.read_weights(
        {.has = [&](const Parameter& p) { return weights.has(p); },
         .read = [&](const Parameter& p, const Box& box, std::int64_t at, std::span<float> out) { weights.read(p, box, at, out); }});
  });
  engine.publish();
  info("initial weights: {} read in {:.2f} s", weights.describe(), now_seconds() - begin);
}

}  // namespace tessera
