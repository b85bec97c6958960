// The calls of cuDNN that cudnn-frontend makes for attention. Descriptors keep what they are given; one engine offers itself for every
// graph; and a plan that is executed looks into its graph for the tensors and what is done to the scores, and computes attention with plain
// loops. Where a test asks for it, all calls go to a real cuDNN instead, which answers questions about GPUs that are described to it.
#include <cudnn.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "emulator.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/cuda/cudnn_library.hpp"

namespace {

using tessera::bf16;
using tessera::f16;
using Uid = tessera::kernels::cuda::CudnnTensor;

struct Content;
struct Value {
  std::int64_t count = 0;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<Content>> descriptors;
};
struct Content {
  cudnnBackendDescriptorType_t type;
  std::map<int, Value> values;

  template <class T>
  std::vector<T> all(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> out(found->second.bytes.size() / sizeof(T));
    std::memcpy(out.data(), found->second.bytes.data(), out.size() * sizeof(T));
    return out;
  }
  template <class T>
  T one(int name) const {
    const std::vector<T> found = all<T>(name);
    return found.empty() ? T{} : found.front();
  }
  bool flag(int name) const { return one<std::uint8_t>(name) != 0; }
  std::shared_ptr<Content> child(int name) const {
    const auto found = values.find(name);
    return found == values.end() || found->second.descriptors.empty() ? nullptr : found->second.descriptors.front();
  }
};
using Descriptor = std::shared_ptr<Content>;
Descriptor& content_of(cudnnBackendDescriptor_t d) { return *static_cast<Descriptor*>(d); }

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;
  }
}

struct Handle {
  cudaStream_t stream = nullptr;
};

/// A tensor of (B, heads, T, D), wherever its last two dimensions stand.
struct View {
  void* data = nullptr;
  std::vector<std::int64_t> dims, strides;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return b * strides[0] + h * strides[1] + t * strides[2] + d * strides[3];
  }
  float get(std::int64_t i) const {
    if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(static_cast<const bf16*>(data)[i]);
    return type == CUDNN_DATA_HALF ? static_cast<float>(static_cast<const f16*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  void set(std::int64_t i, float value) const {
    if (type == CUDNN_DATA_BFLOAT16)
      static_cast<bf16*>(data)[i] = bf16(value);
    else if (type == CUDNN_DATA_HALF)
      static_cast<f16*>(data)[i] = f16(value);
    else
      static_cast<float*>(data)[i] = value;
  }
  View turned() const {
    View v = *this;
    std::swap(v.dims[2], v.dims[3]), std::swap(v.strides[2], v.strides[3]);
    return v;
  }
};

/// What a finished graph says.
struct Pass {
  std::map<std::int64_t, Descriptor> tensors;
  std::int64_t scale = 0;  ///< uid of the number that scores are multiplied by
  int index_operations = 0, selections = 0;

  explicit Pass(const Content& graph) {
    const auto found = graph.values.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (found == graph.values.end()) return;
    for (const Descriptor& operation : found->second.descriptors) {
      for (const auto& [name, value] : operation->values)
        for (const Descriptor& child : value.descriptors)
          if (child->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) tensors[child->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)] = child;
      if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) note_pointwise(*operation);
    }
  }
  bool backward() const { return tensors.contains(Uid::d_out); }
  bool causal() const { return index_operations >= 2 && selections >= 1; }

  std::int64_t elements(std::int64_t uid) const {
    std::int64_t n = 1;
    for (std::int64_t d : tensors.at(uid)->all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)) n *= d;
    return n;
  }
  /// Of its own, beside the frontend's tensors: as much as the real one's Hopper engine takes.
  std::int64_t workspace() const {
    const bool grouped = tensors.contains(Uid::k) && elements(Uid::k) < elements(Uid::q);
    return 256 + (backward() && grouped ? 4 * elements(Uid::q) : 0);
  }

 private:
  void note_pointwise(const Content& operation) {
    const auto mode = operation.child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)->one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    index_operations += mode == CUDNN_POINTWISE_GEN_INDEX;
    selections += mode == CUDNN_POINTWISE_BINARY_SELECT;
    const Descriptor b = operation.child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC), x = operation.child(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const bool of_scores = x && x->all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS).back() > 1 && x->flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    if (mode == CUDNN_POINTWISE_MUL && b && b->flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && of_scores && scale == 0)
      scale = b->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  }
};

/// A plan with its pointers.
class Attention {
 public:
  Attention(const Pass& pass, const Content& pack) : backward_(pass.backward()), causal_(pass.causal()) {
    const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (std::size_t i = 0; i < uids.size() && i < pointers.size(); ++i) {
      if (uids[i] == pass.scale) std::memcpy(&scale_, pointers[i], sizeof scale_);
      const auto found = pass.tensors.find(uids[i]);
      if (found == pass.tensors.end() || found->second->flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) continue;
      const View view{pointers[i], found->second->all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                      found->second->all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
                      found->second->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)};
      if (uids[i] >= Uid::q && uids[i] <= Uid::d_v)
        views_[uids[i]] = view;
      else  // an intermediate tensor of the frontend's, in the workspace
        scratch_.push_back({static_cast<std::byte*>(view.data),
                            static_cast<std::size_t>(pass.elements(uids[i])) * (view.type == CUDNN_DATA_FLOAT ? 4 : 2)});
    }
    scratch_.push_back({pack.one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE), static_cast<std::size_t>(pass.workspace())});
    // The graph holds K turned around; its backward pass V too.
    if (views_.contains(Uid::k)) views_[Uid::k] = views_[Uid::k].turned();
    if (backward_ && views_.contains(Uid::v)) views_[Uid::v] = views_[Uid::v].turned();
  }

  bool complete() const {
    for (std::int64_t uid : {Uid::q, Uid::k, Uid::v, Uid::out, Uid::lse})
      if (!views_.contains(uid) || views_.at(uid).dims.size() != 4) return false;
    for (std::int64_t uid : {Uid::d_out, Uid::d_q, Uid::d_k, Uid::d_v})
      if (backward_ && !views_.contains(uid)) return false;
    const auto &q = views_.at(Uid::q).dims, &k = views_.at(Uid::k).dims, &v = views_.at(Uid::v).dims;
    return causal_ && q[0] == k[0] && q[2] == k[2] && q[3] == k[3] && k == v && q[1] % k[1] == 0;
  }

  void run() const {
    for (const auto& [data, bytes] : scratch_) std::memset(data, 0xff, bytes);
    const auto& dims = views_.at(Uid::q).dims;
    for (std::int64_t b = 0; b < dims[0]; ++b) backward_ ? backward(b) : forward(b);
  }

 private:
  float score(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    const View &q = views_.at(Uid::q), &k = views_.at(Uid::k);
    const std::int64_t g = h / (q.dims[1] / k.dims[1]);
    float sum = 0;
    for (std::int64_t d = 0; d < q.dims[3]; ++d) sum += q.get(q.at(b, h, t, d)) * k.get(k.at(b, g, s, d));
    return sum * scale_;
  }

  void forward(std::int64_t b) const {
    const View &q = views_.at(Uid::q), &v = views_.at(Uid::v), &out = views_.at(Uid::out), &lse = views_.at(Uid::lse);
    const std::int64_t H = q.dims[1], T = q.dims[2], D = q.dims[3];
    std::vector<float> p(static_cast<std::size_t>(T));
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < T; ++t) {
        float largest = -INFINITY, sum = 0;
        for (std::int64_t s = 0; s <= t; ++s) largest = std::max(largest, p[static_cast<std::size_t>(s)] = score(b, h, t, s));
        for (std::int64_t s = 0; s <= t; ++s) sum += p[static_cast<std::size_t>(s)] = std::exp(p[static_cast<std::size_t>(s)] - largest);
        lse.set(lse.at(b, h, t, 0), largest + std::log(sum));
        for (std::int64_t d = 0; d < D; ++d) {
          float value = 0;
          for (std::int64_t s = 0; s <= t; ++s) value += p[static_cast<std::size_t>(s)] / sum * v.get(v.at(b, h / (H / v.dims[1]), s, d));
          out.set(out.at(b, h, t, d), value);
        }
      }
  }

  void backward(std::int64_t b) const {
    const View &q = views_.at(Uid::q), &k = views_.at(Uid::k), &v = views_.at(Uid::v), &lse = views_.at(Uid::lse);
    const View &out = views_.at(Uid::out), &d_out = views_.at(Uid::d_out);
    const std::int64_t H = q.dims[1], G = k.dims[1], T = q.dims[2], D = q.dims[3];
    const auto index = [&](std::int64_t head, std::int64_t t, std::int64_t d) { return static_cast<std::size_t>((head * T + t) * D + d); };
    std::vector<float> d_q(static_cast<std::size_t>(H * T * D)), d_k(static_cast<std::size_t>(G * T * D)), d_v(d_k.size());
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < T; ++t) {
        const std::int64_t g = h / (H / G);
        float delta = 0;
        for (std::int64_t d = 0; d < D; ++d) delta += out.get(out.at(b, h, t, d)) * d_out.get(d_out.at(b, h, t, d));
        for (std::int64_t s = 0; s <= t; ++s) {
          const float p = std::exp(score(b, h, t, s) - lse.get(lse.at(b, h, t, 0)));
          float d_p = 0;
          for (std::int64_t d = 0; d < D; ++d) d_p += d_out.get(d_out.at(b, h, t, d)) * v.get(v.at(b, g, s, d));
          const float d_s = p * (d_p - delta) * scale_;
          for (std::int64_t d = 0; d < D; ++d) {
            d_q[index(h, t, d)] += d_s * k.get(k.at(b, g, s, d));
            d_k[index(g, s, d)] += d_s * q.get(q.at(b, h, t, d));
            d_v[index(g, s, d)] += p * d_out.get(d_out.at(b, h, t, d));
          }
        }
      }
    const auto write = [&](std::int64_t uid, const std::vector<float>& from) {
      const View& to = views_.at(uid);
      for (std::int64_t head = 0; head < to.dims[1]; ++head)
        for (std::int64_t t = 0; t < T; ++t)
          for (std::int64_t d = 0; d < D; ++d) to.set(to.at(b, head, t, d), from[index(head, t, d)]);
    };
    write(Uid::d_q, d_q), write(Uid::d_k, d_k), write(Uid::d_v, d_v);
  }

  bool backward_, causal_;
  float scale_ = 1;
  std::map<std::int64_t, View> views_;
  std::vector<std::pair<std::byte*, std::size_t>> scratch_;
};

const Content* graph_of(const Content& plan) {
  const Descriptor config =
      plan.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ? plan.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) : nullptr;
  const Descriptor engine = config ? config->child(CUDNN_ATTR_ENGINECFG_ENGINE) : plan.child(CUDNN_ATTR_ENGINECFG_ENGINE);
  return engine ? engine->child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH).get() : nullptr;
}

std::int64_t g_executed = 0;
bool g_absent = false;
void* g_real = nullptr;

template <class F>
F* real(F*, const char* name) {
  return g_real ? reinterpret_cast<F*>(dlsym(g_real, name)) : nullptr;
}
#define TESSERA_REAL(name, ...) \
  if (auto* function = real(&name, #name)) return function(__VA_ARGS__)

}  // namespace

namespace tessera::emulator {

std::int64_t cudnn_executions() { return g_executed; }
void hide_cudnn(bool hidden) { g_absent = hidden; }

std::string use_real_cudnn(const std::string& driver_stub) {
  // cuDNN asks for a driver before it offers engines; the toolkit's stub has the name and nothing behind it.
  if (!dlopen(driver_stub.c_str(), RTLD_NOW | RTLD_GLOBAL)) return dlerror();
  g_real = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  return g_real ? "" : dlerror();
}

}  // namespace tessera::emulator

namespace tessera::kernels::cuda::cudnn_library {
const std::string& why_not() {
  static const std::string here, absent = "libcudnn.so.9 was not found (hidden by a test)";
  return g_absent ? absent : here;
}
}  // namespace tessera::kernels::cuda::cudnn_library

extern "C" {
std::size_t cudnnGetVersion() {
  TESSERA_REAL(cudnnGetVersion);
  return 91900;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  TESSERA_REAL(cudnnGetErrorString, status);
  return "emulated";
}
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (auto* function = real(&cudnnGetLastErrorString, "cudnnGetLastErrorString")) return function(message, bytes);
  if (bytes > 0) *message = 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<Handle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  TESSERA_REAL(cudnnBackendCreateDescriptor, type, descriptor);
  *descriptor = new Descriptor(std::make_shared<Content>(Content{type, {}}));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  TESSERA_REAL(cudnnBackendDestroyDescriptor, descriptor);
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  TESSERA_REAL(cudnnBackendFinalize, descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* elements) {
  TESSERA_REAL(cudnnBackendSetAttribute, descriptor, name, type, count, elements);
  Value& value = content_of(descriptor)->values[name];
  value = {.count = count, .bytes = {}, .descriptors = {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::int64_t i = 0; i < count; ++i)
      value.descriptors.push_back(content_of(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]));
  } else {
    const auto* from = static_cast<const std::byte*>(elements);
    value.bytes.assign(from, from + static_cast<std::size_t>(count) * size_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t asked, std::int64_t* count, void* elements) {
  TESSERA_REAL(cudnnBackendGetAttribute, descriptor, name, type, asked, count, elements);
  const Descriptor& d = content_of(descriptor);
  Value value;
  const auto number = [&](std::int64_t n) {
    value.count = 1;
    value.bytes.resize(size_of(type));
    std::memcpy(value.bytes.data(), &n, value.bytes.size());
  };
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    auto engine = std::make_shared<Content>(Content{CUDNN_BACKEND_ENGINE_DESCRIPTOR, {}});
    engine->values[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = d->values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    auto config = std::make_shared<Content>(Content{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {}});
    config->values[CUDNN_ATTR_ENGINECFG_ENGINE] = {.count = 1, .bytes = {}, .descriptors = {engine}};
    value = {.count = 1, .bytes = {}, .descriptors = {config}};
  } else if (name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE || name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    number(Pass(*graph_of(*d)).workspace());
  } else if (name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
    number(1);
  } else if (name == CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED || name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
    number(0);
  } else if (const auto found = d->values.find(name); found != d->values.end()) {
    value = found->second;
  }
  if (count) *count = value.count;
  if (!elements) return CUDNN_STATUS_SUCCESS;
  for (std::size_t i = 0; i < value.descriptors.size() && static_cast<std::int64_t>(i) < asked; ++i)
    content_of(static_cast<cudnnBackendDescriptor_t*>(elements)[i]) = value.descriptors[i];
  std::memcpy(elements, value.bytes.data(), std::min(value.bytes.size(), static_cast<std::size_t>(asked) * size_of(type)));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  const Content* graph = graph_of(*content_of(plan));
  if (!graph) return CUDNN_STATUS_BAD_PARAM;
  const Attention attention(Pass(*graph), *content_of(pack));
  if (!attention.complete()) return CUDNN_STATUS_NOT_SUPPORTED;
  ++g_executed;
  tessera::emulator::enqueue(reinterpret_cast<Handle*>(handle)->stream, [attention] { return attention.run(), true; });
  return CUDNN_STATUS_SUCCESS;
}
// Named by the frontend's headers, and not called.
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t*) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int, const int*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnReorderFilterAndBias(cudnnHandle_t, const cudnnFilterDescriptor_t, cudnnReorderType_t, const void*, void*, int,
                                        const void*, void*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
}
