// The table of families: of a model there is one, its config.json says it both ways, and every tensor has a name.
#include "families/family.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "deck/schema/traits.hpp"
#include "families/layers.hpp"
#include "families/names.hpp"
#include "families/read_config.hpp"
#include "families/write_config.hpp"

namespace tessera::family_test {
namespace {

/// The models with blocks of other kinds.
void add_blocks(std::vector<ModelKeys>& all, const std::vector<ModelKeys>& models) {
  for (const ModelKeys& m : models) {
    ModelKeys gemma = m, granite = m, post = m, wide = m, glm = m;
    gemma.tied = true, gemma.norm_form = NormForm::one_plus_weight, gemma.embedding_scale = 0, gemma.activation = Activation::gelu_tanh;
    all.push_back(gemma);
    gemma.norm_placement = NormPlacement::both, gemma.attention_scale = 0.25, gemma.logit_softcap = 30;
    all.push_back(gemma);
    gemma.attention_softcap = 50, gemma.activation = Activation::silu;
    all.push_back(gemma);
    granite.embedding_scale = 12, granite.residual_scale = 0.22, granite.attention_scale = 0.0078125, granite.logit_scale = 1.0 / 16;
    all.push_back(granite);
    granite.shared_gate = granite.shared_ff_width == 0;
    for (const ModelKeys& shared : {granite, m}) {
      ModelKeys hybrid = shared;
      hybrid.shared_gate = hybrid.shared_ff_width == 0;
      all.push_back(hybrid);
      if (!hybrid.kinds.empty() || hybrid.window > 0) continue;
      hybrid.positions = PositionMode::none;
      all.push_back(hybrid);
    }
    glm.rope_pairs = RopePairs::neighbours, glm.rotary_fraction = 0.5;
    all.push_back(glm);
    glm.norm_placement = NormPlacement::both;
    all.push_back(glm);
    wide.wide_qk_norm = true, wide.head_dim = 4;
    all.push_back(wide);
    post.norm_placement = NormPlacement::post;
    all.push_back(post);
    post.wide_qk_norm = true;
    all.push_back(post);
    post.wide_qk_norm = false;
    if (!post.kinds.empty()) post.pattern = "NL", post.kinds[0] = {.name = "N", .positions = PositionMode::none};
    all.push_back(post);
    if (m.kinds.empty()) continue;
    // A rotation of layers with a window.
    for (ModelKeys rotated : {gemma, wide}) {
      rotated.kinds[1].rope_theta = 500, rotated.kinds[1].rope_scaling = RopeMode::none, rotated.attention_softcap = 0;
      rotated.rope_scaling = RopeMode::yarn, rotated.rope_factor = 4, rotated.rope_original_context = 8;
      rotated.norm_placement = rotated.wide_qk_norm ? NormPlacement::post : NormPlacement::both;
      all.push_back(rotated);
    }
  }
}

/// All that tells families apart.
std::vector<ModelKeys> models() {
  std::vector<ModelKeys> all;
  for (const Family& family : families()) {  // what a file says that says sizes alone
    ModelKeys m = family.standard;
    m.layers = 2, m.width = 32, m.heads = m.kv_heads = 4, m.head_dim = 8, m.ff_width = 48, m.vocab = 64, m.max_context = 0;
    if (m.experts > 0) m.experts = 4, m.experts_per_token = 2, m.expert_ff_width = 24;
    if (m.experts > 0 && m.shared_ff_width > 0) m.shared_ff_width = 48;
    all.push_back(m);
  }
  for (int bits = 0; bits < 64; ++bits) {
    const auto bit = [&](int n) { return (bits >> n & 1) != 0; };
    ModelKeys m{.layers = 2, .width = bit(5) ? 36 : 32, .heads = 8, .kv_heads = 2, .head_dim = 8, .ff_width = 48, .vocab = 64};
    m.qk_norm = bit(0), m.qkv_bias = bit(1);
    if (bit(2)) m.experts = 4, m.expert_ff_width = 24, m.shared_ff_width = bit(3) ? 16 : 0, m.normalize_top_k = bit(4);
    all.push_back(m);
    ModelKeys windowed = m, some = m, unrotated = m;
    windowed.window = 7;
    some.layers = 3, some.pattern = "GL", some.kinds = {{.name = "G"}, {.name = "L", .window = 9}};
    unrotated.layers = 3, unrotated.pattern = "GGN", unrotated.kinds = {{.name = "G"}, {.name = "N", .positions = PositionMode::none}};
    for (const ModelKeys& one : {windowed, some, unrotated}) all.push_back(one);
    ModelKeys starcoder = m;
    starcoder.norm_form = NormForm::layer_norm, starcoder.gated = false, starcoder.activation = Activation::gelu_tanh;
    starcoder.mlp_bias = starcoder.attention_out_bias = m.qkv_bias, starcoder.window = bit(3) ? 7 : 0;
    all.push_back(starcoder);
    ModelKeys phi2 = starcoder;
    phi2.norm_placement = NormPlacement::parallel, phi2.mlp_bias = phi2.attention_out_bias = phi2.qkv_bias, phi2.window = 0;
    phi2.head_bias = !bit(3), phi2.rotary_fraction = bit(4) ? 1 : 0.5;
    all.push_back(phi2);
    for (const Activation activation : {Activation::xielu, Activation::relu_squared, Activation::gelu}) {
      ModelKeys apertus = m;
      apertus.qk_norm = true, apertus.gated = false, apertus.activation = activation, apertus.attention_out_bias = m.qkv_bias;
      all.push_back(apertus);
    }
    for (ModelKeys cohere : {m, windowed, some}) {
      cohere.norm_placement = NormPlacement::parallel, cohere.norm_form = NormForm::layer_norm_no_bias, cohere.tied = true;
      cohere.rope_pairs = bit(4) ? RopePairs::halves : RopePairs::neighbours, cohere.attention_out_bias = m.qkv_bias;
      cohere.logit_scale = bit(3) ? 0.25 : 1;
      all.push_back(cohere);
      if (cohere.kinds.empty()) continue;
      cohere.pattern = "NL", cohere.kinds[0] = {.name = "N", .positions = PositionMode::none};
      all.push_back(cohere);
    }
    ModelKeys wide = m;  // a Llama with more biases, where it is a Llama
    wide.mlp_bias = !m.qk_norm, wide.attention_out_bias = m.qkv_bias;
    all.push_back(wide);
    for (const double fraction : {1.0, 0.5}) {
      ModelKeys phi = bit(3) ? windowed : m;
      phi.head_dim = 4, phi.rotary_fraction = fraction, phi.rope_scaling = RopeMode::longrope, phi.rope_original_context = 16;
      phi.rope_short_factors.assign(fraction < 1 ? 1 : 2, 1.5), phi.rope_long_factors.assign(fraction < 1 ? 1 : 2, 2.5);
      all.push_back(phi);
    }
    ModelKeys gpt2 = starcoder;
    gpt2.kv_heads = gpt2.heads, gpt2.head_dim = gpt2.width / gpt2.heads, gpt2.positions = PositionMode::none, gpt2.learned_positions = 40;
    if (bit(4)) gpt2.attention_scale = 1;
    all.push_back(gpt2);
    for (ModelKeys learned : {starcoder, gpt2}) learned.activation = Activation::xielu, all.push_back(learned);
    ModelKeys biased = m;
    biased.attention_out_bias = true;
    all.push_back(biased);
    for (ModelKeys gpt_oss : {m, some}) {
      gpt_oss.attention_sinks = gpt_oss.expert_bias = true, gpt_oss.attention_out_bias = m.qkv_bias;
      gpt_oss.activation = Activation::clamped_silu, gpt_oss.rope_scaling = RopeMode::yarn, gpt_oss.rope_truncate = bit(3);
      all.push_back(gpt_oss);
    }
    if (m.experts > 0) {
      for (ModelKeys sparse : {m, windowed}) {
        sparse.layers = 5, sparse.dense_layers = 2;
        all.push_back(sparse);
        const auto window = sparse.window > 0 ? std::optional(sparse.window) : std::nullopt;
        const std::string letter = window ? "L" : "G";
        const KindKeys dense{.name = "D", .window = window, .experts = false}, other{.name = letter, .window = window};
        sparse.dense_layers = sparse.window = 0;
        sparse.pattern = bit(5) ? "D" + letter : letter + letter + "D";
        sparse.kinds = bit(5) ? std::vector{dense, other} : std::vector{other, dense};
        all.push_back(sparse);
      }
      ModelKeys glm = m;
      glm.router_scores = RouterScores::sigmoid, glm.router_balance = RouterBalance::bias, glm.shared_gate = false;
      glm.shared_ff_width = bit(3) ? 48 : 24, glm.router_scale = 2.5, glm.dense_layers = bit(5), glm.rotary_fraction = 0.5;
      all.push_back(glm);
      glm.expert_groups = 2, glm.groups_per_token = bit(3) ? 2 : 1;
      all.push_back(glm);
      for (ModelKeys dots : {m, windowed, some}) {
        dots.router_scores = RouterScores::sigmoid, dots.router_balance = RouterBalance::bias, dots.shared_gate = false;
        dots.shared_ff_width = 48, dots.dense_layers = bit(5), dots.attention_out_bias = m.qkv_bias && bit(3);
        all.push_back(dots);
      }
      ModelKeys minimax = m;
      minimax.router_scores = RouterScores::sigmoid, minimax.router_balance = RouterBalance::bias, minimax.wide_qk_norm = true;
      minimax.rotary_fraction = bit(5) ? 0.5 : 1;
      all.push_back(minimax);
    }
    add_blocks(all, {m, windowed, some});
  }
  return all;
}

TEST(Family, OfSeveralThatCanSayAModelOneHasTheLowestTurn) {
  for (const ModelKeys& m : models()) {
    std::vector<int> turns;
    for (const Family& family : families())
      if (family.turn != Family::never && can_say(family, m)) turns.push_back(family.turn);
    std::ranges::sort(turns);
    EXPECT_TRUE(turns.size() < 2 || turns[0] < turns[1])
        << m.experts << m.qk_norm << m.qkv_bias << m.shared_ff_width << m.normalize_top_k << m.width;
  }
}

// What a file of a family says of a model, and its reader reads back, the family can say: so no row of `says` is missing.
TEST(Family, CanSayWhatItsFilesSay) {
  for (const ModelKeys& m : models())
    for (const Family& family : families()) {
      if (m.experts == 0 && !family.may_lack_experts && (family.standard.experts > 0 || family.type.find("moe") != std::string::npos))
        continue;
      if (family.turn == Family::never || (family.takes && !family.takes(m))) continue;
      Deck deck;
      deck.model = m;
      std::vector<Fault> faults;
      const ModelSource source = read_huggingface_config(model_config(family, deck).dump(), "config.json", faults);
      if (!faults.empty() || !same_function(m, source.model) || source.model.router_balance != m.router_balance) continue;
      EXPECT_TRUE(can_say(family, m)) << family.type;
    }
}

// A trait that differs in a model makes it another: no family takes one that reads back without it.
TEST(Family, TakesNoModelWhoseFileLeavesATraitOut) {
  for (const Family& family : families()) {
    const auto all = models();
    const auto own = std::ranges::find_if(all, [&](const ModelKeys& m) { return family_of(m) == &family; });
    if (family.turn == Family::never) continue;
    ASSERT_NE(own, all.end()) << family.type;
    int refused = 0;
    for (const auto trait : {&ModelKeys::qk_norm, &ModelKeys::qkv_bias, &ModelKeys::attention_out_bias, &ModelKeys::attention_sinks,
                             &ModelKeys::mlp_bias, &ModelKeys::head_bias, &ModelKeys::tied, &ModelKeys::expert_bias}) {
      ModelKeys other = *own;
      other.*trait = !(other.*trait);
      if (!can_say(family, other)) {
        ++refused;
        continue;
      }
      Deck deck;
      deck.model = other;
      std::vector<Fault> faults;
      EXPECT_EQ(read_huggingface_config(model_config(family, deck).dump(), "config.json", faults).model.*trait, other.*trait)
          << family.type;
    }
    EXPECT_GE(refused, 3) << family.type;
  }
}

TEST(Family, ARefusalNamesWhatTheNearestCannotSay) {
  ModelKeys m{.layers = 2, .width = 32, .heads = 4, .kv_heads = 4, .head_dim = 8, .ff_width = 48, .vocab = 64};
  const auto refusal = [&]() -> std::string {
    try {
      return "none: " + std::string(require_family(m).type);
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ExitCode::usage);
      return error.what();
    }
  };
  EXPECT_EQ(refusal(), "none: llama");
  m.head_bias = true;
  EXPECT_NE(refusal().find(", the nearest, cannot express model.head_bias = true; --format hdf5"), std::string::npos) << refusal();
  m.head_bias = false, m.learned_positions = 8;
  EXPECT_NE(refusal().find("cannot express model.learned_positions = 8;"), std::string::npos) << refusal();
}

TEST(Family, OfAPartOfAHeadThatIsRotatedThereAreGlmsAndPhi3) {
  for (ModelKeys m : models()) {
    for (const RopePairs pairs : {RopePairs::halves, RopePairs::neighbours}) {
      m.rotary_fraction = 0.5, m.rope_pairs = pairs;
      const Family* family = family_of(m);
      EXPECT_TRUE(!family || (pairs == RopePairs::neighbours && family->type.starts_with("glm")) ||
                  (pairs == RopePairs::halves &&
                   (family->type == "phi3" || family->type == "phi" || family->type == "glm4_moe" || family->type == "minimax_m2")))
          << family->type;
    }
  }
}

TEST(Family, EachHasAModelWhoseConfigurationReadsBack) {
  for (const Family& family : families()) {
    if (family.turn == Family::never) continue;
    int seen = 0;
    for (const ModelKeys& m : models()) {
      if (family_of(m) != &family) continue;
      ++seen;
      Deck deck;
      deck.model = m;
      std::vector<Fault> faults;
      const ModelSource source = read_huggingface_config(huggingface_config(deck, DType::bf16), "config.json", faults);
      for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
      ModelKeys expected = m;
      if (family.type == "mixtral" || family.type == "olmoe" || (family.type.starts_with("granitemoe") && m.experts > 0) ||
          family.type == "gpt_oss" || family.type == "minimax_m2")
        expected.ff_width = m.expert_ff_width;  // it has one key for both, and no layer the first
      if (family.output_bias) expected.attention_out_bias = m.qkv_bias;
      if (family.type.starts_with("granite") && m.attention_scale == 0)
        expected.attention_scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
      EXPECT_EQ(source.model, expected) << family.type;
      EXPECT_EQ(source.architecture, family.architecture);
    }
    EXPECT_GT(seen, 0) << family.type;
  }
}

/// A config.json of a type with these keys beside those that all have; read into layers.
std::vector<LayerKeys> layers_of(const std::string& type, const std::string& keys, std::vector<std::string>& said) {
  std::vector<Fault> faults;
  const std::string text =
      fmt::format(R"({{"model_type": "{}", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,)"
                  R"( "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8{}{}}})",
                  type, keys.empty() ? "" : ", ", keys);
  const ModelSource source = read_huggingface_config(text, "config.json", faults);
  for (const Fault& fault : faults) said.push_back(fault.str());
  return keys_of_layers(source.model);
}

/// The windows of the layers that such a file says, and -1 for one without positions.
std::vector<std::int64_t> windows(const std::string& type, const std::string& keys = "") {
  std::vector<std::string> said;
  std::vector<std::int64_t> sizes;
  for (const LayerKeys& layer : layers_of(type, keys, said)) sizes.push_back(layer.positions == PositionMode::none ? -1 : layer.window);
  EXPECT_EQ(said, std::vector<std::string>()) << type << " " << keys;
  return sizes;
}

using Sizes = std::vector<std::int64_t>;

TEST(Layers, AreWhatTheClassesOfTransformersMakeOfAFile) {
  EXPECT_EQ(windows("mistral"), (Sizes{4096, 4096, 4096, 4096}));
  EXPECT_EQ(windows("mistral", R"("sliding_window": null)"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("mistral", R"("sliding_window": 7)"), (Sizes{7, 7, 7, 7}));
  EXPECT_EQ(windows("mixtral"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("ministral", R"("sliding_window": 7)"), (Sizes{7, 7, 7, 7}));
  EXPECT_EQ(windows("phi3"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("phi3", R"("sliding_window": null)"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("phi3", R"("sliding_window": 2047)"), (Sizes{2047, 2047, 2047, 2047}));
  EXPECT_EQ(windows("ministral", R"("sliding_window": 7, "layer_types": ["full_attention", "sliding_attention", "full_attention",)"
                                 R"( "full_attention"])"),
            (Sizes{0, 7, 0, 0}));
  EXPECT_EQ(windows("cwm", R"("sliding_window": 7, "rope_theta": 1e6)"), (Sizes{0, 7, 7, 7}));
  EXPECT_EQ(windows("qwen2"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2", R"("sliding_window": 7, "use_sliding_window": false)"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2", R"("sliding_window": 7, "use_sliding_window": true, "max_window_layers": 3)"), (Sizes{0, 0, 0, 7}));
  EXPECT_EQ(windows("qwen3", R"("use_sliding_window": true, "max_window_layers": 28)"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2_moe", R"("use_sliding_window": true, "max_window_layers": 3, "num_experts": 4, "num_experts_per_tok": 2,)"
                                 R"( "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8)"),
            (Sizes{4096, 0, 4096, 0}));
  EXPECT_EQ(windows("qwen3_moe", R"("use_sliding_window": true, "sliding_window": 9, "num_experts": 4, "num_experts_per_tok": 2,)"
                                 R"( "moe_intermediate_size": 8)"),
            (Sizes{9, 9, 9, 9}));
  EXPECT_EQ(windows("gemma2"), (Sizes{4096, 0, 4096, 0}));
  EXPECT_EQ(windows("gemma3_text", R"("sliding_window": 7, "sliding_window_pattern": 3)"), (Sizes{7, 7, 0, 7}));
  EXPECT_EQ(windows("gemma3_text", R"("sliding_window": 7)"), (Sizes{7, 7, 7, 7}));
  EXPECT_EQ(windows("olmo3"), (Sizes{4096, 4096, 4096, 0}));
  EXPECT_EQ(windows("exaone4"), (Sizes{4096, 4096, 4096, -1}));
  EXPECT_EQ(windows("exaone4", R"("sliding_window": null, "sliding_window_pattern": null)"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("exaone4", R"("sliding_window": 9, "sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention",)"
                               R"( "full_attention", "sliding_attention", "full_attention"])"),
            (Sizes{9, -1, 9, -1}));
  EXPECT_EQ(windows("cohere"), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(windows("cohere2"), (Sizes{4096, 4096, 4096, -1}));
  EXPECT_EQ(windows("cohere2", R"("sliding_window": 9, "sliding_window_pattern": 2)"), (Sizes{9, -1, 9, -1}));
  EXPECT_EQ(windows("cohere2", R"("layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"])"),
            (Sizes{-1, -1, -1, -1}));
  EXPECT_EQ(windows("smollm3"), (Sizes{0, 0, 0, -1}));
  EXPECT_EQ(windows("smollm3", R"("no_rope_layer_interval": 2)"), (Sizes{0, -1, 0, -1}));
  EXPECT_EQ(windows("smollm3", R"("no_rope_layers": [0, 1, 1, 0])"), (Sizes{-1, 0, 0, -1}));
}

// A null rotation is the class's own, which must not come between a model and its export.
TEST(Layers, ACwmWithoutARotationIsScaledAsItsClassDoesIt) {
  std::vector<std::string> said;
  for (const LayerKeys& layer : layers_of("cwm", R"("rope_scaling": null)", said)) EXPECT_EQ(layer.rope_scaling, RopeMode::llama3);
  for (const LayerKeys& layer : layers_of("cwm", R"("rope_scaling": {"rope_type": "default"})", said))
    EXPECT_EQ(layer.rope_scaling, RopeMode::none);
  for (const LayerKeys& layer : layers_of("llama", R"("rope_scaling": null)", said)) EXPECT_EQ(layer.rope_scaling, RopeMode::none);
  EXPECT_EQ(said, std::vector<std::string>());
}

/// The base of each layer's rotation, below 0 where it is scaled.
std::vector<double> bases(const std::string& type, const std::string& keys) {
  std::vector<std::string> said;
  std::vector<double> all;
  for (const LayerKeys& layer : layers_of(type, keys, said))
    all.push_back(layer.rope_scaling == RopeMode::none ? layer.rope_theta : -layer.rope_theta);
  EXPECT_EQ(said, std::vector<std::string>()) << type << " " << keys;
  return all;
}

TEST(Layers, OfAWindowHaveTheRotationThatTheirClassGivesThem) {
  using Bases = std::vector<double>;
  const std::string three = R"("sliding_window": 7, "sliding_window_pattern": 3)";
  EXPECT_EQ(bases("gemma3_text", three), (Bases{1e4, 1e4, 1e6, 1e4}));
  EXPECT_EQ(bases("gemma3_text", three + R"(, "rope_theta": 500, "rope_local_base_freq": 20)"), (Bases{20, 20, 500, 20}));
  EXPECT_EQ(bases("gemma3_text", three + R"(, "rope_scaling": {"rope_type": "linear", "factor": 8})"), (Bases{1e4, 1e4, -1e6, 1e4}));
  EXPECT_EQ(
      bases("gemma3_text", three + R"(, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 50},)"
                                   R"( "sliding_attention": {"rope_type": "default", "rope_theta": 30}})"),
      (Bases{30, 30, -50, 30}));
  const std::string yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64})";
  EXPECT_EQ(bases("olmo3", yarn), (Bases{5e5, 5e5, 5e5, -5e5}));
  EXPECT_EQ(
      bases("olmo3", yarn + R"(, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"])"),
      (Bases{5e5, 5e5, 5e5, 5e5}))
      << "no layer is scaled";
}

TEST(Layers, WhatContradictsItselfIsRefused) {
  const auto first_fault = [](const std::string& type, const std::string& keys) {
    std::vector<std::string> said;
    layers_of(type, keys, said);
    return said.empty() ? "" : said[0];
  };
  const struct {
    const char *type, *keys, *says;
  } cases[] = {
      {"llama", R"("layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"])", "computes none"},
      {"qwen2", R"("layer_types": ["full_attention"])", "has 1 layers, but num_hidden_layers is 4"},
      {"qwen2", R"("layer_types": ["full_attention", "full_attention", "full_attention", "linear_attention"])", "is not in this version"},
      {"qwen2", R"("layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"])", "turns them off"},
      {"qwen2", R"("layer_types": "full_attention")", "a list of"},
      {"mistral", R"("layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"])", "sets other windows"},
      {"mistral", R"("sliding_window": -4)", "is not a number of tokens"},
      {"olmo3", R"("rope_theta": 10000)", "applies to all layers in transformers 4"},
      {"gemma3_text", R"("rope_parameters": {"rope_theta": 10000})", "has neither full_attention nor sliding_attention"},
      {"gemma3_text", R"("rope_parameters": {"full_attention": {}, "chunked_attention": {}})", "is neither full_attention nor"},
      {"gemma3_text", R"("rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8.0}})", "is scaled in another way"},
      {"gemma3_text", R"("attn_logit_softcapping": 50.0)", "has no effect in the class"},
      {"gemma3_text", R"("use_bidirectional_attention": true)", "attention to later tokens"},
      {"gemma2", R"("hidden_act": "gelu")", "differs from hidden_activation"},
      {"gemma2", R"("final_logit_softcapping": -1.0)", "is not a number above 0"},
      {"gemma2", R"("query_pre_attn_scalar": 0)", "is not a number above 0"},
      {"granite", R"("logits_scaling": 0)", "is not a number above 0"},
      {"granitemoe", R"("residual_multiplier": -1)", "is not a number above 0"},
      {"dots1", R"("n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 0)", "is not a number of shared experts"},
      {"dots1", R"("n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "scoring_func": "softmax")",
       "scoring_func: differs from"},
      {"dots1", R"("n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "topk_method": "greedy")",
       "topk_method: differs from"},
      {"dots1", R"("n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_layer_freq": 2)",
       "moe_layer_freq: is not 1"},
      {"minimax_m2", R"("scoring_func": "softmax")", "scoring_func: differs from the block"},
      {"minimax_m2", R"("use_routing_bias": false)", "use_routing_bias: differs from the block"},
      {"minimax_m2", R"("qk_norm_type": "per_head")", "qk_norm_type: differs from the block"},
      {"minimax_m2", R"("shared_intermediate_size": 8)", "shared_intermediate_size: differs from the block"},
      {"minimax_m2", R"("attn_type_list": [1, 0, 1, 1])", "attn_type_list: differs from the block"},
      {"minimax_m2", R"("rotary_dim": 63)", "rotary_dim: is not an even number"},
      {"minimax_m2", R"("rotary_dim": 4, "partial_rotary_factor": 0.25)", "rotary_dim: contradicts partial_rotary_factor"},
      {"granitemoeshared", R"("num_local_experts": 0)", "is not a number of experts"},
      {"granitemoehybrid", R"("num_local_experts": 0)", "layer_types: is missing, and without it all are; layers of another kind"},
      {"granitemoehybrid", R"("layer_types": ["attention", "attention", "mamba", "attention"])",
       "a layer is \"mamba\"; layers of another kind than attention, Mamba's state-space layers, are not in this version, \"attention\" "
       "is"},
      {"granitemoehybrid", R"("layer_types": ["attention"])", "has 1 layers, but num_hidden_layers is 4"},
      {"granitemoehybrid", R"("layer_types": "attention")", "a list of kinds of layers"},
      {"granitemoehybrid", R"("normalization_function": "layernorm")", "differs from the norm that the class"},
      {"granitemoehybrid", R"("shared_intermediate_size": 0)", "is not a width of a feed-forward block"},
      {"phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]})", "short_factor: has 1 numbers, but"},
      {"phi3", R"("rope_scaling": {"type": "longrope"})", "has no short_factor, which"},
      {"phi3", R"("rope_scaling": {"type": "su", "short_factor": 2})", "short_factor: expected a list of numbers"},
      {"phi3", R"("rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096})", "has no short_factor"},
      {"phi3", R"("rope_scaling": {"type": "linear", "factor": 4.0})", "is not a rotation of this model_type's class"},
      {"phi3", R"("lm_head_bias": true)", "lm_head_bias: a bias of the head"},
      {"phi3", R"("full_attn_mod": 2)", "full_attn_mod: is not 1"},
      {"phi3", R"("embd_pdrop": 0.1)", "dropout is not in this version"},
      {"phi3", R"("resid_pdrop": 0.1)", "dropout is not in this version"},
      {"phi3", R"("attention_bias": true)", "a bias on the attention's output"},
      {"phi3", R"("auto_map": {"AutoModelForCausalLM": "modeling_phi4mm.Phi4MMForCausalLM"})", "the model brings code of its own"},
      {"llama", R"("auto_map": {"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"})", "the model brings code of its own"},
      {"olmoe", R"("clip_qkv": 8.0)", "that are clipped"},
      {"cohere", R"("use_qk_norm": true)", "use_qk_norm: LayerNorm of queries and keys"},
      {"cohere", R"("logit_scale": 0)", "logit_scale: is not a number above 0"},
      {"cohere", R"("sliding_window": 9)", "is not a known key"},
      {"cohere2", R"("sliding_window": null)", "sliding_window: is not a window"},
      {"cohere2", R"("sliding_window": 0)", "sliding_window: is not a window"},
      {"cohere2", R"("use_parallel_block": false)", "use_parallel_block: differs from the block"},
      {"cohere2", R"("use_gated_activation": false)", "use_gated_activation: differs from the block"},
      {"cohere2", R"("position_embedding_type": "rope_neox")", "position_embedding_type: differs from the rotation"},
      {"cohere2", R"("rotary_pct": 0.5)", "rotary_pct: the rotation of a part"},
      {"cohere2", R"("order_of_interleaved_layers": "global_attn_first")", "order_of_interleaved_layers: differs from the order"},
      {"cohere2", R"("use_embedding_sharing": false)", "use_embedding_sharing: contradicts tie_word_embeddings"},
      {"smollm3", R"("no_rope_layers": [1, 0])", "has 2 layers"},
      {"smollm3", R"("no_rope_layer_interval": 0)", "is not a number of layers"},
  };
  for (const auto& c : cases) EXPECT_NE(first_fault(c.type, c.keys).find(c.says), std::string::npos) << first_fault(c.type, c.keys);
}

// As Cohere has written it, with the keys of its own program.
TEST(Cohere2, ReadsTheFileOfCommandR7B) {
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(
      R"({"architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 5,)"
      R"( "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,)"
      R"( "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,)"
      R"( "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32,)"
      R"( "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,)"
      R"( "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096,)"
      R"( "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "use_cache": true, "use_embedding_sharing": true,)"
      R"( "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": false, "use_qk_norm": false,)"
      R"( "vocab_size": 256000})",
      "config.json", faults);
  for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
  const ModelKeys& m = source.model;
  EXPECT_TRUE(m.tied && m.norm_placement == NormPlacement::parallel && m.norm_form == NormForm::layer_norm_no_bias);
  EXPECT_TRUE(m.rope_pairs == RopePairs::neighbours && m.logit_scale == 0.25 && m.rope_theta == 50000);
  EXPECT_EQ(m.pattern, "LLLN");
  EXPECT_EQ(source.context, 132096);
  const Family* family = family_of(m);
  ASSERT_TRUE(family);
  EXPECT_EQ(family->type, "cohere2");
}

TEST(Layers, PatternsAreTheShortest) {
  ModelKeys m{.layers = 5};
  const LayerKeys global, local{.window = 4}, other{.window = 9}, still{.positions = PositionMode::none};
  const auto pattern = [&](const std::vector<LayerKeys>& layers) {
    set_layers(m, layers);
    EXPECT_EQ(keys_of_layers(m), layers);
    return m.pattern;
  };
  EXPECT_EQ(pattern({local, local, global, local, local}), "LLG");
  EXPECT_EQ(pattern({global, local, local, local, local}), "GLLLL");
  EXPECT_EQ(pattern({global, still, global, still, global}), "GN");
  EXPECT_EQ(pattern({local, other, global, local, other}), "LAG");
  EXPECT_EQ(pattern({local, local, local, local, local}), "");
  EXPECT_EQ(m.window, 4);
}

TEST(TensorNames, OfAFamilyTakeThePlaceOfTheUsualOnes) {
  const ModelKeys plain;
  for (const Family& family : families())
    for (const TensorName& row : family.names) {
      std::string ours;
      for (const char c : row.ours) c == '#' ? ours += "3" : ours += c;
      EXPECT_TRUE(TensorNames(plain).has(ours)) << row.ours << " is no tensor of ours";
      EXPECT_EQ(std::ranges::count(row.ours, '#'), std::ranges::count(row.theirs, '#') + (row.fused == Fused::experts ? 1 : 0)) << row.ours;
      // A layer has the one block or experts.
      const auto same = std::ranges::count_if(family.names, [&](const TensorName& other) {
        return other.theirs == row.theirs && other.ours.starts_with("layers.#.mlp.") == row.ours.starts_with("layers.#.mlp.");
      });
      EXPECT_TRUE(same == 1 || row.fused != Fused::no) << row.theirs;
    }
}

TEST(Gpt2, FilesMeanWhatItsClassMakesOfThem) {
  const auto read = [](const std::string& keys, std::string& said) {
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_config(
        R"({"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, )" + keys + "}",
        "config.json", faults);
    said.clear();
    for (const Fault& fault : faults) said += fault.str() + "\n";
    return source;
  };
  std::string said;
  const ModelSource plain = read(R"("n_inner": null, "n_ctx": 32, "task_specific_params": {"text-generation": {"max_length": 50}})", said);
  EXPECT_EQ(said, "");
  EXPECT_EQ(plain.model.ff_width, 128);
  EXPECT_EQ(plain.model.positions, PositionMode::none);
  EXPECT_EQ(plain.context, 32);
  EXPECT_EQ(plain.model.activation, Activation::gelu_tanh);
  ASSERT_EQ(plain.notes.size(), 1u);
  for (const char* word : {"task_specific_params", "attn_pdrop", "resid_pdrop", "embd_pdrop"})
    EXPECT_NE(plain.notes[0].find(word), std::string::npos) << "the class has 0.1 where a file does not say it";
  EXPECT_TRUE(read(R"("attn_pdrop": 0, "resid_pdrop": 0.0, "embd_pdrop": 0)", said).notes.empty());
  const ModelKeys other =
      read(R"("scale_attn_weights": false, "activation_function": "gelu", "n_inner": 48, "tie_word_embeddings": false)", said).model;
  EXPECT_TRUE(said.empty() && other.attention_scale == 1 && other.activation == Activation::gelu && other.ff_width == 48 && !other.tied)
      << said;
  const std::pair<const char*, const char*> refused[] = {
      {R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx: scales of attention that differ"},
      {R"("n_ctx": 16)", "n_ctx: is not n_positions"},
      {R"("hidden_size": 64)", "hidden_size: is not n_embd"},
      {R"("max_position_embeddings": 16)", "max_position_embeddings: is not n_positions"},
      {R"("activation_function": "silu")", "activation_function: \"silu\" is not in this version"},
      {R"("activation_function": "relu")", "activation_function: \"relu\" is not in this version"},
      {R"("add_cross_attention": true)", "add_cross_attention: "},
      {R"("num_key_value_heads": 2)", "num_key_value_heads: is not a known key"},
      {R"("rope_theta": 10000.0)", "rope_theta: is not a known key"},
      {R"("attention_dropout": 0.5)", "attention_dropout: dropout is not in this version"}};
  for (const auto& [keys, says] : refused) {
    read(keys, said);
    EXPECT_NE(said.find(says), std::string::npos) << said;
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  }
}

// As Phi-3-mini has it on its page.
TEST(Family, TheFirstFilesOfPhi3AreRead) {
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(
      R"({"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
          "AutoModelForCausalLM": "org/phi--modeling_phi3.Phi3ForCausalLM"}, "embd_pdrop": 0.0, "hidden_act": "silu", "hidden_size": 32,
          "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 4096, "model_type": "phi3",
          "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "original_max_position_embeddings": 4096,
          "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
          "tie_word_embeddings": false, "attention_bias": false, "vocab_size": 64})",
      "config.json", faults);
  for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
  EXPECT_EQ(source.family, family_named("phi3"));
  EXPECT_EQ(family_of(source.model), family_named("mistral"));
  ASSERT_EQ(source.notes.size(), 1u);
  EXPECT_NE(source.notes[0].find("auto_map"), std::string::npos) << source.notes[0];
}

// As Phi-4-mini has it: some features of a head are rotated, each pair slowed by a factor of its own; and back.
TEST(Family, Phi3WithLongRopeIsReadAndWritten) {
  const std::string scaling = R"("rope_scaling": {"long_factor": [1.5, 8.25], "short_factor": [1.0, 1.25], "type": "longrope"})";
  const auto read = [&](const std::string& more) {
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_config(
        R"({"architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
            "max_position_embeddings": 131072, "model_type": "phi3", "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
            "sliding_window": 262144, "tie_word_embeddings": true, "attention_bias": false, "lm_head_bias": false, "mlp_bias": false, "full_attn_mod": 1, "interpolate_factor": 1,
            "vocab_size": 64, )" +
            more + "}",
        "config.json", faults);
    for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
    return source.model;
  };
  const ModelKeys m = read(scaling);
  EXPECT_EQ(m.rope_scaling, RopeMode::longrope);
  EXPECT_EQ(m.rope_factor, 32);
  EXPECT_EQ(m.rope_original_context, 4096);
  EXPECT_EQ(m.rope_long_factors, (std::vector<double>{1.5, 8.25}));
  EXPECT_EQ(m.rotary_fraction, 0.5);
  EXPECT_EQ(family_of(m), family_named("phi3"));
  for (const std::string& other : {std::string("su"), std::string("yarn")}) {
    std::string same = scaling;
    EXPECT_EQ(read(same.replace(same.find("longrope"), 8, other)), m) << other;
  }
  Deck deck;
  deck.model = m;
  const std::string written = huggingface_config(deck, DType::bf16);
  std::vector<Fault> faults;
  EXPECT_EQ(read_huggingface_config(written, "config.json", faults).model, m) << written;
  EXPECT_TRUE(faults.empty());
}

TEST(TensorNames, KeepTheNumbersInTheirOrder) {
  ModelKeys mixtral;
  mixtral.experts = 12;
  EXPECT_EQ(TensorNames(mixtral).of("layers.10.moe.experts.7.w_up"), "model.layers.10.block_sparse_moe.experts.7.w3.weight");
  EXPECT_EQ(TensorNames(mixtral).of("layers.10.moe.norm"), "model.layers.10.post_attention_layernorm.weight");
  EXPECT_EQ(TensorNames(ModelKeys{}).of("layers.10.moe.experts.7.w_up"), "model.layers.10.mlp.experts.7.up_proj.weight");
  EXPECT_EQ(TensorNames(mixtral).of("layers.1.moe.router_bias"), "") << "no class that is exported has it";
  EXPECT_EQ(TensorNames(mixtral).of("layers.1.nothing"), "");
  // The word that ends a module's name, of all families.
  const auto words = [](std::string_view ours) {
    std::vector<std::string> found;
    for (const std::string& module : modules_of(ours))
      if (std::string word = module.substr(module.rfind('.') + 1); std::ranges::find(found, word) == found.end()) found.push_back(word);
    return found;
  };
  EXPECT_EQ(modules_of("layers.10.moe.experts.7.w_up").front(), "model.layers.10.mlp.experts.7.up_proj");
  EXPECT_EQ(words("layers.0.moe.experts.1.w_down"), (std::vector<std::string>{"down_proj", "output_linear", "w2"}));
  EXPECT_EQ(TensorNames(family_named("granitemoe")).of("layers.10.moe.experts.7.w_up"),
            "model.layers.10.block_sparse_moe.input_linear.weight");
  EXPECT_EQ(TensorNames(family_named("granitemoe")).of("layers.1.moe.shared.w_up"), "model.layers.1.mlp.shared_expert.up_proj.weight")
      << "as most, since it has none";
  for (const char* ours : {"layers.1.moe.shared.w_up", "layers.1.mlp.w_gate"})
    EXPECT_EQ(TensorNames(family_named("granitemoehybrid")).of(ours), "model.layers.1.shared_mlp.input_linear.weight") << ours;
  EXPECT_EQ(TensorNames(family_named("phi3")).name("layers.3.attention.wk").fused, Fused::rows);
  EXPECT_EQ(words("layers.0.attention.wq"), (std::vector<std::string>{"q_proj", "c_attn", "qkv_proj"}));
  EXPECT_EQ(words("layers.0.attention.wo"), (std::vector<std::string>{"o_proj", "c_proj", "dense"}));
}

// As config.json of Phi-2 has it.
TEST(Family, ReadsAPhi2) {
  const std::string text =
      R"({"architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,)"
      R"( "hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,)"
      R"( "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32,)"
      R"( "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": null,)"
      R"( "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true, "vocab_size": 51200})";
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(text, "config.json", faults);
  for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
  const ModelKeys& m = source.model;
  EXPECT_TRUE(m.head_bias && m.qkv_bias && m.attention_out_bias && m.mlp_bias && !m.gated && !m.tied);
  EXPECT_TRUE(m.norm_placement == NormPlacement::parallel && m.norm_form == NormForm::layer_norm);
  EXPECT_EQ(rotated_features(m), 32);
  ASSERT_TRUE(family_of(m));
  EXPECT_EQ(family_of(m)->type, "phi");
  EXPECT_EQ(TensorNames(m).of("head.bias"), "lm_head.bias");
  std::string other = text;
  other.replace(other.find("\"qk_layernorm\": false"), 21, "\"qk_layernorm\": true");
  read_huggingface_config(other, "config.json", faults);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].str().find("qk_layernorm: LayerNorm of queries and keys"), std::string::npos) << faults[0].str();
}

}  // namespace
}  // namespace tessera::family_test
