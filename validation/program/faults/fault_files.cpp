// Loaded into a program by LD_PRELOAD: calls that name a file fail as a broken disk, a lost server or a lack of permission would make them.
//   FAULT_FILES="EIO:/step-00000008/;ESTALE:/checkpoints:open,opendir"   error:part of the path[:calls; all without]; the first that fits
//   counts FAULT_FREE_BYTES=1048576                                             what statvfs says is free, on every file system
//   FAULT_FREE_FILES=0                                                          how many more files there may be, likewise
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace {

int number_of(std::string_view name) {
  for (auto [known, number] : {std::pair{"EIO", EIO}, {"ESTALE", ESTALE}, {"EACCES", EACCES}, {"ENOSPC", ENOSPC}, {"ELOOP", ELOOP}})
    if (name == known) return number;
  std::fprintf(stderr, "FAULT_FILES: %.*s is not known\n", static_cast<int>(name.size()), name.data());
  std::abort();
}

std::string_view cut(std::string_view& text, char at) {
  const auto end = text.find(at);
  const auto head = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return head;
}

/// Whether the call is to fail; errno says how then.
bool fails(std::string_view call, int folder, const char* path) {
  const char* faults = std::getenv("FAULT_FILES");
  if (!faults || !path) return false;
  std::string whole = path;
  if (*path != '/' && folder != AT_FDCWD) {
    char name[4096];
    const auto n = syscall(SYS_readlinkat, AT_FDCWD, ("/proc/self/fd/" + std::to_string(folder)).c_str(), name, sizeof name);
    if (n > 0) whole = std::string(name, static_cast<std::size_t>(n)) + "/" + path;
  }
  for (std::string_view rest = faults; !rest.empty();) {
    std::string_view rule = cut(rest, ';');
    const auto error = cut(rule, ':'), part = cut(rule, ':');
    if (whole.find(part) == std::string::npos) continue;
    if (!rule.empty() && ("," + std::string(rule) + ",").find("," + std::string(call) + ",") == std::string::npos) continue;
    errno = number_of(error);
    return true;
  }
  return false;
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Each is the system's function of that name, or the failure. `folder` and `path` are those of its arguments.
#define FAULTY(result, failure, call, name, parameters, arguments, folder, path) \
  extern "C" result name parameters {                                            \
    using Function = result(*) parameters;                                       \
    static const auto real = next<Function>(#name);                              \
    if (fails(call, folder, path)) return failure;                               \
    return real arguments;                                                       \
  }
#define FAULTY_OPEN(name)                                                 \
  extern "C" int name(const char* path, int flags, ...) {                 \
    static const auto real = next<int (*)(const char*, int, ...)>(#name); \
    va_list more;                                                         \
    va_start(more, flags);                                                \
    const int mode = va_arg(more, int);                                   \
    va_end(more);                                                         \
    return fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);  \
  }
#define FAULTY_OPENAT(name)                                                    \
  extern "C" int name(int folder, const char* path, int flags, ...) {          \
    static const auto real = next<int (*)(int, const char*, int, ...)>(#name); \
    va_list more;                                                              \
    va_start(more, flags);                                                     \
    const int mode = va_arg(more, int);                                        \
    va_end(more);                                                              \
    return fails("open", folder, path) ? -1 : real(folder, path, flags, mode); \
  }

FAULTY(int, -1, "stat", stat, (const char* p, struct stat* s), (p, s), AT_FDCWD, p)
FAULTY(int, -1, "stat", stat64, (const char* p, struct stat64* s), (p, s), AT_FDCWD, p)
FAULTY(int, -1, "lstat", lstat, (const char* p, struct stat* s), (p, s), AT_FDCWD, p)
FAULTY(int, -1, "lstat", lstat64, (const char* p, struct stat64* s), (p, s), AT_FDCWD, p)
FAULTY(int, -1, "stat", fstatat, (int d, const char* p, struct stat* s, int f), (d, p, s, f), d, p)
FAULTY(int, -1, "stat", fstatat64, (int d, const char* p, struct stat64* s, int f), (d, p, s, f), d, p)
FAULTY(ssize_t, -1, "readlink", readlink, (const char* p, char* b, size_t n), (p, b, n), AT_FDCWD, p)
FAULTY(DIR*, nullptr, "opendir", opendir, (const char* p), (p), AT_FDCWD, p)
FAULTY(FILE*, nullptr, "open", fopen, (const char* p, const char* m), (p, m), AT_FDCWD, p)
FAULTY(FILE*, nullptr, "open", fopen64, (const char* p, const char* m), (p, m), AT_FDCWD, p)
FAULTY(int, -1, "rename", rename, (const char* p, const char* q), (p, q), AT_FDCWD, q)
FAULTY_OPEN(open)
FAULTY_OPEN(open64)
FAULTY_OPENAT(openat)
FAULTY_OPENAT(openat64)

extern "C" int statvfs(const char* path, struct statvfs* s) {
  static const auto real = next<int (*)(const char*, struct statvfs*)>("statvfs");
  const int result = real(path, s);
  if (const char* bytes = std::getenv("FAULT_FREE_BYTES"); bytes && result == 0)
    s->f_bavail = s->f_bfree = std::strtoull(bytes, nullptr, 10) / s->f_frsize;
  if (const char* files = std::getenv("FAULT_FREE_FILES"); files && result == 0)
    s->f_files = 1000, s->f_favail = s->f_ffree = std::strtoull(files, nullptr, 10);
  return result;
}
