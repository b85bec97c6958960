#include "fault_disk.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr int as_short = -1, as_stall = -2;

struct Rule {
  int error;  // of errno, or as_short, as_stall
  std::string call, part;
  long first = 1, count = -1, seen = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  long generation = 0;
  std::vector<Rule> rules;
  int released = -1;                                  // an eventfd that stalled requests of io_uring wait for
  std::map<std::uint64_t, int> answers;               // that such requests get instead of the kernel's
  std::map<const io_uring*, std::vector<int>> files;  // registered ones
};

int number_of(const std::string& name) {
  const std::pair<const char*, int> known[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC},         {"EINTR", EINTR},   {"EAGAIN", EAGAIN},
                                               {"EPERM", EPERM},   {"EOPNOTSUPP", EOPNOTSUPP}, {"EINVAL", EINVAL}, {"ENOMEM", ENOMEM},
                                               {"EBUSY", EBUSY},   {"ENOSYS", ENOSYS},         {"ENOLCK", ENOLCK}, {"SHORT", as_short},
                                               {"STALL", as_stall}};
  for (auto [word, number] : known)
    if (name == word) return number;
  std::fprintf(stderr, "fault_disk: %s is not known\n", name.c_str());
  std::abort();
}

std::vector<Rule> parse(std::string_view text) {
  const auto cut = [](std::string_view& from, char at) {
    const auto end = from.find(at);
    const std::string head(from.substr(0, end));
    from.remove_prefix(end == std::string_view::npos ? from.size() : end + 1);
    return head;
  };
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::string line = cut(text, ';');
    std::string_view rest = line;
    Rule r{.error = number_of(cut(rest, ':')), .call = cut(rest, ':'), .part = cut(rest, ':')};
    if (!rest.empty()) r.first = std::atol(cut(rest, ':').c_str());
    if (!rest.empty()) r.count = std::atol(cut(rest, ':').c_str());
    rules.push_back(std::move(r));
  }
  return rules;
}

State& state() {
  static State& s = *[] {
    auto* made = new State;  // never destroyed: threads may be in here when the process ends
    made->released = ::eventfd(0, EFD_CLOEXEC);
    if (const char* rules = std::getenv("FAULT_DISK")) made->rules = parse(rules);
    return made;
  }();
  return s;
}

std::string path_of(int descriptor) {
  char name[4096];
  const auto n = ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), name, sizeof name);
  return n > 0 ? std::string(name, static_cast<std::size_t>(n)) : "";
}

/// What this call is to meet; 0: nothing. The mutex is held.
int fault_of(State& s, std::string_view call, const std::string& path) {
  for (Rule& r : s.rules) {
    if (r.call != call || path.find(r.part) == std::string::npos) continue;
    ++r.seen;
    if (r.seen >= r.first && (r.count < 0 || r.seen < r.first + r.count)) return r.error;
  }
  return 0;
}

int fault_of(std::string_view call, const std::string& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return fault_of(s, call, path);
}

/// Whether the call is to fail; errno says how then.
bool fails(std::string_view call, const std::string& path) {
  const int error = fault_of(call, path);
  if (error > 0) errno = error;
  return error > 0;
}

/// Whether this process has it open: some file systems keep the names of such files.
bool is_open(const char* path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc/self/fd"), &::closedir);
  while (const dirent* entry = all ? ::readdir(all.get()) : nullptr)
    if (path_of(std::atoi(entry->d_name)) == path) return true;
  return false;
}

std::size_t half_of(std::size_t bytes) { return std::max<std::size_t>(bytes / 2 / 4096 * 4096, std::min<std::size_t>(bytes, 4096)); }

/// How many bytes pread or pwrite may move; -1: it fails with errno.
long allowed(const char* call, int descriptor, std::size_t bytes) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (s.rules.empty()) return static_cast<long>(bytes);
  const int error = fault_of(s, call, path_of(descriptor));
  if (error == as_stall) s.changed.wait(lock, [&s, now = s.generation] { return s.generation != now; });
  if (error == as_short) return static_cast<long>(half_of(bytes));
  if (error > 0) errno = error;
  return error > 0 ? -1 : static_cast<long>(bytes);
}

template <class F>
F* next(const char* name, F*) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next(#name, &name)

/// Changes a read or write that is about to be submitted.
void spoil(State& s, const io_uring* ring, io_uring_sqe& e) {
  const bool write = e.opcode == IORING_OP_WRITE || e.opcode == IORING_OP_WRITE_FIXED;
  if (!write && e.opcode != IORING_OP_READ && e.opcode != IORING_OP_READ_FIXED) return;
  const auto known = s.files.find(ring);
  const bool fixed = (e.flags & IOSQE_FIXED_FILE) != 0 && known != s.files.end();
  const int error = fault_of(s, write ? "write" : "read", path_of(fixed ? known->second.at(static_cast<std::size_t>(e.fd)) : e.fd));
  if (error == as_short) e.len = static_cast<unsigned>(half_of(e.len));
  if (error == 0 || error == as_short) return;
  const auto user_data = e.user_data;
  if (error == as_stall)
    io_uring_prep_poll_add(&e, s.released, POLLIN);
  else
    io_uring_prep_nop(&e);
  e.user_data = user_data;
  s.answers[user_data] = error == as_stall ? -EINTR : -error;
}

}  // namespace

void tessera::test::fault_disk(const char* rules) {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.rules = parse(rules);
    ++s.generation;
    (void)!::eventfd_write(s.released, 1);  // what waits wakes; who stalls next gets a new one
    ::close(std::exchange(s.released, ::eventfd(0, EFD_CLOEXEC)));
  }
  s.changed.notify_all();
}

#define INTERPOSE_TRANSFER(name, word, buffer)                             \
  extern "C" ssize_t name(int d, buffer p, std::size_t n, off_t at) {      \
    NEXT(name);                                                            \
    const long some = allowed(word, d, n);                                 \
    return some < 0 ? -1 : real(d, p, static_cast<std::size_t>(some), at); \
  }
INTERPOSE_TRANSFER(pread, "read", void*)
INTERPOSE_TRANSFER(pread64, "read", void*)
INTERPOSE_TRANSFER(pwrite, "write", const void*)
INTERPOSE_TRANSFER(pwrite64, "write", const void*)

#define INTERPOSE_OPEN(name)                                                                              \
  extern "C" int name(const char* path, int flags, ...) {                                                 \
    static const auto real = reinterpret_cast<int (*)(const char*, int, ...)>(::dlsym(RTLD_NEXT, #name)); \
    va_list more;                                                                                         \
    va_start(more, flags);                                                                                \
    const int mode = va_arg(more, int);                                                                   \
    va_end(more);                                                                                         \
    if ((flags & O_TMPFILE) == O_TMPFILE && fails("nameless", path)) return -1;                           \
    return real(path, flags, mode);                                                                       \
  }
INTERPOSE_OPEN(open)
INTERPOSE_OPEN(open64)

#define INTERPOSE_FCNTL(name)                                                                     \
  extern "C" int name(int d, int command, ...) {                                                  \
    static const auto real = reinterpret_cast<int (*)(int, int, ...)>(::dlsym(RTLD_NEXT, #name)); \
    va_list more;                                                                                 \
    va_start(more, command);                                                                      \
    void* argument = va_arg(more, void*);                                                         \
    va_end(more);                                                                                 \
    const auto flags = reinterpret_cast<std::intptr_t>(argument);                                 \
    if (command == F_SETFL && (flags & O_DIRECT) != 0 && fails("direct", path_of(d))) return -1;  \
    return real(d, command, argument);                                                            \
  }
INTERPOSE_FCNTL(fcntl)
INTERPOSE_FCNTL(fcntl64)

extern "C" int fallocate(int d, int mode, off_t at, off_t bytes) {
  NEXT(fallocate);
  return fails("reserve", path_of(d)) ? -1 : real(d, mode, at, bytes);
}
extern "C" int fallocate64(int d, int mode, off64_t at, off64_t bytes) {
  NEXT(fallocate64);
  return fails("reserve", path_of(d)) ? -1 : real(d, mode, at, bytes);
}
extern "C" int statx(int folder, const char* path, int flags, unsigned mask, struct statx* s) noexcept {
  NEXT(statx);
  return fails("dioalign", path_of(folder)) ? -1 : real(folder, path, flags, mask, s);
}
extern "C" int unlink(const char* path) noexcept {
  NEXT(unlink);
  return is_open(path) && fails("unlink", path) ? -1 : real(path);
}
extern "C" int flock(int d, int operation) noexcept {
  NEXT(flock);
  return fails("lock", path_of(d)) ? -1 : real(d, operation);
}
extern "C" int fdatasync(int d) {
  NEXT(fdatasync);
  return fails("sync", path_of(d)) ? -1 : real(d);
}

extern "C" int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  NEXT(io_uring_queue_init);
  return fails("ring", "") ? -errno : real(entries, ring, flags);
}
extern "C" int io_uring_register_buffers(io_uring* ring, const iovec* buffers, unsigned n) {
  NEXT(io_uring_register_buffers);
  return fails("register", "") ? -errno : real(ring, buffers, n);
}
extern "C" int io_uring_register_files(io_uring* ring, const int* files, unsigned n) {
  NEXT(io_uring_register_files);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.files[ring] = {files, files + n};
  return real(ring, files, n);
}
extern "C" int io_uring_submit(io_uring* ring) {
  NEXT(io_uring_submit);
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail && !s.rules.empty(); ++i)
      spoil(s, ring, ring->sq.sqes[i & *ring->sq.kring_mask]);
  }
  return real(ring);
}
extern "C" unsigned io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** ended, unsigned most) {
  NEXT(io_uring_peek_batch_cqe);
  const unsigned n = real(ring, ended, most);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (unsigned i = 0; i < n; ++i) {
    const auto answer = s.answers.find(ended[i]->user_data);
    if (answer == s.answers.end()) continue;
    ended[i]->res = answer->second;
    s.answers.erase(answer);
  }
  return n;
}
