#include "io/hdf5/hdf5.hpp"

#include <limits>
#include <utility>

#include "io/hdf5/library.hpp"

namespace tessera::io::hdf5 {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>);

std::vector<hsize_t> sizes(const std::vector<std::int64_t>& v) { return {v.begin(), v.end()}; }

hid_t memory_type(Element e) {
  switch (e) {
    case Element::f32:
      return H5T_NATIVE_FLOAT;
    case Element::u8:
      return H5T_NATIVE_UINT8;
    case Element::u16:
      return H5T_NATIVE_UINT16;
    case Element::u32:
      return H5T_NATIVE_UINT32;
    case Element::i64:
      return H5T_NATIVE_INT64;
    case Element::u64:
      return H5T_NATIVE_UINT64;
  }
  return -1;
}

hid_t file_type(Element e) {
  switch (e) {
    case Element::f32:
      return H5T_IEEE_F32LE;
    case Element::u8:
      return H5T_STD_U8LE;
    case Element::u16:
      return H5T_STD_U16LE;
    case Element::u32:
      return H5T_STD_U32LE;
    case Element::i64:
      return H5T_STD_I64LE;
    case Element::u64:
      return H5T_STD_U64LE;
  }
  return -1;
}

/// A checked call whose result is an identifier to release.
template <class F>
Handle make(ExitCode code, const std::string& file, const std::string& object, const char* action, F&& call) {
  return Handle(checked(code, file, object, action, std::forward<F>(call)));
}

Handle dataspace(ExitCode code, const std::string& file, const std::string& object, const std::vector<std::int64_t>& dims) {
  auto d = sizes(dims);
  return make(code, file, object, "describe",
              [&] { return d.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(d.size()), d.data(), nullptr); });
}

}  // namespace

Handle::~Handle() { reset(); }
Handle::Handle(Handle&& o) noexcept : id_(std::exchange(o.id_, -1)) {}
Handle& Handle::operator=(Handle&& o) noexcept {
  std::swap(id_, o.id_);
  return *this;
}
std::int64_t Handle::release() { return std::exchange(id_, -1); }
void Handle::reset() {
  if (id_ < 0) return;
  std::lock_guard guard(library_lock());
  H5Idec_ref(std::exchange(id_, -1));  // a file that mattered was closed by File::close
}

Object::Object(Handle handle, std::string file, std::string name, ExitCode on_error)
    : handle_(std::move(handle)), file_(std::move(file)), name_(std::move(name)), on_error_(on_error) {}

Dataset::Dataset(Handle handle, std::string file, std::string name, ExitCode on_error)
    : Object(std::move(handle), std::move(file), std::move(name), on_error) {
  Handle space = make(on_error_, file_, name_, "open", [&] { return H5Dget_space(handle_.id()); });
  int rank = checked(on_error_, file_, name_, "open", [&] { return H5Sget_simple_extent_ndims(space.id()); });
  std::vector<hsize_t> d(static_cast<std::size_t>(rank));
  checked(on_error_, file_, name_, "open", [&] { return H5Sget_simple_extent_dims(space.id(), d.data(), nullptr); });
  dims_.assign(d.begin(), d.end());
}

std::int64_t Dataset::elements() const {
  std::int64_t n = 1;
  for (auto d : dims_) n *= d;
  return n;
}

std::optional<Element> Dataset::element() const {
  Handle type = make(on_error_, file_, name_, "open", [&] { return H5Dget_type(handle_.id()); });
  std::lock_guard guard(library_lock());
  auto kind = H5Tget_class(type.id());
  auto bytes = H5Tget_size(type.id());
  if (kind == H5T_FLOAT && bytes == 4) return Element::f32;
  if (kind != H5T_INTEGER) return std::nullopt;
  bool is_signed = H5Tget_sign(type.id()) != H5T_SGN_NONE;
  if (bytes == 8) return is_signed ? Element::i64 : Element::u64;
  if (bytes == 4 && !is_signed) return Element::u32;
  if (bytes == 2 && !is_signed) return Element::u16;
  if (bytes == 1 && !is_signed) return Element::u8;
  return std::nullopt;
}

std::int64_t Dataset::raw_offset() const {
  if (elements() == 0) return 0;
  std::lock_guard guard(library_lock());
  haddr_t at = H5Dget_offset(handle_.id());
  if (at == HADDR_UNDEF) fail(on_error_, "{}: {} has no place in the file: {}.", file_, name_, library_reason());
  return static_cast<std::int64_t>(at);
}

std::int64_t Dataset::filtered_chunk_bytes() const {
  Handle creation = make(on_error_, file_, name_, "open", [&] { return H5Dget_create_plist(handle_.id()); });
  Handle type = make(on_error_, file_, name_, "open", [&] { return H5Dget_type(handle_.id()); });
  std::lock_guard guard(library_lock());
  if (H5Pget_layout(creation.id()) != H5D_CHUNKED || H5Pget_nfilters(creation.id()) <= 0) return 0;
  std::vector<hsize_t> chunk(dims_.size());
  checked(on_error_, file_, name_, "open", [&] { return H5Pget_chunk(creation.id(), static_cast<int>(chunk.size()), chunk.data()); });
  auto bytes = static_cast<std::int64_t>(H5Tget_size(type.id()));
  for (const hsize_t n : chunk)
    if (__builtin_mul_overflow(bytes, static_cast<std::int64_t>(n), &bytes)) return std::numeric_limits<std::int64_t>::max();
  return bytes;
}

std::string Dataset::missing() const {
  Handle creation = make(on_error_, file_, name_, "open", [&] { return H5Dget_create_plist(handle_.id()); });
  Handle type = make(on_error_, file_, name_, "open", [&] { return H5Dget_type(handle_.id()); });
  Handle owner = make(on_error_, file_, name_, "open", [&] { return H5Iget_file_id(handle_.id()); });
  Handle space = make(on_error_, file_, name_, "open", [&] { return H5Dget_space(handle_.id()); });
  std::lock_guard guard(library_lock());
  hsize_t elements = 1;
  for (auto d : dims_) {
    if (d == 0) return "";
    if (__builtin_mul_overflow(elements, static_cast<hsize_t>(d), &elements)) return "its dims have more elements than a file can hold";
  }
  switch (H5Pget_layout(creation.id())) {
    case H5D_COMPACT:
      return "";
    case H5D_CONTIGUOUS: {
      if (H5Pget_external_count(creation.id()) > 0) return "its elements are in other files";
      const haddr_t at = H5Dget_offset(handle_.id());
      if (at == HADDR_UNDEF) return "none of its elements was ever written";
      hsize_t file_bytes = 0, bytes = 0;
      checked(on_error_, file_, name_, "open", [&] { return H5Fget_filesize(owner.id(), &file_bytes); });
      const bool fits = !__builtin_mul_overflow(elements, static_cast<hsize_t>(H5Tget_size(type.id())), &bytes) && bytes <= file_bytes &&
                        at <= file_bytes - bytes;
      return fits ? "" : fmt::format("it declares {} elements, but the file has {} bytes", elements, file_bytes);
    }
    case H5D_CHUNKED: {
      std::vector<hsize_t> chunk(dims_.size());
      checked(on_error_, file_, name_, "open", [&] { return H5Pget_chunk(creation.id(), static_cast<int>(chunk.size()), chunk.data()); });
      hsize_t declared = 1, present = 0;
      for (std::size_t k = 0; k < chunk.size(); ++k) {
        const auto d = static_cast<hsize_t>(dims_[k]);
        declared *= d / chunk[k] + (d % chunk[k] != 0);  // cannot exceed `elements`
      }
      checked(on_error_, file_, name_, "open", [&] { return H5Dget_num_chunks(handle_.id(), space.id(), &present); });
      return present >= declared ? "" : fmt::format("{} of its {} chunks are not in the file", declared - present, declared);
    }
    default:
      return "it is a virtual dataset, whose elements are in other files";
  }
}

void Dataset::read_box(const Box& box, Element memory, void* out) const {
  TESSERA_REQUIRE(box.start.size() == dims_.size() && box.count.size() == dims_.size(), "{}: {}", file_, name_);
  auto start = sizes(box.start), count = sizes(box.count);
  for (auto c : count)
    if (c == 0) return;
  Handle space = make(on_error_, file_, name_, "read", [&] { return H5Dget_space(handle_.id()); });
  // A scalar has no box to select: it is read whole.
  if (!dims_.empty())
    checked(on_error_, file_, name_, "read",
            [&] { return H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr); });
  Handle inside = dims_.empty() ? make(on_error_, file_, name_, "read", [&] { return H5Dget_space(handle_.id()); })
                                : dataspace(on_error_, file_, name_, box.count);
  checked(on_error_, file_, name_, "read",
          [&] { return H5Dread(handle_.id(), memory_type(memory), inside.id(), space.id(), H5P_DEFAULT, out); });
}

void Dataset::append_raw(Element memory, const void* data, std::int64_t count) {
  TESSERA_REQUIRE(dims_.size() == 1);
  if (count == 0) return;
  hsize_t start = static_cast<hsize_t>(dims_[0]), n = static_cast<hsize_t>(count), end = start + n;
  checked(on_error_, file_, name_, "extend", [&] { return H5Dset_extent(handle_.id(), &end); });
  Handle space = make(on_error_, file_, name_, "write", [&] { return H5Dget_space(handle_.id()); });
  checked(on_error_, file_, name_, "write", [&] { return H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &start, nullptr, &n, nullptr); });
  Handle inside = dataspace(on_error_, file_, name_, {count});
  checked(on_error_, file_, name_, "write",
          [&] { return H5Dwrite(handle_.id(), memory_type(memory), inside.id(), space.id(), H5P_DEFAULT, data); });
  dims_[0] += count;
}

// Files

File File::create(const std::string& path, const CreateOptions& options, ExitCode on_error, const std::string& shown_name) {
  const std::string& shown = shown_name.empty() ? path : shown_name;
  Handle access = make(on_error, shown, "/", "create", [] { return H5Pcreate(H5P_FILE_ACCESS); });
  Handle creation = make(on_error, shown, "/", "create", [] { return H5Pcreate(H5P_FILE_CREATE); });
  // The newest layout of 1.10: its metadata carry checksums.
  checked(on_error, shown, "/", "create", [&] { return H5Pset_libver_bounds(access.id(), H5F_LIBVER_V110, H5F_LIBVER_V110); });
  checked(on_error, shown, "/", "create", [&] { return H5Pset_file_locking(access.id(), 0, 1); });
  // The default driver resolves symbolic links, and /proc/self/fd/N leads to no name; the stdio driver opens what it is given.
  if (options.through_descriptor) checked(on_error, shown, "/", "create", [&] { return H5Pset_fapl_stdio(access.id()); });
  if (options.alignment > 0)
    checked(on_error, shown, "/", "create", [&] { return H5Pset_alignment(access.id(), 65536, static_cast<hsize_t>(options.alignment)); });
  if (options.user_block > 0)
    checked(on_error, shown, "/", "create", [&] { return H5Pset_userblock(creation.id(), static_cast<hsize_t>(options.user_block)); });
  Handle file = make(on_error, shown, "/", "create", [&] { return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()); });
  return File(std::move(file), shown, "/", on_error);
}

File File::open(const std::string& path, ExitCode on_error) {
  Handle access = make(on_error, path, "/", "open", [] { return H5Pcreate(H5P_FILE_ACCESS); });
  checked(on_error, path, "/", "open", [&] { return H5Pset_file_locking(access.id(), 0, 1); });
  Handle file = make(on_error, path, "/", "open as HDF5", [&] { return H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()); });
  return File(std::move(file), path, "/", on_error);
}

Group File::create_group(const std::string& name) {
  return Group(
      make(on_error_, file_, name, "create", [&] { return H5Gcreate2(handle_.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT); }),
      file_, name, on_error_);
}

bool File::has(const std::string& name) const {
  return checked(on_error_, file_, name, "look for", [&] { return H5Lexists(handle_.id(), name.c_str(), H5P_DEFAULT); }) > 0;
}

Dataset File::create_contiguous(const std::string& name, Element element, const std::vector<std::int64_t>& dims) {
  Handle space = dataspace(on_error_, file_, name, dims);
  Handle creation = make(on_error_, file_, name, "create", [] { return H5Pcreate(H5P_DATASET_CREATE); });
  checked(on_error_, file_, name, "create", [&] { return H5Pset_layout(creation.id(), H5D_CONTIGUOUS); });
  checked(on_error_, file_, name, "create", [&] { return H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY); });
  checked(on_error_, file_, name, "create", [&] { return H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER); });
  return Dataset(
      make(on_error_, file_, name, "create",
           [&] { return H5Dcreate2(handle_.id(), name.c_str(), file_type(element), space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT); }),
      file_, name, on_error_);
}

Dataset File::create_extendible(const std::string& name, Element element, std::int64_t chunk_elements) {
  hsize_t none = 0, most = H5S_UNLIMITED, chunk = static_cast<hsize_t>(chunk_elements);
  Handle space = make(on_error_, file_, name, "create", [&] { return H5Screate_simple(1, &none, &most); });
  Handle creation = make(on_error_, file_, name, "create", [] { return H5Pcreate(H5P_DATASET_CREATE); });
  checked(on_error_, file_, name, "create", [&] { return H5Pset_chunk(creation.id(), 1, &chunk); });
  return Dataset(
      make(on_error_, file_, name, "create",
           [&] { return H5Dcreate2(handle_.id(), name.c_str(), file_type(element), space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT); }),
      file_, name, on_error_);
}

void File::create_virtual(const std::string& name, Element element, const std::vector<std::int64_t>& dims,
                          std::span<const VirtualSource> sources) {
  Handle space = dataspace(on_error_, file_, name, dims);
  Handle creation = make(on_error_, file_, name, "create", [] { return H5Pcreate(H5P_DATASET_CREATE); });
  if (element == Element::f32) {
    const float missing = std::numeric_limits<float>::quiet_NaN();
    checked(on_error_, file_, name, "create", [&] { return H5Pset_fill_value(creation.id(), H5T_NATIVE_FLOAT, &missing); });
  }
  for (const auto& s : sources) {
    auto start = sizes(s.target.start), count = sizes(s.target.count);
    hsize_t from = static_cast<hsize_t>(s.begin), n = 1;
    for (auto c : count) n *= c;
    Handle source = dataspace(on_error_, file_, name, {s.source_elements});
    checked(on_error_, file_, name, "map", [&] { return H5Sselect_hyperslab(source.id(), H5S_SELECT_SET, &from, nullptr, &n, nullptr); });
    checked(on_error_, file_, name, "map",
            [&] { return H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr); });
    checked(on_error_, file_, name, "map",
            [&] { return H5Pset_virtual(creation.id(), space.id(), s.file.c_str(), s.dataset.c_str(), source.id()); });
  }
  checked(on_error_, file_, name, "map", [&] { return H5Sselect_all(space.id()); });
  make(on_error_, file_, name, "create",
       [&] { return H5Dcreate2(handle_.id(), name.c_str(), file_type(element), space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT); });
}

Dataset File::open_dataset(const std::string& name) const {
  {
    Dataset plain = open_with_cache(name, 0);
    const std::int64_t bytes = plain.filtered_chunk_bytes();
    if (bytes == 0 || bytes > most_filtered_chunk_bytes) return plain;
  }  // an open dataset keeps the cache that it was first opened with
  return open_with_cache(name, most_filtered_chunk_bytes);
}

Dataset File::open_with_cache(const std::string& name, std::int64_t bytes) const {
  Handle access = make(on_error_, file_, name, "open", [] { return H5Pcreate(H5P_DATASET_ACCESS); });
  checked(on_error_, file_, name, "open", [&] { return H5Pset_chunk_cache(access.id(), 1, static_cast<std::size_t>(bytes), 1.0); });
  return Dataset(make(on_error_, file_, name, "open", [&] { return open_here(handle_.id(), name, access.id()); }), file_, name, on_error_);
}

void File::close() {
  checked(on_error_, file_, "/", "write", [&] { return H5Fflush(handle_.id(), H5F_SCOPE_LOCAL); });
  checked(on_error_, file_, "/", "close", [&] { return H5Fclose(handle_.release()); });
}

}  // namespace tessera::io::hdf5
