// Addresses as users write them.
#include "base/listen_address.hpp"

#include <gtest/gtest.h>

namespace tessera::listen_address_test {
namespace {

std::string read(std::string_view text) {
  const auto address = parse_listen_address(text);
  return address ? address->str() : "none";
}

TEST(ListenAddress, IsTheLoopbackUnlessAHostIsNamed) {
  EXPECT_EQ(read("9400"), "127.0.0.1:9400");
  EXPECT_EQ(read("0"), "127.0.0.1:0");
  EXPECT_EQ(read("0.0.0.0:65535"), "0.0.0.0:65535");
  EXPECT_EQ(read("10.1.2.3:80"), "10.1.2.3:80");
  EXPECT_EQ(read("localhost:9400"), "127.0.0.1:9400");
  EXPECT_TRUE(parse_listen_address("0.0.0.0:1")->is_any());
  EXPECT_FALSE(parse_listen_address("127.0.0.1:1")->is_any());
}

TEST(ListenAddress, IsNothingElse) {
  for (const char* text :
       {"",          ":",          ":9400",      "9400s",    "+9400", "-1",         "65536",         "9400,9401", "localhos:9400",
        "127.0.0.1", "127.0.0.1:", "1.2.3:4",    "::1:9400", "[::1]", "[::1]:9400", "[127.0.0.1]:1", "[]:1",      "127.0.0.1:1,2",
        " 1",        "1 ",         "99999999999"})
    EXPECT_EQ(read(text), "none") << text;
}

}  // namespace
}  // namespace tessera::listen_address_test
