// The calls of NCCL that our code makes, over MPI: non-blocking communicators, group calls, asynchronous errors. A collective begins only
// when the host asks for its stream: nothing that fails to wait for it finds it done. Every call that NCCL would answer with
// ncclInvalidUsage is refused here too.
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "emulator.hpp"

namespace {

using tessera::bf16;
using tessera::f16;

/// What a member tells the others at the start.
struct Member {
  int rank = 0, world_rank = 0, device = 0;
  char host[32] = {};
};
/// What an ncclUniqueId holds here.
struct Id {
  int root = 0, tag = 0;
};

MPI_Request receive(void* to, std::size_t bytes, int from, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
  return request;
}
MPI_Request send(const void* from, std::size_t bytes, int to, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
  return request;
}
bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  return done != 0;
}

ncclResult_t g_error = ncclSuccess;
bool g_registration_refused = false;
tessera::emulator::NcclBuffers g_buffers;
int g_most_blocks = 0;

/// Memory that a communicator knows; what NCCL calls a handle points to one.
struct Registration {
  const std::byte* begin;
  std::size_t bytes;
  bool covers(const void* from, std::size_t length) const {
    return begin <= from && static_cast<const std::byte*>(from) + length <= begin + bytes;
  }
};

}  // namespace

namespace tessera::emulator {
void set_nccl_error(int error) { g_error = static_cast<ncclResult_t>(error); }
void refuse_nccl_registration(bool refused) { g_registration_refused = refused; }
NcclBuffers nccl_buffers() { return g_buffers; }
int nccl_most_blocks() { return g_most_blocks; }
}  // namespace tessera::emulator

struct ncclComm {
  int size = 0, tag = 0;
  Member mine;
  std::vector<Member> members;
  std::vector<MPI_Request> requests;  // of the start
  bool told = false;                  // rank 0 has told the members of each other
  ncclResult_t state = ncclInProgress;
  std::size_t sums = 0;  // begun so far, the same on all ranks
  std::string error;
  std::vector<std::unique_ptr<Registration>> registrations;
  /// Work that streams still have to do; it outlives a communicator that is aborted.
  struct Life {
    bool aborted = false;
    int under_way = 0, in_graphs = 0;  ///< calls; in_graphs: of these, those of graphs that have been launched and have not ended
  };
  std::shared_ptr<Life> life = std::make_shared<Life>();

  /// Goes on with the start: all tell rank 0 of themselves, and rank 0 tells all of all.
  void start() {
    if (!all_done(requests)) return;
    requests.clear();
    if (mine.rank == 0 && !told) {
      told = true;
      std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.rank < b.rank; });
      for (int r = 1; r < size; ++r)
        requests.push_back(send(members.data(), members.size() * sizeof(Member), members[static_cast<std::size_t>(r)].world_rank, tag + 1));
      return;
    }
    state = ncclSuccess;
    for (const Member& a : members)
      for (const Member& b : members)
        if (a.rank < b.rank && a.device == b.device && std::string(a.host) == b.host) {
          state = ncclInvalidUsage;
          error = "Duplicate GPU detected : rank " + std::to_string(a.rank) + " and rank " + std::to_string(b.rank) + " both on device " +
                  std::to_string(a.device);
        }
  }
};

namespace {

enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast, reduce, send, receive };

struct Call {
  Kind kind;
  const void* send;
  void* recv;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  ncclComm_t comm;
  cudaStream_t stream;
};

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt64:
      return 8;
    case ncclFloat32:
      return 4;
    case ncclBfloat16:
    case ncclFloat16:
      return 2;
    case ncclUint8:
      return 1;
    default:
      return 0;  // refused by submit
  }
}

template <class T, class Wide>
void combine(void* into, const void* term, std::size_t n, ncclRedOp_t op) {
  auto* a = static_cast<T*>(into);
  const auto* b = static_cast<const T*>(term);
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<Wide>(a[i]), y = static_cast<Wide>(b[i]);
    a[i] = static_cast<T>(op == ncclSum ? x + y : std::max(static_cast<T>(x), static_cast<T>(y)));
  }
}
/// Rounded at every term, as NCCL does on its way round a ring.
template <class T>
void combine_halves(void* into, const void* term, std::size_t n, ncclRedOp_t op) {
  auto* a = static_cast<T*>(into);
  const auto* b = static_cast<const T*>(term);
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
    a[i] = T(op == ncclSum ? x + y : std::max(x, y));
  }
}
void combine(void* into, const void* term, std::size_t n, ncclDataType_t type, ncclRedOp_t op) {
  if (type == ncclFloat32) combine<float, float>(into, term, n, op);
  if (type == ncclInt64) combine<std::int64_t, std::uint64_t>(into, term, n, op);
  if (type == ncclBfloat16) combine_halves<bf16>(into, term, n, op);
  if (type == ncclFloat16) combine_halves<f16>(into, term, n, op);
}

/// One call under way: messages to and from the members, then sums. NCCL promises no order of theirs: each call of a communicator begins
/// with another rank, so that whoever relies on one order gets different bits. MPI moves bytes when it likes, so messages have memory of
/// their own: the device's is open only now and then.
class Transfer {
 public:
  Transfer(const Call& call, std::vector<MPI_Request>& requests) : call_(call), comm_(*call.comm), requests_(requests) {
    const std::size_t bytes = call.count * size_of(call.type);
    if (call.kind == Kind::all_gather || call.kind == Kind::broadcast) {
      move(bytes);
      return;
    }
    if (call.kind == Kind::send) put(call.send, bytes, static_cast<std::size_t>(call.root));
    if (call.kind == Kind::receive) get(call.recv, bytes, static_cast<std::size_t>(call.root));
    if (call.kind == Kind::send || call.kind == Kind::receive) return;
    const auto n = static_cast<std::size_t>(comm_.size), me = static_cast<std::size_t>(comm_.mine.rank);
    const bool scatter = call.kind == Kind::reduce_scatter;
    const auto* from = static_cast<const std::byte*>(call.send);
    sums_ = call.kind != Kind::reduce || comm_.mine.rank == call.root;
    first_ = comm_.sums++ % n;
    if (sums_) terms_.assign(n, std::vector<std::byte>(bytes));
    if (sums_) std::memcpy(terms_[me].data(), from + (scatter ? me * bytes : 0), bytes);
    for (std::size_t r = 0; r < n; ++r) {
      if (r == me) continue;
      if (call.kind != Kind::reduce || static_cast<int>(r) == call.root) put(from + (scatter ? r * bytes : 0), bytes, r);
      if (sums_) get(terms_[r].data(), bytes, r);
    }
  }
  void finish() {
    for (const Arrival& arrival : arrivals_) std::memcpy(arrival.to, arrival.bytes.data(), arrival.bytes.size());
    if (!sums_) return;
    std::vector<std::byte>& sum = terms_[first_];
    for (std::size_t r = 1; r < terms_.size(); ++r)
      combine(sum.data(), terms_[(first_ + r) % terms_.size()].data(), call_.count, call_.type, call_.op);
    std::memcpy(call_.recv, sum.data(), sum.size());
  }

 private:
  void move(std::size_t bytes) {
    const auto n = static_cast<std::size_t>(comm_.size), me = static_cast<std::size_t>(comm_.mine.rank);
    const bool gather = call_.kind == Kind::all_gather;
    for (std::size_t root = 0; root < n; ++root) {
      if (!gather && static_cast<int>(root) != call_.root) continue;
      std::byte* to = static_cast<std::byte*>(call_.recv) + (gather ? root * bytes : 0);
      if (root != me) {
        get(to, bytes, root);
        continue;
      }
      for (std::size_t r = 0; r < n; ++r)
        if (r != me) put(call_.send, bytes, r);
      if (to != call_.send) std::memmove(to, call_.send, bytes);
    }
  }
  struct Arrival {
    void* to;
    std::vector<std::byte> bytes;
  };

  void put(const void* from, std::size_t bytes, std::size_t to) {
    const auto* first = static_cast<const std::byte*>(from);
    const std::vector<std::byte>& message = sent_.emplace_back(first, first + bytes);
    requests_.push_back(send(message.data(), bytes, comm_.members[to].world_rank, comm_.tag));
  }
  void get(void* to, std::size_t bytes, std::size_t from) {
    std::vector<std::byte>& message = arrivals_.emplace_back(Arrival{to, std::vector<std::byte>(bytes)}).bytes;
    requests_.push_back(receive(message.data(), bytes, comm_.members[from].world_rank, comm_.tag));
  }

  Call call_;
  ncclComm& comm_;
  std::vector<MPI_Request>& requests_;
  bool sums_ = false;
  std::size_t first_ = 0;                      // whose term a sum begins with
  std::vector<std::vector<std::byte>> terms_;  // of each rank
  std::list<std::vector<std::byte>> sent_;
  std::list<Arrival> arrivals_;  // lists: MPI knows where their bytes lie
};

/// The calls of a group on one communicator: one piece of work of their stream.
struct Group {
  std::vector<Call> calls;
  std::shared_ptr<ncclComm::Life> life;
  std::vector<MPI_Request> requests;
  std::vector<Transfer> transfers;
  tessera::emulator::Called called;  // the host function that NCCL has in a graph, which tells its proxy thread what is sent
  bool captured = false, asked = false, begun = false;

  /// In a graph it is done again and again.
  bool work() {
    if (life->aborted) return true;
    if (!asked) {
      asked = true;
      if (captured) called = tessera::emulator::call_on_host_thread([] {});
      return false;
    }
    if (captured && !*called) return false;
    if (!begun) {
      begun = true;
      for (const Call& call : calls) transfers.emplace_back(call, requests);
    }
    if (!all_done(requests)) return false;
    for (Transfer& transfer : transfers) transfer.finish();
    --life->under_way;
    life->in_graphs -= captured;
    asked = begun = false;
    transfers.clear();
    requests.clear();
    return true;
  }
};

/// Whether calls outside a graph may overlap with those of a graph, on one communicator: NCCL orders them by nodes that it adds to the
/// graph.
bool mixes() {
  const char* support = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  return !support || std::string(support) != "0";
}

thread_local int g_depth = 0;
thread_local std::vector<Call> g_calls;

ncclResult_t launch() {
  while (!g_calls.empty()) {
    auto group = std::make_shared<Group>();
    ncclComm_t comm = g_calls.front().comm;
    const cudaStream_t stream = g_calls.front().stream;
    for (const Call& call : g_calls)
      if (call.comm == comm) group->calls.push_back(call);
    std::erase_if(g_calls, [&](const Call& call) { return call.comm == comm; });
    for (const Call& call : group->calls)
      if (call.stream != stream) return ncclInvalidUsage;
    group->life = comm->life;
    group->captured = tessera::emulator::is_captured(stream);
    if (!group->captured) {
      if (!mixes() && comm->life->in_graphs > 0) return ncclInvalidUsage;
      ++comm->life->under_way;
    }
    comm->state = ncclInProgress;
    tessera::emulator::enqueue(
        stream, [group] { return group->work(); },
        [life = group->life] {
          if (!mixes() && life->under_way > life->in_graphs) g_error = ncclInvalidUsage;
          ++life->under_way, ++life->in_graphs;
        });
  }
  return ncclInProgress;
}

void forget(ncclComm& comm, std::vector<std::unique_ptr<Registration>>::iterator registration) {
  tessera::emulator::let_go((*registration)->begin);
  --g_buffers.registrations;
  comm.registrations.erase(registration);
}

/// Counts the buffers of a call by whether they lie in registered memory.
void count_buffers(const Call& call) {
  const std::size_t bytes = call.count * size_of(call.type), all = bytes * static_cast<std::size_t>(call.comm->size);
  auto count = [&](const void* buffer, std::size_t length) {
    const auto& known = call.comm->registrations;
    const bool inside = std::any_of(known.begin(), known.end(), [&](const auto& r) { return r->covers(buffer, length); });
    ++(inside ? g_buffers.registered : g_buffers.unregistered);
  };
  if (call.send) count(call.send, call.kind == Kind::reduce_scatter ? all : bytes);
  if (call.recv) count(call.recv, call.kind == Kind::all_gather ? all : bytes);
}

ncclResult_t submit(const Call& call) {
  if (!call.comm || call.comm->state != ncclSuccess || size_of(call.type) == 0 || call.root < 0 || call.root >= call.comm->size)
    return ncclInvalidUsage;
  count_buffers(call);
  g_calls.push_back(call);
  return g_depth > 0 ? ncclSuccess : launch();
}

}  // namespace

extern "C" {
const char* ncclGetErrorString(ncclResult_t result) { return result == ncclInvalidUsage ? "invalid usage" : "emulated"; }
const char* ncclGetLastError(ncclComm_t comm) { return comm ? comm->error.c_str() : ""; }

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  Id value;
  MPI_Comm_rank(MPI_COMM_WORLD, &value.root);
  value.tag = 2 * (value.root * 4096 + made++ % 4096);
  std::memcpy(static_cast<void*>(id), &value, sizeof value);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  if (!config || config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidUsage;
  Id id;
  std::memcpy(static_cast<void*>(&id), &unique, sizeof id);
  auto* comm = *made = new ncclComm;
  comm->size = size;
  g_most_blocks = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
  comm->tag = id.tag;
  comm->members.resize(static_cast<std::size_t>(size));
  comm->mine.rank = rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &comm->mine.world_rank);
  cudaGetDevice(&comm->mine.device);
  comm->mine.device = tessera::emulator::bus_of(comm->mine.device);  // NCCL compares places on the bus
  if (const char* host = std::getenv("NCCL_HOSTID")) std::strncpy(comm->mine.host, host, sizeof comm->mine.host - 1);
  if (rank == 0) {
    comm->members[0] = comm->mine;
    for (int r = 1; r < size; ++r)
      comm->requests.push_back(receive(&comm->members[static_cast<std::size_t>(r)], sizeof(Member), MPI_ANY_SOURCE, id.tag));
  } else {
    comm->requests = {send(&comm->mine, sizeof(Member), id.root, id.tag),
                      receive(comm->members.data(), comm->members.size() * sizeof(Member), id.root, id.tag + 1)};
  }
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (comm->state == ncclInProgress) {
    if (comm->requests.empty() && (comm->told || comm->mine.rank != 0))
      comm->state = ncclSuccess;  // a group's launch
    else
      comm->start();
  }
  *error = g_error != ncclSuccess ? g_error : comm->state;
  return ncclSuccess;
}

/// NCCL counts how often a range is registered; we register once. It answers at once; here the caller must wait, as after any other call.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  if (g_registration_refused) return ncclUnhandledCudaError;
  const auto* begin = static_cast<const std::byte*>(memory);
  if (!comm || comm->state != ncclSuccess || !memory || bytes == 0) return ncclInvalidUsage;
  for (const auto& known : comm->registrations)
    if (begin < known->begin + known->bytes && known->begin < begin + bytes) return ncclInvalidUsage;
  *handle = comm->registrations.emplace_back(std::make_unique<Registration>(Registration{begin, bytes})).get();
  tessera::emulator::hold(memory, bytes);
  ++g_buffers.registrations;
  return comm->state = ncclInProgress;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const auto found = std::find_if(comm->registrations.begin(), comm->registrations.end(), [=](const auto& r) { return r.get() == handle; });
  if (found == comm->registrations.end() || comm->life->under_way > 0) return ncclInvalidUsage;
  forget(*comm, found);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->life->under_way == 0 ? ncclSuccess : ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->registrations.empty()) {
    std::fprintf(stderr, "emulator: a communicator of NCCL is destroyed while memory is registered with it\n");
    std::abort();
  }
  return ncclCommAbort(comm);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->life->aborted = true;
  // The real one waits for every graph that holds its collectives to be destroyed.
  while (tessera::emulator::live_graphs() > 0) usleep(100);
  while (!comm->registrations.empty()) forget(*comm, comm->registrations.end() - 1);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++g_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --g_depth > 0 ? ncclSuccess : launch(); }

ncclResult_t ncclAllGather(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::all_gather, send, recv, count, type, ncclSum, 0, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return submit({Kind::reduce_scatter, send, recv, count, type, op, 0, comm, stream});
}
ncclResult_t ncclAllReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({Kind::all_reduce, send, recv, count, type, op, 0, comm, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({Kind::broadcast, send, recv, count, type, ncclSum, root, comm, stream});
}
ncclResult_t ncclReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return submit({Kind::reduce, send, recv, count, type, op, root, comm, stream});
}
/// A rank may send to itself inside a group.
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (comm && peer == comm->mine.rank && g_depth == 0) return ncclInvalidUsage;
  return submit({Kind::send, send, nullptr, count, type, ncclSum, peer, comm, stream});
}
ncclResult_t ncclRecv(void* recv, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (comm && peer == comm->mine.rank && g_depth == 0) return ncclInvalidUsage;
  return submit({Kind::receive, nullptr, recv, count, type, ncclSum, peer, comm, stream});
}
}
