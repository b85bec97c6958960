#include "topology/shared/shared_block.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace tessera {
namespace {

/// What the first rank tells the others: which memory file is meant, and its name in /dev/shm where it has one.
struct Invitation {
  PeerFile file;
  char name[48] = {};
};

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

/// Rank 0 opens a file by `create`; the others map it by `attach`. Empty on all ranks unless all could.
template <class Create, class Attach>
Mapping share(MPI_Comm comm, std::size_t bytes, std::string& reason, Create create, Attach attach) {
  int rank = 0;
  MPI_CHECK(MPI_Comm_rank(comm, &rank));
  Invitation invitation;
  Descriptor file(rank == 0 ? create(invitation) : -1);
  Mapping mapping;
  if (rank == 0) {
    if (file.get() >= 0 && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) mapping = Mapping::of_file(file.get(), bytes);
    if (!mapping) reason = std::strerror(errno);
    if (mapping) invitation.file = PeerFile::of(file.get());
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibcast(&invitation, static_cast<int>(sizeof(invitation)), MPI_BYTE, 0, comm, &request));
  complete(request);
  if (rank != 0 && invitation.file.descriptor >= 0) mapping = attach(invitation);
  if (!all_agree(comm, static_cast<bool>(mapping))) mapping = Mapping();
  return mapping;
}

}  // namespace

bool all_agree(MPI_Comm comm, bool mine) {
  int good = mine, all = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&good, &all, 1, MPI_INT, MPI_MIN, comm, &request));
  complete(request);
  return all != 0;
}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping Mapping::of_file(int descriptor, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return {};
  madvise(data, bytes, MADV_HUGEPAGE);  // advice only
  return {static_cast<std::byte*>(data), bytes};
}

Mapping Mapping::of_peer(const PeerFile& peer, std::size_t bytes, std::string& reason) {
  Descriptor file(peer.open(bytes, reason));
  if (file.get() < 0) return {};
  Mapping mapping = of_file(file.get(), bytes);
  if (!mapping) reason = fmt::format("cannot be mapped: {}", std::strerror(errno));
  return mapping;
}

Mapping make_shared_block(MPI_Comm comm, std::size_t bytes, bool direct, std::string& reason) {
  if (direct) {
    Mapping block = share(
        comm, bytes, reason, [](Invitation&) { return memfd_create("tessera", MFD_CLOEXEC); },
        [&](const Invitation& at) { return Mapping::of_peer(at.file, bytes, reason); });
    if (block) return block;
  }
  std::string name;
  Mapping block = share(
      comm, bytes, reason,
      [&name](Invitation& at) {
        std::random_device draw;
        name = fmt::format("/tessera-{:08x}{:08x}{:08x}{:08x}", draw(), draw(), draw(), draw());
        std::strncpy(at.name, name.c_str(), sizeof(at.name) - 1);
        return shm_open(at.name, O_CREAT | O_EXCL | O_RDWR, 0600);
      },
      [&](const Invitation& at) {
        // A container may have a /dev/shm of its own, where the name is another file or none.
        Descriptor file(shm_open(at.name, O_RDWR, 0600));
        struct stat found;
        Mapping mapping;
        if (file.get() < 0 || fstat(file.get(), &found) != 0)
          reason = std::strerror(errno);
        else if (found.st_dev != at.file.device || found.st_ino != at.file.inode)
          reason = "the name in /dev/shm is another file here";
        else if (mapping = Mapping::of_file(file.get(), bytes); !mapping)
          reason = std::strerror(errno);
        return mapping;
      });
  if (!name.empty()) shm_unlink(name.c_str());
  return block;
}

}  // namespace tessera
