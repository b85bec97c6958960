#include "memory/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.hpp"
#include "base/control_groups.hpp"
#include "base/types.hpp"
#include "memory/kokkos_memory.hpp"

namespace tessera {
namespace {

constexpr std::size_t page = 4096, huge_page = std::size_t{2} << 20;

[[noreturn]] void refuse(Tier tier, std::size_t bytes, const std::string& why) {
  fail(ExitCode::memory, "{} of {} memory could not be allocated: {}", human_bytes(static_cast<double>(bytes)), name_of(tier), why);
}

/// Kokkos names the failure; here it becomes ours.
std::byte* allocate(Tier tier, std::size_t bytes, const std::string& label) {
  TESSERA_REQUIRE(kokkos_has(tier), "tier {} has no arena in this build", name_of(tier));
  try {
    return kokkos_allocate(tier, bytes, label);
  } catch (const std::exception& error) {
    refuse(tier, bytes, error.what());
  }
}

std::byte* allocate_host(std::size_t bytes, const std::string& label) {
  // Kokkos owns the allocation, so its tools see the label; the block is over-allocated to begin on a huge page.
  void* raw = allocate(Tier::host, bytes + huge_page, label);
  auto* aligned =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::intptr_t>(raw) + static_cast<std::intptr_t>(sizeof(void*)), page));
  std::memcpy(aligned - sizeof(void*), &raw, sizeof(void*));
  // Advice only: without huge pages everything works, slower.
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

void free_host(std::byte* data, std::size_t bytes, const std::string& label) {
  void* raw = nullptr;
  std::memcpy(&raw, data - sizeof(void*), sizeof(void*));
  kokkos_free(Tier::host, static_cast<std::byte*>(raw), bytes + huge_page, label);
}

/// Addresses whose pages come when they are touched. An allocation of more than the machine has at this moment would be refused, and some
/// virtual machines get their memory as they use it.
std::byte* reserve_host(std::size_t bytes, const std::string& label) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) refuse(Tier::host, bytes, std::strerror(errno));
  madvise(data, bytes, MADV_HUGEPAGE);
  kokkos_note_taken(static_cast<std::byte*>(data), bytes, label);
  return static_cast<std::byte*>(data);
}

void release_host(std::byte* data, std::size_t bytes, const std::string& label) {
  kokkos_note_freed(data, bytes, label);
  munmap(data, bytes);
}

std::byte* allocate_shared(std::size_t bytes, const std::string& label, int& descriptor) {
  descriptor = memfd_create(label.c_str(), MFD_CLOEXEC);
  if (descriptor < 0)
    fail(ExitCode::environment, "memfd_create for {} of shared memory failed: {}", human_bytes(static_cast<double>(bytes)),
         std::strerror(errno));
  void* data = MAP_FAILED;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    int error = errno;
    close(descriptor);
    fail(ExitCode::memory, "mapping {} of memory shared by this node's ranks failed: {}", human_bytes(static_cast<double>(bytes)),
         std::strerror(error));
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::pinned:
      return "pinned";
    case Tier::host:
      return "host";
    case Tier::shared:
      return "shared";
    case Tier::nvme:
      return "nvme";
    case Tier::copies:
      return "copies";
  }
  return "?";
}

Arena::Arena(Tier tier, std::size_t bytes, std::string_view label, FirstTouch touch)
    : tier_(tier), touch_(touch), bytes_(bytes), label_(label) {
  if (bytes == 0) return;
  if (tier == Tier::device || tier == Tier::pinned || tier == Tier::nvme || tier == Tier::copies) {
    data_ = allocate(tier, bytes, label_);
    return;
  }
  if (tier == Tier::host && touch == FirstTouch::when_used) {
    data_ = reserve_host(bytes, label_);
    return;
  }
  const std::size_t available = node_memory().available;
  if (touch == FirstTouch::now && bytes > available)
    fail(ExitCode::memory,
         "this rank's plan needs {} of {} memory, but the node has {} free. Lower batch.micro, raise zero.stage or use more nodes; "
         "`tessera plan` shows the table.",
         human_bytes(static_cast<double>(bytes)), name_of(tier), human_bytes(static_cast<double>(available)));
  data_ = tier == Tier::shared ? allocate_shared(bytes, label_, descriptor_) : allocate_host(bytes, label_);
  if (touch == FirstTouch::now) std::memset(data_, 0, bytes);  // not in the first step
}

Arena::~Arena() {
  if (!data_) return;
  if (tier_ == Tier::shared) {
    munmap(data_, bytes_);
    close(descriptor_);
  } else if (tier_ != Tier::host) {
    kokkos_free(tier_, data_, bytes_, label_);
  } else if (touch_ == FirstTouch::when_used) {
    release_host(data_, bytes_, label_);
  } else {
    free_host(data_, bytes_, label_);
  }
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(tier_, other.tier_);
  std::swap(touch_, other.touch_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(label_, other.label_);
  return *this;
}

NodeMemory node_memory() {
  NodeMemory memory;
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  std::size_t kib = 0;
  while (in >> key >> kib >> unit) {
    if (key == "MemTotal:") memory.total = kib << 10;
    if (key == "MemAvailable:") memory.available = kib << 10;
  }
  const GroupLimits group = group_limits();
  if (group.memory) memory.total = std::min(memory.total, static_cast<std::size_t>(*group.memory));
  if (group.memory_left) memory.available = std::min(memory.available, static_cast<std::size_t>(*group.memory_left));
  return memory;
}

}  // namespace tessera
