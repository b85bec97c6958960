// Numbers that a user can put in the place of one that does not divide.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// The divisors of n nearest to `near`, in rising order.
std::vector<std::int64_t> divisors_near(std::int64_t n, std::int64_t near, std::size_t count = 4);
/// "1, 2 or 4"
std::string one_of(const std::vector<std::int64_t>& values);
/// Multiples of `atom` on both sides of `value`.
std::string multiples_around(std::int64_t value, std::int64_t atom);

}  // namespace tessera
