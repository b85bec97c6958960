#include "model/calls/attention.hpp"

#include <algorithm>

#include "kernels/attention/attention.hpp"
#include "kernels/attention_sinks/attention_sinks.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "model/calls/parts.hpp"

namespace tessera {
namespace {

using enum Access;

/// Of the sinks of this tensor-parallel rank's heads, the first one of those whose queries are in this context-parallel rank's.
std::int64_t first_sink(const Recorder& r) { return r.s.exchanges_heads() ? r.s.cp_index * r.inside.attention.H : 0; }

}  // namespace

void own_attention(Recorder& r, Value out, Value lse, Value qkv) {
  const ModelShape& s = r.s;
  const kernels::AttentionShape shape = attention_shape(r.inside);
  const Value documents = r.document_starts();
  r.call({.name = "attention",
          .touches = with_reads({{out, write}, {lse, write}, {qkv, read}}, {documents}),
          .flops = causal_flops(r.inside),
          .work = AttentionWork{.tokens = r.inside.T, .head_dim = s.attention.mean_dim(), .window = s.kind.window},
          .workspace = kernels::attention_forward_workspace_bytes(shape, s.backend),
          .run = [=](const At& at) {
            attention_forward(at.context, {.out = at.get(out),
                                           .lse = at.get<float>(lse),
                                           .qkv = kernels::packed_qkv(at.get(qkv), shape),
                                           .shape = shape,
                                           .document_starts = at.get<std::int32_t>(documents)});
          }});
}

void own_attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse) {
  const ModelShape& s = r.s;
  const kernels::AttentionShape shape = attention_shape(r.inside);
  const Value documents = r.document_starts();
  r.call({.name = "attention_backward",
          .touches = with_reads({{d_qkv, write}, {d_out, read}, {qkv, read}, {out, read}, {lse, read}}, {documents}),
          .flops = backward_ratio(s.attention) * causal_flops(r.inside),
          .work = AttentionWork{.backward = true, .tokens = r.inside.T, .head_dim = s.attention.mean_dim(), .window = s.kind.window},
          .workspace = kernels::attention_backward_workspace_bytes(shape, s.backend),
          .run = [=](const At& at) {
            kernels::attention_backward(at.context, {.d_qkv = kernels::packed_qkv(at.get(d_qkv), shape),
                                                     .d_out = at.get(d_out),
                                                     .qkv = kernels::packed_qkv(at.get(qkv), shape),
                                                     .out = at.get(out),
                                                     .lse = at.get<float>(lse),
                                                     .shape = shape,
                                                     .document_starts = at.get<std::int32_t>(documents)});
          }});
}

std::vector<Cache> attention_caches(const ModelShape& s) {
  const Attention& a = s.attention;
  return {{.name = "keys", .of_token = a.G * a.D, .dtype = s.dtype}, {.name = "values", .of_token = a.G * a.Dv, .dtype = s.dtype}};
}

void fill_caches(Recorder& r, const std::vector<Cache>& caches, Value rows, std::int64_t first, std::int64_t width) {
  Call call{.name = "fill_caches", .touches = {}, .run = {}};
  std::vector<Value> values;
  for (const Cache& cache : caches) call.touches.push_back({values.emplace_back(r.cache(cache)), write});
  call.touches.push_back({rows, read});
  call.run = [=, s = r.inside](const At& at) {
    // Of a prompt beyond a window the last tokens: those of the lap that ends with it, then what is left of the lap before.
    const std::int64_t held = s.capacity, lap = s.T / held * held, before = std::max<std::int64_t>(0, s.T - held);
    const std::byte* from = at.get<std::byte>(rows) + s.bytes_of(first);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const std::int64_t cached = caches[i].bytes(1), stride = s.bytes_of(width);
      const auto copy = [&](std::int64_t begin, std::int64_t end, std::int64_t row) {
        if (begin == end) return;
        copy_rows(at.context, {.to = at.get<std::byte>(values[i]) + row * cached,
                               .to_stride = cached,
                               .from = from + begin * stride,
                               .from_stride = stride,
                               .bytes = cached,
                               .rows = end - begin});
      };
      copy(lap, s.T, 0);
      copy(before, lap, before % held);
      from += cached;
    }
  };
  r.call(std::move(call));
}

void add_sinks(Recorder& r, Value out, Value lse, const std::string& sinks) {
  const Value logits = r.weight(sinks);
  r.call({.name = "attention_sinks",
          .touches = {{out, Access::add}, {lse, Access::add}, {logits, read}},
          .run = [=, s = r.inside, first = r.s.bytes_of(first_sink(r))](const At& at) {
            kernels::attention_sinks_forward(at.context, {.out = at.get(out),
                                                          .lse = at.get<float>(lse),
                                                          .sinks = at.get<std::byte>(logits) + first,
                                                          .B = s.B,
                                                          .T = s.T,
                                                          .H = s.attention.H,
                                                          .D = s.attention.Dv,
                                                          .dtype = s.dtype});
          }});
}

void sinks_backward(Recorder& r, Value d_out, Value out, Value lse, const std::string& sinks) {
  const Value logits = r.weight(sinks), d_logits = r.gradient(sinks);
  const ModelShape& s = r.inside;
  const kernels::AttentionSinksBackward sizes{.B = s.B, .T = s.T, .H = s.attention.H, .D = s.attention.Dv, .dtype = s.dtype};
  r.call({.name = "attention_sinks_backward",
          .touches = {{d_logits, Access::add}, {d_out, read}, {out, read}, {lse, read}, {logits, read}},
          .workspace = kernels::attention_sinks_backward_workspace_bytes(sizes, s.backend),
          .run = [=, first = first_sink(r), bytes = s.bytes_of(first_sink(r)), all = r.s.attention.H](const At& at) {
            auto p = sizes;
            p.d_sinks = started(at, d_logits, all) + first;
            p.d_out = at.get(d_out), p.out = at.get(out), p.lse = at.get<float>(lse), p.sinks = at.get<std::byte>(logits) + bytes;
            kernels::attention_sinks_backward(at.context, p);
          }});
}

void attention_decode(Recorder& r, Value out, Value qkv, const std::string& sinks) {
  const ModelShape& s = r.s;
  const Attention& a = s.attention;
  const kernels::AttentionDecode shape{
      .cached_k = {.stride = a.G * a.D}, .cached_v = {.stride = a.G * a.Dv}, .capacity = s.capacity, .shape = attention_shape(s)};
  const std::vector<Cache> caches = attention_caches(s);
  const Value keys = r.cache(caches[0]), values = r.cache(caches[1]), position = r.position(),
              logits = sinks.empty() ? Value{} : r.weight(sinks);
  r.call({.name = "attention_decode",
          .touches = with_reads({{out, write}, {qkv, read}, {keys, Access::add}, {values, Access::add}, {position, read}}, {logits}),
          .workspace = kernels::attention_decode_workspace_bytes(shape, s.backend),
          .run = [=](const At& at) {
            auto decode = shape;
            decode.out = at.get(out), decode.qkv = kernels::packed_qkv(at.get(qkv), shape.shape);
            decode.cached_k.data = at.get(keys), decode.cached_v.data = at.get(values);
            decode.position = at.get<std::int32_t>(position), decode.sinks = at.get(logits);
            kernels::attention_decode(at.context, decode);
          }});
}

}  // namespace tessera
