// HDF5 behind value types. The only folder that names the library: every call is checked, and a failure is an Error with the file, the
// object and HDF5's own reason. The library is not thread safe, so every call runs under one lock; objects may be used from any thread, one
// at a time each.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.hpp"
#include "base/check.hpp"

namespace tessera::io::hdf5 {

/// Element types of datasets; little-endian in files.
enum class Element : std::uint8_t { f32, u8, u16, u32, i64, u64 };
template <class T>
constexpr Element element_of();
template <>
constexpr Element element_of<float>() {
  return Element::f32;
}
template <>
constexpr Element element_of<std::uint8_t>() {
  return Element::u8;
}
template <>
constexpr Element element_of<std::uint16_t>() {
  return Element::u16;
}
template <>
constexpr Element element_of<std::uint32_t>() {
  return Element::u32;
}
template <>
constexpr Element element_of<std::int64_t>() {
  return Element::i64;
}
template <>
constexpr Element element_of<std::uint64_t>() {
  return Element::u64;
}

/// An identifier of the library, released at the end of its life.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::int64_t id) : id_(id) {}
  ~Handle();
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;
  std::int64_t id() const { return id_; }
  void reset();
  /// Gives the identifier up to the caller.
  std::int64_t release();

 private:
  std::int64_t id_ = -1;
};

/// Part of a virtual dataset: the box `target` of it is [begin, begin + elements of the box) of a 1-D dataset in another file. The file's
/// name is relative to the folder of the file that holds the virtual dataset.
struct VirtualSource {
  std::string file, dataset;
  std::int64_t source_elements = 0, begin = 0;
  Box target;
};

/// What files, groups and datasets share: attributes, and who they are in messages.
class Object {
 public:
  const std::string& file() const { return file_; }
  /// Path inside the file.
  const std::string& name() const { return name_; }

  void set_attribute(const std::string& key, std::int64_t value);
  void set_attribute(const std::string& key, std::uint64_t value);
  void set_attribute(const std::string& key, double value);
  void set_attribute(const std::string& key, std::string_view value);
  /// Empty where there is no such attribute or it is of another kind.
  std::optional<std::int64_t> integer_attribute(const std::string& key) const;
  std::optional<std::string> text_attribute(const std::string& key) const;

 protected:
  Object() = default;
  Object(Handle handle, std::string file, std::string name, ExitCode on_error);
  Handle handle_;
  std::string file_, name_;
  ExitCode on_error_ = ExitCode::internal;
};

class Dataset : public Object {
 public:
  const std::vector<std::int64_t>& dims() const { return dims_; }
  std::int64_t elements() const;
  /// Empty where the file holds a type that is none of ours.
  std::optional<Element> element() const;
  /// Byte position of a contiguous dataset in the file; 0 where it has no bytes.
  std::int64_t raw_offset() const;

  /// Bytes of a chunk where chunks are compressed, or go through another filter; else 0.
  std::int64_t filtered_chunk_bytes() const;
  /// What of the declared elements is not in this file and would read as zeros; "" where all of them are.
  std::string missing() const;

  /// 1-D: [begin, begin + out.size()), converted to T where the file's type differs.
  template <class T>
  void read(std::int64_t begin, std::span<T> out) const {
    read_box({{begin}, {static_cast<std::int64_t>(out.size())}}, element_of<T>(), out.data());
  }
  /// A box into dense row-major memory.
  void read_box(const Box& box, Element memory, void* out) const;
  /// 1-D and extendible: adds at the end.
  template <class T>
  void append(std::span<const T> values) {
    append_raw(element_of<T>(), values.data(), static_cast<std::int64_t>(values.size()));
  }

 private:
  friend class File;
  Dataset(Handle handle, std::string file, std::string name, ExitCode on_error);
  void append_raw(Element memory, const void* data, std::int64_t count);
  std::vector<std::int64_t> dims_;
};

class Group : public Object {
 private:
  friend class File;
  using Object::Object;
};

struct CreateOptions {
  std::int64_t user_block = 0;      ///< bytes at the head of the file that HDF5 leaves to us: 0 or a power of two >= 512
  std::int64_t alignment = 0;       ///< objects of 64 KiB and more start at a multiple of this
  bool through_descriptor = false;  ///< the path is /proc/self/fd/N
};

constexpr std::int64_t most_filtered_chunk_bytes = 64 << 20;

class File : public Object {
 public:
  /// Creates or truncates `path`. Failures are Error(on_error); `shown_name` stands for the path in messages when not empty.
  static File create(const std::string& path, const CreateOptions& options, ExitCode on_error, const std::string& shown_name = "");
  /// Opens for reading, without file locks (shared file systems often have none).
  static File open(const std::string& path, ExitCode on_error);

  Group create_group(const std::string& name);
  bool has(const std::string& name) const;
  /// Bytes reserved in one piece at once and never filled by HDF5: write them at raw_offset().
  Dataset create_contiguous(const std::string& name, Element element, const std::vector<std::int64_t>& dims);
  /// 1-D, empty, extendible.
  Dataset create_extendible(const std::string& name, Element element, std::int64_t chunk_elements);
  /// A text of any length.
  void create_text(const std::string& name, std::string_view text);
  /// Where a source file is missing, HDF5 reads a virtual dataset's fill value: NaN for f32, so that nobody takes it for weights.
  void create_virtual(const std::string& name, Element element, const std::vector<std::int64_t>& dims,
                      std::span<const VirtualSource> sources);
  /// Chunked datasets are read without a chunk cache: our reads are small windows at random places. A compressed chunk has to be made whole
  /// for any of it, and the last is kept where it has at most most_filtered_chunk_bytes. Links to other files are not followed.
  Dataset open_dataset(const std::string& name) const;
  std::string read_text(const std::string& name) const;
  /// Writes everything out and reports what failed. After it only destruction is allowed; datasets must be gone before.
  void close();

 private:
  using Object::Object;
  Dataset open_with_cache(const std::string& name, std::int64_t bytes) const;
};

}  // namespace tessera::io::hdf5
