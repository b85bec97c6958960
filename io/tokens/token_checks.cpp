#include "io/tokens/token_checks.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include "base/json.hpp"

#include "base/types.hpp"
#include "io/tokens/loss_mask.hpp"

namespace tessera::io {
namespace {

constexpr std::string_view set_names[] = {"documents", "pairs", "labels"};

template <class T>
T id_at(const char* ids, std::int64_t i) {
  T id;
  std::memcpy(&id, ids + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return id;
}

/// Raises `sums.largest_id` where one of the ids is larger.
template <class T>
void note_largest(TokenSums& sums, const char* ids, std::int64_t count, std::int64_t at) {
  T largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, id_at<T>(ids, i));  // no branch: compilers make vector code of it
  if (static_cast<std::int64_t>(largest) <= sums.largest_id) return;
  std::int64_t first = 0;
  while (id_at<T>(ids, first) != largest) ++first;
  sums.largest_id = largest, sums.largest_at = at + first;
}

std::string stamp_text(const FileStamp& stamp) {
  return Json{{"format", "tessera checked tokens 1"}, {"file_bytes", stamp.bytes}, {"modified_ns", stamp.modified_ns}}.dump();
}

}  // namespace

std::uint64_t block_checksum(const void* ids, std::size_t bytes, std::span<const std::uint8_t> mask) {
  if (mask.empty()) return hash_bytes(ids, bytes).low;
  Hasher hasher;
  hasher.update(ids, bytes), hasher.update(mask.data(), mask.size());
  return hasher.digest().low;
}

void TokenSums::add(const void* ids, std::int64_t count, std::size_t token_bytes, std::int64_t at, std::span<const std::uint8_t> mask) {
  if (!mask.empty()) counted += io::counted(mask, count);
  auto p = static_cast<const char*>(ids);
  for (std::int64_t done = 0; done < count; done += block_tokens) {
    const std::int64_t n = std::min(block_tokens, count - done);
    const char* block = p + done * static_cast<std::int64_t>(token_bytes);
    const auto of_block = mask.empty() ? mask : mask.subspan(static_cast<std::size_t>(done / 8), static_cast<std::size_t>(mask_bytes(n)));
    blocks.push_back(block_checksum(block, static_cast<std::size_t>(n) * token_bytes, of_block));
    if (token_bytes == 2)
      note_largest<std::uint16_t>(*this, block, n, at + done);
    else
      note_largest<std::uint32_t>(*this, block, n, at + done);
  }
}

void TokenSums::append(const TokenSums& next) {
  blocks.insert(blocks.end(), next.blocks.begin(), next.blocks.end());
  counted += next.counted;
  if (next.largest_id > largest_id) largest_id = next.largest_id, largest_at = next.largest_at;
}

Hash128 TokenSums::content() const { return hash_bytes(blocks.data(), blocks.size() * sizeof(std::uint64_t)); }

std::string TokenSums::pack() const {
  const std::array head{largest_id, largest_at, counted};
  std::string bytes(sizeof head + blocks.size() * 8, '\0');
  std::memcpy(bytes.data(), head.data(), sizeof head);
  std::memcpy(bytes.data() + sizeof head, blocks.data(), blocks.size() * 8);
  return bytes;
}

TokenSums TokenSums::unpack(std::string_view bytes) {
  std::array<std::int64_t, 3> head{};
  TESSERA_REQUIRE(bytes.size() >= sizeof head && bytes.size() % 8 == 0, "{} bytes", bytes.size());
  std::memcpy(head.data(), bytes.data(), sizeof head);
  TokenSums sums{.blocks = {}, .largest_id = head[0], .largest_at = head[1], .counted = head[2]};
  sums.blocks.resize(bytes.size() / 8 - head.size());
  std::memcpy(sums.blocks.data(), bytes.data() + sizeof head, sums.blocks.size() * 8);
  return sums;
}

const char* name_of(TokenSet set) { return set_names[static_cast<std::size_t>(set)].data(); }

std::optional<TokenSet> token_set_of(std::string_view name) {
  const auto* const found = std::ranges::find(set_names, name);
  if (found == std::end(set_names)) return std::nullopt;
  return static_cast<TokenSet>(found - std::begin(set_names));
}

std::string TokenFacts::text() const {
  Json facts{{"format", "tessera token facts 1"},
             {"tokens", tokens},
             {"token_bytes", token_bytes},
             {"block_tokens", block_tokens},
             {"largest_id", largest_id},
             {"largest_at", largest_at},
             {"content", content.hex()},
             {"documents", documents},
             {"vocab", vocab},
             {"tokenizer", tokenizer}};
  if (counted >= 0) facts["counted"] = counted;
  if (!digest.empty()) facts["tokenizer_xxh3"] = digest;
  if (end_token >= 0) facts["end_token"] = end_token;
  if (set != TokenSet::documents) facts["kind"] = name_of(set);
  return facts.dump();
}

std::optional<TokenFacts> TokenFacts::parse(std::string_view text) {
  TokenFacts facts;
  try {
    const Json json = Json::parse(text);
    json.at("tokens").get_to(facts.tokens), json.at("token_bytes").get_to(facts.token_bytes);
    json.at("largest_id").get_to(facts.largest_id), json.at("largest_at").get_to(facts.largest_at);
    json.at("documents").get_to(facts.documents), json.at("vocab").get_to(facts.vocab);
    json.at("tokenizer").get_to(facts.tokenizer);
    if (json.contains("counted")) json.at("counted").get_to(facts.counted);
    if (json.contains("tokenizer_xxh3")) json.at("tokenizer_xxh3").get_to(facts.digest);
    if (json.contains("end_token")) json.at("end_token").get_to(facts.end_token);
    if (const Json* kind = json.find("kind")) {
      const std::optional<TokenSet> set = token_set_of(kind->get<std::string>());
      if (!set) return std::nullopt;
      facts.set = *set;
    }
    if (!parse_hash(json.at("content").get<std::string>(), facts.content)) return std::nullopt;
  } catch (const JsonError&) {
    return std::nullopt;
  }
  // Whatever else the line held, another version or another size of blocks, shows here.
  if (facts.text() != text) return std::nullopt;
  return facts;
}

FileStamp FileStamp::of(const PosixFile& file) { return {file.size(), file.modified_ns()}; }

std::optional<KeptChecks> KeptChecks::read(const std::string& token_file, const FileStamp& stamp) {
  try {
    const auto file = PosixFile::open(path_for(token_file), ExitCode::data);
    const std::int64_t bytes = file.size(), most = 4096 + 8 * ceil_div(stamp.bytes, 2 * block_tokens);
    if (bytes > most) return std::nullopt;
    std::string all(static_cast<std::size_t>(bytes), '\0');
    if (file.read(0, all.data(), all.size()) != all.size()) return std::nullopt;
    std::string_view rest = all;
    auto line = [&] {
      const auto end = std::min(rest.find('\n'), rest.size());
      const auto text = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      return text;
    };
    const auto stamped = line(), facts_text = line(), digest = line();
    if (stamped != stamp_text(stamp) || digest != hash_text(facts_text).hex()) return std::nullopt;
    const auto facts = TokenFacts::parse(facts_text);
    if (!facts || static_cast<std::int64_t>(rest.size()) != 8 * ceil_div(facts->tokens, block_tokens)) return std::nullopt;
    KeptChecks kept{*facts, {}};
    kept.sums.blocks.resize(rest.size() / 8);
    std::memcpy(kept.sums.blocks.data(), rest.data(), rest.size());
    kept.sums.largest_id = facts->largest_id, kept.sums.largest_at = facts->largest_at;
    kept.sums.counted = std::max<std::int64_t>(0, facts->counted);
    if (kept.sums.content() != facts->content) return std::nullopt;
    return kept;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void KeptChecks::write(const std::string& token_file, const FileStamp& stamp) const {
  AtomicFile out(path_for(token_file));
  const std::string text = facts.text();
  const std::string head = fmt::format("{}\n{}\n{}\n", stamp_text(stamp), text, hash_text(text).hex());
  out.file().write(0, head.data(), head.size());
  out.file().write(static_cast<std::int64_t>(head.size()), sums.blocks.data(), sums.blocks.size() * 8);
  out.commit();
}

}  // namespace tessera::io
