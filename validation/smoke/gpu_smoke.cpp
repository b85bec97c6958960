// The first minute on a GPU: one process asks it for what all else stands on, a layer after the other, and says of each whether it is
// there.
//   gpu_smoke [--from N] [--only N] [--seconds N]
// Every line is a JSON object, written at once: {"probe": 3, "state": "begins"}, later the same with "passed", "absent" or "failed" and
// with what was found or went wrong, the layer whose fault it is and what to look at next; and a line for each library as it is loaded. A
// probe that takes longer than its seconds (20) ends the process, and so does one that leaves the device in an error that lasts ("ends":
// true): the rest is for another process, --from the next one. Status 0: nothing failed; 6: something did.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/backend.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/json.hpp"
#include "kernels/cuda/devices.hpp"
#include "topology/devices/gpu_environment.hpp"
#include "validation/device_fault.hpp"
#include "validation/smoke/probes.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera::smoke {
namespace {

struct Settings {
  int from = 1, to = 0;
  unsigned seconds = 20;
};

constexpr int something_failed = static_cast<int>(ExitCode::environment);
std::string g_stage;
int g_probe = 0;
unsigned g_seconds = 0;

Json line_of(const Probe& probe, const char* state) { return {{"probe", g_probe}, {"name", probe.name}, {"state", state}}; }

Json failure_of(const Probe& probe, const std::string& why, double seconds) {
  Json line = line_of(probe, "failed");
  line["seconds"] = seconds;
  line["said"] = g_stage.empty() ? why : g_stage + ": " + why;
  line["layer"] = probe.layer;
  line["next"] = probe.next;
  return line;
}

void print(const Json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// What is written where a probe hangs: made before, since a handler of signals may make nothing. One is written to while the other stands.
std::array<std::string, 2> g_last_words;
std::atomic<const std::string*> g_last_word = nullptr;

void prepare_last_words() {
  static std::size_t turn = 0;
  Json line = failure_of(probes()[static_cast<std::size_t>(g_probe - 1)], fmt::format("did not end within {} s", g_seconds), g_seconds);
  line["ends"] = true;
  std::string& words = g_last_words[++turn % 2];
  words = line.dump() + "\n";
  g_last_word = &words;
}

extern "C" void write_last_words(int) {
  if (const std::string* words = g_last_word.load()) {
    const ssize_t written = write(STDOUT_FILENO, words->data(), words->size());
    static_cast<void>(written);  // nothing can be said of it
  }
  _exit(something_failed);
}

/// Whether it is not failed.
bool run(const Probe& probe) {
  stage("");
  print(line_of(probe, "begins"));
  alarm(g_seconds);
  const double begin = now_seconds();
  const auto took = [&] { return now_seconds() - begin; };
  std::string why;
  try {
    const std::string said = probe.run();
    if (why = device_fault(); why.empty()) {
      Json line = line_of(probe, "passed");
      line["seconds"] = took();
      line["said"] = said;
      print(line);
    }
  } catch (const Absent& absent) {
    Json line = line_of(probe, "absent");
    line["said"] = absent.why;
    print(line);
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::string fault = why.empty() ? "" : device_fault();
  alarm(0);
  if (!why.empty()) {
    Json line = failure_of(probe, why, took());
    if (!fault.empty()) line["ends"] = true;
    print(line);
    if (!fault.empty()) _exit(something_failed);  // what would be freed now is the device's, which is lost
  }
  for (const Library& library : new_libraries()) print({{"library", library.name}, {"version", library.version}, {"path", library.path}});
  return why.empty();
}

[[noreturn]] void run(const Settings& settings) {
  set_gpu_environment(false);
#ifdef TESSERA_EMULATED_GPU
  emulator::set_compute_capability(9);
#endif
  std::signal(SIGALRM, write_last_words);
  g_seconds = settings.seconds;
  bool good = true;
  const int last = settings.to ? settings.to : static_cast<int>(probes().size());
  for (g_probe = settings.from; g_probe <= last; ++g_probe) {
    good &= run(probes()[static_cast<std::size_t>(g_probe - 1)]);
    if (g_probe == 1 && !good) break;  // without a kernel that runs there is nothing behind it
  }
  std::fflush(stdout);
  _exit(good ? 0 : something_failed);  // what ends Kokkos and CUDA is no probe's
}

Settings parse(int argc, char** argv) {
  Settings settings;
  const int count = static_cast<int>(probes().size());
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], text = i + 1 < argc ? argv[i + 1] : "";
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool probe = option == "--from" || option == "--only";
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || (probe ? value > count : option != "--seconds"))
      fail(ExitCode::usage, "{} {} is not understood: --from and --only take a probe's number, 1 to {}, and --seconds what each may take",
           option, text, count);
    if (probe) settings.from = value;
    if (option == "--only") settings.to = value;
    if (option == "--seconds") settings.seconds = static_cast<unsigned>(value);
  }
  return settings;
}

}  // namespace

void stage(const char* name) {
  g_stage = name;
  prepare_last_words();
}

}  // namespace tessera::smoke

int main(int argc, char** argv) {
  try {
    tessera::smoke::run(tessera::smoke::parse(argc, argv));
  } catch (const tessera::Error& error) {
    fmt::print(stderr, "gpu_smoke: {}\n", error.what());
    return static_cast<int>(error.code);
  }
}
