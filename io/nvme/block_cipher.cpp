#include "io/nvme/block_cipher.hpp"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/check.hpp"

namespace tessera::io {
namespace {

void require_openssl(bool ok, const char* what) {
  if (ok) return;
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  fail(ExitCode::environment,
       "OpenSSL cannot {}: {}. Check its installation (openssl list -cipher-algorithms), or set nvme.encrypt = false.", what, reason);
}

using Context = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

Context make_context(const CipherKey& key, int encrypt) {
  Context c(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  require_openssl(c && EVP_CipherInit_ex(c.get(), EVP_aes_256_xts(), nullptr, key.data(), nullptr, encrypt) == 1, "set up AES-256-XTS");
  return c;
}

void run(EVP_CIPHER_CTX* context, std::int64_t first_sector, const std::byte* from, std::byte* to, std::int64_t bytes) {
  TESSERA_REQUIRE(bytes % SectorCipher::sector == 0);
  for (std::int64_t at = 0; at < bytes; at += SectorCipher::sector) {
    unsigned char tweak[16] = {};
    const auto number = static_cast<std::uint64_t>(first_sector + at / SectorCipher::sector);
    for (int i = 0; i < 8; ++i) tweak[i] = static_cast<unsigned char>(number >> (8 * i));
    int written = 0;
    const bool ok = EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, tweak, -1) == 1 &&
                    EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(to + at), &written,
                                     reinterpret_cast<const unsigned char*>(from + at), static_cast<int>(SectorCipher::sector)) == 1;
    require_openssl(ok && written == SectorCipher::sector, "encrypt a sector");
  }
}

}  // namespace

CipherKey::CipherKey() { require_openssl(RAND_priv_bytes(bytes_.data(), static_cast<int>(bytes_.size())) == 1, "make a random key"); }
CipherKey::~CipherKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

struct SectorCipher::Contexts {
  Context encrypt, decrypt;  // OpenSSL overwrites their keys when they go
};

SectorCipher::SectorCipher(const CipherKey& key) : contexts_(new Contexts{make_context(key, 1), make_context(key, 0)}) {}
SectorCipher::SectorCipher(SectorCipher&&) noexcept = default;
SectorCipher::~SectorCipher() = default;

void SectorCipher::encrypt(std::int64_t first_sector, const std::byte* from, std::byte* to, std::int64_t bytes) {
  run(contexts_->encrypt.get(), first_sector, from, to, bytes);
}

void SectorCipher::decrypt(std::int64_t first_sector, const std::byte* from, std::byte* to, std::int64_t bytes) {
  run(contexts_->decrypt.get(), first_sector, from, to, bytes);
}

}  // namespace tessera::io
