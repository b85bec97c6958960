#include "kernels/gemm/matmul_host.hpp"

#include <omp.h>

#include <bit>
#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

#include "base/check.hpp"
#include "kernels/gemm/host_bytes.hpp"

namespace tessera::kernels {
namespace {

dnnl::memory::data_type dnnl_type(DType t) {
  switch (t) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    case DType::f16:  // widened to fp32 before
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "matmul of {}", name_of(t));
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// oneDNN asks OpenMP for its thread count when a primitive is made and when it runs; a thread other than the main one has OpenMP's default.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadCount() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

struct Key {
  Matmul m;
  int threads = 1;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& k) const {
    const Matmul& m = k.m;
    std::size_t h = 1469598103934665603u;
    int flags = m.a_transposed | m.b_transposed << 1 | m.accumulate << 2 | m.bias << 3 | m.b_packed << 4;
    for (std::int64_t v :
         {m.M, m.N, m.K, m.a_stride, m.b_stride, m.c_stride, std::int64_t{flags}, static_cast<std::int64_t>(m.in),
          static_cast<std::int64_t>(m.out), std::int64_t{std::bit_cast<std::int32_t>(m.scale)}, static_cast<std::int64_t>(k.threads)})
      h = (h ^ static_cast<std::size_t>(v)) * 1099511628211u;
    return h;
  }
};

/// Of operands a, b(, bias), c. oneDNN 3 makes it of them; 2 has a descriptor between.
template <class... Operands>
dnnl::matmul::primitive_desc description_of(const dnnl::primitive_attr& attributes, const Operands&... operands) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), operands..., attributes};
#else
  return {dnnl::matmul::desc(operands...), attributes, engine()};
#endif
}

void append_scale(dnnl::post_ops& after, float scale) {
#if DNNL_VERSION_MAJOR >= 3
  after.append_eltwise(dnnl::algorithm::eltwise_linear, scale, 0.f);
#else
  after.append_eltwise(1.f, dnnl::algorithm::eltwise_linear, scale, 0.f);
#endif
}

// oneDNN's favourite layout of b for many rows of a. It may want another for a few rows or other thread counts; asking always in the same
// way gives one layout per (N, K), so that any batch and any piece of one can read it.
dnnl::memory::desc packed_layout(const Matmul& m) {
  ThreadCount one(1);
  constexpr std::int64_t many = 1024;
  auto in = dnnl_type(m.in);
  dnnl::memory::desc a({many, m.K}, in, dnnl::memory::dims{m.K, 1}), b({m.K, m.N}, in, dnnl::memory::format_tag::any);
  dnnl::memory::desc c({many, m.N}, in, dnnl::memory::dims{m.N, 1});
  return description_of({}, a, b, c).weights_desc();
}

/// A matrix as oneDNN knows it. The stride of a dim of one element says nothing, and oneDNN's cache takes products that differ in such
/// strides for the same, though it chooses other code for them, with other bits: so each shape has one, and no bit depends on what a
/// process computed before.
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, dnnl::memory::data_type type, std::int64_t stride, bool transposed) {
  dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  if (columns == 1) strides[1] = 1;
  if (rows == 1) strides[0] = strides[1] == 1 ? columns : 1;
  return {{rows, columns}, type, strides};
}

dnnl::matmul::primitive_desc describe(const Matmul& m) {
  using Desc = dnnl::memory::desc;
  auto in = dnnl_type(m.in), out = dnnl_type(m.out);
  const Desc a = matrix(m.M, m.K, in, m.a_stride, m.a_transposed), c = matrix(m.M, m.N, out, m.c_stride, false);
  const Desc b = m.b_packed ? packed_layout(m) : matrix(m.K, m.N, in, m.b_stride, m.b_transposed);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (m.scale != 1) append_scale(after, m.scale);
  if (m.accumulate) after.append_sum(1.f);
  attr.set_post_ops(after);
  if (!m.bias) return description_of(attr, a, b, c);
  Desc bias({1, m.N}, in, dnnl::memory::dims{m.N, 1});
  return description_of(attr, a, b, bias, c);
}

// A primitive with memory objects that are pointed anew at each call. oneDNN keeps the generated code itself in a cache of the process, so
// a second thread's plan of the same shape costs microseconds.
struct Plan {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  dnnl::memory a, b, bias, c, scratch;
  std::size_t scratch_bytes;  // asked of oneDNN once: each question allocates

  explicit Plan(const Matmul& m)
      : description(describe(m)),
        primitive(description),
        a(description.src_desc(), engine(), nullptr),
        b(description.weights_desc(), engine(), nullptr),
        c(description.dst_desc(), engine(), nullptr),
        scratch(description.scratchpad_desc(), engine(), nullptr),
        scratch_bytes(description.scratchpad_desc().get_size()) {
    if (m.bias) bias = dnnl::memory(description.bias_desc(), engine(), nullptr);
  }
};

// Per thread, so that a lookup takes no lock and memory objects are never shared. A model has tens of shapes.
Plan& plan_of(const Matmul& m, int threads) {
  thread_local std::unordered_map<Key, Plan, KeyHash> plans;
  Key key{m, omp_in_parallel() ? 1 : threads};
  auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  try {
    return plans.try_emplace(key, m).first->second;
  } catch (const dnnl::error& e) {
    fail(ExitCode::internal, "oneDNN has no matmul for M={} N={} K={} in {} out {}: {}", m.M, m.N, m.K, name_of(m.in), name_of(m.out),
         e.message);
  }
}

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

void point(dnnl::memory& memory, const void* data) {
  dnnl_status_t status = dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data));
  TESSERA_REQUIRE(status == dnnl_success, "oneDNN status {}", static_cast<int>(status));
}

// oneDNN 3.7 computes wrong sums with AVX-512 where one column is written into a wider matrix, and where one row is read from a matrix that
// is stored the other way round: it takes their elements for neighbours. So they are made neighbours, in scratch. One element is one
// anyway.
bool row_lies_apart(const Matmul& m) { return m.M == 1 && m.a_transposed && m.a_stride > 1 && m.K > 1; }
bool column_lies_apart(const Matmul& m) { return m.N == 1 && m.c_stride > 1 && m.M > 1; }

Matmul of_neighbours(Matmul m) {
  if (row_lies_apart(m)) m.a_transposed = false, m.a_stride = m.K;
  if (column_lies_apart(m)) m.c_stride = 1;
  return m;
}

std::size_t row_bytes(const Matmul& m) { return row_lies_apart(m) ? host::aligned(static_cast<std::size_t>(m.K) * size_of(m.in)) : 0; }
std::size_t column_bytes(const Matmul& m) {
  return column_lies_apart(m) ? host::aligned(static_cast<std::size_t>(m.M) * size_of(m.out)) : 0;
}

void copy_elements(void* to, std::int64_t to_step, const void* from, std::int64_t from_step, std::int64_t count, DType type) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(host::at(to, i * to_step, type), host::at(from, i * from_step, type), size_of(type));
}

/// Of a product whose elements are neighbours.
void run_plan(const Matmul& m, const MatmulOperands& o, int threads) {
  ThreadCount count(threads);
  Plan& plan = plan_of(m, threads);
  point(plan.a, o.a);
  point(plan.b, o.b);
  point(plan.c, o.c);
  point(plan.scratch, o.scratch);
  if (m.bias) point(plan.bias, o.bias);
  // The C entry point: the C++ one builds a hash map and a vector at each call.
  dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, plan.a.get()},
                            {DNNL_ARG_WEIGHTS, plan.b.get()},
                            {DNNL_ARG_DST, plan.c.get()},
                            {DNNL_ARG_SCRATCHPAD, plan.scratch.get()},
                            {DNNL_ARG_BIAS, m.bias ? plan.bias.get() : nullptr}};
  dnnl_status_t status = dnnl_primitive_execute(plan.primitive.get(), stream().get(), m.bias ? 5 : 4, args);
  TESSERA_REQUIRE(status == dnnl_success, "oneDNN status {} for M={} N={} K={}", static_cast<int>(status), m.M, m.N, m.K);
}

}  // namespace

void run_matmul(const Matmul& m, const MatmulOperands& o, int threads) {
  MatmulOperands near = o;
  auto* room = static_cast<std::byte*>(o.scratch);
  if (row_lies_apart(m)) {
    copy_elements(room, 1, o.a, m.a_stride, m.K, m.in);
    near.a = room, room += row_bytes(m);
  }
  if (column_lies_apart(m)) {
    if (m.accumulate) copy_elements(room, 1, o.c, m.c_stride, m.M, m.out);
    near.c = room, room += column_bytes(m);
  }
  near.scratch = room;
  run_plan(of_neighbours(m), near, threads);
  if (column_lies_apart(m)) copy_elements(o.c, m.c_stride, near.c, 1, m.M, m.out);
}

std::size_t matmul_scratch_bytes(const Matmul& m, int threads) {
  ThreadCount count(threads);
  return row_bytes(m) + column_bytes(m) + plan_of(of_neighbours(m), threads).scratch_bytes;
}

std::size_t matmul_packed_bytes(const Matmul& m) { return packed_layout(m).get_size(); }

void matmul_pack(const Matmul& m, void* packed, const void* b, int threads) {
  ThreadCount count(threads);
  dnnl::memory::desc plain({m.K, m.N}, dnnl_type(m.in),
                           m.b_transposed ? dnnl::memory::dims{1, m.b_stride} : dnnl::memory::dims{m.b_stride, 1});
  dnnl::memory from(plain, engine(), const_cast<void*>(b)), to(packed_layout(m), engine(), packed);
  try {
    dnnl::reorder(from, to).execute(stream(), from, to);
  } catch (const dnnl::error& e) {
    fail(ExitCode::internal, "oneDNN cannot reorder weights of N={} K={} {}: {}", m.N, m.K, name_of(m.in), e.message);
  }
}

namespace {
// oneDNN's instruction sets are sets of bits, one more for each extension.
bool has(dnnl::cpu_isa level) {
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(level)) == static_cast<int>(level);
}
}  // namespace

bool has_bf16_product() { return has(dnnl::cpu_isa::avx512_core_bf16); }

bool bf16_is_faster() { return has(dnnl::cpu_isa::avx512_core_amx) || (has_bf16_product() && !__builtin_cpu_is("intel")); }

bool is_widened(DType type) {
  switch (type) {
    case DType::f32:
      return false;
    case DType::bf16:
      return !bf16_is_faster();
    case DType::f16:
      return true;
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "products of {}", name_of(type));
}

}  // namespace tessera::kernels
