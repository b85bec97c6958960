#include "report/preflight/measure_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/types.hpp"
#include "io/files/posix_file.hpp"
#include "io/nvme/folder_file.hpp"
#include "memory/arena.hpp"

namespace tessera {
namespace {

constexpr std::size_t piece = std::size_t{4} << 20;
constexpr int most_pieces = 16;

/// No zeros, of which some disks make nothing, and others in each piece.
void fill(std::byte* memory, int number) {
  for (std::uint64_t i = 0; i < piece; i += 8) {
    const std::uint64_t noise = (i + piece * static_cast<std::uint64_t>(number + 1)) * 0x9e3779b97f4a7c15u;
    std::memcpy(memory + i, &noise, 8);
  }
}

/// All of a piece, by as many calls as the system makes of it.
void move_piece(const io::FolderFile& file, int number, const char* what,
                const std::function<ssize_t(std::size_t, std::size_t, off_t)>& some) {
  for (std::size_t done = 0; done < piece;) {
    const ssize_t n = some(done, piece - done, static_cast<off_t>(static_cast<std::size_t>(number) * piece + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) io::fail_storage(what, file.path(), n == 0 ? EIO : errno);
    done += static_cast<std::size_t>(n);
  }
}

struct FolderRates {
  double write = 0, read = 0;  ///< bytes/s
  bool same = true;            ///< what was read is what was written
};

FolderRates try_folder(const std::string& folder, double seconds) {
  io::FolderFile file(folder, "tessera preflight", static_cast<std::int64_t>(piece) * most_pieces);
  const Arena memory(Tier::host, 2 * piece, "tessera.preflight.disk");
  std::byte *mine = memory.data(), *back = memory.data() + piece;
  double writing = 0, reading = 0;
  int pieces = 0;
  do {
    fill(mine, pieces);
    const double begin = now_seconds();
    move_piece(file, pieces++, "write to",
               [&](std::size_t at, std::size_t n, off_t to) { return ::pwrite(file.descriptor(), mine + at, n, to); });
    file.sync();
    writing += now_seconds() - begin;
  } while (pieces < most_pieces && writing < seconds / 2);
  FolderRates rates{.write = static_cast<double>(piece) * pieces / writing};
  // Where the page cache holds it, it must come from the disk.
  if (!file.direct()) ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  for (int number = 0; number < pieces; ++number) {
    const double begin = now_seconds();
    move_piece(file, number, "read from",
               [&](std::size_t at, std::size_t n, off_t from) { return ::pread(file.descriptor(), back + at, n, from); });
    reading += now_seconds() - begin;
    fill(mine, number);
    rates.same = rates.same && std::memcmp(mine, back, piece) == 0;
  }
  rates.read = static_cast<double>(piece) * pieces / reading;
  file.close();
  return rates;
}

}  // namespace

void measure_folder(const std::string& folder, double seconds, std::int64_t free_space, RankMeasures& measures) {
  RankMeasure write{.name = "write to " + folder, .kind = RankMeasureKind::disk},
      read{.name = "read from " + folder, .kind = RankMeasureKind::disk};
  struct statvfs room;
  const double free = ::statvfs(folder.c_str(), &room) == 0 ? static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize) : -1;
  if (free >= 0 && free < static_cast<double>(free_space))
    write.fault = fmt::format("{} is free, but preflight.free_space needs {}: remove files there, or name another folder",
                              human_bytes(free), human_bytes(static_cast<double>(free_space)));
  try {
    const FolderRates rates = try_folder(folder, seconds);
    write.rate = rates.write, read.rate = rates.read;
    if (!rates.same)
      read.fault = "the bytes read differ from the bytes written: the disk, its controller or its cable is broken; do not use it";
  } catch (const Error& error) {
    write.fault = error.what();
  }
  measures.measures.push_back(std::move(write));
  if (read.rate > 0 || !read.fault.empty()) measures.measures.push_back(std::move(read));
}

}  // namespace tessera
