// What the text of a layer speaks: it declares values and calls kernels on them, and each call is written down with what it reads and
// writes. No graph is built and nothing is differentiated: the backward pass is a text of its own, which names the forward pass's values.
// The kernels are functions that take a recorder: model/calls has those of a rank alone, model/axes those over ranks.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "model/record/segment.hpp"

namespace tessera {

/// Rows [first, first + count) of a value of M rows.
struct Rows {
  std::int64_t first = 0, count = 0;
};

/// How many rows of a micro-batch count lies in memory. The rows that count come first, so a call leaves out the others. It takes rows in
/// steps, since each number of rows is a product of its own.
struct CountedRows {
  Value count = {};  ///< 1 int32; absent: all rows
  std::int64_t step = 1;

  /// Of `rows` those that a call takes: whole steps that hold all rows which count.
  std::int64_t of(const At& at, const Rows& rows) const {
    if (!count) return rows.count;
    const std::int64_t left = *at.get<std::int32_t>(count) - rows.first;
    return left <= 0 ? 0 : std::min(rows.count, round_up(left, step));
  }
  /// Calls f with each number of rows that a call may take of so many.
  template <class F>
  void for_each_number(std::int64_t most, F f) const {
    if (count)
      for (std::int64_t rows = step; rows < most; rows += step) f(rows);
    f(most);
  }
};

class Recorder {
 public:
  Recorder(const ModelShape& shape, std::string name, int layer = -1) : s(shape), inside(inside_attention(shape)) {
    segment_.name = std::move(name), segment_.layer = layer;
  }

  // ---- Values. Extents stand beside each name; without a type it is the compute type. ----

  Value stream_in() { return declare({.kind = ValueKind::stream_in, .name = "stream", .bytes = stream_bytes()}); }
  Value stream_out() { return declare({.kind = ValueKind::stream_out, .name = "stream", .bytes = stream_bytes()}); }
  Value d_stream() { return declare({.kind = ValueKind::d_stream, .name = "d_stream", .bytes = stream_bytes()}); }
  /// An activation. Where the backward pass reads it, the forward pass's bytes are kept for it or, with recompute, made again.
  Value value(const std::string& name, const Shape& dims) { return value(name, dims, s.dtype); }
  Value value(const std::string& name, const Shape& dims, DType dtype) { return activation(name, dims.elements(), dtype, false); }
  /// An activation that the backward pass always makes again: a pass over memory costs less than bytes that are kept.
  Value remade(const std::string& name, const Shape& dims) { return activation(name, dims.elements(), s.dtype, true); }
  Value weight(const std::string& tensor) { return declare({.kind = ValueKind::weight, .name = tensor}); }
  Value gradient(const std::string& tensor) { return declare({.kind = ValueKind::weight_gradient, .name = tensor}); }
  /// The packed copy of a tensor that `product` reads as its b; absent where none is kept.
  Value packed(const std::string& tensor, const kernels::Gemm& product);
  Value tokens();
  Value targets() { return declare({.kind = ValueKind::targets, .name = "targets"}); }
  Value row_weights() { return declare({.kind = ValueKind::row_weights, .name = "row_weights"}); }
  Value micro_batch_weight() { return declare({.kind = ValueKind::micro_batch_weight, .name = "weight"}); }
  Value gradient_scale() { return declare({.kind = ValueKind::gradient_scale, .name = "gradient_scale"}); }
  Value fp8_multipliers() { return declare({.kind = ValueKind::fp8_multipliers, .name = "fp8_multipliers"}); }
  Value fp8_weight_multiplier(const std::string& tensor) { return declare({.kind = ValueKind::fp8_weight_multiplier, .name = tensor}); }
  Value fp8_weight_largest(const std::string& tensor) { return declare({.kind = ValueKind::fp8_weight_largest, .name = tensor}); }
  Value fp8_largest() { return declare({.kind = ValueKind::fp8_largest, .name = "fp8_largest"}); }
  Value scalars() { return declare({.kind = ValueKind::scalars, .name = "scalars"}); }
  /// Where documents begin, of a micro-batch; absent where sequences are not masked by them.
  Value document_starts();
  /// Absent where no sequence has any.
  Value padding();
  /// The table of one of Rotation::tables.
  Value rope_table(int rotation) { return declare({.kind = ValueKind::rope_table, .name = name_of_rotation("rope", rotation)}); }
  /// Of it rows by position, as rope counts positions: m % T.
  Value rotations(int rotation);
  // Of a text.
  Value cache(const Cache& c) { return declare({.kind = ValueKind::cache, .name = c.name, .bytes = c.bytes(s.capacity)}); }
  Value position() { return declare({.kind = ValueKind::position, .name = "position", .bytes = sizeof(std::int32_t)}); }
  /// Values that are not activations exist once, however often the text asks for them.
  Value declare(const ValueInfo& info);
  /// What one call leaves for later ones, by what it is; absent at first.
  Value& note(const std::string& what) { return notes_[what]; }

  const ValueInfo& at(Value value) const { return segment_.at(value); }
  const std::string& name_of(Value value) const { return at(value).name; }

  // ---- Calls, of the forward text until backward() ----

  void call(Call call);
  /// A collective, which is a call of its own. The sum of an all_reduce takes the place of what it adds: `to` is `from`.
  void exchange(const Exchange& exchange, const std::string& name, Value to, Value from);

  /// From here on calls belong to the backward pass. False where there is none: a text is only read forward.
  bool backward() { return in_backward_ = s.feed == Feed::samples; }
  bool in_backward() const { return in_backward_; }
  /// The same, where it makes what the forward pass makes as well. The verbs name the tasks.
  void backward_with_forward(const char* forward_verb, const char* backward_verb) {
    backward();
    segment_.joint = true, segment_.forward_verb = forward_verb, segment_.backward_verb = backward_verb;
  }
  int layer() const { return segment_.layer; }
  /// Tokens of the vocabulary whose logits this rank has.
  std::int64_t vocabulary() const { return s.vocabulary().size(); }
  Rows all_rows() const { return {0, s.tokens()}; }
  /// All rows, `most` at a time.
  std::vector<Rows> chunks(std::int64_t most) const { return chunks(all_rows(), most); }
  static std::vector<Rows> chunks(const Rows& whole, std::int64_t most) {
    std::vector<Rows> result;
    for (std::int64_t done = 0; done < whole.count; done += most)
      result.push_back({whole.first + done, std::min(most, whole.count - done)});
    return result;
  }
  /// The record; the recorder is done.
  Segment take() { return std::move(segment_); }

  const ModelShape s;
  const ModelShape inside;  ///< s inside attention
  int turns = 0;            ///< of calls from here on: see Call

 private:
  Value activation(const std::string& name, std::int64_t elements, DType dtype, bool remade) {
    return add(
        {.kind = ValueKind::activation, .name = name, .bytes = elements * static_cast<std::int64_t>(size_of(dtype)), .remade = remade});
  }
  Value add(ValueInfo info);
  std::int64_t stream_bytes() const { return s.bytes_of(s.rows() * s.C); }

  Segment segment_;
  std::map<std::string, Value> notes_;
  bool in_backward_ = false;
};

}  // namespace tessera
