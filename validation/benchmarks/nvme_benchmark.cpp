// The disk tier against fio's direct transfers on the same file system with blocks of the same size, at the same depth or at four times
// that, whichever serves fio better, measured in the same run; without fio against bare requests through io_uring. The rate of shared disks
// drifts: rounds are interleaved, each compares within itself, and the median of the ratios counts.
//   nvme_benchmark [FOLDER] [MiB] [DEPTH] [ROUNDS]
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/types.hpp"
#include "io/nvme/folder_file.hpp"
#include "io/nvme/spill_engine.hpp"
#include "io/nvme/transport.hpp"

namespace {

using namespace tessera;
constexpr std::int64_t block = 1 << 20;

struct Setting {
  std::string folder;
  std::int64_t bytes;
  int depth, rounds;
};

struct Rate {
  double bytes_per_second = 0;
  double processor = 0;  // seconds of processor time for a GB
};

double processor_seconds() {
  rusage u;
  ::getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

template <class F>
Rate timed(std::int64_t bytes, F f) {
  const double start = now_seconds(), processor = processor_seconds();
  f();
  return {static_cast<double>(bytes) / (now_seconds() - start), (processor_seconds() - processor) / (static_cast<double>(bytes) / 1e9)};
}

/// fio's rate over a file that lies there; nothing without fio.
Rate fio(const Setting& s, int depth, const char* what) {
  const std::string command = fmt::format(
      "fio --name=t --filename={}/fio --rw={} --bs=1m --size={} --iodepth={} --ioengine=io_uring --direct=1 --fixedbufs=1 "
      "--registerfiles=1 "
      "--overwrite=1 --output-format=json 2>/dev/null",
      s.folder, what, s.bytes, depth);
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> out(::popen(command.c_str(), "r"), &::pclose);
  char piece[4096];
  for (std::size_t n; out && (n = std::fread(piece, 1, sizeof piece, out.get())) > 0;) text.append(piece, n);
  if (text.find('{') == std::string::npos) return {};
  const Json job = Json::parse(text.substr(text.find('{'))).at("jobs").at(0);
  const double rate = job.at(what).at("bw_bytes"), busy = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
  return {rate, busy / 100 / (rate / 1e9)};
}

/// The same requests with nothing around them: `depth` at a time, in order.
Rate bare(const Setting& s, const io::FolderFile& file, io::Transport& transport, std::span<std::byte> memory, bool write) {
  std::vector<io::Request> requests(static_cast<std::size_t>(s.depth));
  return timed(s.bytes, [&] {
    std::int64_t next = 0;
    const auto start = [&](io::Request& r) {
      r = {.write = write, .file = 0, .offset = next, .bytes = block, .memory = memory.data() + next, .result = 0};
      next += block;
      TESSERA_REQUIRE(!transport.start(r), "{}", file.path());
    };
    for (auto& r : requests)
      if (next < s.bytes) start(r);
    std::vector<io::Request*> ended;
    for (std::int64_t done = 0; done < s.bytes;) {
      ended.clear();
      transport.collect(ended);
      for (auto* r : ended) {
        TESSERA_REQUIRE(r->result == block, "a request moved {} bytes", r->result);
        done += block;
        if (next < s.bytes) start(*r);
      }
    }
  });
}

/// What a run does: units of 64 MiB, all under way at once.
Rate spill(const Setting& s, io::SpillFile& file, std::span<std::byte> memory, bool write) {
  constexpr std::int64_t unit = 64 << 20;
  return timed(s.bytes, [&] {
    std::vector<io::SpillFile::Ticket> tickets;
    for (std::int64_t at = 0; at < s.bytes; at += unit) {
      const auto part = memory.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(unit, s.bytes - at)));
      tickets.push_back(write ? file.write(at, part, "benchmark") : file.read(at, part, "benchmark"));
    }
    for (auto& t : tickets) file.wait(t);
  });
}

template <class F>
double median(const std::vector<Rate>& rates, F of) {
  std::vector<double> values;
  for (const auto& r : rates) values.push_back(of(r));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The median over rounds.
double ratio(const std::vector<Rate>& a, const std::vector<Rate>& b) {
  std::vector<Rate> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back({a[i].bytes_per_second / b[i].bytes_per_second, 0});
  return median(ratios, [](const Rate& r) { return r.bytes_per_second; });
}

void run(const Setting& s) {
  const io::Pages pages(static_cast<std::size_t>(s.bytes));
  const auto memory = pages.all();
  std::uint64_t x = 88172645463325252ull;
  for (std::size_t i = 0; i < memory.size(); i += 8) {  // no zeros: disks and file systems cheat on them
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(memory.data() + i, &x, 8);
  }
  const io::FolderFile raw(s.folder, "bare requests", s.bytes);
  std::vector<std::string> notes;
  const auto transport = io::make_uring_transport({raw.descriptor()}, s.depth, {memory}, notes);
  io::SpillOptions options{
      .folders = {s.folder}, .purpose = "benchmark", .bytes = s.bytes, .block_bytes = block, .queue_depth = s.depth, .memory = {memory}};
  io::SpillFile plain(options);
  io::SpillOptions loose_options = options;
  loose_options.memory = {};
  io::SpillFile loose(loose_options);
  options.encrypt = true;
  io::SpillFile encrypted(options);
  fmt::print("{} in {}, blocks of {}, medians of {} rounds\n{}\n", human_bytes(static_cast<double>(s.bytes)), s.folder, human_bytes(block),
             s.rounds, plain.how());

  std::map<std::string, std::vector<Rate>> rates;
  for (int round = 0; round <= s.rounds; ++round) {
    if (round == 1) rates.clear();  // the first finds files that were never written
    for (const bool write : {true, false}) {
      const std::string what = write ? "write" : "read";
      const std::pair<const char*, std::function<Rate()>> all[] = {
          {"fio ",
           [&] {
             const Rate few = fio(s, s.depth, what.c_str()), many = fio(s, 4 * s.depth, what.c_str());
             return few.bytes_per_second > many.bytes_per_second ? few : many;
           }},
          {"bare ", [&] { return transport ? bare(s, raw, *transport, memory, write) : Rate{}; }},
          {"spill ", [&] { return spill(s, plain, memory, write); }},
          {"not registered ", [&] { return spill(s, loose, memory, write); }},
          {"encrypted ", [&] { return spill(s, encrypted, memory, write); }},
      };
      constexpr int ways = std::size(all);
      for (int i = 0; i < ways; ++i) {  // another one first in each round: what a disk has just done tells in what it does next
        const auto& [who, measure] = all[(i + round) % ways];
        rates[who + what].push_back(measure());
      }
    }
  }
  for (const std::string what : {"write", "read"}) {
    const bool has_fio = rates["fio " + what][0].bytes_per_second > 0;
    for (const std::string who : {"fio", "bare", "spill", "not registered", "encrypted"}) {
      const auto& r = rates[who + " " + what];
      if (r[0].bytes_per_second > 0)
        fmt::print("  {:<21} {:6.2f} GB/s  {:5.1f} % of {}   {:5.2f} s of processor a GB\n", who + " " + what,
                   median(r, [](const Rate& a) { return a.bytes_per_second / 1e9; }),
                   100 * ratio(r, rates[(has_fio ? "fio " : "bare ") + what]), has_fio ? "fio" : "bare requests",
                   median(r, [](const Rate& a) { return a.processor; }));
    }
    if (transport) fmt::print("  checksums cost {:.1f} % of the rate\n", 100 - 100 * ratio(rates["spill " + what], rates["bare " + what]));
  }
  double hashed = 0;
  for (int i = 0; i < 3; ++i)
    hashed = std::max(hashed, timed(s.bytes, [&] {
                                for (std::int64_t at = 0; at < s.bytes; at += block)
                                  if (hash_bytes(memory.data() + at, block) == Hash128{}) std::abort();
                              }).bytes_per_second);
  fmt::print("  XXH3 of blocks in memory, one thread: {:.2f} GB/s\n", hashed / 1e9);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder =
      (argc > 1 ? std::string(argv[1]) : std::filesystem::temp_directory_path().string()) + "/tessera-nvme-benchmark";
  std::filesystem::create_directories(folder);
  run({folder, (argc > 2 ? std::atoll(argv[2]) : 1024) * (1 << 20), argc > 3 ? std::atoi(argv[3]) : 8, argc > 4 ? std::atoi(argv[4]) : 8});
  std::filesystem::remove_all(folder);
  return 0;
} catch (const tessera::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return static_cast<int>(e.code);
}
