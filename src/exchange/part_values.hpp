// Values of tensors of ours that are parts of tensors of a file: in turns, turned around, or four bits each.
#pragma once
#include <span>

#include "io/safetensors/safetensors_model.hpp"
#include "model/table/huggingface.hpp"

namespace tessera {

/// A tensor in a model's files. MXFP4 (Open Compute Project, Microscaling Formats 1.0): of NAME, (..., in, out), stand
/// NAME_blocks (..., out, in / 32, 16) of two values a byte, and NAME_scales (..., out, in / 32), powers of two.
struct FileTensor {
  const io::SafetensorsModel::Tensor* values = nullptr;  ///< null: the files have it not
  const io::SafetensorsModel::Tensor* scales = nullptr;  ///< of MXFP4
  bool is_mxfp4() const { return scales != nullptr; }
};

/// The tensor as the files have it, as it is or, where our matrices are turned in it, in MXFP4.
FileTensor find_values(const io::SafetensorsModel& model, const ExportTensor& tensor);
/// Leaves the prefix of a family's names out where the files do.
void name_as_files_do(const io::SafetensorsModel& model, const TensorNames& names, std::vector<ExportTensor>& tensors);
/// Whether it has this shape.
bool has_shape(const FileTensor& tensor, const Shape& shape);

/// Elements [at, at + out.size()) of a box of ours, exactly. Throws Error(data) as SafetensorsModel::read_box does.
void read_part(const io::SafetensorsModel& model, const FileTensor& tensor, const TensorPart& part, const Box& box, std::int64_t at,
               std::span<float> out);

/// Puts elements [at, at + values.size()) of ours into `slab`: all that theirs has of one expert, or all of theirs without a dim of
/// experts. `columns`: the last dim of theirs.
void put_part(const TensorPart& part, std::int64_t columns, std::int64_t at, std::span<const float> values, std::span<float> slab);

}  // namespace tessera
