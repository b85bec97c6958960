#include "io/files/posix_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/open_files.hpp"
#include "base/own_files.hpp"
#include "base/regular_file.hpp"
#include "base/types.hpp"

namespace tessera::io {
namespace {

std::string folder_of(const std::string& path) {
  auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Of the file system that was full: room, or names for files.
std::string full_disk(const std::string& path, std::int64_t asked) {
  constexpr const char* what_to_do = "free some space or write to another file system, then run again.";
  struct statvfs s;
  if (::statvfs(path.c_str(), &s) != 0 && ::statvfs(folder_of(path).c_str(), &s) != 0)
    return fmt::format("The disk is full: {}", what_to_do);
  const double free = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  const std::string room = human_bytes(free);
  // A file system that makes them as it needs them says that it has none at all.
  if (s.f_files > 0 && s.f_favail == 0)
    return fmt::format(
        "The file system holds as many files as it can ({} inodes, none free; {} free for their content). Remove files or write to another "
        "file system, then run again.",
        s.f_files, room);
  // Looked at after the refusal, whose file may have given room back.
  if (asked > 0 && free >= static_cast<double>(asked))
    return fmt::format(
        "The disk is full ({} are refused, and {} are counted as free just after that). Possible causes: other files of the save were "
        "freed meanwhile, a quota is used up that this count leaves out (quota -s, lfs quota), or the file system reserves the rest. Free "
        "some space or write to another file system, then run again.",
        human_bytes(static_cast<double>(asked)), room);
  return fmt::format("The disk is full ({} free for users, without the file system's reserve): {}", room, what_to_do);
}

std::string advice(int error_number, const std::string& path, std::int64_t asked) {
  switch (error_number) {
    case ENOSPC:
      return full_disk(path, asked);
    case EDQUOT:
      return "Your quota is used up: remove files or ask for more, then run again.";
    case EFBIG:
      return "The file would exceed the limit on file sizes (ulimit -f): raise it, then run again.";
    case EACCES:
    case EPERM:
      return "Check the permissions of the folder, or write to another one.";
    case EMFILE:
    case ENFILE:
      return open_advice(error_number);
    case EROFS:
      return "The file system is mounted read-only: write to another one.";
    case ENOENT:
      return "Check that the folder exists.";
    case ELOOP:
      return "A symbolic link is there, and this file is never written through one: remove the link, then run again.";
    case ENAMETOOLONG:
      return "Use a shorter name.";
    default:
      return "Check the file system (dmesg, the site's status page), then run again.";
  }
}

mode_t mode_for(Readers readers) { return readers == Readers::owner ? 0600 : 0666; }

}  // namespace

void fail_storage(const std::string& action, const std::string& path, int error_number, std::int64_t asked) {
  fail(ExitCode::storage, "{}: cannot {}: {}. {}", path, action, std::strerror(error_number), advice(error_number, path, asked));
}

PosixFile::PosixFile(int descriptor, std::string path, ExitCode on_error)
    : descriptor_(descriptor), path_(std::move(path)), on_error_(on_error) {}

PosixFile PosixFile::create(const std::string& path, Readers readers) {
  int d = create_file(path.c_str(), mode_for(readers));
  if (d < 0) fail_storage("create", path, errno);
  return {d, path, ExitCode::storage};
}

PosixFile PosixFile::update(const std::string& path, Readers readers) {
  int d = update_file(path.c_str(), mode_for(readers));
  if (d < 0) fail_storage("open for writing", path, errno);
  PosixFile file(d, path, ExitCode::storage);
  if (const char* other = file.other_than_regular())
    fail(ExitCode::storage, "{}: this is a {}, but a regular file is written there. Move it away, then run again.", path, other);
  return file;
}

PosixFile PosixFile::output(const std::string& path) {
  int d = open_output(path.c_str());
  if (d < 0) fail_storage("open for writing", path, errno);
  return {d, path, ExitCode::storage};
}

PosixFile PosixFile::open(const std::string& path, ExitCode on_error) {
  std::string why;
  const int d = open_regular(path, why);
  if (d < 0) fail(on_error, "{}: {}", path, why);
  return {d, path, on_error};
}

PosixFile PosixFile::open_stream(const std::string& path, ExitCode on_error) {
  int d = path == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (d < 0) fail(on_error, "{}: cannot open: {}. {}", path, std::strerror(errno), open_advice(errno));
  return {d, path == "-" ? "standard input" : path, on_error};
}

PosixFile PosixFile::unnamed(const std::string& folder) {
  std::string name = folder + "/.tessera-XXXXXX";
  int d = ::mkostemp(name.data(), O_CLOEXEC);
  if (d < 0) fail_storage("create a temporary file in the folder", folder, errno);
  ::unlink(name.c_str());  // if this fails an empty name stays
  return {d, name, ExitCode::storage};
}

PosixFile PosixFile::in_memory(const std::string& name) {
  int d = ::memfd_create("tessera", MFD_CLOEXEC);
  if (d < 0) fail_storage("make a file in memory", name, errno);
  return {d, name, ExitCode::storage};
}

PosixFile::~PosixFile() {
  if (direct_ >= 0) ::close(direct_);
  if (descriptor_ >= 0) ::close(descriptor_);  // a file that mattered was closed by close()
}

PosixFile::PosixFile(PosixFile&& o) noexcept
    : descriptor_(std::exchange(o.descriptor_, -1)),
      direct_(std::exchange(o.direct_, -1)),
      path_(std::move(o.path_)),
      on_error_(o.on_error_) {}

PosixFile& PosixFile::operator=(PosixFile&& o) noexcept {
  std::swap(descriptor_, o.descriptor_);
  std::swap(direct_, o.direct_);
  std::swap(path_, o.path_);
  std::swap(on_error_, o.on_error_);
  return *this;
}

std::string PosixFile::link_path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

std::int64_t PosixFile::size() const {
  struct stat s;
  if (::fstat(descriptor_, &s) != 0) fail(on_error_, "{}: cannot read its size: {}.", path_, std::strerror(errno));
  return s.st_size;
}

std::int64_t PosixFile::modified_ns() const {
  struct stat s;
  if (::fstat(descriptor_, &s) != 0) fail(on_error_, "{}: cannot read when it was changed: {}.", path_, std::strerror(errno));
  return std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
}

const char* PosixFile::other_than_regular() const {
  struct stat s;
  if (::fstat(descriptor_, &s) != 0) fail(on_error_, "{}: cannot read its kind: {}.", path_, std::strerror(errno));
  return tessera::other_than_regular(s);
}

PathState PosixFile::state() const { return look_at(descriptor_); }

bool PosixFile::has_other_names() const {
  struct stat s;
  return ::fstat(descriptor_, &s) == 0 && s.st_nlink > 1;
}

void PosixFile::reserve(std::int64_t bytes, std::int64_t offset) {
  if (bytes <= 0) return;
  int r;
  do r = ::fallocate(descriptor_, 0, offset, bytes);
  while (r != 0 && errno == EINTR);
  // A file system without fallocate is no failure: there a full disk shows at the write itself.
  if (r != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    fail_storage(fmt::format("reserve {}", human_bytes(static_cast<double>(bytes))), path_, errno, bytes);
}

void PosixFile::leave_hole(std::int64_t offset, std::int64_t bytes) {
  // Where it is not done, the same zeros take room.
  [[maybe_unused]] const int done = ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

void PosixFile::use_direct() {
  int mode = ::fcntl(descriptor_, F_GETFL) & O_ACCMODE;
  if (direct_ < 0) direct_ = ::open(link_path().c_str(), mode | O_DIRECT | O_CLOEXEC);  // refused: all goes through the page cache
}

bool PosixFile::is_cached() const {
  const std::int64_t bytes = size();
  if (bytes == 0) return true;
  const auto length = static_cast<std::size_t>(bytes);
  void* mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return true;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((length + page_bytes - 1) / page_bytes);
  const bool known = ::mincore(mapped, length, pages.data()) == 0;
  ::munmap(mapped, length);
  return !known || 2 * std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }) > std::ssize(pages);
}

std::size_t PosixFile::direct_bytes(std::int64_t offset, const void* data, std::size_t bytes) const {
  constexpr std::size_t page = 4096, worth_it = 64 << 10;
  if (direct_ < 0 || bytes < worth_it || offset % static_cast<std::int64_t>(page) != 0) return 0;
  return reinterpret_cast<std::uintptr_t>(data) % 512 == 0 ? bytes / page * page : 0;
}

void PosixFile::write(std::int64_t offset, const void* data, std::size_t bytes) {
  auto p = static_cast<const char*>(data);
  bool direct_works = true;
  while (bytes > 0) {
    auto direct = direct_works ? direct_bytes(offset, p, bytes) : 0;
    ssize_t n = ::pwrite(direct > 0 ? direct_ : descriptor_, p, direct > 0 ? direct : bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct > 0) {  // a file system or device with other wishes
      direct_works = false;
      continue;
    }
    if (n <= 0)
      fail_storage(fmt::format("write {} at byte {}", human_bytes(static_cast<double>(bytes)), offset), path_, n < 0 ? errno : EIO);
    p += n, offset += n, bytes -= static_cast<std::size_t>(n);
  }
}

void PosixFile::start_writeback(std::int64_t offset, std::int64_t bytes) {
  // Only a hint: sync() reports what goes wrong.
  (void)::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PosixFile::truncate(std::int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) fail_storage(fmt::format("set the length to {} bytes", bytes), path_, errno);
}

void PosixFile::sync() {
  int r;
  do r = ::fsync(descriptor_);
  while (r != 0 && errno == EINTR);
  if (r != 0) fail_storage("sync to the disk", path_, errno);
}

void PosixFile::close() {
  if (direct_ >= 0) ::close(std::exchange(direct_, -1));  // its writes have been waited for
  int d = std::exchange(descriptor_, -1);
  // On Linux the descriptor is gone even when close() is interrupted.
  if (d >= 0 && ::close(d) != 0 && errno != EINTR) fail_storage("close", path_, errno);
}

std::size_t PosixFile::read(std::int64_t offset, void* data, std::size_t bytes) const {
  auto p = static_cast<char*>(data);
  std::size_t done = 0;
  bool direct_works = true;
  while (done < bytes) {
    auto at = offset + static_cast<std::int64_t>(done);
    auto direct = direct_works ? direct_bytes(at, p + done, bytes - done) : 0;
    ssize_t n = ::pread(direct > 0 ? direct_ : descriptor_, p + done, direct > 0 ? direct : bytes - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct > 0) {
      direct_works = false;
      continue;
    }
    if (n < 0) fail(on_error_, "{}: cannot read {} bytes at {}: {}.", path_, bytes, offset, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

std::size_t PosixFile::read_next(void* data, std::size_t bytes) const {
  ssize_t n;
  do n = ::read(descriptor_, data, bytes);
  while (n < 0 && errno == EINTR);
  if (n < 0) fail(on_error_, "{}: cannot continue reading: {}.", path_, std::strerror(errno));
  return static_cast<std::size_t>(n);
}

void PosixFile::read_ahead(std::int64_t offset, std::int64_t bytes) const {
  (void)::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);  // only a hint
}

bool PosixFile::next_run(std::int64_t offset, std::int64_t& begin, std::int64_t& end) const {
  begin = ::lseek(descriptor_, offset, SEEK_DATA);
  if (begin < 0 && errno == ENXIO) return false;
  end = begin < 0 ? -1 : ::lseek(descriptor_, begin, SEEK_HOLE);
  if (end < 0) fail(on_error_, "{}: cannot find its data: {}.", path_, std::strerror(errno));
  return true;
}

std::string read_small_file(const std::string& path, ExitCode on_error, std::int64_t most) {
  std::string bytes, why;
  if (!read_regular(path, most, bytes, why)) fail(on_error, "{}: {}", path, why);
  return bytes;
}

void sync_folder(const std::string& path) {
  int d = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d < 0) fail_storage("open the folder", path, errno);
  int r = ::fsync(d), error_number = errno;
  ::close(d);
  // Some network file systems cannot sync a folder and say EINVAL: their renames are durable on their own terms.
  if (r != 0 && error_number != EINVAL) fail_storage("sync the folder", path, error_number);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_storage("rename to " + to, from, errno);
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".partial"), file_(PosixFile::create(temporary_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());  // a failure here leaves a .partial that nobody reads
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  rename_path(temporary_, path_);
  committed_ = true;
  sync_folder(folder_of(path_));
}

}  // namespace tessera::io
