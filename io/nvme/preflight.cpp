#include "io/nvme/preflight.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/types.hpp"
#include "io/nvme/memlock.hpp"
#include "io/nvme/spill_engine.hpp"

namespace tessera::io {
namespace {

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// No zeros: disks and file systems cheat on them.
void fill_with_noise(std::span<std::byte> memory) {
  std::uint64_t x = 88172645463325252ull;
  for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(memory.data() + i, &x, 8);
  }
}

/// Writes and reads a file there; fills in what it shows. Throws what SpillFile throws.
void try_folder(const SpillOptions& options, std::int64_t trial_bytes, SpillFolder& found, std::string& how) {
  {
    const FolderFile file(found.folder, options.purpose, options.block_bytes);
    found.file_system = file_system_of(file.descriptor());
    found.direct = file.direct(), found.nameless = file.nameless(), found.alignment = file.alignment();
  }
  SpillOptions trial = options;
  trial.folders = {found.folder};
  trial.bytes = std::max(round_up(trial_bytes, options.block_bytes), options.block_bytes);
  const Pages memory(static_cast<std::size_t>(trial.bytes));
  fill_with_noise(memory.all());
  trial.memory = {memory.all()};
  SpillFile file(trial);
  if (how.empty()) how = file.how();
  const auto rate_of = [&](bool write) {
    const double start = now_seconds();
    file.wait(write ? file.write(0, memory.all(), "a trial") : file.read(0, memory.all(), "a trial"));
    return trial_bytes > 0 ? static_cast<double>(trial.bytes) / (now_seconds() - start) : 0;
  };
  found.write_rate = rate_of(true);
  found.read_rate = rate_of(false);
  found.usable = true;
}

/// Room on each file system, for all folders on it.
void count_room(const SpillOptions& options, SpillPreflight& p) {
  const auto folders = static_cast<std::int64_t>(options.folders.size());
  const std::int64_t each = ceil_div(ceil_div(options.bytes, options.block_bytes), folders) * options.block_bytes;
  std::vector<std::optional<dev_t>> devices;
  for (auto& f : p.folders) {
    struct stat s;
    struct statvfs room;
    const bool there = ::stat(f.folder.c_str(), &s) == 0 && ::statvfs(f.folder.c_str(), &room) == 0;
    devices.push_back(there ? std::optional(s.st_dev) : std::nullopt);
    if (there) f.free_bytes = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
  }
  for (auto here = devices.begin(); here != devices.end(); ++here) {
    auto& f = p.folders[static_cast<std::size_t>(here - devices.begin())];
    f.needed_bytes = each * (*here ? std::count(devices.begin(), devices.end(), *here) : 1);
    const bool said = std::find(devices.begin(), here, *here) != here;
    if (*here && !said && f.free_bytes < f.needed_bytes)
      p.problems.push_back(
          fmt::format("{}: {} is free, but {} is needed: remove files there, or name a folder on a larger file system, or several.",
                      f.folder, human(f.free_bytes), human(f.needed_bytes)));
  }
}

void note_folder(const SpillFolder& f, std::vector<std::string>& notes) {
  if (!f.direct)
    notes.push_back(fmt::format(
        "{} ({}) refuses O_DIRECT: spilled data also takes memory of the page cache, so it saves none. Name a folder on a local disk.",
        f.folder, f.file_system));
  if (!f.nameless)
    notes.push_back(
        fmt::format("{} ({}) keeps the names of open files: after a crash the next start there removes them.", f.folder, f.file_system));
}

}  // namespace

SpillPreflight preflight_spill(const SpillOptions& options, std::int64_t trial_bytes) {
  SpillPreflight p;
  for (const auto& folder : options.folders) p.folders.emplace_back().folder = folder;
  count_room(options, p);
  for (auto& f : p.folders) {
    try {
      try_folder(options, trial_bytes, f, p.how);
      note_folder(f, p.notes);
    } catch (const Error& e) {
      p.problems.emplace_back(e.what());
    }
  }
  if (const auto why = why_no_io_uring(); !why.empty())
    p.notes.push_back(fmt::format("{}: {} threads replace it, which takes more processor time. Ask an administrator to allow it.", why,
                                  options.queue_depth));
  p.memlock_bytes = memlock_bytes();
  p.registered_bytes = (options.queue_depth + options.threads) * options.block_bytes;
  for (const auto& m : options.memory) p.registered_bytes += static_cast<std::int64_t>(m.size());
  if (p.memlock_bytes >= 0 && p.memlock_bytes < p.registered_bytes)
    p.notes.push_back(
        fmt::format("ulimit -l lets {} be locked, but {} of buffers would be registered with io_uring: raise it (LimitMEMLOCK, "
                    "/etc/security/limits.conf), or transfers cost more processor time.",
                    human(p.memlock_bytes), human(p.registered_bytes)));
  return p;
}

}  // namespace tessera::io
