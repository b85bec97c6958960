// Whole weights as one plain HDF5 file: a contiguous fp32 dataset a tensor, in natural shape.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace tessera::io {

struct Hdf5ExportEntry {
  std::string name;  // dataset /name
  Shape shape;
  std::string group = {};  // or /group/name
};

/// As SafetensorsWriter: entries first, then their values in that order in pieces of any size; finish() syncs and moves PATH.partial to
/// PATH.
class Hdf5ExportWriter {
 public:
  Hdf5ExportWriter(const std::string& path, const std::vector<Hdf5ExportEntry>& entries, const std::string& deck);
  ~Hdf5ExportWriter();
  void append(std::span<const float> values);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::io
