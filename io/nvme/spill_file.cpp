#include "io/nvme/spill_file.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"
#include "io/nvme/spill_engine.hpp"

namespace tessera::io {

std::string UnderWay::text() const {
  return fmt::format("{} {} at byte {} of {} for {}, for {:.1f} s", write ? "writes" : "reads", human_bytes(static_cast<double>(bytes)),
                     offset, file, unit, seconds);
}

SpillFile::SpillFile(const SpillOptions& options) : engine_(std::make_unique<SpillEngine>(options)) {}
SpillFile::~SpillFile() = default;
SpillFile::SpillFile(SpillFile&&) noexcept = default;
SpillFile& SpillFile::operator=(SpillFile&&) noexcept = default;

std::int64_t SpillFile::bytes() const { return engine_->bytes(); }

SpillFile::Ticket SpillFile::read(std::int64_t offset, std::span<std::byte> to, std::string unit) {
  return engine_->submit(false, offset, to.data(), static_cast<std::int64_t>(to.size()), std::move(unit));
}

SpillFile::Ticket SpillFile::write(std::int64_t offset, std::span<const std::byte> from, std::string unit) {
  // A request has one kind of pointer; of a write it is only read.
  return engine_->submit(true, offset, const_cast<std::byte*>(from.data()), static_cast<std::int64_t>(from.size()), std::move(unit));
}

void SpillFile::wait(const Ticket& t) const { engine_->wait(*t); }
bool SpillFile::ended(const Ticket& t) const { return engine_->ended(*t); }
bool SpillFile::ended_within(const Ticket& t, double seconds) const { return engine_->ended(*t, seconds); }
void SpillFile::drain() const { engine_->drain(); }
std::vector<UnderWay> SpillFile::under_way() const { return engine_->under_way(); }
std::string SpillFile::how() const { return engine_->how(); }

void SpillFile::abandon() noexcept { (void)engine_.release(); }

void SpillFile::close() {
  engine_->close();
  engine_.reset();
}

}  // namespace tessera::io
