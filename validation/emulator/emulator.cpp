#include "emulator.hpp"

#include <boost/context/fiber.hpp>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "races.hpp"

namespace tessera::emulator {

uint3 thread_index, block_index;
dim3 block_size, grid_size;

namespace {

namespace context = boost::context;
/// Bytes of static variables in shared memory beside dynamic ones: the emulator cannot count them, scripts/sass does.
constexpr std::size_t static_shared = 512;
constexpr std::size_t warp_lanes = 32, slot_bytes = 128, stack_bytes = 256 << 10;

/// A place where `expected` threads meet.
struct Meeting {
  int arrived = 0, expected = 0;
  std::int64_t round = 0;
  // For the thread sanitizer, of threads and of their products. Some may come to a round while others have yet to leave the one before.
  std::byte places[2]{}, product_places[2]{};
};

/// What the lanes of a warp show each other. Two sets of slots: a lane can be one exchange ahead of the slowest.
struct Board {
  Meeting meeting;
  std::vector<std::byte> slots[2];
};

/// A cp.async that was issued and not yet waited for.
struct Copy {
  std::byte* to;
  const std::byte* from;
  int size, bytes;
  std::int64_t group;
};

struct Thread {
  context::fiber fiber;
  races::Fiber watched{}, products{};
  std::byte seen_by_products{}, read_by_products{};  ///< for the thread sanitizer
  std::vector<std::byte> seen;                       ///< of an exchange, where races are watched: the slots are everybody's
  std::vector<Copy> copies;
  std::int64_t copy_group = 0;  // the one that is open
  uint3 index{};
  bool ended = false;
  const Meeting* waits = nullptr;
  std::int64_t round = 0;
};

/// Stacks of threads that have ended serve those that come: mapping a new one for each took most of the time.
class Stacks {
 public:
  context::stack_context allocate() {
    if (free_.empty()) return context::fixedsize_stack(stack_bytes).allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(const context::stack_context& stack) { free_.push_back(stack); }
  ~Stacks() {
    for (context::stack_context& stack : free_) context::fixedsize_stack(stack_bytes).deallocate(stack);
  }

 private:
  std::vector<context::stack_context> free_;
} g_stacks;

struct StackAllocator {
  context::stack_context allocate() { return g_stacks.allocate(); }
  void deallocate(context::stack_context& stack) { g_stacks.give_back(stack); }
};

/// The emulator's own thread, where it waits for a block's.
struct Scheduler {
  context::fiber fiber;
  races::Fiber watched = races::current();
  std::byte begin{}, end{};  ///< of a block, for the thread sanitizer
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Board> warps;
  Meeting barrier, named[16];
  Scheduler scheduler;
  Thread* current = nullptr;
  bool products = false;  ///< of warpgroups were started or are about to be
  std::exception_ptr error;

  Block() = default;
  Block(const Block&) = delete;
  /// Threads that have not ended unwind their stacks.
  ~Block() {
    for (Thread& t : threads) {
      races::change_to(t.watched);
      t.fiber = {};
      races::leave(&scheduler.end);
      races::change_to(scheduler.watched);
    }
    races::come(&scheduler.end);
  }
};

Block* g_block = nullptr;
Order g_order = Order::forward;
std::int64_t g_blocks = 0;
std::vector<std::byte> g_shared_storage;
std::byte* g_shared = nullptr;

int number(const Thread& t) { return static_cast<int>(t.index.x + block_size.x * (t.index.y + block_size.y * t.index.z)); }

void yield() {
  Thread& self = *g_block->current;
  races::change_to(g_block->scheduler.watched);
  g_block->scheduler.fiber = std::move(g_block->scheduler.fiber).resume();
  thread_index = self.index;
}

/// As this thread's products, for the thread sanitizer.
template <class F>
void as_products(F f) {
  Thread& self = *g_block->current;
  races::change_to(self.products);
  f();
  races::change_to(self.watched);
}

/// The last thread to come opens the next round; the others wait for it, or go on.
enum class Waits { yes, no };
void meet(Meeting& m, int expected, Orders orders, Waits waits = Waits::yes) {
  if (m.arrived > 0 && m.expected != expected) throw std::logic_error("emulator: threads that meet expect different numbers of threads");
  m.expected = expected;
  std::byte *place = &m.places[m.round & 1], *product_place = &m.product_places[m.round & 1];
  if (orders == Orders::memory) {
    races::leave(place);
    if (g_block->products) as_products([=] { races::leave(product_place); });
  }
  if (++m.arrived == expected) {
    m.arrived = 0;
    ++m.round;
  } else if (waits == Waits::yes) {
    Thread& self = *g_block->current;
    self.waits = &m;
    self.round = m.round;
    yield();
  }
  if (waits == Waits::no) yield();  // the others first: what they may do from now on they do before what this thread goes on with
  if (orders == Orders::memory && waits == Waits::yes) {
    races::come(place);
    if (g_block->products) as_products([=] { races::come(product_place); });
  }
}

const std::byte* show(Board& board, int place, int expected, const void* value, std::size_t bytes, Orders orders) {
  if (bytes > slot_bytes) throw std::logic_error("emulator: an exchange of more than 128 bytes a lane");
  races::reads(value, bytes);
  auto& slots = board.slots[board.meeting.round & 1];
  {
    const races::Unwatched ours;
    slots.resize(warp_lanes * slot_bytes);
    std::memcpy(slots.data() + static_cast<std::size_t>(place) * bytes, value, bytes);
  }
  meet(board.meeting, expected, orders);
  if (!races::watched) return slots.data();
  const races::Unwatched ours;
  std::vector<std::byte>& seen = g_block->current->seen;
  seen.assign(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(warp_lanes * bytes));
  return seen.data();
}

[[noreturn]] void stuck(const Block& block) {
  std::string waiting;
  int ended = 0;
  for (const Thread& t : block.threads) {
    if (t.ended) {
      ++ended;
    } else if (waiting.empty()) {
      const char* where = t.waits == &block.barrier ? "__syncthreads" : "a warp function or named barrier";
      waiting = "thread " + std::to_string(number(t)) + " waits in " + where;
    }
  }
  throw std::logic_error("emulator: block " + std::to_string(block_index.x) + "," + std::to_string(block_index.y) + "," +
                         std::to_string(block_index.z) + " is stuck: " + waiting + ", " + std::to_string(ended) + " of " +
                         std::to_string(block.threads.size()) + " threads have ended");
}

void schedule(Block& block) {
  const int n = static_cast<int>(block.threads.size());
  for (int left = n; left > 0;) {
    bool moved = false;
    for (int k = 0; k < n; ++k) {
      Thread& t = block.threads[static_cast<std::size_t>(g_order == Order::forward ? k : n - 1 - k)];
      if (t.ended || (t.waits && t.waits->round == t.round)) continue;
      t.waits = nullptr;
      block.current = &t;
      thread_index = t.index;
      races::change_to(t.watched);
      t.fiber = std::move(t.fiber).resume();
      moved = true;
      if (t.ended) --left;
      if (block.error) return;
    }
    if (!moved) stuck(block);
  }
}

void run_block(const std::function<void()>& body) {
  Block block;
  const std::size_t n = std::size_t{block_size.x} * block_size.y * block_size.z;
  block.threads.resize(n);
  block.warps.resize((n + 31) / 32);
  g_block = &block;
  ++g_blocks;
  for (std::size_t i = 0; i < n; ++i) {
    Thread& t = block.threads[i];
    const auto u = static_cast<unsigned>(i);
    t.index = {u % block_size.x, u / block_size.x % block_size.y, u / block_size.x / block_size.y};
    t.watched = races::fiber(2 * i), t.products = races::fiber(2 * i + 1);
    t.fiber = context::fiber(std::allocator_arg, StackAllocator{}, [&block, &t, &body](context::fiber&& from) {
      block.scheduler.fiber = std::move(from);
      races::come(&block.scheduler.begin);
      try {
        body();
      } catch (const context::detail::forced_unwind&) {
        throw;
      } catch (...) {
        block.error = std::current_exception();
      }
      t.ended = true;
      races::change_to(block.scheduler.watched);
      return std::move(block.scheduler.fiber);
    });
  }
  races::leave(&block.scheduler.begin);
  schedule(block);
  if (block.error) {
    const std::exception_ptr error = block.error;
    std::rethrow_exception(error);
  }
  for (const Meeting& m : block.named)
    if (m.arrived > 0)
      throw std::logic_error("emulator: a block ended while threads had arrived at a named barrier for which others did not wait");
}

Meeting& named(int barrier, int threads) {
  if (barrier < 1 || barrier > 15 || threads % 32 != 0)
    throw std::logic_error("emulator: a named barrier that is not 1 to 15, or not for whole warps");
  return g_block->named[barrier];
}

}  // namespace

void set_order(Order order) { g_order = order; }
bool watches_races() { return races::watched; }

void launch(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  if (g_block) throw std::logic_error("emulator: a kernel started from a kernel");
  if (kernel_faults()) return;
  if (block.x * block.y * block.z > 1024 || block.x * block.y * block.z == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    throw std::logic_error("emulator: a launch that CUDA refuses: " + std::to_string(grid.x) + " blocks of " + std::to_string(block.x));
  if (shared_bytes + static_shared > shared_memory_limit())
    throw std::logic_error("emulator: " + std::to_string(shared_bytes) + " bytes of dynamic shared memory, where this GPU has " +
                           std::to_string(shared_memory_limit()) + " and static variables take up to " + std::to_string(static_shared));
  grid_size = grid;
  block_size = block;
  constexpr std::size_t alignment = 1024;
  struct Leave {
    ~Leave() { g_block = nullptr; }
  } leave;
  const std::int64_t blocks = std::int64_t{grid.x} * grid.y * grid.z;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto at = static_cast<unsigned>(g_order == Order::forward ? i : blocks - 1 - i);
    block_index = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    // A new allocation of just this size for each block: the sanitizer sees its end, and 0xff bytes are NaN.
    g_shared_storage = std::vector<std::byte>();
    g_shared_storage.resize(shared_bytes + alignment, std::byte{0xff});
    const auto address = reinterpret_cast<std::uintptr_t>(g_shared_storage.data());
    g_shared = g_shared_storage.data() + (alignment - address % alignment) % alignment;
    run_block(body);
    g_block = nullptr;
  }
}

void* dynamic_shared() { return g_shared; }
std::int64_t block_number() { return g_blocks; }

void sync_block() { meet(g_block->barrier, static_cast<int>(g_block->threads.size()), Orders::memory); }
void sync_named(int barrier, int threads) { meet(named(barrier, threads), threads, Orders::memory); }
void arrive_named(int barrier, int threads) { meet(named(barrier, threads), threads, Orders::memory, Waits::no); }

void copy_async(void* to, const void* from, int size, int bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(to) | (bytes ? reinterpret_cast<std::uintptr_t>(from) : 0);
  if (address % static_cast<unsigned>(size) != 0) throw std::logic_error("emulator: cp.async between addresses that are not aligned");
  if (bytes < 0 || bytes > size) throw std::logic_error("emulator: cp.async of more bytes than its size");
  std::memset(to, 0xff, static_cast<std::size_t>(size));
  Thread& self = *g_block->current;
  self.copies.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size, bytes, self.copy_group});
}

void products_see() {
  if (!races::watched) return;
  Thread& self = *g_block->current;
  g_block->products = true;
  races::leave(&self.seen_by_products);
  as_products([&] { races::come(&self.seen_by_products); });
}

void products_read(const void* from, std::size_t bytes) {
  if (races::watched) as_products([=] { races::reads(from, bytes); });
}

void products_done() {
  if (!races::watched) return;
  Thread& self = *g_block->current;
  as_products([&] { races::leave(&self.read_by_products); });
  races::come(&self.read_by_products);
}

void copy_async_commit() { ++g_block->current->copy_group; }

void copy_async_wait(int left) {
  Thread& self = *g_block->current;
  auto copy = self.copies.begin();
  for (; copy != self.copies.end() && copy->group < self.copy_group - left; ++copy) {
    std::memset(copy->to, 0, static_cast<std::size_t>(copy->size));
    if (copy->bytes) std::memcpy(copy->to, copy->from, static_cast<std::size_t>(copy->bytes));
  }
  self.copies.erase(self.copies.begin(), copy);
}

int lane() { return number(*g_block->current) % 32; }

const std::byte* exchange(unsigned mask, const void* value, std::size_t bytes, Orders orders) {
  const int place = lane();
  if (!(mask >> place & 1)) throw std::logic_error("emulator: a warp function without its own lane in the mask");
  const int warp = number(*g_block->current) / 32, present = std::min<int>(32, static_cast<int>(g_block->threads.size()) - 32 * warp);
  const unsigned there = present == 32 ? 0xffffffffu : (1u << present) - 1;
  return show(g_block->warps[static_cast<std::size_t>(warp)], place, std::popcount(mask & there), value, bytes, orders);
}

}  // namespace tessera::emulator
