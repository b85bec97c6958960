// Files by system call, where the reason of a failure must reach the user: every call is checked and errno is kept.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {

/// Who may read a file that is made: all whom the user's umask lets, or the user alone.
enum class Readers { umask, owner };

/// An open file descriptor. A failing write, reserve or sync throws Error(storage) with the path, the system's reason and what to do.
class PosixFile {
 public:
  PosixFile() = default;
  /// A new file, in place of what has the name. Nothing is written through a link that stands there.
  static PosixFile create(const std::string& path, Readers readers = Readers::umask);
  /// Opens for reading and writing; creates an empty file where there is none. A link is refused.
  static PosixFile update(const std::string& path, Readers readers = Readers::umask);
  /// Opens what a user names as an output, be it a link or a terminal; a file is emptied.
  static PosixFile output(const std::string& path);
  /// Opens a regular file for reading; a failure, a folder, a pipe or a device is an Error(on_error).
  static PosixFile open(const std::string& path, ExitCode on_error);
  /// Opens for reading what read_next() reads from front to back, of any kind: "-" is standard input. Opening a pipe waits for its writer.
  static PosixFile open_stream(const std::string& path, ExitCode on_error);
  /// A file on the disk of `folder` that has no name and goes with its descriptor.
  static PosixFile unnamed(const std::string& folder);
  /// A sparse file in memory, reachable as link_path(). Its `path` is only a word for messages.
  static PosixFile in_memory(const std::string& name);
  ~PosixFile();
  PosixFile(PosixFile&&) noexcept;
  PosixFile& operator=(PosixFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// /proc/self/fd/N: opens the same file again, for libraries that want a name.
  std::string link_path() const;
  std::int64_t size() const;
  /// When its content last changed, in nanoseconds since 1970.
  std::int64_t modified_ns() const;
  /// "folder", "pipe", "socket" or "device"; null where it is a regular file.
  const char* other_than_regular() const;
  PathState state() const;
  /// Whether the file has another name too, as in a copy of its folder by hard links.
  bool has_other_names() const;

  /// From here on large aligned reads and writes (memory on 512 bytes, file on 4096) go between memory and disk without a copy in the page
  /// cache, where the file system can do that. Others go as before.
  void use_direct();
  bool is_direct() const { return direct_ >= 0; }
  /// Whether the page cache holds most of it; true where nobody can tell.
  bool is_cached() const;

  /// Asks the file system for the space now, so that a full disk is found before any work. Not all file systems can promise space.
  void reserve(std::int64_t bytes, std::int64_t offset = 0);
  /// Gives the room of bytes that were reserved and read as zeros back, where the file system can.
  void leave_hole(std::int64_t offset, std::int64_t bytes);
  void write(std::int64_t offset, const void* data, std::size_t bytes);
  /// Starts moving written bytes to the disk without waiting: the next write overlaps with the disk.
  void start_writeback(std::int64_t offset, std::int64_t bytes);
  void truncate(std::int64_t bytes);
  /// On return the bytes are on the disk.
  void sync();
  /// Closes and reports what close() reports (network file systems send their errors here).
  void close();

  /// Bytes read: fewer than asked only at the end of the file.
  std::size_t read(std::int64_t offset, void* data, std::size_t bytes) const;
  /// What a stream has next, as much as is there: at least a byte, 0 at its end.
  std::size_t read_next(void* data, std::size_t bytes) const;
  /// Tells the kernel that [offset, offset + bytes) is wanted soon.
  void read_ahead(std::int64_t offset, std::int64_t bytes) const;
  /// First byte at or after `offset` that is not in a hole, and the end of that run; false when there is none.
  bool next_run(std::int64_t offset, std::int64_t& begin, std::int64_t& end) const;

 private:
  PosixFile(int descriptor, std::string path, ExitCode on_error);
  /// How many of `bytes` may go past the page cache.
  std::size_t direct_bytes(std::int64_t offset, const void* data, std::size_t bytes) const;
  int descriptor_ = -1;
  int direct_ = -1;  // the same file opened with O_DIRECT
  std::string path_;
  ExitCode on_error_ = ExitCode::storage;
};

constexpr std::int64_t small_file_bytes = 64 << 20;  ///< what a deck, a record or a configuration never has
/// All of a regular file, which is read as far as it goes and no further than `most` bytes: what lies under the name of a small file may be
/// a pipe, a device without end, or terabytes of a hole. Else Error(on_error).
std::string read_small_file(const std::string& path, ExitCode on_error, std::int64_t most = small_file_bytes);

/// Error(storage): what failed, where, the system's reason and what to do about it. `asked`: bytes that were wanted at once; 0: not known.
[[noreturn]] void fail_storage(const std::string& action, const std::string& path, int error_number, std::int64_t asked = 0);
/// Makes the entries of a folder durable.
void sync_folder(const std::string& path);
/// rename(2), reported as above.
void rename_path(const std::string& from, const std::string& to);

/// A file written under a temporary name beside PATH: commit() syncs and renames it; without commit the temporary is removed.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  PosixFile& file() { return file_; }
  void commit();

 private:
  std::string path_, temporary_;
  PosixFile file_;
  bool committed_ = false;
};

}  // namespace tessera::io
