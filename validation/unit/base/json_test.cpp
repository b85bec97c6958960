#include "base/json.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::json_test {
namespace {

TEST(Json, PairsMakeObjectsAndEverythingElseLists) {
  const Json j{{"name", "wte"}, {"shape", std::vector<std::int64_t>{2, 3}}, {"empty", Json::object()}, {"none", nullptr}, {"yes", true}};
  EXPECT_EQ(j.dump(), R"({"name":"wte","shape":[2,3],"empty":{},"none":null,"yes":true})");
  EXPECT_EQ(Json({1, 2}).dump(), "[1,2]");
  EXPECT_EQ(Json::array({"a", "b"}).dump(), R"(["a","b"])");
  EXPECT_EQ(j.dump(1), "{\n \"name\": \"wte\",\n \"shape\": [\n  2,\n  3\n ],\n \"empty\": {},\n \"none\": null,\n \"yes\": true\n}");
}

TEST(Json, NumbersComeBackAsTheyWere) {
  const auto there_and_back = [](const Json& j) { return Json::parse(j.dump()); };
  EXPECT_EQ(there_and_back(std::numeric_limits<std::int64_t>::min()).get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(there_and_back(std::numeric_limits<std::uint64_t>::max()).get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  for (const double value : {0.1, 1e-300, 1.7976931348623157e308, 3.0, -0.0}) EXPECT_EQ(there_and_back(value).get<double>(), value);
  EXPECT_EQ(Json(3.0).dump(), "3.0");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(3), 3.0);
  EXPECT_EQ(Json(3u), 3);
  EXPECT_NE(Json(-1), std::numeric_limits<std::uint64_t>::max());
  EXPECT_NE(Json(true), 1);
}

// A number that its place cannot hold is never cut to one that it can.
TEST(Json, NumbersThatDoNotFitAreRefused) {
  EXPECT_EQ(Json(3.0).get<int>(), 3);
  for (const Json& value :
       {Json(1.5), Json(std::int64_t{1} << 40), Json(std::numeric_limits<std::uint64_t>::max()), Json(1e300), Json("1"), Json()})
    EXPECT_THROW((void)value.get<int>(), JsonError) << value.dump();
  EXPECT_THROW((void)Json(-1).get<std::uint64_t>(), JsonError);
  EXPECT_THROW((void)Json(1).get<bool>(), JsonError);
  EXPECT_THROW((void)Json(1).get<std::string>(), JsonError);
}

TEST(Json, BrokenTextsAreRefused) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,}", "{'a':1}", "01", "1 2", "\"\\q\"", "nul", "\"\xff\""}) {
    EXPECT_THROW((void)Json::parse(text), JsonError) << text;
    EXPECT_FALSE(Json::try_parse(text)) << text;
  }
  EXPECT_THROW((void)Json::parse(std::string(100000, '[')), JsonError);
  EXPECT_NO_THROW((void)Json::parse(std::string(400, '[') + std::string(400, ']')));
}

TEST(Json, OfAKeyThatStandsTwiceTheLastCountsOrNone) {
  const std::string text = R"({"a": 1, "b": 2, "a": 3, "a": 4, "c": {"x": 1, "x": 2}})";
  EXPECT_EQ(Json::parse(text).dump(), R"({"a":4,"b":2,"c":{"x":2}})");
  try {
    (void)Json::parse_strict(text);
    ADD_FAILURE();
  } catch (const JsonError& error) {
    EXPECT_STREQ(error.what(), "x is there twice");
  }
}

TEST(Json, TextsThatAreNone) {
  const Json j{{"path", "a\xff\"b\n"}};
  EXPECT_THROW((void)j.dump(), JsonError);
  EXPECT_EQ(j.dump(-1, BadText::replace), "{\"path\":\"a\xef\xbf\xbd\\\"b\\n\"}");
}

TEST(Json, MembersAndPaths) {
  Json j;
  j.nested("model/layers") = 2;
  j["model"]["width"] = 8;
  EXPECT_EQ(j.dump(), R"({"model":{"layers":2,"width":8}})");
  EXPECT_TRUE(j.contains("model"));
  EXPECT_FALSE(j["model"].contains("heads"));
  EXPECT_EQ(j["model"].value("heads", 4), 4);
  EXPECT_EQ(j["model"].value("layers", 4), 2);
  EXPECT_EQ(j["model"].find("heads"), nullptr);
  EXPECT_THROW((void)std::as_const(j).at("heads"), JsonError);
  EXPECT_THROW((void)j.at(0), JsonError);
  j["model"].update({{"layers", 3}, {"heads", 4}});
  j["model"].erase("width");
  EXPECT_EQ(j, (Json{{"model", {{"heads", 4}, {"layers", 3}}}}));
  int sum = 0;
  for (const Json& one : Json::array({1, 2, 3})) sum += one.get<int>();
  EXPECT_EQ(sum, 6);
  const std::vector<int> numbers = Json::array({1, 2});
  EXPECT_EQ(numbers, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace tessera::json_test
