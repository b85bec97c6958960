// The kernels that texts call: for each the values that it touches, its FLOPs and workspace, and the call itself.
#include <fmt/format.h>

#include "kernels/argmax/argmax.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/group_losses/group_losses.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/step/step.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/record/linear.hpp"
#include "model/record/recorder.hpp"

namespace tessera {
namespace {

using enum Access;

/// What a call touches, and of its optional operands those that are there.
std::vector<Touch> with_reads(std::vector<Touch> touches, std::initializer_list<Value> optional) {
  for (const Value value : optional)
    if (value) touches.push_back({value, read});
  return touches;
}

/// A gradient that kernels add to, of `elements` fp32 values: zero where it starts a sum.
float* started(const At& at, Value gradient, std::int64_t elements) {
  auto* sum = at.get<float>(gradient);
  if (!at.adds(gradient)) fill_zero(at.context, sum, static_cast<std::size_t>(elements) * sizeof(float));
  return sum;
}

ProductWork work_of(linear::Product product, const linear::Dims& d) {
  return {.product = product, .tokens = d.M, .outputs = d.N, .inputs = d.K};
}

std::int64_t floats(std::int64_t n) { return n * static_cast<std::int64_t>(sizeof(float)); }

kernels::RmsnormBackward rmsnorm_shape(const ModelShape& s) { return {.rows = s.rows(), .C = s.C, .dtype = s.dtype}; }
kernels::Rope rope_shape(const ModelShape& s, bool inverse) {
  return {.M = s.tokens(), .T = s.T, .heads = s.H + s.G, .D = s.D, .stride = s.qkv_width(), .inverse = inverse, .dtype = s.dtype};
}
kernels::QkNormRopeBackward qk_norm_rope_shape(const ModelShape& s) {
  return {.M = s.tokens(), .T = s.T, .H = s.H, .G = s.G, .D = s.D, .dtype = s.dtype};
}
kernels::VocabularySlice slice_of(const ModelShape& s) { return {.first = s.vocabulary().begin, .whole = s.tp == 1}; }
kernels::EmbeddingBackward embedding_shape(const ModelShape& s) {
  return {.M = s.tokens(), .C = s.C, .V = s.vocabulary().size(), .dtype = s.dtype, .slice = slice_of(s)};
}
}  // namespace

void Recorder::call(Call call) {
  if (auto* memory = std::get_if<MemoryWork>(&call.work); memory && memory->bytes == 0)
    for (const Touch& touch : call.touches)
      memory->bytes += static_cast<double>(segment_.at(touch.value).bytes) * (touch.access == Access::add ? 2 : 1);
  call.turns = turns_;
  (in_backward_ ? segment_.backward : segment_.forward).push_back(std::move(call));
}

void Recorder::rmsnorm(Value out, Value rstd, Value x, const std::string& w) {
  const Value weight = this->weight(w);
  call({.name = "rmsnorm " + name_of(out),
        .touches = {{out, write}, {rstd, write}, {x, read}, {weight, read}},
        .run = [=, s = s](const At& at) {
          rmsnorm_forward(at.context, {.out = at.get(out),
                                       .rstd = at.get<float>(rstd),
                                       .x = at.get(x),
                                       .weight = at.get(weight),
                                       .rows = s.rows(),
                                       .C = s.C,
                                       .eps = s.norm_eps,
                                       .dtype = s.dtype});
        }});
}

void Recorder::rmsnorm_backward(Value d_x, Value d_out, Value x, const std::string& w, Value rstd, bool residual) {
  const Value weight = this->weight(w), d_weight = gradient(w);
  call({.name = "rmsnorm_backward " + w,
        .touches = {{d_x, residual ? Access::add : write}, {d_out, read}, {x, read}, {weight, read}, {rstd, read}, {d_weight, Access::add}},
        .workspace = kernels::rmsnorm_backward_workspace_bytes(rmsnorm_shape(s), s.backend),
        .run = [=, s = s](const At& at) {
          auto norm = rmsnorm_shape(s);
          norm.d_x = at.get(d_x), norm.d_out = at.get(d_out), norm.d_residual = residual ? at.get(d_x) : nullptr;
          norm.x = at.get(x), norm.weight = at.get(weight), norm.rstd = at.get<float>(rstd);
          norm.d_weight = started(at, d_weight, s.C);
          kernels::rmsnorm_backward(at.context, norm);
        }});
}

void Recorder::linear(Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const LinearExtra& extra) {
  const Rows rows = extra.rows.value_or(all_rows());
  const linear::Dims dims{rows.count, N, K, s.dtype};
  const DType out = extra.fp32 ? DType::f32 : s.dtype;
  const auto product = [dims, out](void* y, const void* x, const linear::Weight& w, const void* bias) {
    kernels::Gemm g = linear::forward(dims, y, x, w, bias);
    g.out = out;
    return g;
  };
  const Value weight = this->weight(w), copy = packed(w, product(nullptr, nullptr, {}, nullptr));
  const Value bias = extra.bias.empty() ? Value{} : this->weight(extra.bias), addend = extra.add;
  const char present = 0;
  call({.name = "linear " + w,
        .touches = with_reads({{y, write}, {x, read}, {weight, read}}, {copy, bias, addend}),
        .flops = linear::flops(dims),
        .work = work_of(linear::Product::forward, dims),
        .workspace = kernels::gemm_workspace_bytes(product(nullptr, nullptr, {}, bias ? &present : nullptr), s.backend),
        .run = [=, first = s.bytes_of(rows.first * K)](const At& at) {
          auto g = product(at.get(y), at.get<std::byte>(x) + first, {at.get(weight), at.get(copy)}, at.get(bias));
          g.addend = at.get(addend);
          gemm(at.context, g);
        }});
  if (!extra.rows) add_adapters(y, x, w, N, K);
}

void Recorder::weight_gradient(Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, const std::optional<Rows>& only) {
  const Rows rows = only.value_or(all_rows());
  const linear::Dims dims{rows.count, N, K, s.dtype};
  const Value d_weight = gradient(w);
  const auto sums = [&](bool adds) {
    return kernels::gemm_workspace_bytes(linear::weight_gradient(dims, nullptr, nullptr, nullptr, adds), s.backend);
  };
  call({.name = "weight_gradient " + w,
        .touches = {{d_weight, Access::add}, {d_y, read}, {x, read}},
        .flops = linear::flops(dims),
        .work = work_of(linear::Product::weight_gradient, dims),
        .workspace = std::max(sums(true), sums(false)),
        .run = [=, first = s.bytes_of(rows.first * K)](const At& at) {
          gemm(at.context,
               linear::weight_gradient(dims, at.get<float>(d_weight), at.get(d_y), at.get<std::byte>(x) + first, at.adds(d_weight)));
        }});
  if (!only) adapter_weight_gradients(d_y, x, w, N, K);
}

void Recorder::input_gradient(Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K, const std::optional<Rows>& only) {
  const Rows rows = only.value_or(all_rows());
  const linear::Dims dims{rows.count, N, K, s.dtype};
  const Value weight = this->weight(w), copy = packed(w, linear::packed_input_gradient(dims));
  call({.name = "input_gradient " + w,
        .touches = with_reads({{d_x, write}, {d_y, read}, {weight, read}}, {copy}),
        .flops = linear::flops(dims),
        .work = work_of(linear::Product::input_gradient, dims),
        .workspace = kernels::gemm_workspace_bytes(linear::input_gradient(dims, nullptr, nullptr, {}), s.backend),
        .run = [=, first = s.bytes_of(rows.first * K)](const At& at) {
          gemm(at.context, linear::input_gradient(dims, at.get<std::byte>(d_x) + first, at.get(d_y), {at.get(weight), at.get(copy)}));
        }});
  if (!only) add_adapter_input_gradients(d_x, d_y, w, N, K);
}

void Recorder::linear_backward(Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K,
                               const std::optional<Rows>& only) {
  weight_gradient(d_y, x, w, N, K, only);
  input_gradient(d_x, d_y, w, N, K, only);
}

void Recorder::bias_backward(Value d_y, const std::string& bias, std::int64_t N) {
  const Value d_bias = gradient(bias);
  call({.name = "column_sums " + bias,
        .touches = {{d_bias, Access::add}, {d_y, read}},
        .workspace = kernels::column_sums_workspace_bytes({.M = s.tokens(), .N = N}, s.backend),
        .run = [=, s = s](const At& at) {
          column_sums(at.context, {.sum = started(at, d_bias, N), .x = at.get(d_y), .M = s.tokens(), .N = N, .dtype = s.dtype});
        }});
}

void Recorder::swiglu(Value out, Value gate_up, std::int64_t M, std::int64_t F) {
  call({.name = "swiglu", .touches = {{out, write}, {gate_up, read}}, .run = [=, dtype = s.dtype](const At& at) {
          swiglu_forward(at.context, {.out = at.get(out), .gate_up = at.get(gate_up), .M = M, .F = F, .dtype = dtype});
        }});
}

void Recorder::swiglu_backward(Value d_gate_up, Value d_out, Value gate_up, std::int64_t M, std::int64_t F) {
  call({.name = "swiglu_backward",
        .touches = {{gate_up, read}, {d_gate_up, write}, {d_out, read}},
        .run = [=, dtype = s.dtype](const At& at) {
          kernels::swiglu_backward(
              at.context,
              {.d_gate_up = at.get(d_gate_up), .d_out = at.get(d_out), .gate_up = at.get(gate_up), .M = M, .F = F, .dtype = dtype});
        }});
}

void Recorder::rotate_heads(const char* name, Value heads, bool inverse) {
  const Value table = rotations(), documents = document_starts();
  call({.name = name, .touches = with_reads({{heads, Access::add}, {table, read}}, {documents}), .run = [=, s = inside](const At& at) {
          auto rotation = rope_shape(s, inverse);
          rotation.x = at.get(heads), rotation.table = at.get<float>(table);
          rotation.document_starts = at.get<std::int32_t>(documents);
          kernels::rope(at.context, rotation);
        }});
}

void Recorder::rope(Value qkv) { rotate_heads("rope", qkv, false); }

void Recorder::rope_backward(Value d_qkv) { rotate_heads("rope_backward", d_qkv, true); }

void Recorder::qk_norm_rope(Value out, Value rstd, Value x, const std::string& q_norm, const std::string& k_norm) {
  const Value table = rotations(), q = weight(q_norm), k = weight(k_norm), documents = document_starts();
  call({.name = "qk_norm_rope",
        .touches = with_reads({{out, write}, {rstd, write}, {x, read}, {q, read}, {k, read}, {table, read}}, {documents}),
        .run = [=, s = inside](const At& at) {
          qk_norm_rope_forward(at.context, {.out = at.get(out),
                                            .rstd = at.get<float>(rstd),
                                            .x = at.get(x),
                                            .q_norm = at.get(q),
                                            .k_norm = at.get(k),
                                            .table = at.get<float>(table),
                                            .M = s.tokens(),
                                            .T = s.T,
                                            .H = s.H,
                                            .G = s.G,
                                            .D = s.D,
                                            .eps = s.norm_eps,
                                            .dtype = s.dtype,
                                            .document_starts = at.get<std::int32_t>(documents)});
        }});
}

void Recorder::qk_norm_rope_backward(Value d_qkv, Value x, Value rstd, const std::string& q_norm, const std::string& k_norm) {
  const Value table = rotations(), q = weight(q_norm), k = weight(k_norm), d_q = gradient(q_norm), d_k = gradient(k_norm);
  const Value documents = document_starts();
  call({.name = "qk_norm_rope_backward",
        .touches = with_reads(
            {{d_qkv, Access::add}, {x, read}, {rstd, read}, {q, read}, {k, read}, {table, read}, {d_q, Access::add}, {d_k, Access::add}},
            {documents}),
        .workspace = kernels::qk_norm_rope_backward_workspace_bytes(qk_norm_rope_shape(inside), s.backend),
        .run = [=, s = inside](const At& at) {
          auto heads = qk_norm_rope_shape(s);
          heads.d_q_norm = started(at, d_q, s.D), heads.d_k_norm = started(at, d_k, s.D);
          heads.d_qkv = at.get(d_qkv), heads.x = at.get(x), heads.rstd = at.get<float>(rstd);
          heads.q_norm = at.get(q), heads.k_norm = at.get(k), heads.table = at.get<float>(table);
          heads.document_starts = at.get<std::int32_t>(documents);
          kernels::qk_norm_rope_backward(at.context, heads);
        }});
}

void Recorder::attention(Value out, Value lse, Value qkv) {
  if (s.ring) return ring_attention(out, lse, qkv);
  if (s.feed == Feed::token) return attention_decode(out, qkv);
  if (s.feed == Feed::prompt) fill_caches(qkv);  // its tokens see each other alone
  own_attention(out, lse, qkv);
}

void Recorder::own_attention(Value out, Value lse, Value qkv) {
  const kernels::AttentionShape shape = attention_shape(inside);
  const Value documents = document_starts();
  call({.name = "attention",
        .touches = with_reads({{out, write}, {lse, write}, {qkv, read}}, {documents}),
        .flops = causal_flops(inside),
        .work = AttentionWork{.tokens = inside.T, .head_dim = s.D},
        .workspace = kernels::attention_forward_workspace_bytes(shape, s.backend),
        .run = [=](const At& at) {
          attention_forward(at.context, {.out = at.get(out),
                                         .lse = at.get<float>(lse),
                                         .qkv = at.get(qkv),
                                         .shape = shape,
                                         .document_starts = at.get<std::int32_t>(documents)});
        }});
}

void Recorder::fill_caches(Value qkv) {
  const Value keys = cached_keys(), values = cached_values();
  call({.name = "fill_caches", .touches = {{keys, write}, {values, write}, {qkv, read}}, .run = [=, s = inside](const At& at) {
          const std::int64_t width = s.bytes_of(s.qkv_width()), cached = s.bytes_of(s.G * s.D);
          const std::byte* from = at.get<std::byte>(qkv) + s.bytes_of(s.H * s.D);
          for (const Value cache : {keys, values}) {
            copy_rows(at.context,
                      {.to = at.get(cache), .to_stride = cached, .from = from, .from_stride = width, .bytes = cached, .rows = s.T});
            from += cached;
          }
        }});
}

void Recorder::attention_decode(Value out, Value qkv) {
  const kernels::AttentionDecode shape{.capacity = s.capacity, .shape = attention_shape(s)};
  const Value keys = cached_keys(), values = cached_values(), position = this->position();
  call({.name = "attention_decode",
        .touches = {{out, write}, {qkv, read}, {keys, Access::add}, {values, Access::add}, {position, read}},
        .workspace = kernels::attention_decode_workspace_bytes(shape, s.backend),
        .run = [=](const At& at) {
          auto decode = shape;
          decode.out = at.get(out), decode.qkv = at.get(qkv), decode.cache_k = at.get(keys), decode.cache_v = at.get(values);
          decode.position = at.get<std::int32_t>(position);
          kernels::attention_decode(at.context, decode);
        }});
}

void Recorder::attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  s.ring ? ring_attention_backward(d_qkv, d_out, qkv, out, lse) : own_attention_backward(d_qkv, d_out, qkv, out, lse);
}

void Recorder::own_attention_backward(Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  const kernels::AttentionShape shape = attention_shape(inside);
  const Value documents = document_starts();
  call({.name = "attention_backward",
        .touches = with_reads({{d_qkv, write}, {d_out, read}, {qkv, read}, {out, read}, {lse, read}}, {documents}),
        .flops = 2.5 * causal_flops(inside),
        .work = AttentionWork{.backward = true, .tokens = inside.T, .head_dim = s.D},
        .workspace = kernels::attention_backward_workspace_bytes(shape, s.backend),
        .run = [=](const At& at) {
          kernels::attention_backward(at.context, {.d_qkv = at.get(d_qkv),
                                                   .d_out = at.get(d_out),
                                                   .qkv = at.get(qkv),
                                                   .out = at.get(out),
                                                   .lse = at.get<float>(lse),
                                                   .shape = shape,
                                                   .document_starts = at.get<std::int32_t>(documents)});
        }});
}

Value Recorder::tokens() {
  if (s.feed == Feed::samples) return declare({.kind = ValueKind::tokens, .name = "tokens"});
  return declare({.kind = ValueKind::text_tokens,
                  .name = s.feed == Feed::prompt ? "prompt" : "token",
                  .bytes = s.tokens() * static_cast<std::int64_t>(sizeof(std::int32_t))});
}

Value Recorder::document_starts() {
  if (!s.documents || s.feed != Feed::samples) return {};
  return declare({.kind = ValueKind::document_starts, .name = "document_starts"});
}

Value Recorder::rotations() {
  return s.feed == Feed::token ? declare({.kind = ValueKind::rotations, .name = "rotations", .bytes = floats(s.D)}) : rope_table();
}

void Recorder::positions() {
  if (s.feed != Feed::token) return;
  const Value out = rotations(), table = rope_table(), position = this->position();
  call({.name = "positions", .touches = {{out, write}, {table, read}, {position, read}}, .run = [=, s = s](const At& at) {
          embedding_forward(at.context, {.out = at.get(out),
                                         .table = at.get(table),
                                         .tokens = at.get<std::int32_t>(position),
                                         .M = s.tokens(),
                                         .C = s.D,
                                         .dtype = DType::f32});
        }});
}

void Recorder::embedding(Value out, const std::string& w) {
  const Value table = weight(w), ids = tokens();
  const Value rows = s.tp == 1 ? out : value("rows", {s.tokens(), s.C});  // of this rank's tokens; zeros for those of others
  call({.name = "embedding",
        .touches = {{rows, write}, {table, read}, {ids, read}},
        .work = MemoryWork{2.0 * static_cast<double>(s.bytes_of(s.tokens() * s.C))},  // of the table, the rows of its tokens
        .run = [=, s = s](const At& at) {
          embedding_forward(at.context, {.out = at.get(rows),
                                         .table = at.get(table),
                                         .tokens = at.get<std::int32_t>(ids),
                                         .M = s.tokens(),
                                         .C = s.C,
                                         .dtype = s.dtype,
                                         .V = s.vocabulary().size(),
                                         .slice = slice_of(s)});
        }});
  scatter_rows(out, rows);
}

void Recorder::embedding_backward(Value d_part, const std::string& w) {
  const Value d_out = whole_of(d_part, "d_rows", s.C), d_table = gradient(w), ids = tokens();
  gather_rows(d_out, d_part);
  call({.name = "embedding_backward",
        .touches = {{d_out, read}, {ids, read}, {d_table, Access::add}},
        .work = MemoryWork{static_cast<double>(s.bytes_of(s.tokens() * s.C) + 2 * floats(s.tokens() * s.C))},
        .workspace = kernels::embedding_backward_workspace_bytes(embedding_shape(s), s.backend),
        .run = [=, s = s](const At& at) {
          auto rows = embedding_shape(s);
          rows.d_table = started(at, d_table, rows.V * s.C), rows.d_out = at.get(d_out), rows.tokens = at.get<std::int32_t>(ids);
          kernels::embedding_backward(at.context, rows);
        }});
}

void Recorder::softmax_loss(Value losses, Value d_logits, Value logits, const Rows& rows) {
  if (s.tp > 1) return softmax_loss_of_slice(losses, d_logits, logits, rows);
  const Value ids = targets();
  std::vector<Touch> touches = {{losses, write}, {logits, Access::add}, {ids, read}};
  if (d_logits && d_logits != logits) touches.push_back({d_logits, write});
  call({.name = "softmax_loss", .touches = std::move(touches), .run = [=, s = s](const At& at) {
          softmax_loss_rows(at.context, {.losses = at.get<float>(losses) + rows.first,
                                         .logits = at.get<float>(logits),
                                         .d_logits = at.get(d_logits),
                                         .targets = at.get<std::int32_t>(ids) + rows.first,
                                         .grad_scale = at.grad_scale,
                                         .rows = rows.count,
                                         .V = s.V,
                                         .dtype = s.dtype});
        }});
}

void Recorder::sum_losses(Value sum, Value losses) {
  call({.name = "sum_losses", .touches = {{sum, write}, {losses, read}}, .run = [=, s = s](const At& at) {
          kernels::sum_losses(at.context,
                              {.sum = at.get<double>(sum), .losses = at.get<float>(losses) + s.tp_index * s.rows(), .M = s.rows()});
        }});
}

void Recorder::add_group_losses(Value losses) {
  if (s.loss_groups == 0) return;
  const Value ids = targets(), members = declare({.kind = ValueKind::token_groups, .name = "token_groups"}),
              weight = declare({.kind = ValueKind::micro_batch_weight, .name = "weight"}),
              totals = declare({.kind = ValueKind::group_losses, .name = "group_losses"});
  call({.name = "add_group_losses",
        .touches = {{totals, Access::add}, {losses, read}, {ids, read}, {members, read}, {weight, read}},
        .run = [=, s = s, first = s.tp_index * s.rows()](const At& at) {
          kernels::add_group_losses(at.context, {.totals = at.get<kernels::GroupTotals>(totals),
                                                 .losses = at.get<float>(losses) + first,
                                                 .targets = at.get<std::int32_t>(ids) + first,
                                                 .members = at.get<std::int32_t>(members) + first,
                                                 .weight = at.get<double>(weight),
                                                 .M = s.rows(),
                                                 .groups = s.loss_groups});
        }});
}

void Recorder::next_token(Value x, const std::string& w) {
  const Value logits = declare({.kind = ValueKind::logits, .name = "logits", .bytes = floats(s.V)});
  linear(logits, x, w, s.V, s.C, {.rows = Rows{s.tokens() - 1, 1}, .fp32 = true});
  if (!s.likeliest) return;
  const Value id = declare({.kind = ValueKind::likeliest, .name = "likeliest"});
  call({.name = "argmax", .touches = {{id, write}, {logits, read}}, .run = [=, s = s](const At& at) {
          argmax(at.context, {.index = at.get<std::int32_t>(id), .x = at.get<float>(logits), .n = s.V});
        }});
}

void Recorder::add_loss(Value sum) {
  const Value weight = declare({.kind = ValueKind::micro_batch_weight, .name = "weight"}),
              scalars = declare({.kind = ValueKind::scalars, .name = "scalars"});
  call({.name = "add_loss", .touches = {{sum, read}, {weight, read}, {scalars, Access::add}}, .run = [=](const At& at) {
          kernels::add_loss(
              at.context,
              {.scalars = at.get<kernels::StepScalars>(scalars), .loss_sum = at.get<double>(sum), .weight = at.get<double>(weight)});
        }});
}

}  // namespace tessera
