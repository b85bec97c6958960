#include "io/checkpoint/format.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

namespace tessera::io {
namespace {

using Json = nlohmann::ordered_json;

Json layout_json(const CheckpointLayout& layout) {
  Json units = Json::array(), tensors = Json::array();
  for (auto& u : layout.units) units.push_back({{"name", u.name}, {"elements", u.elements}});
  for (auto& t : layout.tensors)
    tensors.push_back(
        {{"name", t.name}, {"shape", t.shape.dims}, {"unit", layout.units[static_cast<std::size_t>(t.unit)].name}, {"offset", t.offset}});
  return {{"shards", layout.shards}, {"groups", layout.groups}, {"units", units}, {"tensors", tensors}};
}

/// Why a layout cannot be, or "".
std::string layout_fault(const CheckpointLayout& layout) {
  if (layout.shards < 1) return "no shards";
  auto plain = [](const std::string& name) { return !name.empty() && name != "." && name.find('/') == std::string::npos; };
  std::set<std::string> units, tensors, groups;
  for (auto& g : layout.groups)
    if (!plain(g) || !groups.insert(g).second) return fmt::format("group name '{}' is empty, has a slash or comes twice", g);
  for (auto& u : layout.units) {
    if (!plain(u.name) || !units.insert(u.name).second) return fmt::format("unit name '{}' is empty, has a slash or comes twice", u.name);
    if (u.elements < 0 || u.elements > (std::int64_t{1} << 46)) return fmt::format("unit {} has {} elements", u.name, u.elements);
  }
  for (auto& t : layout.tensors) {
    if (!plain(t.name) || !tensors.insert(t.name).second)
      return fmt::format("tensor name '{}' is empty, has a slash or comes twice", t.name);
    if (t.unit < 0 || t.unit >= static_cast<int>(layout.units.size())) return fmt::format("tensor {} is in no unit", t.name);
    auto most = layout.units[static_cast<std::size_t>(t.unit)].elements;
    std::int64_t n = 1;
    for (auto d : t.shape.dims) {
      if (d < 0 || (d > 0 && n > std::numeric_limits<std::int64_t>::max() / d))
        return fmt::format("tensor {} has an impossible shape", t.name);
      n *= d;
    }
    if (t.offset < 0 || t.offset > most || n > most - t.offset) return fmt::format("tensor {} lies outside its unit", t.name);
  }
  return "";
}

CheckpointLayout parse_layout(const Json& j) {
  CheckpointLayout layout;
  layout.shards = j.at("shards").get<int>();
  layout.groups = j.at("groups").get<std::vector<std::string>>();
  std::unordered_map<std::string, int> numbers;
  for (auto& u : j.at("units")) {
    numbers[u.at("name").get<std::string>()] = static_cast<int>(layout.units.size());
    layout.units.push_back({u.at("name").get<std::string>(), u.at("elements").get<std::int64_t>()});
  }
  for (auto& t : j.at("tensors"))
    layout.tensors.push_back({t.at("name").get<std::string>(), Shape(t.at("shape").get<std::vector<std::int64_t>>()),
                              numbers.at(t.at("unit").get<std::string>()), t.at("offset").get<std::int64_t>()});
  return layout;
}

Json lineage_json(const Lineage& lineage) {
  Json lines = Json::array();
  for (auto& l : lineage) lines.push_back({{"line", l.number}, {"from_step", l.from_step}, {"from_xxh3", l.from_digest}, {"from", l.from}});
  return lines;
}

Lineage parse_lineage(const Json& j) {
  Lineage lineage;
  for (auto& l : j) lineage.push_back({l.at("line"), l.at("from_step"), l.at("from_xxh3"), l.at("from")});
  if (lineage.empty()) throw std::runtime_error("its lineage is empty");
  return lineage;
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
    fail(ExitCode::checkpoint, "{}: its directory cannot be understood ({}). Use the version of Tessera that wrote it.", file, e.what());
  }
}

/// Appends the boxes of [begin, end) of the array dims[d..], with `prefix` fixing the dims before.
void add_slabs(const std::vector<std::int64_t>& dims, std::size_t d, std::vector<std::int64_t>& prefix, std::int64_t begin,
               std::int64_t end, std::vector<hdf5::Slab>& out) {
  if (begin >= end) return;
  auto emit = [&](std::int64_t first, std::int64_t count) {
    if (count <= 0) return;
    hdf5::Slab s{prefix, std::vector<std::int64_t>(prefix.size(), 1)};
    s.start.push_back(first), s.count.push_back(count);
    for (auto k = d + 1; k < dims.size(); ++k) s.start.push_back(0), s.count.push_back(dims[k]);
    out.push_back(std::move(s));
  };
  if (d + 1 == dims.size()) return emit(begin, end - begin);
  std::int64_t row = 1;
  for (auto k = d + 1; k < dims.size(); ++k) row *= dims[k];
  auto inside = [&](std::int64_t r, std::int64_t from, std::int64_t to) {
    prefix.push_back(r);
    add_slabs(dims, d + 1, prefix, from, to, out);
    prefix.pop_back();
  };
  std::int64_t first = begin / row, last = end / row;  // whole rows are [ceil(begin), last)
  if (first == last) return inside(first, begin % row, end % row);
  if (begin % row != 0) inside(first++, begin % row, row);
  emit(first, last - first);
  inside(last, 0, end % row);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string shard_file(int shard) { return fmt::format("shard-{:05}.h5", shard); }
std::string partial_folder(const std::string& root, std::int64_t step) { return root + "/" + checkpoint_name(step) + ".partial"; }
std::int64_t slice_begin(std::int64_t elements, int shards, int shard) { return elements * shard / shards; }

std::string layout_text(const CheckpointLayout& layout) { return layout_json(layout).dump(); }
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
  for (std::size_t i = 0; i < d.slices.size(); ++i) {
    auto& s = d.slices[i];
    slices.push_back({{"group", layout.groups[i / layout.units.size()]},
                      {"unit", layout.units[i % layout.units.size()].name},
                      {"begin", s.begin},
                      {"end", s.end},
                      {"data_at", s.data_at},
                      {"hashes_at", s.hashes_at},
                      {"hashes_xxh3", s.digest.hex()}});
  }
  return Json{{"step", d.step},
              {"shard", d.shard},
              {"shards", layout.shards},
              {"hash_block", hash_block},
              {"layout_xxh3", d.layout.hex()},
              {"structure_xxh3", d.structure.hex()},
              {"slices", slices}}
      .dump();
}

std::string write_directory(const IndexDirectory& d) {
  std::vector<std::string> shards;
  for (auto& h : d.shards) shards.push_back(h.hex());
  return Json{{"step", d.meta.step},
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
              {"deck", d.meta.deck}}
      .dump();
}

ShardDirectory parse_shard_directory(const std::string& text, const std::string& file) {
  return parsing(file, [&] {
    auto j = Json::parse(text);
    ShardDirectory d;
    d.step = j.at("step"), d.shard = j.at("shard");
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
    if (j.at("hash_block") != hash_block) throw std::runtime_error("another block size of checksums");
    d.structure = parse_digest(j.at("structure_xxh3"));
    for (auto& h : j.at("shard_xxh3")) d.shards.push_back(parse_digest(h));
    d.layout = parse_layout(j.at("layout"));
    if (auto fault = layout_fault(d.layout); !fault.empty()) throw std::runtime_error(fault);
    if (d.shards.size() != static_cast<std::size_t>(d.layout.shards)) throw std::runtime_error("the number of shards does not fit");
    return d;
  });
}

std::vector<hdf5::Slab> flat_range_slabs(const std::vector<std::int64_t>& dims, std::int64_t begin, std::int64_t end) {
  std::vector<hdf5::Slab> out;
  std::vector<std::int64_t> prefix;
  add_slabs(dims, 0, prefix, begin, end, out);
  return out;
}

}  // namespace tessera::io
