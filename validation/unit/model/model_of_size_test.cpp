// Shapes for numbers of parameters.
#include "model/table/model_of_size.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/check.hpp"
#include "model/table/parameters.hpp"

namespace tessera::model_of_size_test {
namespace {

ModelKeys like(std::int64_t heads, std::int64_t kv_heads, std::int64_t vocab) {
  ModelKeys model;
  model.heads = heads, model.kv_heads = kv_heads, model.vocab = vocab;
  return model;
}

TEST(ModelOfSize, MeetsTheCountInAUsualShape) {
  struct Case {
    double parameters;
    ModelKeys like;
    double within;  ///< share of the count
  };
  const ModelKeys llama = like(32, 32, 32000);
  ModelKeys tied = like(2, 2, 257), grouped = like(64, 8, 128256);
  tied.tied = grouped.qk_norm = grouped.qkv_bias = true;
  for (const Case& c :
       {Case{1e6, tied, 0.02}, Case{1e7, llama, 0.02}, Case{124e6, llama, 0.01}, Case{1e9, llama, 0.01}, Case{7e9, llama, 0.002},
        Case{13e9, grouped, 0.002}, Case{70e9, grouped, 0.002}, Case{175e9, llama, 0.001}, Case{1e12, grouped, 0.001}}) {
    const ModelKeys m = model_of_size(std::llround(c.parameters), c.like);
    SCOPED_TRACE(testing::Message() << c.parameters << ": " << m.layers << " layers of " << m.width);
    EXPECT_NEAR(static_cast<double>(parameter_count(parameter_table(m))), c.parameters, c.within * c.parameters);
    const double aspect = static_cast<double>(m.width) / static_cast<double>(m.layers);
    EXPECT_GT(aspect, c.parameters < 1e8 ? 10 : 45);
    EXPECT_LT(aspect, 180);
    EXPECT_EQ(m.heads * m.head_dim, m.width);
    EXPECT_EQ(m.heads / m.kv_heads, c.like.heads / c.like.kv_heads);
    EXPECT_NEAR(static_cast<double>(m.ff_width) / static_cast<double>(m.width), 8.0 / 3, c.parameters < 1e8 ? 1.5 : 0.4);
    EXPECT_EQ(m.vocab, c.like.vocab);
    EXPECT_EQ(m.qk_norm, c.like.qk_norm);
  }
}

TEST(ModelOfSize, SaysWhereEmbeddingsAloneAreMore) {
  try {
    model_of_size(1'000'000, like(1, 1, 32000));
    ADD_FAILURE() << "a million parameters have no room for 32,000 tokens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("model.vocab"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::model_of_size_test
