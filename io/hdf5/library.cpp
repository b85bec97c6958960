#include "io/hdf5/library.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/open_files.hpp"

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

namespace {

thread_local bool t_refused_link = false;

herr_t refuse_link(const char*, const char*, const char*, const char*, unsigned*, hid_t, void*) {
  t_refused_link = true;
  return -1;
}

}  // namespace

hid_t open_here(hid_t file, const std::string& name, hid_t access) {
  t_refused_link = false;
  const hid_t links = access == H5P_DEFAULT ? H5Pcreate(H5P_DATASET_ACCESS) : access;
  const hid_t opened = H5Pset_elink_cb(links, refuse_link, nullptr) < 0 ? -1 : H5Dopen2(file, name.c_str(), links);
  if (access == H5P_DEFAULT) H5Pclose(links);
  return opened;
}

std::string library_reason() {
  if (std::exchange(t_refused_link, false))
    return "it is a link to another file, but a file must hold all its data; copy the dataset itself";
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  // "unable to open file: name = ..., errno = 13, error message = 'Permission denied', flags = ..."
  const std::string mark = "error message = '";
  if (auto at = reason.find(mark); at != std::string::npos) {
    auto end = reason.find('\'', at + mark.size());
    if (end != std::string::npos) reason = reason.substr(at + mark.size(), end - at - mark.size());
  }
  if (reason == std::strerror(EMFILE)) reason += ". " + open_advice(EMFILE);
  return reason.empty() ? "HDF5 gives no reason" : reason;
}

}  // namespace tessera::io::hdf5
