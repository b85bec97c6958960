#include "io/nvme/folder_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "base/types.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::string_view name_begins = ".tessera-spill-";
constexpr std::int64_t page = 4096;

/// What this open file asks of direct transfers; none where they are refused.
std::optional<Alignment> direct_alignment(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx s;
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 && (s.stx_mask & STATX_DIOALIGN) != 0) {
    if (s.stx_dio_offset_align == 0) return std::nullopt;
    return Alignment{std::max<std::int64_t>(s.stx_dio_mem_align, 1), std::max<std::int64_t>(s.stx_dio_offset_align, page)};
  }
#endif
  // Kernels before 6.1 and some file systems do not say: a page is read to a less and a more aligned address.
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(page, 2 * page)), &std::free);
  for (std::int64_t align : {std::int64_t{512}, page}) {
    ssize_t n;
    do n = ::pread(descriptor, memory.get() + align % page, page, 0);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return Alignment{align, page};
    if (errno != EINVAL) break;
  }
  return std::nullopt;
}

std::string random_name(const std::string& folder) {
  std::random_device random;
  return fmt::format("{}/{}{:08x}{:08x}", folder, name_begins, random(), random());
}

}  // namespace

FolderFile::FolderFile(const std::string& folder, const std::string& purpose, std::int64_t bytes) : FolderFile() {
  path_ = fmt::format("{}/(spill file: {})", folder, purpose);
  make(folder);
  reserve(bytes);
  go_direct(folder);
}

FolderFile::~FolderFile() {
  if (descriptor_ >= 0) ::close(descriptor_);   // nothing in it is kept
  if (!name_.empty()) ::unlink(name_.c_str());  // if this fails, the next start finds it
}

FolderFile::FolderFile(FolderFile&& o) noexcept { *this = std::move(o); }

FolderFile& FolderFile::operator=(FolderFile&& o) noexcept {
  std::swap(descriptor_, o.descriptor_);
  std::swap(direct_, o.direct_);
  std::swap(alignment_, o.alignment_);
  std::swap(path_, o.path_);
  std::swap(name_, o.name_);
  std::swap(notes_, o.notes_);
  return *this;
}

/// Without a name from the first moment where the file system can do that.
void FolderFile::make(const std::string& folder) {
  remove_left_spill_files(folder);
  descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor_ >= 0) return;
  // EISDIR is what kernels say that do not know the flag.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOSYS) fail_storage("make a spill file here", folder, errno);
  make_named(folder);
}

/// With a name that goes at once or, where an open file cannot lose it, at the end. As long as the process lives it holds a lock.
void FolderFile::make_named(const std::string& folder) {
  bool locked = false;
  for (;;) {
    name_ = random_name(folder);
    descriptor_ = ::open(name_.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) fail_storage("make a spill file here", folder, errno);
    locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (locked || errno != EWOULDBLOCK) break;
    ::close(std::exchange(descriptor_, -1));  // a process that starts took it for one left behind, and removes it
  }
  if (::unlink(name_.c_str()) == 0 || errno == ENOENT) {
    name_.clear();
    return;
  }
  path_ = name_;
  notes_.push_back(fmt::format("{} keeps its name while it is open ({}): it is removed at the end, and after a crash {}", name_,
                               std::strerror(errno), locked ? "by the next start" : "by you, because files cannot be locked there"));
}

void FolderFile::reserve(std::int64_t bytes) {
  int r;
  do r = ::fallocate(descriptor_, 0, 0, bytes);
  while (r != 0 && errno == EINTR);
  if (r != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    notes_.push_back(
        fmt::format("{} cannot reserve space ({}), so a full disk shows only when it is written to", path_, file_system_of(descriptor_)));
    do r = ::ftruncate(descriptor_, bytes);
    while (r != 0 && errno == EINTR);
  }
  if (r != 0) fail_storage(fmt::format("reserve {}", human_bytes(static_cast<double>(bytes))), path_, errno, bytes);
}

void FolderFile::go_direct(const std::string& folder) {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0) {
    if (const auto asked = direct_alignment(descriptor_)) {
      direct_ = true, alignment_ = *asked;
      return;
    }
    if (::fcntl(descriptor_, F_SETFL, flags) != 0) fail_storage("leave O_DIRECT again", path_, errno);
  }
  notes_.push_back(fmt::format("{} ({}) refuses O_DIRECT, so data written there also takes memory of the page cache", folder,
                               file_system_of(descriptor_)));
}

void FolderFile::sync() {
  int r;
  do r = ::fdatasync(descriptor_);
  while (r != 0 && errno == EINTR);
  if (r != 0) fail_storage("sync to the disk", path_, errno);
}

void FolderFile::close() {
  const int d = std::exchange(descriptor_, -1);
  const std::string name = std::exchange(name_, {});
  if (d >= 0 && ::close(d) != 0 && errno != EINTR) fail_storage("close", path_, errno);
  if (!name.empty() && ::unlink(name.c_str()) != 0 && errno != ENOENT) fail_storage("remove the file", name, errno);
}

int remove_left_spill_files(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (!entries) return 0;  // whoever makes a file here next hears why
  int removed = 0;
  const int at = ::dirfd(entries.get());
  while (const dirent* entry = ::readdir(entries.get())) {
    if (std::string_view(entry->d_name).substr(0, name_begins.size()) != name_begins) continue;
    const int d = ::openat(at, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (d < 0) continue;  // somebody else's, or gone by now
    struct stat s;
    // Who lives holds the lock.
    const bool left = ::fstat(d, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == ::geteuid() && ::flock(d, LOCK_EX | LOCK_NB) == 0;
    if (left && ::unlinkat(at, entry->d_name, 0) == 0) ++removed;
    ::close(d);
  }
  return removed;
}

std::string file_system_of(int descriptor) {
  struct statfs s;
  if (::fstatfs(descriptor, &s) != 0) return "unknown file system";
  const auto type = static_cast<std::uint32_t>(s.f_type);
  constexpr std::pair<std::uint32_t, const char*> known[] = {
      {0xEF53, "ext4"},     {0x58465342, "XFS"},     {0x9123683E, "Btrfs"}, {0x01021994, "tmpfs"},  {0x858458F6, "ramfs"},
      {0x6969, "NFS"},      {0x794C7630, "overlay"}, {0x2FC12FC1, "ZFS"},   {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},
      {0x65735546, "FUSE"}, {0x19830326, "BeeGFS"},  {0xF2F52010, "F2FS"},  {0x00C36400, "Ceph"},   {0xFF534D42, "SMB"}};
  for (const auto& [number, name] : known)
    if (type == number) return name;
  return fmt::format("file system {:#x}", type);
}

}  // namespace tessera::io
