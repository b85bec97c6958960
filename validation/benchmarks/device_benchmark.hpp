// What the parts of device_benchmark share: memory of the GPU, and work that is timed in turns with other work.
#pragma once
#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "kernels/context.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::benchmarks {

/// Sizes of the run. The defaults suit a GPU with 80 GB or more; in the emulator take --mib 1 --tokens 64 --width 128 --context 64.
struct Settings {
  std::int64_t mib = 1024;      ///< of the largest operand of a kernel that memory bounds
  std::int64_t tokens = 8192;   ///< rows of the matrix products
  std::int64_t width = 4096;    ///< model width: C of rows, and N and K of the products
  std::int64_t context = 4096;  ///< tokens of a sequence for attention; there are tokens / context sequences
  std::int64_t repeat = 20;     ///< turns; each times every contender once
  std::int64_t search = 4;      ///< seconds that the search for the fastest algorithm of a product may take
  std::string only;             ///< contenders with this in their name, beside the limits
  std::string group;            ///< the only group to measure; empty: all
  bool json = false, describe = false, list = false;
};

constexpr double wanted = 0.85;  ///< of the copy, for the kernels that the project's goals name

inline kernels::Context on(cudaStream_t stream, void* workspace = nullptr, std::size_t bytes = 0) {
  return {.workspace = {static_cast<std::byte*>(workspace), bytes}, .backend = kernels::Backend::cuda, .stream = stream};
}

/// Memory of the GPU until the end of the program's part; all contenders of a part share what they can.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// One thing that is timed. `limit` is the name of what bounds it or is its peer: of a contender, or of several that `stand_for` it, of
/// which the fastest counts; empty for what nothing bounds.
struct Contender {
  std::string name = {}, limit = {}, stands_for = {};
  double amount = 0;   ///< bytes moved (read and written) or FLOPs, of one call
  bool flops = false;  ///< what `amount` counts
  double target = 0;   ///< wanted share of the limit; 0: none is set
  std::function<void(cudaStream_t)> run = {};
  std::vector<double> seconds = {};  ///< one a turn

  double rate() const;  ///< amount a second, of the median turn
};

/// What takes turns with one another, and the memory they work in.
struct Part {
  std::vector<std::shared_ptr<DeviceMemory>> memory;
  std::vector<Contender> contenders;

  /// n values: normal numbers of f32 or bf16.
  void* values(std::int64_t n, DType dtype);
  void* bytes(std::size_t bytes);
  void* copy_of(const void* host, std::size_t bytes);
};

/// A part that is made, measured and printed before the next one is; a failure ends it alone.
struct Group {
  std::string name;
  std::function<void(Part&, const Settings&)> add;
};

/// Adds the limit "copy".
void add_limits(Part& part, const Settings& settings);

/// The limit "copy" itself, and kernels that memory bounds beside it.
std::vector<Group> memory_bound_groups();
/// gemm as a run's start chooses it, against the fastest of all that cuBLASLt has for the shape.
std::vector<Group> product_groups();
/// What a token of generate is made of, beside the copy.
std::vector<Group> decode_groups();
/// Attention against the fastest product of matrices, and against cuDNN's.
std::vector<Group> attention_groups();

/// Products beside blocks that hold multiprocessors as a gather's do.
std::vector<Group> room_groups();

/// Seconds of one call, between two events on the stream.
double time_once(cudaStream_t stream, const std::function<void(cudaStream_t)>& run);

}  // namespace tessera::benchmarks
