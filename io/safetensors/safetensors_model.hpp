// Reading safetensors: the header of a file, and a model's folder as transformers saves it, of which any box of any tensor is read.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.hpp"

namespace tessera::io {

/// What a header says of a tensor.
struct SafetensorsTensor {
  std::string name;
  std::string type;  ///< "F32", "BF16", "F16", and others that cannot be read
  Shape shape;
  std::int64_t begin = 0, end = 0;  ///< bytes in the file
};

/// Bytes of an element of such a type; 0 for a type that the format does not have.
std::int64_t safetensors_type_bytes(std::string_view type);

/// All tensors of a file, in the order of their bytes, which cover it without gaps. A file that is no such file, is truncated, says
/// something twice or impossible is an Error(data) that names it, and the tensor.
std::vector<SafetensorsTensor> read_safetensors_header(const std::string& path);
/// The raw bytes of one tensor (tests).
std::vector<std::byte> read_safetensors_tensor(const std::string& path, const SafetensorsTensor& tensor);

/// A folder with model.safetensors, or with model.safetensors.index.json and the files that it names. As transformers does, it takes the
/// first where both are there. Or a folder in Mistral's own layout (models/mistral_model.hpp), or a checkpoint of llm.c
/// (models/llmc_model.hpp), whose tensors have transformers' names and are not turned. Headers are read once; values in pieces, by ranges,
/// so memory does not depend on the model's size. Read by several threads at once.
class SafetensorsModel {
 public:
  struct Tensor : SafetensorsTensor {
    int file = 0;
  };

  /// Throws Error(data) that names the file and the tensor: shards that are missing, tensors that the index names and its shard lacks, a
  /// tensor in two files, and all that read_safetensors_header refuses.
  /// `stem`: of other files than model.safetensors, "adapter_model" for one.
  explicit SafetensorsModel(const std::string& folder, const std::string& stem = "model");
  ~SafetensorsModel();
  SafetensorsModel(SafetensorsModel&&) noexcept;

  /// Names tensors anew, and leaves those out that it gives no name.
  void rename(const std::function<std::optional<std::string>(std::string_view)>& name);

  /// For a process that reads each value once: files that the page cache does not hold are read past it.
  void read_once();

  const std::string& folder() const;
  /// Sorted by name.
  const std::vector<Tensor>& tensors() const;
  const Tensor* find(std::string_view name) const;
  std::int64_t bytes() const;  ///< of all tensors
  /// The file that has it.
  const std::string& path_of(const Tensor& tensor) const;

  /// Elements [begin, begin + out.size()) of the box, row-major, as fp32: exactly what stands in the file, of U8 (codes of quantised
  /// models) the number of the byte. Throws Error(data) that names file and tensor: of a type that is none of F32, BF16, F16 and U8; of a
  /// file that has become shorter, or was changed, since its header was read.
  void read_box(const Tensor& tensor, const Box& box, std::span<float> out, std::int64_t begin = 0) const;
  /// The same of a model that a run is to begin with: a value that is NaN or infinite is Error(data) too, with the element.
  void read_finite(const Tensor& tensor, const Box& box, std::span<float> out, std::int64_t begin = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether the folder has a model's weights, or something of their name that cannot be looked at, which reading it then names.
bool has_model(const std::string& folder);

}  // namespace tessera::io
