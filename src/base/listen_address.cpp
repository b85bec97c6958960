#include "base/listen_address.hpp"

#include <arpa/inet.h>

#include <charconv>

namespace tessera {

std::optional<ListenAddress> parse_listen_address(std::string_view text) {
  ListenAddress address{.host = "127.0.0.1"};
  const std::size_t colon = text.rfind(':');
  const std::string_view port = colon == text.npos ? text : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 0 || address.port > 65535) return {};
  if (colon == text.npos) return address;
  if (text.substr(0, colon) == "localhost") return address;
  address.host = text.substr(0, colon);
  in_addr numbers;
  if (inet_pton(AF_INET, address.host.c_str(), &numbers) != 1) return {};
  return address;
}

}  // namespace tessera
