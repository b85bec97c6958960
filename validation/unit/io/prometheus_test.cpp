// What Prometheus reads: texts, a server beside clients that misbehave, a file that is whole at any time.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "../scratch.hpp"
#include "base/check.hpp"
#include "io/metrics/prometheus.hpp"

namespace tessera::io::test::prometheus_test {
using namespace tessera::test;
namespace {

Families some(double value) {
  Histogram seconds({0.1, 1, 10});
  for (const double s : {0.0625, 0.0625, 0.5, 70.0}) seconds.add(s);
  return {{.name = "tessera_loss", .help = "Mean.", .samples = {{.labels = {{"run", "a \"b\" \\ c"}}, .value = value}}},
          {.name = "tessera_skipped_steps_total", .help = "Skipped.", .type = FamilyType::counter, .samples = {{.value = 3}}},
          {.name = "tessera_part_seconds",
           .help = "Parts.",
           .type = FamilyType::histogram,
           .samples = {{.labels = {{"part", "head"}}, .histogram = seconds}}}};
}

const std::string text_of_some =
    "# HELP tessera_loss Mean.\n# TYPE tessera_loss gauge\ntessera_loss{run=\"a \\\"b\\\" \\\\ c\"} 0.1\n"
    "# HELP tessera_skipped_steps_total Skipped.\n# TYPE tessera_skipped_steps_total counter\ntessera_skipped_steps_total 3\n"
    "# HELP tessera_part_seconds Parts.\n# TYPE tessera_part_seconds histogram\n"
    "tessera_part_seconds_count{part=\"head\"} 4\ntessera_part_seconds_sum{part=\"head\"} 70.625\n"
    "tessera_part_seconds_bucket{part=\"head\",le=\"0.1\"} 2\ntessera_part_seconds_bucket{part=\"head\",le=\"1\"} 3\n"
    "tessera_part_seconds_bucket{part=\"head\",le=\"10\"} 3\ntessera_part_seconds_bucket{part=\"head\",le=\"+Inf\"} 4\n";

/// A conversation with the server.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  Client(const Client&) = delete;
  ~Client() { ::close(socket_); }
  bool say(const std::string& text) const {
    return connected_ && ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  /// Until the server ends it.
  std::string hear() const {
    std::string all;
    char part[4096];
    for (ssize_t n; (n = ::recv(socket_, part, sizeof part, 0)) > 0;) all.append(part, static_cast<std::size_t>(n));
    return all;
  }

 private:
  int socket_;
  bool connected_ = false;
};

std::string get(int port, const std::string& path) {
  const Client client(port);
  EXPECT_TRUE(client.say("GET " + path + " HTTP/1.0\r\n\r\n"));
  return client.hear();
}

int threads_here() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  return 0;
}

class Prometheus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_prometheus()) GTEST_SKIP() << "this build has no prometheus-cpp";
  }
};

TEST(PrometheusLibrary, IsAskedForByTheKeyWhereItIsMissing) {
  if (has_prometheus()) {
    EXPECT_NO_THROW(require_prometheus("metrics.prometheus"));
    return;
  }
  try {
    require_prometheus("metrics.prometheus");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("metrics.prometheus: this build has no prometheus-cpp"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("prometheus-cpp-dev"), std::string::npos);
  }
}

TEST_F(Prometheus, HasTheTextFormat) { EXPECT_EQ(exposition_text(some(0.1)), text_of_some); }

TEST_F(Prometheus, ServesTheLatestFiguresAndNothingElse) {
  MetricsEndpoint endpoint({.host = "127.0.0.1"}, "key");
  const int port = endpoint.address().port;
  ASSERT_GT(port, 0);
  EXPECT_EQ(get(port, "/metrics").find("tessera_loss"), std::string::npos);
  endpoint.publish(some(7));
  endpoint.publish(some(0.1));
  const std::string seen = get(port, "/metrics");
  EXPECT_TRUE(seen.starts_with("HTTP/1.1 200 OK")) << seen;
  EXPECT_NE(seen.find(text_of_some), std::string::npos) << seen;
  EXPECT_NE(get(port, "/metrics").find(text_of_some), std::string::npos) << "twice the same";
  for (const char* path : {"/", "/metric", "/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd"})
    EXPECT_EQ(get(port, path).find("200 OK"), std::string::npos) << path;
  EXPECT_NE(get(port, "/metrics.jsonl").find(text_of_some), std::string::npos) << "the library takes what begins so for the same";
}

TEST_F(Prometheus, SaysWhyNothingCanListen) {
  const MetricsEndpoint first({.host = "127.0.0.1"}, "key");
  try {
    const MetricsEndpoint second(first.address(), "metrics.prometheus");
    FAIL() << "two at a port";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::environment);
    const std::string said = error.what();
    EXPECT_NE(said.find("metrics.prometheus = \"" + first.address().str() + "\""), std::string::npos) << said;
    EXPECT_NE(said.find("in use"), std::string::npos) << said;
    EXPECT_NE(said.find("another port"), std::string::npos) << said;
  }
}

// Whoever publishes is never held up, there are no more threads than without them, and the end comes at once.
TEST_F(Prometheus, IsNotHeldUpByClientsThatHang) {
  std::vector<std::unique_ptr<Client>> hanging;
  const int before = threads_here();
  std::chrono::steady_clock::time_point begin;
  {
    MetricsEndpoint endpoint({.host = "127.0.0.1"}, "key");
    endpoint.publish(some(1));
    for (int i = 0; i < 6; ++i) {
      hanging.push_back(std::make_unique<Client>(endpoint.address().port));
      hanging.back()->say(i % 2 ? "" : "GET /metr");
    }
    begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10000; ++i) endpoint.publish(some(i));
    EXPECT_LE(threads_here(), before + 5);
    EXPECT_NE(get(endpoint.address().port, "/metrics").find("} 9999\n"), std::string::npos) << "others are served beside them";
    hanging.push_back(std::make_unique<Client>(endpoint.address().port));
    begin = std::chrono::steady_clock::now();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 60);
  RecordProperty("seconds_to_the_end", std::to_string(seconds));
  EXPECT_EQ(threads_here(), before);
}

TEST_F(Prometheus, KeepsAFileThatIsWhole) {
  Scratch dir;
  {
    MetricsTextFile file(dir / "a.prom");
    for (int i = 0; i < 1000; ++i) file.publish(some(i));
    file.publish(some(0.1));
  }
  EXPECT_EQ(slurp(dir / "a.prom"), text_of_some) << "what came last stays where the end is none in good order";
  MetricsTextFile file(dir / "a.prom");
  file.publish(some(2));
  file.remove();
  EXPECT_FALSE(std::ifstream(dir / "a.prom").good());
  EXPECT_FALSE(std::ifstream(dir / "a.prom.partial").good());
}

TEST_F(Prometheus, ATextFileThatCannotBeWrittenCostsNothing) {
  Scratch dir;
  MetricsTextFile file(dir / "none/a.prom");
  file.publish(some(2));
}

TEST(Histogram, CountsWhatIsAtMostEachBound) {
  Histogram h({1, 2});
  for (const double v : {0.5, 1.0, 1.5, 2.0, 2.5}) h.add(v);
  EXPECT_EQ(h.counts(), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(h.count(), 5u);
  EXPECT_EQ(h.sum(), 7.5);
}

TEST(Handover, HasTheLatestOnce) {
  Handover<int> handed;
  EXPECT_EQ(handed.take(), nullptr);
  handed.put(std::make_unique<int>(1));
  handed.put(std::make_unique<int>(2));
  EXPECT_EQ(*handed.take(), 2);
  EXPECT_EQ(handed.take(), nullptr);
  handed.put(std::make_unique<int>(3));
}

}  // namespace
}  // namespace tessera::io::test::prometheus_test
