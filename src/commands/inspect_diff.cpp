#include "commands/inspect_diff.hpp"
#include "base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>
#include "base/json.hpp"

#include "base/check.hpp"
#include "deck/deck.hpp"
#include "deck/import/model_source.hpp"
#include "exchange/lora_merge.hpp"
#include "exchange/part_values.hpp"
#include "exchange/text_part_files.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/files/byte_progress.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "model/table/huggingface.hpp"

namespace tessera {
namespace {

/// What is compared: a checkpoint, or the weights of an exported model under our names.
class Side {
 public:
  struct Tensor {
    std::string group, name;
    Shape shape;
  };
  virtual ~Side() = default;
  virtual std::string folder() const = 0;
  virtual std::optional<std::int64_t> step() const { return std::nullopt; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Elements from `begin` on, in natural order, as fp32.
  virtual void read(const Tensor& tensor, std::int64_t begin, std::span<float> out) const = 0;
  /// What a value becomes in this side's type.
  virtual float rounded(const Tensor&, float value) const { return value; }

  const Tensor* find(const Tensor& like) const {
    const auto found = std::ranges::find_if(tensors_, [&](const Tensor& t) { return t.group == like.group && t.name == like.name; });
    return found == tensors_.end() ? nullptr : &*found;
  }

 protected:
  std::vector<Tensor> tensors_;
};

class CheckpointSide : public Side {
 public:
  explicit CheckpointSide(const std::string& path) : reader_(path) {
    for (const std::string& group : reader_.layout().groups)
      for (const io::CheckpointTensor& tensor : reader_.layout().tensors)
        if (reader_.find(group, tensor.name) == &tensor) tensors_.push_back({group, tensor.name, tensor.shape});
  }
  const io::CheckpointReader& reader() const { return reader_; }
  std::string folder() const override { return reader_.folder(); }
  std::optional<std::int64_t> step() const override { return reader_.meta().step; }
  void read(const Tensor& tensor, std::int64_t begin, std::span<float> out) const override {
    reader_.read(tensor.group, *reader_.find(tensor.group, tensor.name), begin, out);
    if (merge_ && tensor.group == "master" && merge_->adapts(tensor.name)) merge_->add(tensor.name, begin, out);
  }
  /// From here on weights are those of an export, which has adapters in them.
  void merge_adapters() {
    const Deck deck = require_deck(parse_stored_deck(reader_.meta().deck, reader_.folder() + "/checkpoint.h5:deck"));
    if (deck.model.lora.rank == 0) return;
    merge_.emplace(reader_, deck.model.lora);
    for (const Parameter& p : parameter_table(deck.model))
      if (p.adapter) std::erase_if(tensors_, [&](const Tensor& t) { return t.name == p.name; });
  }

 private:
  io::CheckpointReader reader_;
  mutable std::optional<LoraMerge> merge_;  // keeps the matrices of the tensor that it was last asked for
};

/// Names are those of the checkpoint that it is compared with, or the model's own.
class ModelSide : public Side {
 public:
  explicit ModelSide(const std::string& folder) : model_(open_text_model(folder)) {
    for (const auto& tensor : model_.tensors()) add(tensor.name, tensor);
  }
  ModelSide(const std::string& folder, const io::CheckpointReader& like) : model_(open_text_model(folder)) {
    const Deck deck = require_deck(parse_stored_deck(like.meta().deck, like.folder() + "/checkpoint.h5:deck"));
    std::set<std::string> known;
    for (const ExportTensor& tensor : tensors_of(model_, folder, deck)) {
      known.insert(tensor.name);
      const FileTensor there = find_values(model_, tensor);
      if (there.is_mxfp4()) known.insert({there.values->name, there.scales->name});
      if (there.values)
        for (const TensorPart& part : tensor.parts) add(part, there, has_shape(there, tensor.shape));
    }
    for (const auto& tensor : model_.tensors())
      if (!known.contains(tensor.name)) add(tensor.name, tensor);
  }
  std::string folder() const override { return model_.folder(); }
  void read(const Tensor& tensor, std::int64_t begin, std::span<float> out) const override {
    const auto& [there, part] = by_name_.at(tensor.name);
    read_part(model_, there, part, whole_box(part.shape), begin, out);
  }
  float rounded(const Tensor& tensor, float value) const override {
    const std::string& type = by_name_.at(tensor.name).tensor.values->type;
    if (type == row_of(DType::bf16).safetensors) return static_cast<float>(bf16(value));
    return type == row_of(DType::f16).safetensors ? static_cast<float>(f16(value)) : value;
  }

 private:
  /// By the names of its class where it is the deck's model by another one's, which is read alone.
  static std::vector<ExportTensor> tensors_of(const io::SafetensorsModel& model, const std::string& folder, const Deck& deck) {
    const std::vector<Parameter> table = parameter_table(deck.model);
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_folder(folder, faults);
    const bool by_another = faults.empty() && source.family && source.family != family_of(deck.model);
    const bool by_theirs = by_another && model_differences(deck.model, source).empty();
    const TensorNames theirs(source.family, source.model.head_dim);
    std::vector<ExportTensor> tensors = by_theirs ? tensors_by(theirs, table) : huggingface_tensors(deck, table);
    name_as_files_do(model, by_theirs ? theirs : TensorNames(deck.model), tensors);
    return tensors;
  }
  struct Place {
    FileTensor tensor;
    TensorPart part;
  };
  void add(const std::string& name, const io::SafetensorsModel::Tensor& tensor) {
    tensors_.push_back({"master", name, tensor.shape});
    by_name_[name] = {{&tensor}, {name, tensor.shape, whole_box(tensor.shape)}};
  }
  /// `fits`: the tensor has the shape that the part is of.
  void add(const TensorPart& part, const FileTensor& tensor, bool fits) {
    if (!fits) return add(part.ours, *tensor.values);
    tensors_.push_back({"master", part.ours, part.shape});
    by_name_[part.ours] = {tensor, part};
  }
  io::SafetensorsModel model_;
  std::map<std::string, Place> by_name_;
};

using Sides = std::pair<std::unique_ptr<Side>, std::unique_ptr<Side>>;

Sides open_sides(const DiffOptions& o) {
  const auto checkpoint = [](const std::string& path) { return std::make_unique<CheckpointSide>(path); };
  if (io::has_model(o.path) && io::has_model(o.other)) return {std::make_unique<ModelSide>(o.path), std::make_unique<ModelSide>(o.other)};
  if (io::has_model(o.path)) {
    auto b = checkpoint(o.other);
    b->merge_adapters();
    return {std::make_unique<ModelSide>(o.path, b->reader()), std::move(b)};
  }
  auto a = checkpoint(o.path);
  if (!io::has_model(o.other)) return {std::move(a), checkpoint(o.other)};
  a->merge_adapters();
  auto b = std::make_unique<ModelSide>(o.other, a->reader());
  return {std::move(a), std::move(b)};
}

/// A tensor of a group that both have, or why it is not compared.
struct Difference {
  std::string group, tensor;
  std::string fault;                          ///< "only in A" and the like; "" where values were compared
  std::int64_t elements = 0, differing = 0;   ///< by their bits
  std::int64_t not_finite = 0;                ///< of the differing ones, in either
  double largest = 0, squares = 0, norm = 0;  ///< of finite differences; squares of A's values
  bool same() const { return fault.empty() && differing == 0; }
  double relative() const { return norm > 0 ? std::sqrt(squares / norm) : squares > 0 ? INFINITY : 0; }
};

/// Of what both sides can have: an exported model has weights alone.
class Comparison {
 public:
  Comparison(const Side& a, const Side& b, bool weights_alone) : a_(a), b_(b), weights_alone_(weights_alone) {}

  std::vector<Difference> of_all(const std::string& only) {
    const auto wanted = [&](const Side::Tensor& t) { return (only.empty() || t.name == only) && (!weights_alone_ || t.group == "master"); };
    std::vector<Difference> all;
    std::int64_t total = 0;
    for (const Side::Tensor& tensor : a_.tensors())
      if (wanted(tensor)) {
        all.push_back(pair_of(tensor));
        total += all.back().fault.empty() ? 8 * all.back().elements : 0;
      }
    for (const Side::Tensor& tensor : b_.tensors())
      if (wanted(tensor) && !a_.find(tensor))
        all.push_back({.group = tensor.group, .tensor = tensor.name, .fault = "only in " + b_.folder()});
    io::ByteProgress progress("compare", total);
    for (Difference& one : all)
      if (one.fault.empty()) compare(one, progress);
    return all;
  }

 private:
  Difference pair_of(const Side::Tensor& tensor) const {
    Difference found{.group = tensor.group, .tensor = tensor.name, .fault = "", .elements = tensor.shape.elements()};
    const Side::Tensor* other = b_.find(tensor);
    if (!other)
      found.fault = "only in " + a_.folder();
    else if (other->shape.dims != tensor.shape.dims)
      found.fault = fmt::format("of shape {} and {}", tensor.shape.str(), other->shape.str());
    return found;
  }

  void compare(Difference& found, io::ByteProgress& progress) {
    const Side::Tensor tensor{found.group, found.tensor, {}};
    std::vector<float> left(static_cast<std::size_t>(io::hash_block)), right = left;
    for (std::int64_t at = 0; at < found.elements; at += io::hash_block) {
      const auto n = static_cast<std::size_t>(std::min(io::hash_block, found.elements - at));
      a_.read(tensor, at, std::span(left).first(n));
      b_.read(tensor, at, std::span(right).first(n));
      for (std::size_t i = 0; i < n; ++i) add(found, b_.rounded(tensor, left[i]), a_.rounded(tensor, right[i]));
      progress.add(static_cast<std::int64_t>(8 * n));
    }
  }

  static void add(Difference& found, float a, float b) {
    const double x = a, y = b;
    if (std::isfinite(x)) found.norm += x * x;
    if (std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b)) return;
    ++found.differing;
    if (!std::isfinite(x) || !std::isfinite(y)) return void(++found.not_finite);
    found.largest = std::max(found.largest, std::abs(x - y));
    found.squares += (x - y) * (x - y);
  }

  const Side &a_, &b_;
  bool weights_alone_;
};

Json json_of(const Difference& d) {
  Json row{{"group", d.group}, {"name", d.tensor}};
  if (!d.fault.empty())
    row["fault"] = d.fault;
  else
    row.update({{"elements", d.elements},
                {"differing", d.differing},
                {"not_finite", d.not_finite},
                {"largest", d.largest},
                {"relative", std::isfinite(d.relative()) ? Json(d.relative()) : Json()}});
  return row;
}

void print_differences(const std::vector<const Difference*>& differing) {
  std::size_t wide = 6;
  const auto label = [](const Difference& d) { return d.group + "/" + d.tensor; };
  for (const Difference* d : differing) wide = std::max(wide, label(*d).size());
  put("\n{:<{}}  {:>14} {:>14} {:>11} {:>11}\n", "tensor", wide, "elements", "differing", "largest", "relative");
  for (const Difference* d : differing) {
    if (!d->fault.empty())
      put("{:<{}}  {}\n", label(*d), wide, d->fault);
    else
      put("{:<{}}  {:>14} {:>14} {:>11.4g} {:>11.4g}{}\n", label(*d), wide, d->elements, d->differing, d->largest, d->relative(),
          d->not_finite > 0 ? fmt::format("  {} not finite", d->not_finite) : "");
  }
}

}  // namespace

int run_diff(const DiffOptions& o) {
  const Sides sides = open_sides(o);
  const Side &a = *sides.first, &b = *sides.second;
  const std::vector<Difference> all = Comparison(a, b, io::has_model(o.path) || io::has_model(o.other)).of_all(o.tensor);
  if (all.empty())
    fail(ExitCode::usage, "neither {} nor {} holds a tensor '{}'. `tessera inspect {} --brief` lists them.", a.folder(), b.folder(),
         o.tensor, io::has_model(o.path) ? o.other : o.path);
  std::vector<const Difference*> differing;
  for (const Difference& d : all)
    if (!d.same()) differing.push_back(&d);
  const auto step_of = [](const Side& side) { return side.step() ? Json(*side.step()) : Json(); };
  if (o.json) {
    Json rows = Json::array();
    for (const Difference* d : differing) rows.push_back(json_of(*d));
    const Json j{{"folder", a.folder()},     {"other", b.folder()},    {"step", step_of(a)},
                 {"other_step", step_of(b)}, {"compared", all.size()}, {"same", all.size() - differing.size()},
                 {"differing", rows}};
    put("{}\n", j.dump(2, BadText::replace));
  } else {
    for (const Side* side : {&a, &b})
      put("{} ({})\n", side->folder(), side->step() ? fmt::format("step {}", *side->step()) : "a model's weights");
    if (!differing.empty()) print_differences(differing);
    put("{}{} of {} tensors {} have the same bits\n", differing.empty() ? "" : "\n", all.size() - differing.size(), all.size(),
        a.step() && b.step() ? "of all groups" : "of the weights");
  }
  return static_cast<int>(differing.empty() ? ExitCode::ok : ExitCode::checkpoint);
}

}  // namespace tessera
