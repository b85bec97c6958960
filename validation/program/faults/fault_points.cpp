// Loaded into a program by LD_PRELOAD: ends it by SIGKILL at one of its calls that change files, chosen by number, as a lost machine would.
//   FAULT_POINTS="/run/checkpoints"   calls on what lies below count
//   FAULT_AT=17                       before which of them the program ends; 0 or without: none
//   FAULT_LOSES=1                     what no fsync has made sure of is lost: bytes become zeros, new names go, renamed files are back
//   FAULT_COUNT="FILE"                how many there were is kept in it
//   FAULT_RANK="PMI_RANK=1"           in the process alone where the variable has that value
//   FAULT_LINKS=EPERM                 hard links below fail, as where a file has one name; they do not count
// A failing disk instead: FAULT_ERROR="EIO" (ENOSPC, EROFS): that call and, without FAULT_ONCE=1, all later ones fail.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Of the process: read once, before threads.
struct Plan {
  std::string below = variable("FAULT_POINTS"), count_file = variable("FAULT_COUNT");
  long at = std::atol(variable("FAULT_AT").c_str());
  bool loses = variable("FAULT_LOSES") == "1", once = variable("FAULT_ONCE") == "1";
  int error = 0;
  Plan() {
    const std::string name = variable("FAULT_ERROR"), rank = variable("FAULT_RANK");
    for (const auto& [known, number] : {std::pair{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EROFS", EROFS}})
      if (name == known) error = number;
    const std::size_t equals = rank.find('=');
    if (equals != rank.npos && variable(rank.substr(0, equals).c_str()) != rank.substr(equals + 1)) below.clear();
  }
};
const Plan& plan() {
  static const Plan& made = *new Plan;  // outlives what runs at exit
  return made;
}

std::atomic<long> calls{0};

/// What is not yet on the disk, as a disk that loses its cache would have it.
struct Unsynced {
  struct Write {
    dev_t device;
    ino_t inode;
    int file;  // a descriptor of our own
    off_t begin, end;
  };
  struct Name {
    std::string folder, path, from;  // `from` empty: made anew
    bool exchanged;
    std::string target;  // of the link that stood there
  };
  std::mutex lock;
  std::vector<Write> writes;
  std::vector<Name> names;
};
Unsynced& unsynced() {
  static Unsynced& made = *new Unsynced;  // outlives the threads that write
  return made;
}

std::string path_of(int folder, const char* path) {
  if (!path) return "";
  if (*path == '/' || folder == AT_FDCWD) return path;
  char name[4096];
  const auto n = syscall(SYS_readlinkat, AT_FDCWD, ("/proc/self/fd/" + std::to_string(folder)).c_str(), name, sizeof name);
  return n > 0 ? std::string(name, static_cast<std::size_t>(n)) + "/" + path : path;
}
std::string path_of(int file) {
  std::string path = path_of(file, ".");
  return path.size() > 2 ? path.substr(0, path.size() - 2) : path;
}
std::string folder_of(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

void lose() {
  Unsynced& u = unsynced();
  // Newest first, so that what was done twice is undone twice.
  for (auto name = u.names.rbegin(); name != u.names.rend(); ++name)
    if (name->exchanged)
      syscall(SYS_renameat2, AT_FDCWD, name->path.c_str(), AT_FDCWD, name->from.c_str(), 2);
    else if (!name->from.empty()) {
      syscall(SYS_renameat2, AT_FDCWD, name->path.c_str(), AT_FDCWD, name->from.c_str(), 1);
      if (!name->target.empty()) syscall(SYS_symlinkat, name->target.c_str(), AT_FDCWD, name->path.c_str());
    } else if (syscall(SYS_unlinkat, AT_FDCWD, name->path.c_str(), 0) != 0)
      syscall(SYS_unlinkat, AT_FDCWD, name->path.c_str(), AT_REMOVEDIR);
  const std::vector<char> zeros(1 << 16);
  for (const Unsynced::Write& w : u.writes)
    for (off_t at = w.begin; at < w.end; at += static_cast<off_t>(zeros.size()))
      syscall(SYS_pwrite64, w.file, zeros.data(), std::min(zeros.size(), static_cast<std::size_t>(w.end - at)), at);
}

void keep_count(long number) {
  static std::mutex lock;
  static long most = 0;
  const std::lock_guard held(lock);
  if (number <= std::exchange(most, std::max(most, number))) return;
  static const int file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, plan().count_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  const std::string text = std::to_string(number) + "\n";
  syscall(SYS_pwrite64, file, text.data(), text.size(), 0);
}

/// Before a call that changes `path`: whether it is to fail; errno says how then. Ends the program where its number has come.
bool fails(const std::string& path) {
  const Plan& p = plan();
  if (p.below.empty() || path.find(p.below) == path.npos) return false;
  const long number = ++calls;
  if (!p.count_file.empty()) keep_count(number);
  if (p.at == 0 || (p.error != 0 && !p.once ? number < p.at : number != p.at)) return false;
  if (p.error != 0) return errno = p.error, true;
  const std::lock_guard held(unsynced().lock);
  if (p.loses) lose();
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

void note_write(int file, off_t begin, ssize_t bytes) {
  struct stat s;
  if (!plan().loses || bytes <= 0 || fstat(file, &s) != 0 || path_of(file).find(plan().below) == std::string::npos) return;
  const std::lock_guard held(unsynced().lock);
  for (Unsynced::Write& w : unsynced().writes)
    if (w.device == s.st_dev && w.inode == s.st_ino && w.end == begin) return void(w.end = begin + bytes);
  // A descriptor with O_DIRECT could not write what is not aligned.
  const int own =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, ("/proc/self/fd/" + std::to_string(file)).c_str(), O_WRONLY | O_CLOEXEC, 0));
  unsynced().writes.push_back({s.st_dev, s.st_ino, own, begin, begin + bytes});
}

void note_sync(int file) {
  struct stat s;
  if (!plan().loses || fstat(file, &s) != 0) return;
  const std::lock_guard held(unsynced().lock);
  if (S_ISDIR(s.st_mode)) {
    const std::string folder = path_of(file);
    std::erase_if(unsynced().names, [&](const auto& name) { return name.folder == folder; });
    return;
  }
  std::erase_if(unsynced().writes, [&](const Unsynced::Write& w) {
    if (w.device != s.st_dev || w.inode != s.st_ino) return false;
    syscall(SYS_close, w.file);
    return true;
  });
}

void note_name(const std::string& path, const std::string& from, bool exchanged, const std::string& target = "") {
  if (!plan().loses || path.find(plan().below) == std::string::npos) return;
  const std::lock_guard held(unsynced().lock);
  unsynced().names.push_back({folder_of(path), path, from, exchanged, target});
}

int open_at(int folder, const char* path, int flags, int mode) {
  const bool makes = (flags & (O_CREAT | O_TRUNC)) && (flags & O_TMPFILE) != O_TMPFILE;  // O_TMPFILE's file has no name
  const std::string whole = path_of(folder, path);
  if (makes && fails(whole)) return -1;
  struct stat s;
  const bool fresh = (flags & O_CREAT) && syscall(SYS_newfstatat, folder, path, &s, 0) != 0;
  const int file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  if (file >= 0 && makes && fresh) note_name(whole, "", false);
  return file;
}

}  // namespace

#define OPEN(name)                                                            \
  extern "C" int name(const char* path, int flags, ...) {                     \
    va_list more;                                                             \
    va_start(more, flags);                                                    \
    const int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, int) : 0; \
    va_end(more);                                                             \
    return open_at(AT_FDCWD, path, flags, mode);                              \
  }
#define OPENAT(name)                                                          \
  extern "C" int name(int folder, const char* path, int flags, ...) {         \
    va_list more;                                                             \
    va_start(more, flags);                                                    \
    const int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, int) : 0; \
    va_end(more);                                                             \
    return open_at(folder, path, flags, mode);                                \
  }
/// The system's function of that name, unless its call is to fail.
#define COUNTED(name, parameters, arguments, path)           \
  extern "C" int name parameters {                           \
    static const auto real = next<int(*) parameters>(#name); \
    return fails(path) ? -1 : real arguments;                \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define WRITE_AT(name)                                                                           \
  extern "C" ssize_t name(int file, const void* data, size_t bytes, off_t offset) {              \
    if (fails(path_of(file))) return -1;                                                         \
    const ssize_t done = static_cast<ssize_t>(syscall(SYS_pwrite64, file, data, bytes, offset)); \
    note_write(file, offset, done);                                                              \
    return done;                                                                                 \
  }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

#define SYNC(name, number)                                      \
  extern "C" int name(int file) {                               \
    if (fails(path_of(file))) return -1;                        \
    const int result = static_cast<int>(syscall(number, file)); \
    if (result == 0) note_sync(file);                           \
    return result;                                              \
  }
SYNC(fsync, SYS_fsync)
SYNC(fdatasync, SYS_fdatasync)

COUNTED(ftruncate, (int file, off_t bytes), (file, bytes), path_of(file))
COUNTED(ftruncate64, (int file, off_t bytes), (file, bytes), path_of(file))
COUNTED(fallocate, (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes), path_of(file))
COUNTED(fallocate64, (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes), path_of(file))
COUNTED(unlink, (const char* path), (path), path_of(AT_FDCWD, path))
COUNTED(unlinkat, (int folder, const char* path, int flags), (folder, path, flags), path_of(folder, path))
COUNTED(rmdir, (const char* path), (path), path_of(AT_FDCWD, path))
COUNTED(remove, (const char* path), (path), path_of(AT_FDCWD, path))

extern "C" int mkdir(const char* path, mode_t mode) {
  if (fails(path_of(AT_FDCWD, path))) return -1;
  const int result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) note_name(path_of(AT_FDCWD, path), "", false);
  return result;
}
extern "C" int symlink(const char* to, const char* path) {
  if (fails(path_of(AT_FDCWD, path))) return -1;
  const int result = static_cast<int>(syscall(SYS_symlinkat, to, AT_FDCWD, path));
  if (result == 0) note_name(path_of(AT_FDCWD, path), "", false);
  return result;
}
extern "C" int link(const char* from, const char* path) {
  if (!variable("FAULT_LINKS").empty() && path_of(AT_FDCWD, path).find(plan().below) != std::string::npos) return errno = EPERM, -1;
  if (fails(path_of(AT_FDCWD, path))) return -1;
  const int result = static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, path, 0));
  if (result == 0) note_name(path_of(AT_FDCWD, path), "", false);
  return result;
}
extern "C" int rename(const char* from, const char* to) {
  if (fails(path_of(AT_FDCWD, to))) return -1;
  struct stat s;
  const bool replaces = syscall(SYS_newfstatat, AT_FDCWD, to, &s, AT_SYMLINK_NOFOLLOW) == 0;
  char target[4096];
  const auto length = replaces ? syscall(SYS_readlinkat, AT_FDCWD, to, target, sizeof target) : 0;
  const int result = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  // A file's name that took another's place cannot be taken back without what stood there; a link's can.
  if (result == 0 && (!replaces || length > 0))
    note_name(path_of(AT_FDCWD, to), path_of(AT_FDCWD, from), false, std::string(target, static_cast<std::size_t>(std::max(length, 0L))));
  return result;
}
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (fails(path_of(to_folder, to))) return -1;
  const int result = static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (result == 0) note_name(path_of(to_folder, to), path_of(from_folder, from), (flags & 2) != 0);
  return result;
}
