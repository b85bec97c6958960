// Hugging Face safetensors: an 8-byte length, a JSON header, then raw tensors. Written as a stream; read by safetensors_model.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/types.hpp"

namespace tessera::io {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;  // f32, bf16 or f16
  Shape shape;
};

/// Writes one file. The entries are declared first; then append() is called with their bytes in that order, in pieces of any size. finish()
/// checks that every byte came, syncs, moves PATH.partial to PATH and gives the XXH3-128 of the file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries);
  ~SafetensorsWriter();
  void append(std::span<const std::byte> bytes);
  Hash128 finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Splits entries into files of at most max_bytes, in order (Hugging Face: 5 GB): model.safetensors alone, or
/// model-00001-of-0000N.safetensors and model.safetensors.index.json.
struct SafetensorsFile {
  std::string name;
  std::vector<SafetensorsEntry> entries;
};
/// Of the whole file, header included.
std::int64_t safetensors_bytes(const SafetensorsFile& file);
std::vector<SafetensorsFile> plan_safetensors(const std::vector<SafetensorsEntry>& entries, std::int64_t max_bytes);
/// The text of model.safetensors.index.json for such a split.
std::string safetensors_index(const std::vector<SafetensorsFile>& files);

}  // namespace tessera::io
