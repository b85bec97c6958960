// How MPI is told where elements lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "base/types.hpp"
#include "topology/failure/mpi.hpp"

namespace tessera {

inline MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::bf16:  // moved as bits; sums of both are ours
    case DType::f16:
    case DType::u16:
      return MPI_UINT16_T;
    case DType::e4m3:
    case DType::e5m2:
      return MPI_BYTE;
  }
  fail(ExitCode::internal, "no type of MPI's for element type {}", static_cast<int>(dtype));
}

/// `count` elements whose copies stand `stride` elements apart: with it MPI places the blocks of all ranks in one call.
class BlockType {
 public:
  BlockType(DType dtype, std::int64_t count, std::int64_t stride) {
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_CHECK(MPI_Type_contiguous(static_cast<int>(count), mpi_type(dtype), &block));
    MPI_CHECK(MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(stride * static_cast<std::int64_t>(size_of(dtype))), &type_));
    MPI_CHECK(MPI_Type_commit(&type_));
    MPI_CHECK(MPI_Type_free(&block));
  }
  ~BlockType() { MPI_Type_free(&type_); }
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace tessera
