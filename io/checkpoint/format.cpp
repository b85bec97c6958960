#include "io/checkpoint/format.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include "base/json.hpp"

#include "base/check.hpp"

namespace tessera::io {
namespace {

Json tensor_json(const CheckpointLayout& layout, const CheckpointTensor& t) {
  auto unit_of = [&](const CheckpointPiece& p) { return layout.units[static_cast<std::size_t>(p.unit)].name; };
  Json j{{"name", t.name}, {"shape", t.shape.dims}};
  if (t.whole()) {
    j["unit"] = unit_of(t.pieces.front()), j["offset"] = t.pieces.front().offset;
    return j;
  }
  j["pieces"] = Json::array();
  for (auto& p : t.pieces)
    j["pieces"].push_back({{"unit", unit_of(p)}, {"offset", p.offset}, {"start", p.box.start}, {"count", p.box.count}});
  return j;
}

Json layout_json(const CheckpointLayout& layout) {
  Json units = Json::array(), tensors = Json::array();
  for (auto& u : layout.units) {
    units.push_back({{"name", u.name}, {"elements", u.elements}});
    if (!u.holders.empty()) units.back()["holders"] = u.holders;
    if (!u.groups.empty()) {
      units.back()["groups"] = Json::array();
      for (const int g : u.groups) units.back()["groups"].push_back(layout.groups[static_cast<std::size_t>(g)]);
    }
  }
  for (auto& t : layout.tensors) tensors.push_back(tensor_json(layout, t));
  Json j{{"shards", layout.shards}, {"groups", layout.groups}, {"units", units}, {"tensors", tensors}};
  if (!layout.files.empty()) j["files"] = layout.files;
  return j;
}

std::string unit_fault(const CheckpointLayout& layout, const CheckpointUnit& u) {
  if (u.elements < 0 || u.elements > (std::int64_t{1} << 46)) return fmt::format("unit {} has {} elements", u.name, u.elements);
  std::set<int> holders;
  for (int h : u.holders)
    if (h < 0 || h >= layout.shards || !holders.insert(h).second)
      return fmt::format("unit {} is in shard {}, which occurs twice or is not one of {}", u.name, h, layout.shards);
  for (std::size_t i = 0; i < u.groups.size(); ++i)
    if (u.groups[i] < 0 || u.groups[i] >= static_cast<int>(layout.groups.size()) || (i > 0 && u.groups[i] <= u.groups[i - 1]))
      return fmt::format("unit {} is in group {}, which occurs twice or is not one of {}", u.name, u.groups[i], layout.groups.size());
  return "";
}

/// Why boxes inside a shape do not cover each element once, or "".
std::string tiling_fault(const CheckpointTensor& t) {
  std::vector<const Box*> boxes;
  for (auto& p : t.pieces) boxes.push_back(&p.box);
  if (t.shape.dims.empty()) return boxes.size() == 1 ? "" : fmt::format("tensor {} is a scalar in {} pieces", t.name, boxes.size());
  std::sort(boxes.begin(), boxes.end(), [](auto* a, auto* b) { return a->start < b->start; });
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t k = i + 1; k < boxes.size() && boxes[k]->start[0] < boxes[i]->start[0] + boxes[i]->count[0]; ++k)
      if (overlap(*boxes[i], *boxes[k]))
        return fmt::format("tensor {} ({}): its pieces {} and {} overlap", t.name, t.shape.str(), boxes[i]->str(), boxes[k]->str());
    covered += boxes[i]->elements();
  }
  if (covered == t.shape.elements()) return "";
  return fmt::format("tensor {} ({}): {} of its {} elements are in no piece", t.name, t.shape.str(), t.shape.elements() - covered,
                     t.shape.elements());
}

std::string tensor_fault(const CheckpointLayout& layout, const CheckpointTensor& t) {
  std::int64_t n = 1;
  for (auto d : t.shape.dims) {
    if (d < 0 || (d > 0 && n > std::numeric_limits<std::int64_t>::max() / d))
      return fmt::format("tensor {} has an impossible shape", t.name);
    n *= d;
  }
  for (auto& p : t.pieces) {
    if (p.unit < 0 || p.unit >= static_cast<int>(layout.units.size())) return fmt::format("tensor {} is in no unit", t.name);
    if (!lies_in(p.box, t.shape) || (p.box.elements() == 0 && n > 0))
      return fmt::format("tensor {} ({}): its piece {} is empty or reaches out of it", t.name, t.shape.str(), p.box.str());
    auto most = layout.units[static_cast<std::size_t>(p.unit)].elements;
    if (p.offset < 0 || p.offset > most || p.box.elements() > most - p.offset) return fmt::format("tensor {} is outside its unit", t.name);
    if (layout.units[static_cast<std::size_t>(p.unit)].groups != layout.units[static_cast<std::size_t>(t.pieces.front().unit)].groups)
      return fmt::format("tensor {} is in units of unlike groups", t.name);
  }
  return tiling_fault(t);
}

std::string files_fault(const CheckpointLayout& layout) {
  if (layout.files.empty()) return "";
  if (layout.files.size() != static_cast<std::size_t>(layout.shards))
    return fmt::format("{} shards are in files, but there are {}", layout.files.size(), layout.shards);
  const std::set<int> files(layout.files.begin(), layout.files.end());
  if (*files.begin() != 0 || *files.rbegin() != static_cast<int>(files.size()) - 1)
    return "its files are not numbered from 0 without a gap";
  return "";
}

/// Why a layout cannot be, or "".
std::string layout_fault(const CheckpointLayout& layout) {
  if (layout.shards < 1) return "no shards";
  if (auto fault = files_fault(layout); !fault.empty()) return fault;
  auto plain = [](const std::string& name) { return !name.empty() && name != "." && name.find('/') == std::string::npos; };
  std::set<std::string> units, groups;
  std::set<std::pair<int, std::string>> tensors;
  for (auto& g : layout.groups)
    if (!plain(g) || !groups.insert(g).second) return fmt::format("group name '{}' is empty, has a slash or occurs twice", g);
  for (auto& u : layout.units) {
    if (!plain(u.name) || !units.insert(u.name).second) return fmt::format("unit name '{}' is empty, has a slash or occurs twice", u.name);
    if (auto fault = unit_fault(layout, u); !fault.empty()) return fault;
  }
  for (auto& t : layout.tensors) {
    if (!plain(t.name)) return fmt::format("tensor name '{}' is empty or has a slash", t.name);
    if (auto fault = tensor_fault(layout, t); !fault.empty()) return fault;
    for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
      if (layout.lies_in(t, g) && !tensors.insert({g, t.name}).second)
        return fmt::format("tensor name '{}' occurs twice in group {}", t.name, layout.groups[static_cast<std::size_t>(g)]);
  }
  return "";
}

CheckpointLayout parse_layout(const Json& j) {
  CheckpointLayout layout;
  layout.shards = j.at("shards").get<int>();
  layout.groups = j.at("groups").get<std::vector<std::string>>();
  layout.files = j.value("files", std::vector<int>());
  std::unordered_map<std::string, int> numbers;
  for (auto& u : j.at("units")) {
    numbers[u.at("name").get<std::string>()] = static_cast<int>(layout.units.size());
    layout.units.push_back({u.at("name").get<std::string>(), u.at("elements").get<std::int64_t>(), u.value("holders", std::vector<int>())});
    if (u.contains("holders") && layout.units.back().holders.empty()) throw std::runtime_error("a unit is in no shard");
    for (const std::string& group : u.value("groups", std::vector<std::string>())) {
      const auto found = std::find(layout.groups.begin(), layout.groups.end(), group);
      if (found == layout.groups.end()) throw std::runtime_error("a unit is in a group that does not exist");
      layout.units.back().groups.push_back(static_cast<int>(found - layout.groups.begin()));
    }
    if (u.contains("groups") && layout.units.back().groups.empty()) throw std::runtime_error("a unit is in no group");
  }
  auto unit_of = [&](const Json& place) { return numbers.at(place.at("unit").get<std::string>()); };
  for (auto& t : j.at("tensors")) {
    Shape shape(t.at("shape").get<std::vector<std::int64_t>>());
    auto name = t.at("name").get<std::string>();
    if (!t.contains("pieces")) {
      layout.tensors.emplace_back(name, std::move(shape), unit_of(t), t.at("offset").get<std::int64_t>());
      continue;
    }
    std::vector<CheckpointPiece> pieces;
    for (auto& p : t.at("pieces")) pieces.push_back({unit_of(p), p.at("offset"), {p.at("start"), p.at("count")}});
    layout.tensors.emplace_back(name, std::move(shape), std::move(pieces));
  }
  return layout;
}

Json lineage_json(const Lineage& lineage) {
  Json lines = Json::array();
  for (auto& l : lineage) {
    lines.push_back({{"line", l.number}, {"from_step", l.from_step}, {"from_xxh3", l.from_digest}, {"from", l.from}});
    if (!l.why.empty()) lines.back()["why"] = l.why;
    if (l.way == WayBack()) continue;
    const auto ways = [](const Ways& of) { return Json{{"reached", of.reached}, {"times", of.times}}; };
    Json left_out = Json::array();
    for (const LeftOut& part : l.way.left_out) left_out.push_back({{"after", part.after}, {"samples", part.samples}});
    lines.back()["way_back"] = {{"spikes", ways(l.way.spikes)}, {"faults", ways(l.way.faults)}, {"left_out", left_out}};
  }
  return lines;
}

Lineage parse_lineage(const Json& j) {
  Lineage lineage;
  for (auto& l : j) {
    lineage.push_back({l.at("line"), l.at("from_step"), l.at("from_xxh3"), l.at("from")});
    // Older versions wrote none of these.
    if (l.contains("why")) lineage.back().why = l.at("why").get<std::string>();
    if (l.contains("way_back")) {
      const Json& way = l.at("way_back");
      const auto ways = [](const Json& of) { return Ways{.reached = of.at("reached"), .times = of.at("times")}; };
      lineage.back().way = {.spikes = ways(way.at("spikes")), .faults = ways(way.at("faults"))};
      for (auto& part : way.at("left_out"))
        lineage.back().way.left_out.push_back({.after = part.at("after"), .samples = part.at("samples")});
    }
  }
  if (lineage.empty()) throw std::runtime_error("its lineage is empty");
  return lineage;
}

Json data_json(const std::vector<CheckpointData>& data) {
  Json files = Json::array();
  for (const CheckpointData& file : data) {
    files.push_back({{"path", file.path},
                     {"xxh3", file.digest},
                     {"tokens", file.tokens},
                     {"token_bytes", file.token_bytes},
                     {"file_bytes", file.bytes},
                     {"share", file.share}});
    if (!file.documents.empty()) files.back()["documents_xxh3"] = file.documents;
  }
  return files;
}

std::vector<CheckpointData> parse_data(const Json& j) {
  std::vector<CheckpointData> data;
  for (auto& file : j)
    data.push_back({.path = file.at("path"),
                    .digest = file.at("xxh3"),
                    .tokens = file.at("tokens"),
                    .token_bytes = file.at("token_bytes"),
                    .bytes = file.at("file_bytes"),
                    .share = file.at("share"),
                    .documents = file.value("documents_xxh3", "")});
  return data;
}

Json values_json(const std::vector<CheckpointValue>& values) {
  Json all = Json::object();
  for (const CheckpointValue& value : values) {
    if (value.list)
      all[value.name] = Json(value.numbers);
    else if (value.integer)
      all[value.name] = static_cast<std::int64_t>(value.number);
    else
      all[value.name] = value.number;
  }
  return all;
}

std::vector<CheckpointValue> parse_values(const Json& j) {
  std::vector<CheckpointValue> values;
  for (const Json::Member& member : j.items()) {
    if (member.value.is_array())
      values.push_back({.name = member.key, .numbers = member.value.get<std::vector<float>>(), .list = true});
    else
      values.push_back({.name = member.key, .integer = member.value.is_number_integer(), .number = member.value.get<double>()});
  }
  return values;
}

Hash128 parse_digest(const Json& j) {
  Hash128 h;
  if (!parse_hash(j.get<std::string>(), h)) throw std::runtime_error("a checksum is not 32 hexadecimal digits");
  return h;
}

/// Runs `parse`; anything that does not fit is one clear refusal.
template <class F>
auto parsing(const std::string& file, F&& parse) {
  try {
    return parse();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(ExitCode::checkpoint, "{}: its directory cannot be parsed ({}). Use the version of Tessera that wrote it.", file, e.what());
  }
}

}  // namespace

std::int64_t best_step_of(const std::vector<CheckpointValue>& values) {
  const auto found = std::ranges::find(values, best_step_value, &CheckpointValue::name);
  return found == values.end() ? -1 : static_cast<std::int64_t>(found->number);
}

std::string values_text(const std::vector<CheckpointValue>& values) { return values_json(values).dump(); }

std::string place_of(const CheckpointLayout& layout, int shard) { return layout.files.empty() ? "" : fmt::format("/shard-{}", shard); }
std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string shard_file(int file) { return fmt::format("shard-{:05}.h5", file); }

int file_count(const CheckpointLayout& layout) {
  return layout.files.empty() ? layout.shards : *std::max_element(layout.files.begin(), layout.files.end()) + 1;
}

int file_of(const CheckpointLayout& layout, int shard) {
  return layout.files.empty() ? shard : layout.files[static_cast<std::size_t>(shard)];
}

std::vector<int> shards_in(const CheckpointLayout& layout, int file) {
  std::vector<int> shards;
  for (int shard = 0; shard < layout.shards; ++shard)
    if (file_of(layout, shard) == file) shards.push_back(shard);
  return shards;
}

std::string partial_folder(const std::string& root, std::int64_t step) { return root + "/" + checkpoint_name(step) + ".partial"; }

std::int64_t slice_begin(std::int64_t elements, int holders, int k) { return elements * k / holders; }

int holder_count(const CheckpointLayout& layout, const CheckpointUnit& unit) {
  return unit.holders.empty() ? layout.shards : static_cast<int>(unit.holders.size());
}

int holder_of(const CheckpointUnit& unit, int k) { return unit.holders.empty() ? k : unit.holders[static_cast<std::size_t>(k)]; }

std::vector<UnitSlice> slices_of(const CheckpointLayout& layout, int shard) {
  std::vector<UnitSlice> slices;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    auto& unit = layout.units[u];
    auto at = std::find(unit.holders.begin(), unit.holders.end(), shard);
    if (at == unit.holders.end() && !unit.holders.empty()) continue;
    int n = holder_count(layout, unit), k = unit.holders.empty() ? shard : static_cast<int>(at - unit.holders.begin());
    slices.push_back({static_cast<int>(u), shard, slice_begin(unit.elements, n, k), slice_begin(unit.elements, n, k + 1)});
  }
  return slices;
}

std::vector<GroupSlice> slices_of_groups(const CheckpointLayout& layout, int shard) {
  std::vector<GroupSlice> all;
  const std::vector<UnitSlice> held = slices_of(layout, shard);
  for (int group = 0; group < static_cast<int>(layout.groups.size()); ++group)
    for (const UnitSlice& slice : held)
      if (layout.units[static_cast<std::size_t>(slice.unit)].lies_in(group)) all.push_back({group, slice});
  return all;
}

std::vector<PiecePart> parts_of(const CheckpointLayout& layout, const CheckpointPiece& piece) {
  auto& unit = layout.units[static_cast<std::size_t>(piece.unit)];
  std::vector<PiecePart> parts;
  for (int k = 0, n = holder_count(layout, unit); k < n; ++k) {
    UnitSlice slice{piece.unit, holder_of(unit, k), slice_begin(unit.elements, n, k), slice_begin(unit.elements, n, k + 1)};
    auto begin = std::max(slice.begin, piece.offset), end = std::min(slice.end, piece.offset + piece.box.elements());
    if (begin < end) parts.push_back({slice, begin, end});
  }
  return parts;
}

std::int64_t CheckpointLayout::bytes() const {
  std::int64_t all = 0;
  for (const CheckpointUnit& unit : units) all += bytes_of(unit);
  return all;
}

int checkpoint_format(const CheckpointLayout& layout) {
  if (std::any_of(layout.units.begin(), layout.units.end(), [](auto& u) { return !u.groups.empty(); })) return 4;
  if (!layout.files.empty()) return 3;
  bool equal = std::all_of(layout.units.begin(), layout.units.end(), [](auto& u) { return u.holders.empty(); });
  return equal && std::all_of(layout.tensors.begin(), layout.tensors.end(), [](auto& t) { return t.whole(); }) ? 1 : 2;
}

std::string layout_text(const CheckpointLayout& layout) { return layout_json(layout).dump(); }
std::string data_text(const std::vector<CheckpointData>& data) {
  return data_json(data).dump(-1, BadText::replace);  // a path may be no text
}
std::string lineage_text(const Lineage& lineage) { return lineage_json(lineage).dump(); }
Lineage parse_lineage(const std::string& text, const std::string& file) {
  return parsing(file, [&] { return parse_lineage(Json::parse(text)); });
}

void require_layout(const CheckpointLayout& layout) {
  auto fault = layout_fault(layout);
  TESSERA_REQUIRE(fault.empty(), "{}", fault);
}

std::string write_directory(const ShardDirectory& d, const CheckpointLayout& layout) {
  Json slices = Json::array();
  auto s = d.slices.begin();
  for (int shard : d.shards)
    for (auto& [group, held] : slices_of_groups(layout, shard)) {
      slices.push_back({{"group", layout.groups[static_cast<std::size_t>(group)]},
                        {"unit", layout.units[static_cast<std::size_t>(held.unit)].name},
                        {"begin", s->begin},
                        {"end", s->end},
                        {"data_at", s->data_at},
                        {"hashes_at", s->hashes_at},
                        {"hashes_xxh3", s->digest.hex()}});
      ++s;
    }
  return Json{{"step", d.step},
              {"shard", layout.files.empty() ? Json(d.shards.front()) : Json(d.shards)},
              {"shards", layout.shards},
              {"hash_block", hash_block},
              {"layout_xxh3", d.layout.hex()},
              {"structure_xxh3", d.structure.hex()},
              {"slices", slices}}
      .dump();
}

std::string write_directory(const IndexDirectory& d) {
  std::vector<std::string> shards;
  for (auto& h : d.files) shards.push_back(h.hex());
  Json index{{"step", d.meta.step},
             {"sample_cursor", d.meta.sample_cursor},
             {"seed", d.meta.seed},
             {"identity", d.meta.identity},
             {"version", d.meta.version},
             {"program", d.meta.program},
             {"lineage", lineage_json(d.meta.lineage)},
             {"hash_block", hash_block},
             {"structure_xxh3", d.structure.hex()},
             {"shard_xxh3", shards},
             {"layout", layout_json(d.layout)},
             {"deck", d.meta.deck}};
  if (!d.meta.values.empty()) index["run"] = values_json(d.meta.values);
  if (!d.meta.data.empty()) index["data"] = data_json(d.meta.data);
  return index.dump(-1, BadText::replace);  // a path may be no text
}

ShardDirectory parse_shard_directory(const std::string& text, const std::string& file) {
  return parsing(file, [&] {
    auto j = Json::parse(text);
    ShardDirectory d;
    d.step = j.at("step");
    auto& shards = j.at("shard");
    d.shards = shards.is_array() ? shards.get<std::vector<int>>() : std::vector<int>{shards.get<int>()};
    d.layout = parse_digest(j.at("layout_xxh3")), d.structure = parse_digest(j.at("structure_xxh3"));
    if (j.at("hash_block") != hash_block) throw std::runtime_error("another block size of checksums");
    for (auto& s : j.at("slices"))
      d.slices.push_back({s.at("begin"), s.at("end"), s.at("data_at"), s.at("hashes_at"), parse_digest(s.at("hashes_xxh3"))});
    return d;
  });
}

IndexDirectory parse_index_directory(const std::string& text, const std::string& file) {
  return parsing(file, [&] {
    auto j = Json::parse(text);
    IndexDirectory d;
    d.meta.step = j.at("step"), d.meta.sample_cursor = j.at("sample_cursor"), d.meta.seed = j.at("seed");
    d.meta.identity = j.at("identity"), d.meta.version = j.at("version"), d.meta.deck = j.at("deck");
    d.meta.program = j.value("program", "");
    if (j.contains("lineage")) d.meta.lineage = parse_lineage(j.at("lineage"));  // older versions wrote none
    if (j.contains("data")) d.meta.data = parse_data(j.at("data"));
    if (j.contains("run")) d.meta.values = parse_values(j.at("run"));
    if (j.at("hash_block") != hash_block) throw std::runtime_error("another block size of checksums");
    d.structure = parse_digest(j.at("structure_xxh3"));
    for (auto& h : j.at("shard_xxh3")) d.files.push_back(parse_digest(h));
    d.layout = parse_layout(j.at("layout"));
    if (auto fault = layout_fault(d.layout); !fault.empty()) throw std::runtime_error(fault);
    if (d.files.size() != static_cast<std::size_t>(file_count(d.layout))) throw std::runtime_error("the number of files does not fit");
    return d;
  });
}

}  // namespace tessera::io
