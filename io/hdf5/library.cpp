#include "io/hdf5/library.hpp"

namespace tessera::io::hdf5 {
namespace {

herr_t keep_first(unsigned n, const H5E_error2_t* error, void* out) {
  if (n == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
  return 0;
}

}  // namespace

std::recursive_mutex& library_lock() {
  // HDF5 prints its stack to standard error on its own unless told otherwise; failures are reported by Error alone.
  static std::recursive_mutex& lock = []() -> std::recursive_mutex& {
    static std::recursive_mutex made;
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return made;
  }();
  return lock;
}

std::string library_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  // "unable to open file: name = ..., errno = 13, error message = 'Permission denied', flags = ..."
  const std::string mark = "error message = '";
  if (auto at = reason.find(mark); at != std::string::npos) {
    auto end = reason.find('\'', at + mark.size());
    if (end != std::string::npos) reason = reason.substr(at + mark.size(), end - at - mark.size());
  }
  return reason.empty() ? "HDF5 gives no reason" : reason;
}

}  // namespace tessera::io::hdf5
