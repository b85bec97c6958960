// tessera inspect: what a checkpoint holds, and whether it is what was written.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <vector>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/types.hpp"
#include "commands/commands.hpp"
#include "commands/inspect_diff.hpp"
#include "commands/named_checkpoint.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/byte_progress.hpp"

namespace tessera {
namespace {

struct InspectOptions {
  std::string path, tensor, other;
  bool json = false, verify = false, deck = false, brief = false;
};

/// Of the finite values of a tensor; the hash is of all.
struct Statistics {
  double min = std::numeric_limits<double>::infinity(), max = -min, mean = 0, squares = 0;  // squares: sum of squared distances to the mean
  std::int64_t finite = 0, not_finite = 0;
  std::string hash;
  double deviation() const { return finite > 0 ? std::sqrt(squares / static_cast<double>(finite)) : 0; }
};

/// Joins the moments of a piece to those before it (Chan, Golub and LeVeque 1983): exact enough for any length, one pass.
void add_values(Statistics& s, std::span<const float> values) {
  double n = 0, sum = 0;
  for (double v : values) {
    if (!std::isfinite(v)) continue;
    n += 1, sum += v;
    s.min = std::min(s.min, v), s.max = std::max(s.max, v);
  }
  s.not_finite += static_cast<std::int64_t>(values.size()) - static_cast<std::int64_t>(n);
  if (n == 0) return;
  double mean = sum / n, squares = 0, before = static_cast<double>(s.finite), shift = mean - s.mean;
  for (double v : values)
    if (std::isfinite(v)) squares += (v - mean) * (v - mean);
  s.squares += squares + shift * shift * before * n / (before + n);
  s.mean += shift * n / (before + n);
  s.finite += static_cast<std::int64_t>(n);
}

Statistics measure(const io::CheckpointReader& reader, const std::string& group, const io::CheckpointTensor& tensor,
                   io::ByteProgress& progress) {
  Statistics s;
  Hasher hasher;
  std::vector<float> chunk(static_cast<std::size_t>(io::hash_block));
  for (std::int64_t at = 0, n = tensor.shape.elements(); at < n;) {
    auto part = std::span(chunk).first(static_cast<std::size_t>(std::min(io::hash_block, n - at)));
    reader.read(group, tensor, at, part);
    add_values(s, part);
    hasher.update(part.data(), part.size_bytes());
    at += static_cast<std::int64_t>(part.size());
    progress.add(static_cast<std::int64_t>(part.size_bytes()));
  }
  s.hash = hasher.digest().hex();
  return s;
}

struct Row {
  std::string group;
  const io::CheckpointTensor* tensor = nullptr;
  std::optional<Statistics> statistics;
};

/// The weights; with --tensor that tensor in every group.
std::vector<Row> rows_of(const io::CheckpointReader& reader, const InspectOptions& o) {
  auto& layout = reader.layout();
  std::vector<Row> rows;
  if (o.tensor.empty()) {
    for (auto& t : layout.tensors)
      if (!layout.groups.empty() && layout.lies_in(t, 0)) rows.push_back({layout.groups.front(), &t, {}});
    return rows;
  }
  auto* tensor = reader.find(o.tensor);
  if (!tensor)
    fail(ExitCode::usage, "{}: it has no tensor '{}'. `tessera inspect {} --brief` lists them.", reader.folder(), o.tensor, o.path);
  for (auto& g : layout.groups)
    if (auto* of_group = reader.find(g, o.tensor)) rows.push_back({g, of_group, {}});
  return rows;
}

/// Of shard file `number`; -1: it is not there.
std::int64_t file_bytes(const io::CheckpointReader& reader, int number) {
  std::error_code e;
  auto bytes = std::filesystem::file_size(reader.folder() + "/" + io::shard_file(number), e);
  return e ? -1 : static_cast<std::int64_t>(bytes);
}

/// Where a piece lies; its parts count the piece's own elements.
Json piece_json(const io::CheckpointLayout& layout, const io::CheckpointPiece& piece) {
  Json parts = Json::array();
  for (auto& p : io::parts_of(layout, piece))
    parts.push_back({{"shard", p.slice.shard}, {"begin", p.begin - piece.offset}, {"end", p.end - piece.offset}});
  return {{"unit", layout.units[static_cast<std::size_t>(piece.unit)].name}, {"offset", piece.offset}, {"parts", parts}};
}

Json row_json(const io::CheckpointLayout& layout, const Row& r) {
  Json j{{"name", r.tensor->name}, {"group", r.group}, {"shape", r.tensor->shape.dims}};
  if (r.tensor->whole()) {
    j.update(piece_json(layout, r.tensor->pieces.front()));
  } else {
    j["pieces"] = Json::array();
    for (auto& piece : r.tensor->pieces) {
      j["pieces"].push_back({{"start", piece.box.start}, {"count", piece.box.count}});
      j["pieces"].back().update(piece_json(layout, piece));
    }
  }
  if (!r.statistics) return j;
  auto& s = *r.statistics;
  auto finite = [&](double v) { return s.finite > 0 ? Json(v) : Json(); };
  j["min"] = finite(s.min), j["max"] = finite(s.max), j["mean"] = finite(s.mean), j["std"] = finite(s.deviation());
  j["not_finite"] = s.not_finite, j["hash"] = s.hash;
  return j;
}

std::vector<std::string> groups_of(const io::CheckpointLayout& layout, const io::CheckpointUnit& unit) {
  std::vector<std::string> names;
  for (int group = 0; group < static_cast<int>(layout.groups.size()); ++group)
    if (unit.lies_in(group)) names.push_back(layout.groups[static_cast<std::size_t>(group)]);
  return names;
}

void print_json(const io::CheckpointReader& reader, const InspectOptions& o, const std::vector<Row>& rows) {
  auto& meta = reader.meta();
  auto& layout = reader.layout();
  Json units = Json::array(), shards = Json::array(), files = Json::array(), tensors = Json::array();
  for (int f = 0; f < io::file_count(layout); ++f) files.push_back({{"file", io::shard_file(f)}, {"bytes", file_bytes(reader, f)}});
  for (int s = 0; s < layout.shards; ++s) {
    Json slices = Json::object();
    for (auto& slice : io::slices_of(layout, s)) slices[layout.units[static_cast<std::size_t>(slice.unit)].name] = {slice.begin, slice.end};
    shards.push_back({{"file", io::shard_file(io::file_of(layout, s))}, {"slices", slices}});
    if (layout.files.empty()) shards.back()["bytes"] = files[static_cast<std::size_t>(s)]["bytes"];
  }
  for (auto& u : layout.units) {
    units.push_back({{"name", u.name}, {"elements", u.elements}});
    if (!u.holders.empty()) units.back()["holders"] = u.holders;
    if (!u.groups.empty()) units.back()["groups"] = groups_of(layout, u);
  }
  for (auto& r : rows) tensors.push_back(row_json(layout, r));
  Json j{{"folder", reader.folder()},
         {"format", io::checkpoint_format(layout)},
         {"version", meta.version},
         {"program", meta.program},
         {"step", meta.step},
         {"sample_cursor", meta.sample_cursor},
         {"seed", meta.seed},
         {"identity", meta.identity},
         {"lineage", Json::parse(io::lineage_text(meta.lineage))},
         {"run", Json::parse(io::values_text(meta.values))},
         {"data", Json::parse(io::data_text(meta.data))},
         {"groups", layout.groups},
         {"units", units},
         {"files", files},
         {"shards", shards},
         {"tensors", tensors},
         {"verified", o.verify}};
  if (o.deck) j["deck"] = meta.deck;
  put("{}\n", j.dump(2, BadText::replace));
}

void print_rows(const std::vector<Row>& rows, bool with_group) {
  std::size_t wide = 6, shape = 5;
  auto label = [&](const Row& r) { return with_group ? r.group + "/" + r.tensor->name : r.tensor->name; };
  for (auto& r : rows) wide = std::max(wide, label(r).size()), shape = std::max(shape, r.tensor->shape.str().size());
  bool values = std::any_of(rows.begin(), rows.end(), [](auto& r) { return r.statistics.has_value(); });
  put("\n{:<{}}  {:<{}}{}\n", "tensor", wide, "shape", shape,
      values ? fmt::format("  {:>11} {:>11} {:>11} {:>11}  {}", "min", "max", "mean", "std", "hash") : "");
  for (auto& r : rows) {
    put("{:<{}}  {:<{}}", label(r), wide, r.tensor->shape.str(), shape);
    if (r.statistics) {
      auto& s = *r.statistics;
      if (s.finite > 0) {
        put("  {:>11.4g} {:>11.4g} {:>11.4g} {:>11.4g}  {}", s.min, s.max, s.mean, s.deviation(), s.hash);
      } else {
        put("  {:>11} {:>11} {:>11} {:>11}  {}", "-", "-", "-", "-", s.hash);
      }
      if (s.not_finite > 0) put("  {} VALUES ARE NOT FINITE", s.not_finite);
    }
    put("\n");
  }
}

void print_units(const io::CheckpointLayout& layout) {
  std::size_t wide = 4;
  for (auto& u : layout.units) wide = std::max(wide, u.name.size());
  put("\n{:<{}}  {:>14}  {:>14}\n", "unit", wide, "elements", "a shard holds");
  for (auto& u : layout.units) {
    const int holders = io::holder_count(layout, u);
    put("{:<{}}  {:>14}  {:>14}{}{}\n", u.name, wide, u.elements, u.elements / holders, u.elements % holders ? " or one more" : "",
        u.holders.empty() ? "" : fmt::format(" (of shards {})", fmt::join(u.holders, ", ")));
  }
}

void print_places(const io::CheckpointLayout& layout, const io::CheckpointTensor& t) {
  if (!t.whole()) put("\n{} is cut into {} pieces:\n", t.name, t.pieces.size());
  for (auto& piece : t.pieces) {
    const std::string& unit = layout.units[static_cast<std::size_t>(piece.unit)].name;
    if (t.whole())
      put("\n{} is in unit {} from element {}:\n", t.name, unit, piece.offset);
    else
      put("{} in unit {} at element {}:\n", piece.box.str(), unit, piece.offset);
    for (auto& p : io::parts_of(layout, piece))
      put("  {}: elements [{}, {}){}\n", io::shard_file(io::file_of(layout, p.slice.shard)), p.begin - piece.offset, p.end - piece.offset,
          t.whole() ? "" : " of the piece");
  }
}

/// Numbers as they are, of a list what a reader wants to know.
void print_values(const std::vector<io::CheckpointValue>& values, bool brief) {
  std::vector<io::CheckpointValue> numbers, lists;
  for (const io::CheckpointValue& value : values) (value.list ? lists : numbers).push_back(value);
  if (!numbers.empty()) put("  values of the run: {}\n", io::values_text(numbers));
  if (lists.empty()) return;
  put("  {} histories{}\n", lists.size(), brief ? "" : ", from the newest step back:");
  for (const io::CheckpointValue& list : lists) {
    if (brief) break;
    if (list.numbers.empty())
      put("    {}: none above 0\n", list.name);
    else
      put("    {}: {} step{}, newest {:.6g}, largest {:.6g}\n", list.name, list.numbers.size(), list.numbers.size() == 1 ? "" : "s",
          list.numbers.front(), std::ranges::max(list.numbers));
  }
}

void print_text(const io::CheckpointReader& reader, const InspectOptions& o, const std::vector<Row>& rows) {
  auto& meta = reader.meta();
  auto& layout = reader.layout();
  std::int64_t elements = 0, bytes = 0;
  std::set<std::string> names;
  for (auto& t : layout.tensors)
    if (names.insert(t.name).second) elements += t.shape.elements();
  int missing = 0;
  for (int f = 0; f < io::file_count(layout); ++f) {
    auto b = file_bytes(reader, f);
    b < 0 ? ++missing : bytes += b;
  }
  put("{}\n  step {}, {} samples seen, seed {}\n  written by Tessera {}, format {}, identity {}\n", reader.folder(), meta.step,
      meta.sample_cursor, meta.seed, meta.version, io::checkpoint_format(layout), meta.identity);
  if (const io::CheckpointLine& line = meta.lineage.back(); !line.from.empty())
    put("  line {} of the run, started at step {} from {}\n", line.number, line.from_step, line.from);
  print_values(meta.values, o.brief);
  for (const io::CheckpointData& file : meta.data)
    put("  trained on {}{}: {} tokens, digest {}\n", printable_name(file.path),
        meta.data.size() > 1 ? fmt::format(" ({:.4g} % of the samples)", 100 * file.share) : "", file.tokens, file.digest);
  put("  {} elements in {} tensors, {} units, groups {}\n", human_count(static_cast<double>(elements)), names.size(), layout.units.size(),
      fmt::join(layout.groups, ", "));
  put("  {} shard{}{}, {}{}\n", layout.shards, layout.shards == 1 ? "" : "s",
      layout.files.empty() ? "" : fmt::format(" in {} file{}", io::file_count(layout), io::file_count(layout) == 1 ? "" : "s"),
      human_bytes(static_cast<double>(bytes)), missing > 0 ? fmt::format(", {} MISSING", missing) : "");
  o.tensor.empty() ? print_units(layout) : print_places(layout, *rows.front().tensor);
  print_rows(rows, !o.tensor.empty());
  if (o.deck) put("\n{}", meta.deck);
  if (o.verify) {
    put("\nchecksums: every byte of the index and of {} shard{} is correct\n", layout.shards, layout.shards == 1 ? "" : "s");
  } else if (!o.brief && !rows.empty()) {
    put("\nchecksums: the values shown are verified; --verify checks everything\n");
  }
}

int run_inspect(const InspectOptions& o) {
  const std::string path = named_checkpoint(o.path);
  if (!o.other.empty()) return run_diff({.path = path, .other = named_checkpoint(o.other), .tensor = o.tensor, .json = o.json});
  io::CheckpointReader reader(path);
  auto rows = rows_of(reader, o);
  if (o.verify) {
    io::ByteProgress progress("verify", reader.layout().bytes());
    reader.verify([&](std::int64_t done, std::int64_t) { progress.set(done); });
  }
  if (!o.brief) {
    std::int64_t total = 0;
    for (auto& r : rows) total += r.tensor->shape.elements() * 4;
    io::ByteProgress progress("inspect", total);
    for (auto& r : rows) r.statistics = measure(reader, r.group, *r.tensor, progress);
  }
  o.json ? print_json(reader, o, rows) : print_text(reader, o, rows);
  return 0;
}

}  // namespace

void add_inspect(const Command& app) {
  const Command command = app.command("inspect", "Show the content of a checkpoint and check that it is complete");
  auto o = std::make_shared<InspectOptions>();
  command.option("CHECKPOINT", o->path, std::string(checkpoint_help) + ", or a checkpoint.h5").required();
  command.flag("--json", o->json, "Print JSON");
  command.flag("--verify", o->verify, "Compare every byte of all files with the checksums");
  command.flag("--deck", o->deck, "Print the run's deck too");
  command.flag("--brief", o->brief, "Names and shapes only: reads no values");
  command.option("--tensor", o->tensor, "Only this tensor, in every group (weights and optimizer state)");
  command
      .option("--diff", o->other,
              "Another checkpoint, of any layout, or an exported model (only weights): lists tensors that differ, and by how much; status "
              "4 if one does")
      .excludes("--verify")
      .excludes("--deck")
      .excludes("--brief");
  command.footer(
      "Example:\n  tessera inspect runs/quickstart/checkpoints/latest --verify\n  tessera inspect runs/a/checkpoints/latest --diff "
      "runs/b/checkpoints/latest");
  command.does([o] { return run_inspect(*o); });
}

}  // namespace tessera
