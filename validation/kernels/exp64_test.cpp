#include "kernels/exp64.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tessera::kernels::testing::exp64_test {
namespace {

using Real = long double;

/// In units of the last place of a double, as a share of the exact value.
double units(double value, Real exact) {
  const Real unit = std::fabs(exact) * static_cast<Real>(std::numeric_limits<double>::epsilon());
  return unit == 0 ? (value == 0 ? 0 : 1e300) : static_cast<double>(std::fabs(static_cast<Real>(value) - exact) / unit);
}

/// Numbers of all sizes from 2^-60 to `most`, spread over the exponents.
template <class Check>
void over_magnitudes(double most, const Check& check) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-60, std::log2(most)), share(0, 1);
  for (int i = 0; i < 20000; ++i) check(std::exp2(exponent(random)));
  for (int i = 0; i < 20000; ++i) check(most * share(random));
  check(most);
}

TEST(Exp64, ExponentialsAreWithinTwoUnits) {
  double worst = 0, worst_less_one = 0;
  over_magnitudes(707.9, [&](double x) {
    worst = std::max(worst, units(doubles::exp_nonpositive(-x), std::exp(-static_cast<Real>(x))));
    worst_less_one = std::max(worst_less_one, units(doubles::exp_less_one(-x), std::expm1(-static_cast<Real>(x))));
  });
  EXPECT_LT(worst, 2);
  EXPECT_LT(worst_less_one, 2);
  EXPECT_EQ(doubles::exp_nonpositive(0), 1);
  EXPECT_EQ(doubles::exp_nonpositive(-800), 0);
  EXPECT_EQ(doubles::exp_less_one(-800), -1);
  EXPECT_EQ(doubles::exp_less_one(0), 0);
}

TEST(Exp64, LogarithmsAreWithinTwoUnits) {
  double worst = 0, one_more = 0, below_one = 0;
  over_magnitudes(1, [&](double x) {
    worst = std::max({worst, units(doubles::log_of_normal(x), std::log(static_cast<Real>(x))),
                      units(doubles::log_of_normal(1 / x), std::log(static_cast<Real>(1 / x)))});
    one_more = std::max(one_more, units(doubles::log_of_one_more(x), std::log1p(static_cast<Real>(x))));
    below_one = std::max(below_one, units(doubles::log_of_one_more(-x / 2), std::log1p(-static_cast<Real>(x / 2))));
  });
  EXPECT_LT(worst, 2);
  EXPECT_LT(one_more, 2);
  EXPECT_LT(below_one, 2);
}

TEST(Exp64, SigmoidsKeepTheirDigitsOnBothSides) {
  double sigmoid = 0, log_sigmoid = 0;
  over_magnitudes(700, [&](double size) {
    for (const double x : {size, -size}) {
      const auto exact = static_cast<Real>(x);
      sigmoid = std::max(sigmoid, units(doubles::sigmoid(x), 1 / (1 + std::exp(-exact))));
      const Real log = x < 0 ? exact - std::log1p(std::exp(exact)) : -std::log1p(std::exp(-exact));
      log_sigmoid = std::max(log_sigmoid, units(doubles::log_sigmoid(x), log));
    }
  });
  EXPECT_LT(sigmoid, 4);
  EXPECT_LT(log_sigmoid, 4);
  EXPECT_EQ(doubles::log_sigmoid(-1e4), -1e4);
  EXPECT_EQ(doubles::log_sigmoid(1e4), 0);
  EXPECT_EQ(doubles::sigmoid(0), 0.5);
}

TEST(Exp64, LogOfOneLessExpChoosesTheFormThatKeepsItsDigits) {
  double worst = 0;
  over_magnitudes(40, [&](double a) {
    const Real exact = std::log(-std::expm1(-static_cast<Real>(a)));
    const Real other = std::log1p(-std::exp(-static_cast<Real>(a)));
    worst = std::max(worst, units(doubles::log_one_less_exp(-a), a > 0.6931 ? other : exact));
  });
  EXPECT_LT(worst, 4);
}

TEST(Exp64, WhatIsNotANumberStaysSo) {
  const double bad = std::nan("");
  for (const double x : {doubles::exp_nonpositive(bad), doubles::exp_less_one(bad), doubles::log_of_normal(bad),
                         doubles::log_of_one_more(bad), doubles::sigmoid(bad), doubles::log_sigmoid(bad), doubles::log_one_less_exp(bad)})
    EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace tessera::kernels::testing::exp64_test
