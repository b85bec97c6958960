// JSON with places: every name and value is found where it stands, whatever comments are around it.
#include "deck/schema/json_tree.hpp"

#include <gtest/gtest.h>

#include "small_deck.hpp"

namespace tessera::json_tree_test {
namespace {

struct Read {
  JsonNode root;
  std::vector<Fault> faults;
  bool whole = false;
  std::string faults_text() const { return faults_of({{}, faults, {}}); }
};

Read read(const std::string& text) {
  Read r;
  r.whole = read_json(text, "c.json", r.root, r.faults);
  return r;
}

std::string place(const JsonPlace& p) { return fmt::format("{}:{}", p.line, p.column); }

TEST(JsonTree, KnowsEveryPlace) {
  const Read r = read(
      "{\n"
      "  \"a\": 12,\"b\" : -1.5e3 ,\n"
      "  \"text\\\"s\\\\\": \"x\\\"y\\\\\",\n"
      "  \"on\":true, \"off\" : false,\"none\":null,\n"
      "  \"o\": { \"p\": [ 1, 2.0, \"z\" ] },\n"
      "  \"gr\xc3\xbc\xc3\x9f\": 7e0\n"
      "}");
  ASSERT_EQ(r.faults_text(), "");
  ASSERT_TRUE(r.whole);
  const auto& c = r.root.children;
  ASSERT_EQ(c.size(), 8u);
  std::string found;
  for (const JsonNode& n : c) found += fmt::format("{} {} {} {}\n", n.name, place(n.name_place), place(n.place), n.written);
  EXPECT_EQ(found,
            "a 2:3 2:8 12\n"
            "b 2:11 2:17 -1.5e3\n"
            "text\"s\\ 3:3 3:16 x\"y\\\n"
            "on 4:3 4:8 true\n"
            "off 4:14 4:22 false\n"
            "none 4:28 4:35 null\n"
            "o 5:3 5:8 \n"
            "gr\xc3\xbc\xc3\x9f 6:3 6:11 7e0\n");
  const JsonNode* list = r.root.member("o")->member("p");
  ASSERT_TRUE(list);
  EXPECT_EQ(place(list->place), "5:15");
  EXPECT_EQ(place(list->children[2].place), "5:25");
  EXPECT_EQ(list->children[1].number(), 2.0);
  EXPECT_EQ(r.root.member("none"), nullptr) << "null is not there";
  EXPECT_EQ(r.root.member("nothing"), nullptr);
}

TEST(JsonTree, CommentsAndTrailingCommasAreAllowed) {
  const Read r = read(
      "// a comment with \"quotes\" and {\n"
      "# another\n"
      "{ /* 1, \n 2 */ \"a\": 1, // the end\n"
      "  \"url\": \"a//b/*no*/#no\", # yes\n"
      "  \"list\": [1, 2, /* last */ ],\n"
      "}  // nothing follows");
  ASSERT_EQ(r.faults_text(), "");
  ASSERT_EQ(r.root.children.size(), 3u);
  EXPECT_EQ(place(r.root.children[0].place), "4:12");
  EXPECT_EQ(r.root.children[1].written, "a//b/*no*/#no");
  EXPECT_EQ(r.root.children[2].children.size(), 2u);
}

TEST(JsonTree, FaultsOfSyntaxHaveTheirPlace) {
  for (const auto& [text, at] : std::vector<std::pair<std::string, std::string>>{{"{\n  \"a\": tru\n}", "c.json:2:"},
                                                                                 {"{\n  \"a\" 1\n}", "c.json:2:7:"},
                                                                                 {"{ \"a\": 1", "c.json:1:"},
                                                                                 {"", "c.json:1:1:"},
                                                                                 {"{ /* open \"a\": 1 }", "c.json:1:3:"},
                                                                                 {"{ \"a\": 1,, }", "c.json:1:1"},
                                                                                 {"{ \"a\": 1 } x", "c.json:1:1"},
                                                                                 {"{ \"a\": 1e999 }", "c.json:1:1"},
                                                                                 {"{ \"a\": \"\xff\" }", "c.json:1:"}}) {
    const Read r = read(text);
    EXPECT_FALSE(r.whole) << text;
    ASSERT_EQ(r.faults.size(), 1u) << text;
    EXPECT_TRUE(r.faults[0].str().starts_with(at)) << r.faults[0].str();
  }
  EXPECT_EQ(read("[1]").faults_text(), "c.json:1:1: a configuration is an object: { ... }\n");
  const std::string two = read("{\"a\": 1}\n{\"b\": 2}").faults_text();
  EXPECT_TRUE(two.starts_with("c.json:2:1: another JSON document begins here") && two.find("--document N") != two.npos) << two;
  EXPECT_EQ(read("{\"a\": 1, \n \"a\": 2}").faults_text(), "c.json:2:2: a: given twice; leave one of the two out\n");
  EXPECT_TRUE(read("{\"o\": {\"a\": 1}, \"p\": {\"a\": 1}}").faults.empty());
}

// A file of brackets alone would otherwise take the stack with it.
TEST(JsonTree, DepthHasALimit) {
  const Read deep = read("{\"a\":" + std::string(100000, '['));
  EXPECT_FALSE(deep.whole);
  EXPECT_EQ(deep.faults_text(), "c.json:1:69: more than 64 brackets inside each other\n");
  EXPECT_TRUE(read("{\"a\":" + std::string(63, '[') + std::string(63, ']') + "}").whole);
}

TEST(JsonTree, NumbersKeepWhatWasWritten) {
  const Read r = read("{\"a\": 18446744073709551615, \"b\": -9223372036854775808, \"c\": 5E+8}");
  ASSERT_EQ(r.faults_text(), "");
  EXPECT_EQ(r.root.children[0].kind, JsonNode::Kind::real);
  EXPECT_EQ(r.root.children[1].kind, JsonNode::Kind::integer);
  EXPECT_EQ(r.root.children[2].written, "5E+8");
  EXPECT_EQ(r.root.children[2].number(), 5e8);
}

}  // namespace
}  // namespace tessera::json_tree_test
