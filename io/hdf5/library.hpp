// Calls into HDF5: one lock, quiet, and its own words when something fails. Included only by io/hdf5/*.cpp.
#pragma once
#include <hdf5.h>

#include <mutex>
#include <string>

#include "base/check.hpp"

namespace tessera::io::hdf5 {

/// HDF5 keeps global state and is built without locks; this is the lock for it.
std::recursive_mutex& library_lock();
/// The most specific line of HDF5's error stack; the system's reason where it has one.
std::string library_reason();

/// Opens a dataset of this very file: no link to another one is followed along its path. `access`: its access properties. Negative where it
/// fails; library_reason() then says why.
hid_t open_here(hid_t file, const std::string& name, hid_t access = H5P_DEFAULT);

/// Runs `call` under the lock; a negative result is an Error(code): "FILE: cannot ACTION OBJECT: reason".
template <class F>
auto checked(ExitCode code, const std::string& file, const std::string& object, const char* action, F&& call) {
  std::lock_guard guard(library_lock());
  auto result = call();
  if (static_cast<std::int64_t>(result) < 0)
    fail(code, "{}: cannot {}{}{}: {}.", file, action, object.empty() || object == "/" ? "" : " ", object == "/" ? "" : object,
         library_reason());
  return result;
}

}  // namespace tessera::io::hdf5
