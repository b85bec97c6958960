// Prints a digest of what each kernel makes of fixed inputs. Built twice, with the target's vectors and with the generic ones: see
// vector_test.cpp. Sizes leave remainders everywhere.
#include <numeric>

#include "kernels/activation/activation.hpp"
#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/adamw/adamw.hpp"
#include "kernels/argmax/argmax.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/tiles.hpp"
#include "kernels/attention_sinks/attention_sinks.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/dispatch/dispatch.hpp"
#include "kernels/draw/draw.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/expert_bias/expert_bias.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/fp8/fp8.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/layer_norm/layer_norm.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/ring_attention/ring_attention.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/router/router.hpp"
#include "kernels/signs/signs.hpp"
#include "kernels/sums/sums.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {
namespace {

template <class... V>
void print(const char* name, DType dtype, const V&... values) {
  std::printf("%s %s %s\n", name, std::string(name_of(dtype)).c_str(), digest(values...).hex().c_str());
}

/// Every exponent, subnormals, infinities and NaN among ordinary values.
std::vector<float> awkward_values(std::int64_t n) {
  auto x = random_values<float>(n, 3, 3.0f);
  std::mt19937 engine(5);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
  return x;
}

std::vector<std::int64_t> whole_numbers(std::int64_t n) {
  std::mt19937_64 engine(6);
  std::vector<std::int64_t> x(static_cast<std::size_t>(n));
  // Small ones beside numbers that need more digits than fp64 has.
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::int64_t>(engine()) >> (i / 64 % 2 ? 2 : 20);
  return x;
}

void elementwise() {
  constexpr std::int64_t n = 100003;
  auto x = awkward_values(n), back = poisoned<float>(n), normals = poisoned<float>(n);
  auto half = poisoned<bf16>(n);
  auto ieee = poisoned<f16>(n);
  cast({}, ieee.data(), DType::f16, x.data(), DType::f32, n);
  cast({}, back.data(), DType::f32, ieee.data(), DType::f16, n);
  print("cast", DType::f16, ieee, back);
  cast({}, half.data(), DType::bf16, x.data(), DType::f32, n);
  cast({}, back.data(), DType::f32, half.data(), DType::bf16, n);
  normal({}, normals.data(), n, 0.7f, 1, 2, 0xfffffff0u * std::uint64_t{4} + 1);
  print("cast", DType::bf16, half, back);
  print("normal", DType::f32, normals);
  auto sums = random_values<float>(77, 1);
  Workspace workspace(column_sums_workspace_bytes({.M = 1000, .N = 77}));
  column_sums(workspace.context(), {sums.data(), normals.data(), 1000, 77, DType::f32});
  print("column_sums", DType::f32, sums);
}

void tokens() {
  const auto x = random_values<float>(10007, 4, 3.0f);
  std::vector<std::int32_t> drawn(1);
  argmax({}, {.index = drawn.data(), .x = x.data(), .n = 10007});
  for (int i = 0; i < 400; ++i) drawn.push_back(draw(x, 0.8, (i + 0.5) / 400));
  print("draw", DType::f32, drawn, largest(x, 40));
}

void optimizer() {
  constexpr std::int64_t n = 5003, blocks = 512 * 256;
  UpdateScalars scalars{.learning_rate = 1e-3f, .bias_correction1 = 0.3f, .bias_correction2 = 0.2f, .grad_scale = 0.7f};
  auto whole = whole_numbers(blocks);
  auto floats = random_values<float>(blocks, 9);
  for (DType dtype : {DType::f32, DType::i64}) {
    auto w = random_values<float>(n, 1), m = random_values<float>(n, 2), v = random_values<float>(n, 3);
    for (float& f : v) f *= f;
    auto copy = poisoned<bf16>(n);
    const void* grad = dtype == DType::f32 ? static_cast<const void*>(floats.data()) : whole.data();
    adamw({}, {.master = w.data(),
               .state = {m.data(), v.data()},
               .param = copy.data(),
               .grad = grad,
               .grad_dtype = dtype,
               .n = n,
               .weight_decay = 0.1f,
               .scalars = &scalars});
    print("adamw", dtype, w, m, v, copy);
    std::vector<bf16> m_halves(m.begin(), m.end()), v_halves(v.begin(), v.end());
    adamw({}, {.master = w.data(),
               .state = {m_halves.data(), v_halves.data()},
               .state_type = StateType::bf16,
               .stochastic = true,
               .param = copy.data(),
               .grad = grad,
               .grad_dtype = dtype,
               .n = n,
               .scalars = &scalars});
    print("adamw, bf16 moments", dtype, w, m_halves, v_halves);
    std::vector<std::uint8_t> m_codes(static_cast<std::size_t>(state_bytes(StateType::signed_blocks, n))), v_codes(m_codes.size());
    encode_state(StateType::signed_blocks, m_codes.data(), m.data(), n);
    encode_state(StateType::unsigned_blocks, v_codes.data(), v.data(), n);
    adam8bit({}, {.master = w.data(),
                  .state = {m_codes.data(), v_codes.data()},
                  .param = copy.data(),
                  .grad = grad,
                  .grad_dtype = dtype,
                  .n = n,
                  .scalars = &scalars});
    print("adam8bit", dtype, w, m_codes, v_codes);
    FixedSum sum;
    std::int32_t flag = 0;
    sum_of_squares({}, {.sum = &sum, .not_finite = &flag, .x = grad, .n = blocks, .dtype = dtype});
    print("sum_of_squares", dtype, std::vector<std::int64_t>(sum.limb, sum.limb + 4));
  }
  auto sum = std::vector<std::int64_t>(n, 3), out = whole;
  std::int32_t flag = 0;
  fixed_accumulate({}, {sum.data(), floats.data(), n, &flag, fixed_limit});
  auto back = poisoned<float>(n);
  fixed_to_float({}, back.data(), whole.data(), n);
  print("fixed", DType::i64, sum, back);
}

/// A tensor's signs for three ranks, whose part is no whole number of vectors.
void signs() {
  constexpr std::int64_t n = 1013, ranks = 3, part = sign_part(n, ranks), step = part / sign_word + 1;
  auto x = random_values<float>(n, 1), error = random_values<float>(n, 2), mean = random_values<float>(n, 3);
  auto words = poisoned<std::uint32_t>(ranks * step);
  auto* scale = reinterpret_cast<float*>(words.data() + step - 1);
  FixedSum sum;
  sum_sign_squares({}, {.sum = &sum, .x = x.data(), .error = error.data(), .n = n});
  pack_signs({}, {.words = words.data(),
                  .scale = scale,
                  .x = x.data(),
                  .error = error.data(),
                  .sum = &sum,
                  .n = n,
                  .parts = ranks,
                  .part = part,
                  .step = step});
  sum_signs({}, {.error = mean.data(), .words = words.data(), .scale = scale, .n = part - 5, .members = ranks, .step = step});
  unpack_signs({}, {.x = x.data(), .words = words.data(), .scale = scale, .n = n, .part = part, .step = step});
  print("signs", DType::f32, x, error, mean, words);
}

template <class T>
void heads() {
  constexpr DType dtype = dtype_of<T>();
  constexpr std::int64_t M = 70, period = 33, H = 3, G = 1, D = 86, n = M * (H + 2 * G) * D;
  auto x = random_values<T>(n, 1), q_norm = random_values<T>(D, 2), k_norm = random_values<T>(D, 3), d_qkv = random_values<T>(n, 4),
       out = poisoned<T>(n);
  std::vector<float> table(period * D), rstd(M * (H + G)), d_q_norm(D, 0.5f), d_k_norm(D, 0.25f);
  rope_table(table.data(), 3, period, D, 10000, {});
  Workspace workspace(1 << 20);
  for (const auto& [rotated, neighbours] : {std::pair<std::int64_t, bool>{0, false}, {34, false}, {34, true}}) {
    qk_norm_rope_forward({}, {.out = out.data(),
                              .rstd = rstd.data(),
                              .x = x.data(),
                              .q_norm = q_norm.data(),
                              .k_norm = k_norm.data(),
                              .table = table.data(),
                              .M = M,
                              .T = period,
                              .H = H,
                              .G = G,
                              .D = D,
                              .dtype = dtype,
                              .rotated = rotated,
                              .neighbours = neighbours});
    qk_norm_rope_backward(workspace.context(), {.d_qkv = d_qkv.data(),
                                                .d_q_norm = d_q_norm.data(),
                                                .d_k_norm = d_k_norm.data(),
                                                .x = x.data(),
                                                .q_norm = q_norm.data(),
                                                .k_norm = k_norm.data(),
                                                .rstd = rstd.data(),
                                                .table = table.data(),
                                                .M = M,
                                                .T = period,
                                                .H = H,
                                                .G = G,
                                                .D = D,
                                                .dtype = dtype,
                                                .rotated = rotated,
                                                .neighbours = neighbours});
    print("qk_norm_rope", dtype, out, rstd, d_qkv, d_q_norm, d_k_norm);
  }
}

template <class T>
void rows() {
  constexpr DType dtype = dtype_of<T>();
  constexpr std::int64_t M = 70, C = 173;
  auto x = random_values<T>(M * C, 1), weight = random_values<T>(C, 2), d_out = random_values<T>(M * C, 3), out = poisoned<T>(M * C),
       d_x = poisoned<T>(M * C);
  std::vector<float> rstd(M), d_weight(C, 0.5f);
  Workspace workspace(1 << 20);
  rmsnorm_forward({}, {.out = out.data(), .rstd = rstd.data(), .x = x.data(), .weight = weight.data(), .rows = M, .C = C, .dtype = dtype});
  rmsnorm_backward(workspace.context(), {.d_x = d_x.data(),
                                         .d_weight = d_weight.data(),
                                         .d_out = d_out.data(),
                                         .d_residual = x.data(),
                                         .x = x.data(),
                                         .weight = weight.data(),
                                         .rstd = rstd.data(),
                                         .rows = M,
                                         .C = C,
                                         .dtype = dtype});
  print("rmsnorm", dtype, out, rstd, d_x, d_weight);

  std::vector<float> mean(M), d_bias(C, 0.25f);
  layer_norm_forward({}, {.out = out.data(),
                          .mean = mean.data(),
                          .rstd = rstd.data(),
                          .x = x.data(),
                          .weight = weight.data(),
                          .bias = d_out.data(),
                          .rows = M,
                          .C = C,
                          .dtype = dtype});
  layer_norm_backward(workspace.context(), {.d_x = d_x.data(),
                                            .d_weight = d_weight.data(),
                                            .d_bias = d_bias.data(),
                                            .d_out = d_out.data(),
                                            .d_residual = x.data(),
                                            .x = x.data(),
                                            .weight = weight.data(),
                                            .mean = mean.data(),
                                            .rstd = rstd.data(),
                                            .rows = M,
                                            .C = C,
                                            .dtype = dtype});
  print("layer_norm", dtype, out, mean, rstd, d_x, d_weight, d_bias);

  std::vector<T> gate_up;
  for (float f : awkward_values(2 * M * C)) gate_up.push_back(T(std::isnan(f) ? 1.0f : f));
  auto d_gate_up = poisoned<T>(2 * M * C);
  for (const auto& [name, activation] : {std::pair{"swiglu", GateActivation::silu},
                                         {"gelu_tanh", GateActivation::gelu_tanh},
                                         {"gelu", GateActivation::gelu},
                                         {"clamped_silu", GateActivation::clamped_silu}}) {
    swiglu_forward({}, {.out = out.data(), .gate_up = gate_up.data(), .M = M, .F = C, .dtype = dtype, .activation = activation});
    swiglu_backward({}, {.d_gate_up = d_gate_up.data(),
                         .d_out = d_out.data(),
                         .gate_up = gate_up.data(),
                         .M = M,
                         .F = C,
                         .dtype = dtype,
                         .activation = activation});
    // Which NaN an operation makes of two is the processor's choice.
    for (std::vector<T>* values : {&out, &d_gate_up})
      for (T& v : *values)
        if (std::isnan(static_cast<float>(v))) v = T(0.0f);
    print(name, dtype, out, d_gate_up);
  }

  for (const auto activation : {PlainActivation::gelu, PlainActivation::gelu_tanh, PlainActivation::relu_squared, PlainActivation::xielu}) {
    const bool xielu = activation == PlainActivation::xielu;
    const void* alphas = xielu ? weight.data() : nullptr;
    std::vector<float> d_alphas(2);
    activation_forward({}, {.out = out.data(), .x = x.data(), .alphas = alphas, .M = M, .F = C, .dtype = dtype, .activation = activation});
    activation_backward(workspace.context(), {.d_x = d_x.data(),
                                              .d_alphas = xielu ? d_alphas.data() : nullptr,
                                              .d_out = d_out.data(),
                                              .x = x.data(),
                                              .alphas = alphas,
                                              .M = M,
                                              .F = C,
                                              .dtype = dtype,
                                              .activation = activation});
    print("activation", dtype, out, d_x, d_alphas);
  }

  constexpr std::int64_t D = 86;
  std::vector<float> table(M * D);
  rope_table(table.data(), 3, M, D, 10000, {});
  for (const bool neighbours : {false, true})
    rope({},
         {.x = x.data(), .table = table.data(), .M = M, .T = M, .heads = 2, .D = D, .stride = C, .dtype = dtype, .neighbours = neighbours});
  print("rope", dtype, x, table);

  std::vector<std::int32_t> tokens(M);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 7);
  auto d_table = random_values<float>(7 * C, 4);
  for (const float scale : {1.0f, 0.3f}) {
    embedding_backward(workspace.context(), {.d_table = d_table.data(),
                                             .d_out = d_out.data(),
                                             .tokens = tokens.data(),
                                             .M = M,
                                             .C = C,
                                             .V = 7,
                                             .dtype = dtype,
                                             .scale = scale});
    print("embedding", dtype, d_table);
  }
  embedding_forward({}, {.out = out.data(), .table = x.data(), .tokens = tokens.data(), .M = M, .C = C, .dtype = dtype, .scale = 0.3f});
  add_scaled({}, {.out = out.data(), .x = d_out.data(), .y = out.data(), .scale = 1.7f, .n = M * C, .dtype = dtype});
  print("embedding_forward, add_scaled", dtype, out);

  constexpr std::int64_t V = 3001;
  auto logits = random_values<float>(7 * V, 5, 20.0f);
  std::vector<float> losses(7);
  const float scale = 0.1f;
  const std::vector<float> weights = {1, 0, 1, 0.5f, 1, 0, 1};
  auto d_logits = poisoned<T>(7 * V);
  for (const LogitMap& map : {LogitMap{.scale = 2, .cap = 30}, LogitMap{}}) {  // the last one destroys the logits
    softmax_loss_rows({}, {.losses = losses.data(),
                           .logits = logits.data(),
                           .d_logits = d_logits.data(),
                           .targets = tokens.data(),
                           .weights = weights.data(),
                           .grad_scale = &scale,
                           .rows = 7,
                           .V = V,
                           .dtype = dtype,
                           .map = map});
    print("softmax_loss_rows", dtype, losses, d_logits);
  }
}

template <class T>
void attention() {
  constexpr DType dtype = dtype_of<T>();
  for (std::int64_t D : {22, 48, 64}) {
    const AttentionShape shape{.B = 2, .T = 93, .H = 4, .G = 2, .D = D, .dtype = dtype, .softcap = D == 48 ? 0.5f : 0.f};
    std::int64_t tokens = shape.B * shape.T, width = (shape.H + 2 * shape.G) * D;
    auto qkv = random_values<T>(tokens * width, 1), d_out = random_values<T>(tokens * shape.H * D, 2);
    auto out = poisoned<T>(tokens * shape.H * D), d_qkv = poisoned<T>(tokens * width), decoded = poisoned<T>(shape.B * shape.H * D);
    auto lse = poisoned<float>(shape.B * shape.H * shape.T);
    Workspace workspace(std::max(attention_forward_workspace_bytes(shape), attention_backward_workspace_bytes(shape)));
    const AttentionForward forward{.out = out.data(), .lse = lse.data(), .qkv = packed_qkv(qkv.data(), shape), .shape = shape};
    const AttentionBackward backward{.d_qkv = packed_qkv(d_qkv.data(), shape),
                                     .d_out = d_out.data(),
                                     .qkv = forward.qkv,
                                     .out = out.data(),
                                     .lse = lse.data(),
                                     .shape = shape};
    host::attention_forward(workspace.context(), forward, host::HalfProducts::widened);
    host::attention_backward(workspace.context(), backward, host::HalfProducts::widened);
    const std::int32_t position = 36;
    auto row = random_values<T>(shape.B * width, 3);
    attention_decode({}, {.out = decoded.data(),
                          .qkv = packed_qkv(row.data(), shape),
                          .cached_k = {qkv.data(), shape.G * D},
                          .cached_v = {out.data(), shape.G * D},
                          .position = &position,
                          .capacity = 40,
                          .shape = shape});
    print("attention", dtype, out, lse, d_qkv, decoded);
    if constexpr (dtype == DType::bf16)  // with the instructions, where they are there, and without
      for (const auto products : {host::HalfProducts::pairs, host::HalfProducts::tiles}) {
        host::attention_forward(workspace.context(), forward, products);
        host::attention_backward(workspace.context(), backward, products);
        print(products == host::HalfProducts::pairs ? "attention, pairs" : "attention, tiles", dtype, out, lse, d_qkv);
      }

    const auto sinks = random_values<T>(shape.H, 4, 3.0f);
    auto d_sinks = random_values<float>(shape.H, 5);
    const AttentionSinksBackward call{.d_sinks = d_sinks.data(),
                                      .d_out = d_out.data(),
                                      .out = out.data(),
                                      .lse = lse.data(),
                                      .sinks = sinks.data(),
                                      .B = shape.B,
                                      .T = shape.T,
                                      .H = shape.H,
                                      .D = D,
                                      .dtype = dtype};
    attention_sinks_forward(
        {}, {.out = out.data(), .lse = lse.data(), .sinks = call.sinks, .B = call.B, .T = call.T, .H = call.H, .D = D, .dtype = dtype});
    Workspace sums(attention_sinks_backward_workspace_bytes(call));
    attention_sinks_backward(sums.context(), call);
    print("attention_sinks", dtype, out, lse, d_sinks);
  }
}

template <class T>
void attention_blocks() {
  constexpr DType dtype = dtype_of<T>();
  for (std::int64_t D : {22, 64}) {
    const AttentionShape s{.B = 2, .T = 93, .H = 4, .G = 2, .D = D, .dtype = dtype, .softcap = D == 22 ? 0.5f : 0.f};
    const AttentionBlock block{s, {1, 91}, {3, 47}};
    const std::int64_t rows = s.B * s.T, queries = s.H * D, keys = 2 * s.G * D, terms = s.B * s.H * s.T;
    const auto qkv = random_values<T>(rows * (queries + keys), 1), kv = random_values<T>(rows * keys, 2);
    const auto d_out = random_values<T>(rows * queries, 3);
    auto out = poisoned<T>(rows * queries), d_q = out, d_kv = poisoned<T>(rows * keys);
    auto sum = random_values<float>(rows * queries, 4), lse = random_values<float>(terms, 5, 3), block_lse = poisoned<float>(terms);
    Workspace workspace(std::max(attention_block_forward_workspace_bytes(block), attention_block_backward_workspace_bytes(block)));
    const Qkv rows_of_block = packed_kv<const void>(packed_qkv(qkv.data(), s).q, kv.data(), s);
    attention_block_forward(workspace.context(), {.out = out.data(), .lse = block_lse.data(), .qkv = rows_of_block, .block = block});
    attention_block_backward(workspace.context(), {.d_qkv = packed_kv<void>({d_q.data(), queries}, d_kv.data(), s),
                                                   .d_out = d_out.data(),
                                                   .qkv = rows_of_block,
                                                   .out = out.data(),
                                                   .lse = block_lse.data(),
                                                   .block = block});
    merge_block({}, {.sum = sum.data(),
                     .lse = lse.data(),
                     .block_out = out.data(),
                     .block_lse = block_lse.data(),
                     .queries = block.queries,
                     .shape = s});
    AddBlockGradient add{.sum = sum.data(), .block = d_q.data(), .B = s.B, .T = s.T, .W = queries, .rows = block.queries};
    add.dtype = dtype;
    add_block_gradient({}, add);
    print("attention_blocks", dtype, out, block_lse, d_q, d_kv, sum, lse);
  }
}

template <class T>
void expert_biases() {
  constexpr DType dtype = dtype_of<T>();
  constexpr std::int64_t N = 581, biased_rows = 73;
  const std::vector<std::int32_t> offsets = {0, 70, 70, 73};
  std::vector<std::int32_t> choices(biased_rows);
  std::iota(choices.begin(), choices.end(), 0);
  auto biased = random_values<T>(biased_rows * N, 1);
  const auto bias = random_values<T>(3 * N, 2), d_y = random_values<T>(biased_rows * N, 3);
  const auto counted = random_values<float>(biased_rows, 4);
  auto d_bias = random_values<float>(3 * N, 5), d_counted = random_values<float>(biased_rows, 6);
  add_expert_bias(
      {}, {.y = biased.data(), .bias = bias.data(), .offsets = offsets.data(), .rows = biased_rows, .E = 3, .N = N, .dtype = dtype});
  expert_bias_gradient({}, {.d_bias = d_bias.data(),
                            .d_y = d_y.data(),
                            .weights = counted.data(),
                            .sources = choices.data(),
                            .offsets = offsets.data(),
                            .k = 1,
                            .slots = 1,
                            .rows = biased_rows,
                            .E = 3,
                            .N = N,
                            .accumulate = true,
                            .dtype = dtype});
  weigh_expert_bias({}, {.d_weights = d_counted.data(),
                         .d_y = d_y.data(),
                         .bias = bias.data(),
                         .sources = choices.data(),
                         .offsets = offsets.data(),
                         .k = 1,
                         .slots = 1,
                         .rows = biased_rows,
                         .E = 3,
                         .N = N,
                         .dtype = dtype});
  print("expert_bias", dtype, biased, d_bias, d_counted);
}

template <class T>
void experts() {
  constexpr DType dtype = dtype_of<T>();
  constexpr RouterShape shape{.M = 61, .E = 7, .k = 3, .shared = true, .normalized = false};
  constexpr std::int64_t M = shape.M, k = shape.k, slots = k + 1, rows = M * k, C = 93;
  auto logits = random_values<float>(M * (shape.E + 1), 1, 2), d_weights = random_values<float>(M * slots, 2),
       weights = poisoned<float>(M * slots);
  auto balance = poisoned<float>(M), z = poisoned<float>(M);
  auto chosen = poisoned<std::int32_t>(rows), counts = poisoned<std::int32_t>(shape.E), offsets = poisoned<std::int32_t>(shape.E + 1),
       places = poisoned<std::int32_t>(rows), sources = poisoned<std::int32_t>(rows);
  auto x = random_values<T>(M * C, 3), d = random_values<T>(rows * C, 4), gathered = poisoned<T>(rows * C), out = poisoned<T>(M * C),
       d_logits = poisoned<T>(M * (shape.E + 1));
  const double weight = 1;
  router_forward({}, {.experts = chosen.data(), .weights = weights.data(), .logits = logits.data(), .shape = shape});
  plan_dispatch({}, {.counts = counts.data(),
                     .offsets = offsets.data(),
                     .places = places.data(),
                     .sources = sources.data(),
                     .experts = chosen.data(),
                     .M = M,
                     .k = k,
                     .E = shape.E,
                     .capacity_factor = 0.75,
                     .rows = rows});
  router_losses({}, {.balance = balance.data(),
                     .z = z.data(),
                     .logits = logits.data(),
                     .experts = chosen.data(),
                     .counts = counts.data(),
                     .shape = shape});
  const float scale = 1;
  router_backward({}, {.d_logits = d_logits.data(),
                       .d_weights = d_weights.data(),
                       .weights = weights.data(),
                       .experts = chosen.data(),
                       .logits = logits.data(),
                       .counts = counts.data(),
                       .weight = &weight,
                       .grad_scale = &scale,
                       .balance = 0.1f,
                       .z = 0.01f,
                       .shape = shape,
                       .dtype = dtype});
  gather_rows({}, {.out = gathered.data(), .in = x.data(), .sources = sources.data(), .k = k, .rows = rows, .C = C, .dtype = dtype});
  combine_rows({}, {.out = out.data(),
                    .rows = gathered.data(),
                    .places = places.data(),
                    .weights = weights.data(),
                    .shared = x.data(),
                    .addend = x.data(),
                    .M = M,
                    .k = k,
                    .C = C,
                    .dtype = dtype});
  weigh_rows({}, {.d_weights = d_weights.data(),
                  .d = d.data(),
                  .a = gathered.data(),
                  .weights = weights.data(),
                  .sources = sources.data(),
                  .k = k,
                  .slots = slots,
                  .rows = rows,
                  .F = C,
                  .dtype = dtype});
  print("experts", dtype, chosen, weights, balance, z, d_logits, places, out, d_weights, d, gathered);
}

template <class T>
void product() {
  constexpr DType dtype = dtype_of<T>();
  constexpr std::int64_t M = 70, N = 101, K = 530;
  auto a = random_values<T>(M * K, 1), b = random_values<T>(K * N, 2), bias = random_values<T>(N, 3), c = random_values<T>(M * N, 4);
  Gemm g{.c = c.data(),
         .a = a.data(),
         .b = b.data(),
         .M = M,
         .N = N,
         .K = K,
         .accumulate = true,
         .in = dtype,
         .out = dtype,
         .bias = bias.data()};
  Workspace workspace(gemm_workspace_bytes(g));
  gemm(workspace.context(), g);
  print("gemm", dtype, c);
}

/// Of a decoded token; of bf16 in pairs, and one by one where they have an odd number.
template <class T>
void row_product() {
  constexpr DType dtype = dtype_of<T>();
  for (const std::int64_t K : {530, 531}) {
    constexpr std::int64_t N = 101;
    auto a = random_values<T>(K, 1), b = random_values<T>(K * N, 2), addend = random_values<T>(N, 3), c = poisoned<T>(N);
    gemm({}, {.c = c.data(),
              .a = a.data(),
              .b = b.data(),
              .M = 1,
              .N = N,
              .K = K,
              .b_transposed = true,
              .in = dtype,
              .out = dtype,
              .addend = addend.data()});
    print("row product", dtype, c);
  }
}

void codes() {
  constexpr std::int64_t rows = 150, columns = 277;
  const auto x = awkward_values(rows * columns), tame = random_values<float>(rows * columns, 7);
  for (const DType type : {DType::e4m3, DType::e5m2})
    for (const auto scaling : {Fp8Scaling::tensor, Fp8Scaling::rows, Fp8Scaling::row_blocks, Fp8Scaling::square_blocks})
      for (const bool transposed : {false, true})
        for (const auto* from : {&x, &tame}) {
          auto made = poisoned<std::uint8_t>(rows * columns);
          auto scales = poisoned<float>(fp8_scales(scaling, transposed ? columns : rows, transposed ? rows : columns));
          fp8_quantize({}, {.codes = made.data(),
                            .scales = scales.data(),
                            .x = from->data(),
                            .rows = rows,
                            .columns = columns,
                            .transposed = transposed,
                            .dtype = DType::f32,
                            .type = type,
                            .scaling = scaling});
          print("fp8_quantize", type, made, scales);
        }
  for (const DType type : {DType::e4m3, DType::e5m2})
    for (const bool transposed : {false, true}) {
      auto made = poisoned<std::uint8_t>(rows * columns);
      std::vector<float> scales(1), largest(1);
      const float multiplier = 77.7f;
      fp8_quantize({}, {.codes = made.data(),
                        .scales = scales.data(),
                        .x = x.data(),
                        .rows = rows,
                        .columns = columns,
                        .transposed = transposed,
                        .dtype = DType::f32,
                        .type = type,
                        .scaling = Fp8Scaling::tensor,
                        .delayed = {&multiplier, largest.data()}});
      print("fp8_quantize (delayed)", type, made, largest);
    }
}

/// All codes, which the product widens.
void product_of_codes() {
  constexpr std::int64_t M = 70, N = 101, K = 530;
  std::vector<std::uint8_t> a, b;
  for (std::int64_t i = 0; i < M * K; ++i) a.push_back(static_cast<std::uint8_t>(i * 37 % 256));
  for (std::int64_t i = 0; i < N * K; ++i) b.push_back(static_cast<std::uint8_t>(i * 53 % 120));
  auto c = poisoned<float>(M * N);
  const float scale = 0.37f;
  const Gemm g{.c = c.data(),
               .a = a.data(),
               .b = b.data(),
               .M = M,
               .N = N,
               .K = K,
               .b_transposed = true,
               .in = DType::bf16,
               .out = DType::f32,
               .fp8 = Gemm::Fp8{{DType::e5m2, Fp8Scaling::tensor, &scale}, {DType::e4m3, Fp8Scaling::tensor, &scale}}};
  Workspace workspace(gemm_workspace_bytes(g));
  gemm(workspace.context(), g);
  for (float& f : c)
    if (std::isnan(f)) f = 0;
  print("gemm", DType::e4m3, c);
}

}  // namespace
}  // namespace tessera::kernels::testing

int main() {
  using namespace tessera::kernels::testing;
  elementwise();
  optimizer();
  signs();
  tokens();
  rows<float>();
  rows<tessera::bf16>();
  rows<tessera::f16>();
  heads<float>();
  heads<tessera::bf16>();
  heads<tessera::f16>();
  attention<float>();
  attention<tessera::bf16>();
  attention<tessera::f16>();
  attention_blocks<float>();
  attention_blocks<tessera::bf16>();
  attention_blocks<tessera::f16>();
  expert_biases<float>();
  expert_biases<tessera::bf16>();
  expert_biases<tessera::f16>();
  experts<float>();
  experts<tessera::bf16>();
  experts<tessera::f16>();
  product<tessera::bf16>();
  product<tessera::f16>();
  row_product<float>();
  row_product<tessera::bf16>();
  row_product<tessera::f16>();
  codes();
  product_of_codes();
}
