// Attributes and texts: fixed-length strings are written, fixed and variable ones are read.
#include <cstring>

#include "io/hdf5/hdf5.hpp"
#include "io/hdf5/library.hpp"

namespace tessera::io::hdf5 {
namespace {

constexpr std::size_t most_text_bytes = 256 << 20;

Handle string_type(ExitCode code, const std::string& file, const std::string& object, std::size_t bytes) {
  Handle type(checked(code, file, object, "describe", [] { return H5Tcopy(H5T_C_S1); }));
  checked(code, file, object, "describe", [&] { return H5Tset_size(type.id(), bytes == 0 ? 1 : bytes); });
  checked(code, file, object, "describe", [&] { return H5Tset_cset(type.id(), H5T_CSET_UTF8); });
  checked(code, file, object, "describe", [&] { return H5Tset_strpad(type.id(), H5T_STR_NULLPAD); });
  return type;
}

/// Reads one string, of fixed or variable length, with `read(memory type, buffer)`.
template <class Read>
std::optional<std::string> read_string(hid_t type, Read&& read) {
  if (H5Tget_class(type) != H5T_STRING) return std::nullopt;
  if (H5Tis_variable_str(type) > 0) {
    char* text = nullptr;
    if (read(type, &text) < 0 || !text) return std::nullopt;
    std::string out = text;
    H5free_memory(text);
    return out;
  }
  if (H5Tget_size(type) > most_text_bytes) return std::nullopt;  // it is made room for before it is known whether it is there
  std::string out(H5Tget_size(type), '\0');
  if (read(type, out.data()) < 0) return std::nullopt;
  out.resize(::strnlen(out.data(), out.size()));
  return out;
}

void write_attribute(const Handle& owner, const std::string& file, const std::string& key, ExitCode code, hid_t stored, hid_t memory,
                     const void* value) {
  Handle space(checked(code, file, key, "describe", [] { return H5Screate(H5S_SCALAR); }));
  Handle attribute(checked(code, file, key, "create attribute",
                           [&] { return H5Acreate2(owner.id(), key.c_str(), stored, space.id(), H5P_DEFAULT, H5P_DEFAULT); }));
  checked(code, file, key, "write attribute", [&] { return H5Awrite(attribute.id(), memory, value); });
}

}  // namespace

void Object::set_attribute(const std::string& key, std::int64_t value) {
  write_attribute(handle_, file_, key, on_error_, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void Object::set_attribute(const std::string& key, std::uint64_t value) {
  write_attribute(handle_, file_, key, on_error_, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}

void Object::set_attribute(const std::string& key, double value) {
  write_attribute(handle_, file_, key, on_error_, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

void Object::set_attribute(const std::string& key, std::string_view value) {
  Handle type = string_type(on_error_, file_, key, value.size());
  write_attribute(handle_, file_, key, on_error_, type.id(), type.id(), value.empty() ? "" : value.data());
}

std::optional<std::int64_t> Object::integer_attribute(const std::string& key) const {
  std::lock_guard guard(library_lock());
  if (H5Aexists(handle_.id(), key.c_str()) <= 0) return std::nullopt;
  Handle attribute(H5Aopen(handle_.id(), key.c_str(), H5P_DEFAULT));
  Handle type(H5Aget_type(attribute.id())), space(H5Aget_space(attribute.id()));
  std::int64_t value = 0;
  if (H5Tget_class(type.id()) != H5T_INTEGER || H5Sget_simple_extent_npoints(space.id()) != 1) return std::nullopt;
  if (H5Aread(attribute.id(), H5T_NATIVE_INT64, &value) < 0) return std::nullopt;
  return value;
}

std::optional<std::string> Object::text_attribute(const std::string& key) const {
  std::lock_guard guard(library_lock());
  if (H5Aexists(handle_.id(), key.c_str()) <= 0) return std::nullopt;
  Handle attribute(H5Aopen(handle_.id(), key.c_str(), H5P_DEFAULT));
  Handle type(H5Aget_type(attribute.id())), space(H5Aget_space(attribute.id()));
  if (H5Sget_simple_extent_npoints(space.id()) != 1) return std::nullopt;
  return read_string(type.id(), [&](hid_t memory, void* out) { return H5Aread(attribute.id(), memory, out); });
}

void File::create_text(const std::string& name, std::string_view text) {
  Handle type = string_type(on_error_, file_, name, text.size());
  Handle space(checked(on_error_, file_, name, "describe", [] { return H5Screate(H5S_SCALAR); }));
  Handle dataset(checked(on_error_, file_, name, "create", [&] {
    return H5Dcreate2(handle_.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  }));
  checked(on_error_, file_, name, "write",
          [&] { return H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.empty() ? "" : text.data()); });
}

std::string File::read_text(const std::string& name) const {
  std::lock_guard guard(library_lock());
  Handle dataset(checked(on_error_, file_, name, "open", [&] { return open_here(handle_.id(), name); }));
  Handle type(checked(on_error_, file_, name, "open", [&] { return H5Dget_type(dataset.id()); }));
  auto text =
      read_string(type.id(), [&](hid_t memory, void* out) { return H5Dread(dataset.id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); });
  if (!text) fail(on_error_, "{}: {} is not a text.", file_, name);
  return *text;
}

}  // namespace tessera::io::hdf5
