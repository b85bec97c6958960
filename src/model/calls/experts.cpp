#include "model/calls/experts.hpp"

#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/expert_bias/expert_bias.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"
#include "kernels/step/step.hpp"
#include "model/calls/adapters.hpp"
#include "model/calls/parts.hpp"
#include "model/record/products.hpp"

namespace tessera {
namespace {

using enum Access;

kernels::GroupedGemm grouped(const ModelShape& s, std::int64_t N, std::int64_t K, bool b_transposed) {
  return {.rows = s.arriving_rows(),
          .E = s.own_experts(),
          .N = N,
          .K = K,
          .b_transposed = b_transposed,
          .one_by_one = s.feed == Feed::token,
          .dtype = s.dtype};
}

/// Of the rows that come on average: as many as this rank's tokens have.
double flops(const ModelShape& s, std::int64_t N, std::int64_t K) {
  return 2.0 * static_cast<double>(s.expert_rows()) * static_cast<double>(N) * static_cast<double>(K);
}

/// As a product of the rows that an expert has on average: the rate of all is the rate of one.
ProductWork work_of(const ModelShape& s, products::Product product, std::int64_t N, std::int64_t K) {
  return {.product = product, .tokens = std::max<std::int64_t>(1, s.expert_rows() / s.own_experts()), .outputs = N, .inputs = K};
}

/// out from `in` and the weights of experts (E,N,K): y (R,N) from x (R,K) forward, d_x (R,K) from d_y (R,N) backward.
void expert_product(Recorder& r, products::Product product, Value out, Value in, const Arrivals& here, const std::string& w, std::int64_t N,
                    std::int64_t K) {
  const ModelShape& s = r.s;
  const Value weight = r.weight(w);
  const bool forward = product == products::Product::forward;
  const kernels::GroupedGemm gemm = grouped(s, forward ? N : K, forward ? K : N, forward);
  r.call({.name = (forward ? "expert_linear " : "expert_input_gradient ") + w,
          .touches = {{out, write}, {in, read}, {weight, read}, {here.offsets, read}},
          .flops = flops(s, N, K),
          .work = work_of(s, product, N, K),
          .workspace = kernels::grouped_gemm_workspace_bytes(gemm, s.backend),
          .run = [=, offsets = here.offsets](const At& at) {
            auto p = gemm;
            p.c = at.get(out), p.a = at.get(in), p.b = at.get(weight), p.offsets = at.get<std::int32_t>(offsets);
            kernels::grouped_gemm(at.context, p);
          }});
}

}  // namespace

kernels::RouterShape router_shape(const ModelShape& s) {
  return {.M = s.tokens(),
          .E = s.router.E,
          .k = s.router.k,
          .shared = s.router.weighs_shared(),
          .normalized = s.router.normalized,
          .sigmoid = s.router.sigmoid,
          .scale = s.router.scale,
          .groups = s.router.groups,
          .top_groups = s.router.top_groups,
          .parts = s.parts()};
}

void router(Recorder& r, Value experts, Value weights, Value logits, Value bias) {
  const ModelShape& s = r.s;
  const Value padding = r.padding();
  std::vector<Touch> touches = {{experts, write}, {weights, write}, {logits, read}};
  for (const Value optional : {bias, padding})
    if (optional) touches.push_back({optional, read});
  r.call(
      {.name = "router", .touches = std::move(touches), .run = [=, shape = router_shape(s), first = s.row_rank * s.tokens()](const At& at) {
         const auto* padded = at.get<std::int32_t>(padding);
         kernels::router_forward(at.context, {.experts = at.get<std::int32_t>(experts),
                                              .weights = at.get<float>(weights),
                                              .logits = at.get<float>(logits),
                                              .bias = at.get<float>(bias),
                                              .padding = padded ? padded + first : nullptr,
                                              .shape = shape});
       }});
}

void router_backward(Recorder& r, Value d_logits, Value d_weights, Value weights, Value experts, Value logits, Value counts) {
  const ModelShape& s = r.s;
  const Value weight = r.micro_batch_weight(), scale = r.gradient_scale();
  r.call({.name = "router_backward",
          .touches = {{d_logits, write},
                      {d_weights, read},
                      {weights, read},
                      {experts, read},
                      {logits, read},
                      {counts, read},
                      {weight, read},
                      {scale, read}},
          .run = [=, s = s](const At& at) {
            kernels::router_backward(at.context, {.d_logits = at.get(d_logits),
                                                  .d_weights = at.get<float>(d_weights),
                                                  .weights = at.get<float>(weights),
                                                  .experts = at.get<std::int32_t>(experts),
                                                  .logits = at.get<float>(logits),
                                                  .counts = at.get<std::int32_t>(counts),
                                                  .weight = at.get<double>(weight),
                                                  .grad_scale = &at.get<kernels::GradientScale>(scale)->of_tokens,
                                                  .balance = s.router.balance_loss,
                                                  .z = s.router.z_loss,
                                                  .shape = router_shape(s),
                                                  .dtype = s.dtype});
          }});
}

void router_totals(Recorder& r, Value logits, Value experts, Value counts, const Dispatch& d) {
  const ModelShape& s = r.s;
  if (s.feed != Feed::samples) return;
  const std::int64_t M = s.tokens();
  const Value balance = r.value("balance", {M}, DType::f32), z = r.value("z", {M}, DType::f32),
              sums = r.value("router_sums", {2}, DType::i64);
  r.call({.name = "router_losses",
          .touches = {{balance, write}, {z, write}, {logits, read}, {experts, read}, {counts, read}},
          .run = [=, shape = router_shape(s)](const At& at) {
            kernels::router_losses(at.context, {.balance = at.get<float>(balance),
                                                .z = at.get<float>(z),
                                                .logits = at.get<float>(logits),
                                                .experts = at.get<std::int32_t>(experts),
                                                .counts = at.get<std::int32_t>(counts),
                                                .shape = shape});
          }});
  r.call({.name = "sum_losses router", .touches = {{sums, write}, {balance, read}, {z, read}}, .run = [=](const At& at) {
            auto* sum = at.get<double>(sums);
            kernels::sum_losses(at.context, {.sum = sum, .losses = at.get<float>(balance), .M = M});
            kernels::sum_losses(at.context, {.sum = sum + 1, .losses = at.get<float>(z), .M = M});
          }});
  const Value weight = r.micro_batch_weight(), scalars = r.scalars(),
              totals = r.declare({.kind = ValueKind::router_totals, .name = "router"});
  r.call({.name = "add_router_totals",
          .touches = {{totals, Access::add}, {scalars, Access::add}, {sums, read}, {weight, read}, {d.counts, read}, {d.offsets, read}},
          .run = [=, E = s.router.E, layer = r.layer(), own = d.counts, offsets = d.offsets](const At& at) {
            auto* all = at.get<kernels::RouterTotals>(totals);
            kernels::add_router_totals(at.context, {.totals = all,
                                                    .loads = reinterpret_cast<std::int64_t*>(all + 1) + layer * E,
                                                    .balance = at.get<double>(sums),
                                                    .z = at.get<double>(sums) + 1,
                                                    .weight = at.get<double>(weight),
                                                    .counts = at.get<std::int32_t>(own),
                                                    .offsets = at.get<std::int32_t>(offsets),
                                                    .not_finite = &at.get<kernels::StepScalars>(scalars)->not_finite,
                                                    .E = E});
          }});
}

Dispatch dispatch(Recorder& r, Value experts) {
  const ModelShape& s = r.s;
  const Router& e = s.router;
  const Dispatch d{.counts = r.value("counts", {e.E}, DType::u32),
                   .offsets = r.value("offsets", {e.E + 1}, DType::u32),
                   .places = r.value("places", {s.tokens(), e.k}, DType::u32),
                   .sources = r.value("sources", {s.arriving_rows()}, DType::u32)};
  const kernels::PlanDispatch plan{
      .M = s.tokens(), .k = e.k, .E = e.E, .capacity_factor = e.capacity_factor, .rows = s.arriving_rows(), .blocks = s.ep};
  r.call({.name = "plan_dispatch",
          .touches = {{d.counts, write}, {d.offsets, write}, {d.places, write}, {d.sources, write}, {experts, read}},
          .workspace = kernels::plan_dispatch_workspace_bytes(plan, s.backend),
          .run = [=](const At& at) {
            auto p = plan;
            p.counts = at.get<std::int32_t>(d.counts), p.offsets = at.get<std::int32_t>(d.offsets);
            p.places = at.get<std::int32_t>(d.places), p.sources = at.get<std::int32_t>(d.sources);
            p.experts = at.get<std::int32_t>(experts);
            kernels::plan_dispatch(at.context, p);
          }});
  return d;
}

void gather_rows(Recorder& r, Value out, Value in, const Dispatch& d) {
  const ModelShape& s = r.s;
  r.call({.name = "gather_rows " + r.name_of(out),
          .touches = {{out, write}, {in, read}, {d.sources, read}},
          .run = [=, s = s, sources = d.sources](const At& at) {
            kernels::gather_rows(at.context, {.out = at.get(out),
                                              .in = at.get(in),
                                              .sources = at.get<std::int32_t>(sources),
                                              .k = s.router.k,
                                              .rows = s.arriving_rows(),
                                              .C = s.C,
                                              .dtype = s.dtype});
          }});
}

void combine_rows(Recorder& r, Value out, Value rows, const Dispatch& d, const CombineExtra& extra) {
  const ModelShape& s = r.s;
  const bool in_place = extra.add == out;
  std::vector<Touch> touches = {{out, in_place ? Access::add : write}, {rows, read}, {d.places, read}};
  for (const Value optional : {extra.weights, extra.shared, in_place ? Value{} : extra.add})
    if (optional) touches.push_back({optional, read});
  r.call({.name = "combine_rows " + r.name_of(out), .touches = std::move(touches), .run = [=, s = s, places = d.places](const At& at) {
            kernels::combine_rows(at.context, {.out = at.get(out),
                                               .rows = at.get(rows),
                                               .places = at.get<std::int32_t>(places),
                                               .weights = at.get<float>(extra.weights),
                                               .shared = at.get(extra.shared),
                                               .weighs_shared = s.router.weighs_shared(),
                                               .addend = at.get(extra.add),
                                               .M = s.tokens(),
                                               .k = s.router.k,
                                               .C = s.C,
                                               .dtype = s.dtype});
          }});
}

void weigh(Recorder& r, Value d_weights, Value d, Value a, Value weights, const kernels::WeighRows& rows, Value sources,
           std::int64_t clears) {
  std::vector<Touch> touches = {{d_weights, sources ? write : Access::add}, {d, Access::add}, {a, Access::add}, {weights, read}};
  if (sources) touches.push_back({sources, read});
  r.note(weighed(a)) = a;
  r.call({.name = "weigh_rows " + r.name_of(d), .touches = std::move(touches), .run = [=](const At& at) {
            auto p = rows;
            p.d_weights = at.get<float>(d_weights), p.d = at.get(d), p.a = at.get(a), p.weights = at.get<float>(weights);
            p.sources = at.get<std::int32_t>(sources);
            // What was dropped has no row, and no gradient.
            if (sources) kernels::fill_zero(at.context, p.d_weights, static_cast<std::size_t>(clears) * sizeof(float));
            kernels::weigh_rows(at.context, p);
          }});
}

void expert_linear(Recorder& r, Value y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K) {
  expert_product(r, products::Product::forward, y, x, here, w, N, K);
  add_adapters(r, y, x, w, N, K, here.offsets);
}

void add_expert_bias(Recorder& r, Value y, const Arrivals& here, const std::string& bias, std::int64_t N) {
  const ModelShape& s = r.s;
  const Value b = r.weight(bias);
  r.call({.name = "add_expert_bias " + bias,
          .touches = {{y, Access::add}, {b, read}, {here.offsets, read}},
          .run = [=, s = s, offsets = here.offsets](const At& at) {
            kernels::add_expert_bias(at.context, {.y = at.get(y),
                                                  .bias = at.get(b),
                                                  .offsets = at.get<std::int32_t>(offsets),
                                                  .rows = s.arriving_rows(),
                                                  .E = s.own_experts(),
                                                  .N = N,
                                                  .dtype = s.dtype});
          }});
}

void expert_bias_gradient(Recorder& r, Value d_y, const Arrivals& here, const std::string& bias, std::int64_t N, const RowWeights& rows) {
  const ModelShape& s = r.s;
  const Value d_bias = r.gradient(bias);
  const kernels::ExpertBiasGradient sizes{
      .k = rows.k, .slots = rows.slots, .rows = s.arriving_rows(), .E = s.own_experts(), .N = N, .dtype = s.dtype};
  r.call({.name = "expert_bias_gradient " + bias,
          .touches = with_reads({{d_bias, Access::add}, {d_y, read}, {here.offsets, read}}, {rows.weights, rows.sources}),
          .workspace = kernels::expert_bias_gradient_workspace_bytes(sizes, s.backend),
          .run = [=, offsets = here.offsets](const At& at) {
            auto p = sizes;
            p.d_bias = at.get<float>(d_bias), p.d_y = at.get(d_y), p.offsets = at.get<std::int32_t>(offsets);
            p.weights = at.get<float>(rows.weights), p.sources = at.get<std::int32_t>(rows.sources);
            p.accumulate = at.adds(d_bias);
            kernels::expert_bias_gradient(at.context, p);
          }});
}

void weigh_expert_bias(Recorder& r, Value d_weights, Value d_y, const Arrivals& here, const std::string& bias, std::int64_t N,
                       const RowWeights& rows) {
  const ModelShape& s = r.s;
  const Value b = r.weight(bias);
  r.call({.name = "weigh_expert_bias " + bias,
          .touches = {{d_weights, Access::add}, {d_y, read}, {b, read}, {rows.sources, read}, {here.offsets, read}},
          .run = [=, s = s, offsets = here.offsets](const At& at) {
            kernels::weigh_expert_bias(at.context, {.d_weights = at.get<float>(d_weights),
                                                    .d_y = at.get(d_y),
                                                    .bias = at.get(b),
                                                    .sources = at.get<std::int32_t>(rows.sources),
                                                    .offsets = at.get<std::int32_t>(offsets),
                                                    .k = rows.k,
                                                    .slots = rows.slots,
                                                    .rows = s.arriving_rows(),
                                                    .E = s.own_experts(),
                                                    .N = N,
                                                    .dtype = s.dtype});
          }});
}

void expert_input_gradient(Recorder& r, Value d_x, Value d_y, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K) {
  expert_product(r, products::Product::input_gradient, d_x, d_y, here, w, N, K);
  add_adapter_input_gradients(r, d_x, d_y, w, N, K, here.offsets);
}

void expert_weight_gradient(Recorder& r, Value d_y, Value x, const Arrivals& here, const std::string& w, std::int64_t N, std::int64_t K) {
  const ModelShape& s = r.s;
  const Value d_weight = r.gradient(w);
  const kernels::GroupedWeightGradient product{.rows = s.arriving_rows(), .E = s.own_experts(), .N = N, .K = K, .dtype = s.dtype};
  r.call({.name = "expert_weight_gradient " + w,
          .touches = {{d_weight, Access::add}, {d_y, read}, {x, read}, {here.offsets, read}},
          .flops = flops(s, N, K),
          .work = work_of(s, products::Product::weight_gradient, N, K),
          .workspace = kernels::grouped_weight_gradient_workspace_bytes(product, s.backend),
          .run = [=, offsets = here.offsets](const At& at) {
            auto p = product;
            p.d_w = at.get<float>(d_weight), p.d_y = at.get(d_y), p.x = at.get(x), p.offsets = at.get<std::int32_t>(offsets);
            p.accumulate = at.adds(d_weight);
            kernels::grouped_weight_gradient(at.context, p);
          }});
  adapter_weight_gradients(r, d_y, x, w, N, K, here.offsets);
}

}  // namespace tessera
