#include "io/export/hdf5_export.hpp"

#include <fmt/format.h>

#include <set>

#include "base/check.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io {

struct Hdf5ExportWriter::Impl {
  struct Place {
    std::int64_t offset = 0, bytes = 0;
  };
  explicit Impl(const std::string& path) : atomic(path) {}
  AtomicFile atomic;
  std::vector<Place> places;
  std::size_t current = 0;
  std::int64_t written = 0;  // bytes of the current entry
};

Hdf5ExportWriter::Hdf5ExportWriter(const std::string& path, const std::vector<Hdf5ExportEntry>& entries, const std::string& deck)
    : impl_(std::make_unique<Impl>(path)) {
  hdf5::File file = hdf5::File::create(impl_->atomic.file().link_path(), {.through_descriptor = true}, ExitCode::storage, path);
  file.create_text("deck", deck);
  std::set<std::string> groups;
  for (const Hdf5ExportEntry& entry : entries) {
    if (!entry.group.empty() && groups.insert(entry.group).second) file.create_group("/" + entry.group);
    const std::string name = entry.group.empty() ? entry.name : fmt::format("/{}/{}", entry.group, entry.name);
    hdf5::Dataset dataset = file.create_contiguous(name, hdf5::Element::f32, entry.shape.dims);
    impl_->places.push_back({dataset.raw_offset(), entry.shape.elements() * 4});
  }
  file.close();
}

Hdf5ExportWriter::~Hdf5ExportWriter() = default;

void Hdf5ExportWriter::append(std::span<const float> values) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  auto left = static_cast<std::int64_t>(values.size_bytes());
  while (left > 0) {
    TESSERA_REQUIRE(impl_->current < impl_->places.size(), "more values than the entries declare");
    const auto& place = impl_->places[impl_->current];
    const std::int64_t n = std::min(left, place.bytes - impl_->written);
    impl_->atomic.file().write(place.offset + impl_->written, data, static_cast<std::size_t>(n));
    data += n, left -= n, impl_->written += n;
    if (impl_->written == place.bytes) ++impl_->current, impl_->written = 0;
  }
}

void Hdf5ExportWriter::finish() {
  TESSERA_REQUIRE(impl_->current == impl_->places.size(), "{} of {} entries were written", impl_->current, impl_->places.size());
  impl_->atomic.commit();
}

}  // namespace tessera::io
