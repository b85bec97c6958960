// Encryption of what is spilled: AES-256-XTS (IEEE 1619) through OpenSSL, as disks are encrypted.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera::io {

/// A random key of a process. It is overwritten when it goes; no file ever holds it.
class CipherKey {
 public:
  CipherKey();
  ~CipherKey();
  CipherKey(const CipherKey&) = delete;
  CipherKey& operator=(const CipherKey&) = delete;
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, 64> bytes_;
};

/// Encrypts and decrypts sectors; each sector's number is its tweak, so equal sectors look different. One thread at a time.
class SectorCipher {
 public:
  static constexpr std::int64_t sector = 4096;
  explicit SectorCipher(const CipherKey&);
  SectorCipher(SectorCipher&&) noexcept;
  ~SectorCipher();
  /// Whole sectors; `from` and `to` may be the same.
  void encrypt(std::int64_t first_sector, const std::byte* from, std::byte* to, std::int64_t bytes);
  void decrypt(std::int64_t first_sector, const std::byte* from, std::byte* to, std::int64_t bytes);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace tessera::io
