#include "topology/failure/link.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"

namespace tessera {
namespace {

constexpr std::size_t secret_digits = 32, hello_bytes = secret_digits + 8, head_bytes = 5;
constexpr double connect_seconds = 1;
constexpr std::size_t most_unsent = std::size_t{1} << 20, most_message = std::size_t{64} << 20;

std::string random_secret() {
  std::array<unsigned char, secret_digits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail(ExitCode::environment, "no random numbers: {}", std::strerror(errno));
  std::string text;
  for (unsigned char b : bytes) text += fmt::format("{:02x}", b);
  return text;
}

/// A machine that has gone answers nothing: the kernels notice within 15 s. A process that is stopped is no reason to end a connection.
void keep_alive(int socket) {
  const int on = 1, idle = 5, pause = 2, tries = 5, limit = 15000;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &pause, sizeof pause);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool wait_until_ready(int socket, short events, double deadline) {
  pollfd watched{socket, events, 0};
  const double left = deadline - now_seconds();
  return left > 0 && poll(&watched, 1, static_cast<int>(left * 1e3) + 1) == 1;
}

bool read_whole(int socket, char* to, std::size_t bytes, double deadline) {
  for (std::size_t got = 0; got < bytes;) {
    if (!wait_until_ready(socket, POLLIN, deadline)) return false;
    const ssize_t n = recv(socket, to + got, bytes - got, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    got += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  return true;
}

/// Numbers of the addresses that other hosts may know this one by.
std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* a = all; a; a = a->ifa_next) {
    char text[NI_MAXHOST];
    if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_UP)) continue;
    if (getnameinfo(a->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) found.push_back(text);
  }
  freeifaddrs(all);
  if (found.empty()) found.push_back("127.0.0.1");  // a machine without a network: nodes on it are virtual
  return found;
}

/// Connected to one address, and known by the other side; else -1.
int connect_to(const sockaddr* address, socklen_t bytes, const std::string& hello, const std::string& answer, double deadline,
               std::string& reason) {
  const int made = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int error = made < 0 ? errno : 0;
  socklen_t size = sizeof error;
  if (made >= 0 && connect(made, address, bytes) != 0) {
    error = errno;
    // An address of a network that both hosts are not on may swallow what is sent there.
    if (error == EINPROGRESS) error = wait_until_ready(made, POLLOUT, std::min(deadline, now_seconds() + connect_seconds)) ? 0 : ETIMEDOUT;
    if (error == 0) getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  std::string heard(answer.size(), '\0');
  if (error == 0 && (send(made, hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size()) ||
                     !read_whole(made, heard.data(), heard.size(), deadline) || heard != answer))
    error = EPROTO;
  if (error == 0) return made;
  reason = std::strerror(error);
  if (made >= 0) ::close(made);
  return -1;
}

}  // namespace

Link::Link(Link&& other) noexcept { *this = std::move(other); }

Link& Link::operator=(Link&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  return *this;
}

void Link::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  out_.clear();
}

void Link::send(MessageKind kind, std::string_view text) {
  if (socket_ < 0 || out_.size() > most_unsent) return;
  const auto bytes = static_cast<std::uint32_t>(text.size());
  char head[head_bytes];
  std::memcpy(head, &bytes, sizeof bytes);
  head[4] = static_cast<char>(kind);
  out_.append(head, sizeof head);
  out_.append(text);
  flush();
}

void Link::flush() {
  while (socket_ >= 0 && !out_.empty()) {
    const ssize_t n = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) return;  // an end shows when it is read
    out_.erase(0, static_cast<std::size_t>(n));
  }
}

bool Link::receive(std::vector<Message>& messages) {
  char piece[4096];
  ssize_t n = 0;
  while ((n = recv(socket_, piece, sizeof piece, MSG_DONTWAIT)) > 0) in_.append(piece, static_cast<std::size_t>(n));
  const bool open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  std::size_t at = 0;
  for (std::uint32_t bytes = 0; in_.size() - at >= head_bytes; at += head_bytes + bytes) {
    std::memcpy(&bytes, in_.data() + at, sizeof bytes);
    if (bytes > most_message) return false;
    if (in_.size() - at - head_bytes < bytes) break;
    messages.push_back({static_cast<MessageKind>(in_[at + 4]), in_.substr(at + head_bytes, bytes)});
  }
  in_.erase(0, at);
  return open;
}

LinkListener::LinkListener(bool local) : secret_(random_secret()) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof address;
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(socket_, SOMAXCONN) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (socket_ >= 0) ::close(socket_);
    fail(ExitCode::environment, "a socket cannot listen: {}", std::strerror(error));
  }
  std::vector<std::string> names = local ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
  char name[256] = {};
  if (!local && gethostname(name, sizeof name - 1) == 0) names.push_back(name);  // last: who cannot look it up may ask for long
  offer_ = fmt::format("{}\n{}\n", ntohs(address.sin_port), secret_);
  for (const std::string& n : names) offer_ += n + "\n";
}

LinkListener::~LinkListener() { ::close(socket_); }

std::vector<Link> LinkListener::accept_all(std::span<const int> ranks, double seconds) {
  constexpr double hello_seconds = 1;
  std::vector<Link> links(ranks.size());
  const double deadline = now_seconds() + seconds;
  for (std::size_t missing = ranks.size(); missing > 0 && wait_until_ready(socket_, POLLIN, deadline);) {
    Link link(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    char hello[hello_bytes + 1] = {};
    if (link.socket() < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) break;
      continue;
    }
    if (!read_whole(link.socket(), hello, hello_bytes, std::min(deadline, now_seconds() + hello_seconds))) continue;
    const auto found = std::ranges::lower_bound(ranks, std::atoi(hello + secret_digits));
    if (std::string_view(hello, secret_digits) != secret_ || found == ranks.end() || *found != std::atoi(hello + secret_digits)) continue;
    if (::send(link.socket(), secret_.data(), secret_digits, MSG_NOSIGNAL) != static_cast<ssize_t>(secret_digits)) continue;
    keep_alive(link.socket());
    Link& place = links[static_cast<std::size_t>(found - ranks.begin())];
    missing -= place.socket() < 0 ? 1 : 0;
    place = std::move(link);
  }
  return links;
}

Link connect_link(const std::string& offer, int rank, double seconds, std::string& reason) {
  std::istringstream lines(offer);
  std::string port, secret, name, why = "no address";
  std::getline(lines, port);
  std::getline(lines, secret);
  const std::string hello = fmt::format("{}{:8}", secret, rank);
  const double deadline = now_seconds() + seconds;
  while (std::getline(lines, name)) {
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_family = AF_INET;
    wanted.ai_socktype = SOCK_STREAM;
    if (const int error = getaddrinfo(name.c_str(), port.c_str(), &wanted, &found); error != 0) {
      reason += fmt::format("{}{}: {}", reason.empty() ? "" : "; ", name, gai_strerror(error));
      continue;
    }
    int made = -1;
    for (const addrinfo* a = found; a && made < 0; a = a->ai_next)
      made = connect_to(a->ai_addr, a->ai_addrlen, hello, secret, std::min(deadline, now_seconds() + seconds / 2), why);
    freeaddrinfo(found);
    if (made >= 0) {
      keep_alive(made);
      reason.clear();
      return Link(made);
    }
    reason += fmt::format("{}{}: {}", reason.empty() ? "" : "; ", name, why);
  }
  return Link();
}

}  // namespace tessera
